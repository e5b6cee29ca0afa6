//! Replies to questions about the model, which need no sequence slot.

use flashplan::Tokenizer;

use super::super::questions::{Question, Reply};
use super::super::request::{Ask, Refusal};
use super::super::{Job, Told};
use super::Desk;

impl Desk<'_, '_> {
    /// Answers a question. The listener is given the memory of the reply before the reply is written.
    pub(super) fn reply(&self, job: &Job) {
        let Ask::Question(question) = &job.request.ask else { return };
        let told = self.answer_to(question, job).map_or_else(Told::Failed, Told::Said);
        // a client that hung up is told nothing
        job.told.send(told).ok();
    }

    fn answer_to(&self, question: &Question, job: &Job) -> Result<String, Refusal> {
        let _making = self.room.take(self.prompt_bytes(job)).map_err(|short| short.refusal("the prompt"))?;
        let reply = self.found(question)?;
        let tokenizer = self.session.tokenizer();
        let piece = |token: u32| tokenizer.piece(token).unwrap_or_default();
        let bytes = reply.bytes_max(piece);
        job.told.charge(self.room.take(bytes).map_err(|short| short.refusal("the reply"))?);
        Ok(reply.json(piece, bytes))
    }

    /// The tokens or the number that a question asks for.
    fn found(&self, question: &Question) -> Result<Reply, Refusal> {
        let tokenizer = self.session.tokenizer();
        Ok(match question {
            Question::Tokens { text, with_beginning, with_special, with_pieces } => {
                let mut tokens = if *with_special {
                    tokenizer.encode_rendered(text, &[])
                } else {
                    tokenizer.encode(text, false)
                };
                if *with_beginning && tokenizer.adds_bos() {
                    tokens.splice(0..0, tokenizer.bos());
                }
                Reply::Tokens { tokens, with_pieces: *with_pieces, context: self.session.context() }
            }
            Question::Text(tokens) => {
                check(tokens, tokenizer)?;
                Reply::Text(tokens.clone())
            }
            Question::Prompt(request) => Reply::Prompt(self.conversation(request)?.0.tokens),
            Question::Count(request) => Reply::Count(self.conversation(request)?.0.tokens.len()),
        })
    }
}

/// Refuses tokens that the vocabulary does not have.
fn check(tokens: &[u32], tokenizer: &Tokenizer) -> Result<(), Refusal> {
    let most = tokenizer.vocabulary().saturating_sub(1);
    match tokens.iter().find(|&&token| token as usize > most) {
        Some(token) => {
            Err(Refusal::invalid(Some("tokens"), format!("there is no token {token}; they go to {most}")))
        }
        None => Ok(()),
    }
}
