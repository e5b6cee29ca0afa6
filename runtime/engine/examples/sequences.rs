//! Answers several prompts at once on an async runtime: `sequences PLAN TOKENS PROMPT...`, with a plan for as
//! many sequences (`plan --slots N`).
//!
//! Calls of the engine block. Each answer therefore runs on a thread of the runtime's pool for blocking work,
//! and sends its text through a channel. Dropping an answer, as a server does when its client disconnects,
//! stops only that sequence.
#![allow(clippy::print_stdout, reason = "an example that prints text")]

use std::sync::Arc;

use flashplan::{Engine, Error, Model, Plan, Sampler, Sampling, Session, StopHandle};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

/// The state of a server. Sessions own their handle of the engine and do not borrow from it.
struct Server {
    engine: Engine,
    model: Arc<Model>,
}

/// An answer in progress; dropping it stops it.
struct Answer {
    text: mpsc::Receiver<String>,
    stop: StopHandle,
    done: JoinHandle<Result<(), Error>>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

impl Server {
    /// Starts the answer to a prompt, of at most `tokens` tokens, in its own sequence.
    fn answer(&self, prompt: &str, tokens: usize) -> Result<Answer, Error> {
        let (session, model) = (self.engine.session()?, Arc::clone(&self.model));
        let (sender, text) = mpsc::channel(16);
        let (stop, tokenizer) = (session.stop_handle(), model.tokenizer());
        let prompt = tokenizer.encode(prompt, tokenizer.adds_bos());
        let done = spawn_blocking(move || generate(session, &model, &prompt, tokens, &sender));
        Ok(Answer { text, stop, done })
    }
}

/// Generates until the model ends, the limit is reached, or the receiver is dropped.
fn generate(
    mut session: Session,
    model: &Model,
    prompt: &[u32],
    tokens: usize,
    sender: &mpsc::Sender<String>,
) -> Result<(), Error> {
    let mut sampler = Sampler::new(Sampling::default())?;
    let mut text = model.tokenizer().stream();
    session.prefill(prompt)?;
    for token in session.generate(&mut sampler).take(tokens) {
        let token = token?;
        if model.tokenizer().is_end(token) || sender.blocking_send(text.push(token)).is_err() {
            break;
        }
    }
    let _nobody_reads = sender.blocking_send(text.finish());
    Ok(())
}

async fn answer_all(
    server: &Server,
    prompts: &[String],
    tokens: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let answers: Vec<Answer> =
        prompts.iter().map(|prompt| server.answer(prompt, tokens)).collect::<Result<_, _>>()?;
    for (prompt, mut answer) in prompts.iter().zip(answers) {
        let mut whole = String::new();
        while let Some(piece) = answer.text.recv().await {
            whole.push_str(&piece);
        }
        (&mut answer.done).await??;
        println!("{prompt}{whole}");
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const USAGE: &str = "usage: sequences PLAN TOKENS PROMPT...";
    let mut arguments = std::env::args().skip(1);
    let (path, tokens) = arguments.next().zip(arguments.next()).ok_or(USAGE)?;
    let (prompts, tokens): (Vec<String>, usize) = (arguments.collect(), tokens.parse()?);

    let plan = Plan::read(path)?;
    let model = Arc::new(Model::open_for(&plan)?);
    let server = Server { engine: Engine::start(&model, &plan)?, model };
    tokio::runtime::Builder::new_current_thread().build()?.block_on(answer_all(&server, &prompts, tokens))
}
