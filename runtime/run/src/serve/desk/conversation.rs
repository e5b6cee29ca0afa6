//! A conversation in the model's template, and the constraint on calls of tools in its answer.

use std::sync::Arc;

use serde_json::Value;

use super::super::super::chat::conversation::{Call, Role};
use super::super::super::chat::{Prompt, Scene, TemplateError};
use super::super::budget::Charge;
use super::super::calls::grammar as call_grammar;
use super::super::calls::{self, Calls, Format};
use super::super::enforced::Enforced;
use super::super::grammar::{self, Grammar};
use super::super::prepared::Calling;
use super::super::request::{AnswerRequest, Ask, Refusal};
use super::super::tools::Tools;
use super::Desk;

impl Desk<'_, '_> {
    /// The prompt of a conversation in the model's template, and the format of calls where the model has tools. A prompt that forces a
    /// call ends with the call's opening.
    pub(super) fn conversation(
        &self,
        request: &AnswerRequest,
    ) -> Result<(Prompt, Option<&'static Format>), Refusal> {
        let Ask::Conversation(messages) = &request.ask else { unreachable!("a conversation") };
        let tools = request.tools.as_ref();
        let tokenizer = self.session.tokenizer();
        let refused = |error: &TemplateError| Refusal::invalid(Some("messages"), error.to_string());
        let template = self.template.as_ref().map_err(refused)?;
        let format = Format::of(template.source());
        let used = tools.is_some() || messages.iter().any(|m| m.role == Role::Tool || !m.calls.is_empty());
        if used && format.is_none() {
            let message = "tools are not implemented for this model: its chat template has none, or a format of calls that is not known here";
            return Err(Refusal::invalid(Some("tools"), message));
        }
        let described = tools.map(Tools::described).unwrap_or_default();
        let written = |calls: &[Call]| format.and_then(|format| format.written(calls));
        let numbered = format.map(|format| calls::numbered(format, messages));
        let messages = numbered.as_deref().unwrap_or(messages);
        let steering = Some(&request.steering);
        let scene = Scene { messages, tools: &described, written: &written, steering, answer: true };
        let mut prompt = template.prompt(tokenizer, scene).map_err(|error| refused(&error))?;
        if let Some(prefill) = &request.prefill {
            // an answer that has begun is behind its reasoning
            let close = prompt.tags.filter(|_| prompt.reasons);
            let close = close.map_or_else(String::new, |(_, close)| format!("\n{close}\n\n"));
            let text = format!("{close}{prefill}");
            let plain = std::iter::once(close.len()..text.len()).collect::<Vec<_>>();
            prompt.tokens.extend(tokenizer.encode_rendered(&text, &plain));
            prompt.reasons = false;
        }
        let Some(format) = format.filter(|_| tools.is_some()) else { return Ok((prompt, None)) };
        if tools.is_some_and(Tools::must_call) {
            let thought = prompt.tags.filter(|_| prompt.reasons).map(|(_, close)| format!("\n{close}\n\n"));
            let prefix = thought.unwrap_or_default() + format.open();
            prompt.tokens.extend(tokenizer.encode_rendered(&prefix, &[]));
        }
        Ok((prompt, Some(format)))
    }

    /// The reader of calls in an answer, and the constraint on them.
    pub(super) fn calling(
        &self,
        tools: &Tools,
        format: &'static Format,
        schema: Option<&Value>,
    ) -> Result<Calling, Refusal> {
        let is_forced = tools.must_call();
        Ok(Calling {
            enforced: self.enforced(tools, format, schema, is_forced)?,
            calls: Some(Calls::new(format, Arc::clone(&tools.callable), is_forced)),
            marks: Some(format.marks),
            is_forced,
        })
    }

    /// The constraint on an answer with tools: a call where one is required, and the schema or a call where there is a schema. Otherwise
    /// calls are constrained from their opening on. If no tool is strict, calls that cannot be constrained are free.
    fn enforced(
        &self,
        tools: &Tools,
        format: &'static Format,
        schema: Option<&Value>,
        is_forced: bool,
    ) -> Result<Option<(Enforced, Charge)>, Refusal> {
        let (callable, several) = (&tools.callable[..], tools.parallel && !is_forced);
        if let Some(schema) = schema.filter(|_| !is_forced) {
            let refused = |error: String| Refusal::invalid(Some("response_format"), error);
            let lark =
                call_grammar::of_schema_or_calls(schema, format, callable, several).map_err(refused)?;
            let (grammar, charge) = self.grammar("response_format", lark, format.marks)?;
            return Ok(Some((Enforced::Answer(grammar), charge)));
        }
        let is_strict = is_forced || callable.iter().any(|tool| tool.strict);
        let lark = call_grammar::of_calls(format, callable, several, is_forced)
            .map_err(|error| Refusal::invalid(Some("tools"), error));
        match lark.and_then(|lark| self.grammar("tools", lark, format.marks)) {
            Ok((grammar, charge)) => Ok(Some((Enforced::calls(grammar, is_strict), charge))),
            // what other requests hold decides when there is an answer, never which
            Err(refusal) if is_strict || refusal.is_overload() => Err(refusal),
            Err(_) => Ok(None),
        }
    }

    /// A grammar, if there is room for it, with the charge for it. Some tokens that steer the model may be part of its text. A refusal
    /// names the key `param`.
    pub(super) fn grammar(
        &self,
        param: &str,
        lark: String,
        marks: &'static [&'static str],
    ) -> Result<(Grammar, Charge), Refusal> {
        // a copy for each choice or call, and the grammar that it is copied from
        let bytes = usize::try_from(grammar::bytes_max(&lark)).unwrap_or(usize::MAX);
        let charge = self.room.take(bytes).map_err(|short| short.refusal("the grammar of the answer"))?;
        let grammar = Grammar::new(lark, marks).map_err(|error| Refusal::invalid(Some(param), error))?;
        Ok((grammar, charge))
    }
}
