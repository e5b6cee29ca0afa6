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
    let engine = Engine::start(&model, &plan)?;

    let tokenizer = model.tokenizer();
    let mut sampler = Sampler::new(Sampling::default())?;
    let mut text = tokenizer.stream();
    let mut session = engine.session()?;

    print!("{prompt}");
    session.prefill(&tokenizer.encode(&prompt, tokenizer.adds_bos()))?;
    for token in session.generate(&mut sampler).take(count) {
        let token = token?;
        if tokenizer.is_end(token) {
            break;
        }
        print!("{}", text.push(token));
        std::io::stdout().flush()?;
    }
    println!("{}", text.finish());
    Ok(())
}
