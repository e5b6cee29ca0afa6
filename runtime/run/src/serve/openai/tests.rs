//! Requests as clients write them, requests that are refused, and answers as clients read them.

use super::super::request::Input;
use super::super::tools::ToolChoice;
use super::*;

const SERVED: Served<'static> = Served { model: "m", strict: true, stored: None };

fn refused(body: &Value) -> String {
    let refusal = chat(body.to_string().as_bytes(), &SERVED).expect_err("it is refused");
    assert_eq!(refusal.json()["error"]["message"], refusal.message.as_str());
    refusal.message
}

fn asks(extra: Value) -> Value {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "Hi" }] });
    let (Some(body_keys), Value::Object(extra)) = (body.as_object_mut(), extra) else { panic!("objects") };
    body_keys.extend(extra);
    body
}

#[test]
fn a_request_as_clients_write_it_is_read() {
    let body = json!({
        "model": "m",
        "messages": [
            { "role": "developer", "content": "Be short." },
            { "role": "user", "content": [{ "type": "text", "text": "Hi" }, { "type": "text", "text": "!" }] },
            { "role": "assistant", "content": "Hello", "reasoning_content": "greet" },
            { "role": "user", "content": "Again", "name": "ann" },
            { "role": "assistant", "content": null, "refusal": null, "audio": null, "annotations": [], "tool_calls": [{
                "id": "1", "type": "function", "index": 0, "function": { "name": "f", "arguments": "" } }] },
            { "role": "tool", "content": [{ "type": "text", "text": "no", "cache_control": { "type": "ephemeral" } }],
                "tool_call_id": "1", "name": "f" },
        ],
        "temperature": 0.5, "top_p": 1, "top_k": 3, "min_p": 0.0, "seed": 7, "stop": "x", "max_tokens": 5,
        "stream": true, "stream_options": { "include_usage": true },
        "n": 2, "presence_penalty": 0.5, "frequency_penalty": -1, "logit_bias": { "17": -100 }, "tools": [],
        "response_format": { "type": "text" }, "user": "someone", "logprobs": true, "top_logprobs": 3,
        "store": true, "service_tier": "auto", "metadata": { "a": "b" }, "max_completion_tokens": 5, "colour": "red",
        "reasoning_effort": "low",
    });
    let request = chat(body.to_string().as_bytes(), &SERVED).unwrap();
    let Ask::Conversation(messages) = &request.ask else { panic!("{request:?}") };
    assert_eq!(messages[1], Message::new(Role::User, "Hi!"));
    assert_eq!(messages[2].reasoning.as_deref(), Some("greet"));
    assert!(request.stream && request.usage);
    let options = request.options;
    assert_eq!((options.temperature, options.seed, options.max_tokens), (Some(0.5), Some(7), Some(5)));
    assert_eq!((options.presence_penalty, options.frequency_penalty), (Some(0.5), Some(-1.0)));
    assert_eq!((options.choices, options.likelihoods), (2, Some(3)));
    assert_eq!(request.steering.effort.as_deref(), Some("low"));
    let ignored = [
        "colour",
        "messages.audio",
        "messages.cache_control",
        "messages.name",
        "metadata",
        "service_tier",
        "store",
        "user",
    ];
    assert!(request.ignored.iter().all(|key| ignored.contains(&key.as_str())), "{:?}", request.ignored);
    assert!(request.ignored.iter().any(|key| key == "messages.name"), "{:?}", request.ignored);
    assert_eq!((options.logit_bias, options.stop), (vec![(17, -100.0)], vec!["x".to_owned()]));
}

fn tool(function: Value) -> Value {
    json!({ "tools": [{ "type": "function", "function": function }] })
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    for (extra, words) in [
        (json!({ "n": 17 }), "`n` is 17; it is 1 to 16"),
        (json!({ "n": 0 }), "`n` is 0"),
        (json!({ "best_of": 2 }), "`best_of` is not implemented"),
        (json!({ "tools": [{}] }), "`tools`: a tool has no `type`"),
        (json!({ "tools": [{ "type": "retrieval" }] }), "a tool of type `retrieval` is not implemented"),
        (tool(json!({ "name": "a b" })), "a tool is called `a b`"),
        (json!({ "tool_choice": "required" }), "`tool_choice` without `tools`"),
        (json!({ "tool_choice": "maybe" }), "`tool_choice` is `maybe`"),
        (
            json!({ "response_format": { "type": "xml" } }),
            "`response_format` of type `xml` is not implemented",
        ),
        (json!({ "response_format": { "type": "json_schema" } }), "has no `json_schema`"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a" } } }),
            "has no `schema`",
        ),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "`top_logprobs` is 21; it is 0 to 20"),
        (json!({ "top_logprobs": 2 }), "`top_logprobs` without `logprobs` says nothing"),
        (json!({ "presence_penalty": 2.1 }), "`presence_penalty` is 2.1; it is -2 to 2"),
        (json!({ "logit_bias": { "the": 1 } }), "`logit_bias` has `the`, which is no token's number"),
        (json!({ "logit_bias": { "1": -101 } }), "`logit_bias` of 1 is -101; it is -100 to 100"),
        (json!({ "temprature": 1 }), "`temprature` is unknown"),
        (json!({ "temperature": -1 }), "`temperature` is -1; it is 0 to 2"),
        (json!({ "temperature": "hot" }), "`temperature`: invalid type"),
        (json!({ "max_tokens": 0 }), "`max_tokens` is 0"),
        (json!({ "stop": [""] }), "`stop` has up to 16 texts"),
        (json!({ "reasoning_effort": "much" }), "the effort is `much`"),
        (json!({ "chat_template_kwargs": { "messages": [] } }), "`messages` is set by the server"),
        (json!({ "grammar": "root" }), "`grammar` is not implemented"),
        (json!({ "model": "gpt" }), "there is no model `gpt` here; name `m`"),
        (json!({ "messages": [] }), "`messages` is empty"),
        (
            json!({ "messages": [{ "role": "function", "content": "" }] }),
            "role `function` is not implemented",
        ),
        (json!({ "messages": [{ "role": "tool", "content": "" }] }), "`tool_call_id` belongs"),
        (
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "id": "1", "function": { "name": "f", "arguments": "[" } }] }] }),
            "the `arguments` of a call are no JSON object",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
            "content of type `image_url` is not implemented",
        ),
    ] {
        let said = refused(&asks(extra.clone()));
        assert!(said.contains(words), "{extra}: {said}");
    }
    let called = |call: Value| json!({ "messages": [{ "role": "assistant", "tool_calls": [call] }] });
    let function = json!({ "name": "f", "arguments": "{}" });
    let user = |message: Value| {
        let mut said = json!({ "role": "user", "content": "Hi" });
        said.as_object_mut().unwrap().extend(message.as_object().unwrap().clone());
        json!({ "messages": [said] })
    };
    let part = |part: Value| {
        let mut text = json!({ "type": "text", "text": "Hi" });
        text.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        user(json!({ "content": [text] }))
    };
    // keys inside that would change the answer
    for (extra, words) in [
        (
            user(json!({ "function_call": { "name": "f" } })),
            "`function_call` of a message is not implemented",
        ),
        (user(json!({ "prefix": true })), "`prefix` of a message is not implemented"),
        (user(json!({ "content": 7 })), "the content is neither a text nor a list"),
        (user(json!({ "content": ["a"] })), "a part of the content is no object"),
        (part(json!({ "type": "file" })), "content of type `file`"),
        (json!({ "messages": ["a"] }), "a message is no object"),
        (called(json!({ "id": "1", "type": "custom", "function": function })), "a call of type `custom`"),
        (called(json!({ "function": function })), "a call has no `id`"),
        (json!({ "tool_choice": { "type": "allowed_tools" } }), "has no `mode`"),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "f", "colour": 1 } } }),
            "`colour` of its function is",
        ),
        (json!({ "max_tokens": 3, "max_completion_tokens": 4 }), "`max_completion_tokens` differ"),
        (json!({ "max_tokens": "many", "max_completion_tokens": 4 }), "`max_tokens`: invalid type"),
    ] {
        let said = refused(&asks(extra.clone()));
        assert!(said.contains(words), "{extra}: {said}");
    }
    for body in ["", "[]", "{", "{\"messages\":1}"] {
        assert!(chat(body.as_bytes(), &SERVED).is_err(), "{body}");
    }
}

#[test]
fn prompts_are_texts_or_tokens_one_or_several() {
    let read = |prompt: Value| {
        let asked = completion(json!({ "prompt": prompt }).to_string().as_bytes(), &SERVED)?;
        let Ask::Prompts(prompts) = asked.ask else { panic!("no prompts") };
        Ok::<_, Refusal>(prompts)
    };
    let text = |text: &str| Input::Text(text.to_owned());
    assert_eq!(read(json!("a")).unwrap(), [text("a")]);
    assert_eq!(read(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
    assert_eq!(read(json!([1, 2])).unwrap(), [Input::Tokens(vec![1, 2])]);
    assert_eq!(read(json!([[1], [2]])).unwrap(), [Input::Tokens(vec![1]), Input::Tokens(vec![2])]);
    for wrong in [json!([-1]), json!({}), json!(7)] {
        assert!(read(wrong).unwrap_err().message.contains("a list of tokens, or a list of such lists"));
    }
}

#[test]
fn what_means_no_limit_is_none_and_any_model_is_the_one_that_is_served() {
    let asked =
        asks(json!({ "max_tokens": -1, "seed": -1, "top_k": -1, "model": "gpt-4", "stream_options": {} }));
    let served = Served { model: "m", strict: false, stored: None };
    let request = chat(asked.to_string().as_bytes(), &served).unwrap();
    let options = request.options;
    assert_eq!((options.max_tokens, options.seed, options.top_k), (None, None, Some(0)));
    assert_eq!(request.ignored, ["model", "stream_options"]);
}

#[test]
fn some_of_the_tools_may_be_called() {
    let function = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let asked = asks(json!({
        "tools": [function("a.b"), function("c"), function("d")],
        "tool_choice": { "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [function("c"), function("d")] } },
    }));
    let tools = chat(asked.to_string().as_bytes(), &SERVED).unwrap().tools.unwrap();
    let names: Vec<&str> = tools.callable.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!((names, tools.choice, tools.described().len()), (vec!["c", "d"], ToolChoice::Required, 3));
}

/// A strict tool needs no call: its arguments are held to the schema once the model calls it.
#[test]
fn a_strict_tool_is_called_or_not() {
    let tool = json!({ "type": "function", "function": { "name": "f", "strict": true, "parameters": { "type": "object" } } });
    let many: Vec<Value> =
        (0..100).map(|at| json!({ "type": "function", "function": { "name": format!("f{at}") } })).collect();
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": { "type": "object" } } });
    for choice in [json!("auto"), Value::Null] {
        let asked = asks(json!({ "tools": [tool], "tool_choice": choice, "response_format": format }));
        let request = chat(asked.to_string().as_bytes(), &SERVED).unwrap();
        let tools = request.tools.unwrap();
        assert!(tools.callable[0].strict && !tools.must_call() && request.options.schema.is_some());
    }
    let asked = asks(json!({ "tools": many })).to_string();
    assert_eq!(chat(asked.as_bytes(), &SERVED).unwrap().tools.unwrap().callable.len(), 100);
}

#[test]
fn thinking_is_steered_in_the_words_of_several_makers() {
    let steering = |extra: Value| chat(asks(extra).to_string().as_bytes(), &SERVED).unwrap().steering;
    let off = [
        json!({ "thinking": { "type": "disabled" } }),
        json!({ "enable_thinking": false }),
        json!({ "chat_template_kwargs": { "enable_thinking": false } }),
        json!({ "reasoning": { "enabled": false } }),
        json!({ "reasoning_effort": "none" }),
        json!({ "thinking_budget": 0 }),
    ];
    for extra in off {
        assert_eq!(steering(extra.clone()).enabled, Some(false), "{extra}");
    }
    assert_eq!(steering(json!({ "thinking": { "type": "enabled" } })).enabled, Some(true));
    assert_eq!(steering(json!({ "thinking": { "type": "enabled", "budget_tokens": 9 } })).budget, Some(9));
}

/// Among tokens with the same text the chosen one counts, and then the likeliest.
#[test]
fn alternatives_of_the_same_text_do_not_hide_the_chosen_one() {
    let request = completion(br#"{"prompt": "a", "logprobs": 3}"#, &SERVED).unwrap();
    let head = Head { id: "1".to_owned(), created: 0, model: "m".to_owned() };
    let mut form = OpenAi::new(head, false, &request);
    let byte = |byte: u8, logprob: f64| (vec![byte], logprob);
    let likelihoods = vec![
        Likelihood {
            token: vec![0xc3],
            logprob: Some(-2.0),
            top: vec![byte(0xff, -1.0), byte(0xc3, -2.0), byte(b'x', -3.0)],
        },
        Likelihood { token: vec![0xa9], logprob: Some(-0.5), top: Vec::new() },
        Likelihood { token: b"b".to_vec(), logprob: Some(-0.5), top: Vec::new() },
    ];
    let events =
        form.events(Told::Text { choice: 0, part: Channel::Answer, text: "\u{e9}b".to_owned(), likelihoods });
    let told: Value = serde_json::from_str(&events[0].data).unwrap();
    let told = &told["choices"][0]["logprobs"];
    assert_eq!(told["top_logprobs"][0], json!({ "\u{fffd}": -2.0, "x": -3.0 }));
    assert_eq!(told["text_offset"], json!([0, 0, 1]));
}
