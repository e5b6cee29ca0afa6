//! Generates text with the engine as a library: `embed PLAN PROMPT [TOKENS]`.
#![allow(clippy::print_stdout, reason = "an example that prints text")]

use std::io::Write as _;

use flashplan::{Engine, Model, Plan, Sampler, Sampling};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (path, prompt) = arguments.next().zip(arguments.next()).ok_or("usage: embed PLAN PROMPT [TOKENS]")?;
    let count: usize = arguments.next().map_or(Ok(64), |count| count.parse())?;

    let plan = Plan::read(path)?;
    let model = Model::open_for(&plan)?;
    let mut engine = Engine::start(&model, &plan)?;

    let tokenizer = model.tokenizer();
    let mut sampler = Sampler::new(Sampling::default())?;
    let mut text = tokenizer.stream();
    let mut session = engine.session();

    print!("{prompt}");
    let mut token = sampler.sample(session.prefill(&tokenizer.encode(&prompt, true))?);
    for _ in 0..count {
        print!("{}", text.push(token));
        std::io::stdout().flush()?;
        if tokenizer.is_end(token) || session.position() == plan.context_tokens() {
            break;
        }
        token = sampler.sample(session.decode(token)?);
    }
    println!("{}", text.finish());
    Ok(())
}
