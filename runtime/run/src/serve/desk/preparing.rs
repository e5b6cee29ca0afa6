//! From a request to its prompt, its sampling and the memory of its answer.

use flashplan::{Sampler, Sampling};

use super::super::super::chat::conversation::Message;
use super::super::super::turn::Turn;
use super::super::budget::{Charge, TEXT_COPIES};
use super::super::embeddings::Embedding;
use super::super::enforced::Enforced;
use super::super::prepared::{Calling, Prepared};
use super::super::questions::Question;
use super::super::request::{Ask, Input, Options, Refusal};
use super::super::{Job, schema};
use super::Desk;

/// Bytes of the text of a token in an answer, as is usual, and of a choice besides.
const TEXT_BYTES: (usize, usize) = (8, 2 << 10);
/// Bytes of a likelihood until its client has it, and of a token's value in the arguments of a call.
const LIKELIHOOD_BYTES: usize = 400;
const ARGUMENT_BYTES: usize = 96;
/// Copies of a request while its prompt is made ready. Tools are held in several forms.
const PROMPT_COPIES: usize = 6;
const TOOLS_COPIES: usize = 16;
/// Likelihoods of tokens in an answer, at most: they must fit into the memory that the plan leaves.
const LIKELIHOODS: usize = 4 << 10;

impl Desk<'_, '_> {
    /// Bytes of memory for making a request's prompt ready, at most.
    pub(super) fn prompt_bytes(&self, job: &Job) -> usize {
        let encoded = |text: &str| self.session.tokenizer().encode_bytes(text);
        let of_inputs = |inputs: &[Input]| -> usize {
            let of_input = |input: &Input| match input {
                Input::Text(text) => encoded(text),
                Input::Tokens(_) => 0,
            };
            inputs.iter().map(of_input).sum()
        };
        let of_conversation = |messages: &[Message]| -> usize {
            let of_message = |message: &Message| {
                encoded(&message.content) + message.reasoning.as_deref().map_or(0, encoded)
            };
            messages.iter().map(of_message).sum()
        };
        let request = match &job.request.ask {
            Ask::Question(Question::Prompt(request) | Question::Count(request)) => request,
            _ => &job.request,
        };
        let of_texts: usize = match &request.ask {
            Ask::Conversation(messages) => of_conversation(messages),
            Ask::Prompts(inputs) | Ask::Embeddings { inputs, .. } => of_inputs(inputs),
            Ask::Question(Question::Tokens { text, .. }) => encoded(text),
            Ask::Question(_) => 0,
        };
        let copies = if request.tools.is_some() { TOOLS_COPIES } else { PROMPT_COPIES };
        of_texts + copies * job.held.bytes()
    }

    /// The prompt's tokens, and how the answer's are drawn; everything that can be known before is checked. The listener is given the
    /// memory that its answer may take.
    pub(super) fn prepare(&self, job: &Job) -> Result<Prepared, Refusal> {
        let request = &job.request;
        let tokenizer = self.session.tokenizer();
        let making = self.room.take(self.prompt_bytes(job)).map_err(|short| short.refusal("the prompt"))?;
        if let Ask::Embeddings { inputs, dimensions } = &request.ask {
            return self.prepare_embeddings(job, inputs, *dimensions, making);
        }
        let options = &request.options;
        let mut calling = Calling::default();
        let mut turn = Turn {
            reasons: None,
            named: false,
            tags: None,
            reasoning_most: request.steering.budget,
            most: request.options.max_tokens.unwrap_or(usize::MAX),
            marks: None,
        };
        let (prompts, ignored, param) = match &request.ask {
            Ask::Conversation(_) => {
                let (prompt, format) = self.conversation(request)?;
                if let (Some(tools), Some(format)) = (&request.tools, format) {
                    calling = self.calling(tools, format, options.schema.as_ref())?;
                }
                (turn.reasons, turn.named, turn.tags) = (Some(prompt.reasons), prompt.named, prompt.tags);
                turn.reasons = turn.reasons.filter(|_| !calling.is_forced);
                (vec![prompt.tokens], prompt.unread, "messages")
            }
            Ask::Prompts(inputs) => {
                let tokens = |input: &Input| match input {
                    Input::Text(text) => tokenizer.encode(text, tokenizer.adds_bos()),
                    Input::Tokens(tokens) => tokens.clone(),
                };
                (inputs.iter().map(tokens).collect(), Vec::new(), "prompt")
            }
            Ask::Embeddings { .. } | Ask::Question(_) => unreachable!("they were prepared or answered"),
        };
        turn.marks = calling.marks;
        drop(making);
        let context = self.session.context();
        for tokens in &prompts {
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.session.vocabulary()) {
                let most = self.session.vocabulary() - 1;
                return Err(Refusal::invalid(
                    Some(param),
                    format!("there is no token {token}; they go to {most}"),
                ));
            }
            if tokens.is_empty() {
                return Err(Refusal::invalid(Some(param), "the prompt has no tokens; say something"));
            }
            if tokens.len() >= context {
                return Err(Refusal::too_long(param, tokens.len(), context));
            }
        }
        let told = options.likelihoods.map_or(0, |top| 1 + top);
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let echoed = if options.echo { longest } else { 0 };
        let room = echoed + turn.most.min(context - longest + 1);
        // other sequence slots may ask for as many
        let likelihoods = LIKELIHOODS / self.seats.len().max(1);
        if prompts.len() * options.choices * room * told > likelihoods {
            let message = format!(
                "{} answers of up to {room} tokens with {told} likelihoods each are more than the {likelihoods} that are kept at once; set a smaller `max_tokens`, or ask for fewer",
                options.choices
            );
            return Err(Refusal::invalid(Some("logprobs"), message));
        }
        let vocabulary = self.session.vocabulary();
        if let Some((token, _)) = options.logit_bias.iter().find(|(token, _)| *token as usize >= vocabulary) {
            let message = format!("there is no token {token}; they go to {}", vocabulary - 1);
            return Err(Refusal::invalid(Some("logit_bias"), message));
        }
        let sampling = self.sampling(options);
        Sampler::new(sampling.clone()).map_err(|error| Refusal::invalid(None, error.to_string()))?;
        let refused = |error: String| Refusal::invalid(Some("response_format"), error);
        let enforced = match &options.schema {
            // beside tools it has been enforced with them
            Some(schema) if calling.calls.is_none() => {
                let json = schema::grammar(schema).map_err(refused)?;
                let (grammar, charge) = self.grammar("response_format", format!("start: {json}"), &[])?;
                Some((Enforced::Answer(grammar), charge))
            }
            _ => calling.enforced,
        };
        let text_room = TEXT_BYTES.0 * room + TEXT_BYTES.1;
        let arguments = if request.tools.is_some() { ARGUMENT_BYTES * room } else { 0 };
        let choice = TEXT_COPIES * text_room + LIKELIHOOD_BYTES * told * room + arguments;
        let choices = prompts.len() * options.choices;
        let tokens: usize = prompts.iter().map(Vec::len).sum();
        let bytes = choices * choice + 3 * (job.held.bytes() + tokens * size_of::<u32>());
        let what = || format!("`n` {choices} of an answer of up to {room} tokens");
        job.told.charge(self.room.take(bytes).map_err(|short| short.refusal(&what()))?);
        let mut prompts = prompts.into_iter();
        let prompt = prompts.next().unwrap_or_default();
        let tells_prompt = options.echo && options.likelihoods.is_some();
        Ok(Prepared {
            read: if tells_prompt { 0 } else { prompt.len() },
            prompt,
            rest: prompts,
            echo: options.echo,
            tells_prompt,
            ignored,
            turn,
            sampling,
            enforced,
            text_room,
            calls: calling.calls,
            embedding: None,
        })
    }

    /// The tokens of texts that become a vector each.
    pub(super) fn prepare_embeddings(
        &self,
        job: &Job,
        inputs: &[Input],
        dimensions: Option<usize>,
        making: Charge,
    ) -> Result<Prepared, Refusal> {
        let refused = |message: String| Refusal::invalid(Some("input"), message);
        let (pooling, width) = self.session.pooling();
        if let Some(dimensions) = dimensions.filter(|&dimensions| dimensions != width) {
            let message = format!(
                "`dimensions` is {dimensions}, and other than the model's {width} are not implemented here; leave it away"
            );
            return Err(Refusal::invalid(Some("dimensions"), message));
        }
        let (context, vocabulary) = (self.session.context(), self.session.vocabulary());
        let mut texts = Vec::with_capacity(inputs.len());
        for (index, input) in inputs.iter().enumerate() {
            let tokens = self.tokens_of(input);
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
                return Err(refused(format!("there is no token {token}; they go to {}", vocabulary - 1)));
            }
            if tokens.is_empty() {
                return Err(refused(format!("text {index} has no tokens; say something")));
            }
            if tokens.len() > context {
                let count = tokens.len();
                return Err(refused(format!(
                    "text {index} has {count} tokens, and the plan's context has room for {context}; cut it, or plan with a larger --context"
                )));
            }
            texts.push(tokens);
        }
        let rest = texts.split_off(1);
        let embedding = Embedding::new(pooling, width, rest);
        // their tokens are there until the last text is read
        let tokens = embedding.tokens() + texts.first().map_or(0, Vec::len);
        drop(making);
        let bytes = embedding.bytes_max + 3 * size_of::<u32>() * tokens;
        job.told.charge(self.room.take(bytes).map_err(|short| short.refusal("the vectors"))?);
        Ok(Prepared {
            read: texts.last().map_or(0, Vec::len),
            prompt: texts.pop().unwrap_or_default(),
            rest: Vec::new().into_iter(),
            echo: false,
            tells_prompt: false,
            ignored: Vec::new(),
            turn: Turn {
                reasons: None,
                named: false,
                tags: None,
                reasoning_most: None,
                most: 0,
                marks: None,
            },
            sampling: self.sampling.clone(),
            enforced: None,
            text_room: 0,
            calls: None,
            embedding: Some(embedding),
        })
    }

    /// The tokens of a text in the model's form: with beginning and end tokens, if it has them. Tokens are taken as they are.
    pub(super) fn tokens_of(&self, input: &Input) -> Vec<u32> {
        let tokenizer = self.session.tokenizer();
        match input {
            Input::Tokens(tokens) => tokens.clone(),
            Input::Text(text) => {
                let mut tokens = tokenizer.encode(text, tokenizer.adds_bos());
                tokens.extend(tokenizer.eos().filter(|_| tokenizer.adds_eos()));
                tokens
            }
        }
    }

    /// Sampling of a request; values that it leaves out are the command line's.
    fn sampling(&self, options: &Options) -> Sampling {
        let mut sampling = self.sampling.clone();
        let set = |value: &mut f32, asked: Option<f32>| *value = asked.unwrap_or(*value);
        set(&mut sampling.temperature, options.temperature);
        set(&mut sampling.top_p, options.top_p);
        set(&mut sampling.min_p, options.min_p);
        set(&mut sampling.repeat_penalty, options.repeat_penalty);
        set(&mut sampling.presence_penalty, options.presence_penalty);
        set(&mut sampling.frequency_penalty, options.frequency_penalty);
        sampling.top_k = options.top_k.unwrap_or(sampling.top_k);
        sampling.logit_bias = options.logit_bias.clone();
        // another draw for each, and the same ones after every start
        sampling.seed = options.seed.unwrap_or_else(|| sampling.seed.wrapping_add(self.draws));
        sampling
    }
}
