//! Reading a body takes no more memory than it weighs.

#[path = "../src/serve/weight.rs"]
mod weight;

use peak_alloc::PeakAlloc;
use serde::Deserialize;
use serde_json::{Map, Value};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// As requests are read: lists of several kinds are tried one after another.
#[derive(Deserialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "read, and not looked at")]
enum Input {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// Reads a body as the server does; the memory that it took, and what is left of it.
fn read(body: &[u8]) -> (usize, usize) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let kept = serde_json::from_slice::<Map<String, Value>>(body).ok().map(|mut keys| {
        keys.retain(|_, value| !value.is_null());
        let input = keys.remove("input").map(serde_json::from_value::<Input>);
        let arguments = keys
            .remove("arguments")
            .map(|text| serde_json::from_str::<Value>(text.as_str().unwrap_or_default()));
        (keys, input, arguments)
    });
    let (peak, left) = (MEMORY.peak_usage() - before, MEMORY.current_usage() - before);
    drop(kept);
    (peak, left)
}

#[test]
fn reading_a_body_takes_no_more_memory_than_it_weighs() {
    let many = |one: &str, count: usize| vec![one; count].join(",");
    let text = "let x = 1;\\n".repeat(2000);
    let mut over = Vec::new();
    for count in [1, 3, 4, 5, 100, 1025, 5000] {
        for body in [
            format!("{{\"input\":[{}]}}", many("[1]", count)),
            format!("{{\"input\":[{}]}}", many("[[]]", count)),
            format!("{{\"input\":[{}]}}", many("1", count)),
            format!("{{\"input\":[{}]}}", many("\"a\"", count)),
            format!("{{\"input\":[{}]}}", many("\"\\u0061\"", count)),
            format!("{{\"input\":[{}]}}", many("{}", count)),
            format!("{{\"messages\":[{}]}}", many(r#"{"role":"user","content":"a"}"#, count)),
            format!("{{\"messages\":[{}]}}", many(r#"{"a":{"b":[{"c":1}]}}"#, count)),
            format!("{{\"arguments\":\"[{}]\"}}", many("[1]", count)),
            format!("{{\"argument\\u0073\":\"[{}]\"}}", many("{}", count)),
            format!("{{{}}}", (0..count).map(|at| format!("\"{at}\":0")).collect::<Vec<_>>().join(",")),
            format!("{{\"input\":\"{}\"}}", "a".repeat(count)),
            format!("{{\"input\":\"{}\"}}", &text[..count]),
            "[".repeat(count),
            format!("\"{}", "\\".repeat(count)),
            format!("{{\"input\":[{}", many("[1]", count)),
        ] {
            let (weight, (peak, left)) = (weight::of(body.as_bytes()), read(body.as_bytes()));
            let start = &body[..body.len().min(40)];
            if peak > weight.reading + 1024 || left > weight.request + 1024 {
                over.push(format!("{start}, {count}: {peak}, then {left} of {weight:?}"));
            }
        }
    }
    assert!(over.is_empty(), "{over:#?}");
    // and what people write weighs little more than itself
    let said =
        weight::of(format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}").as_bytes());
    assert!(said.reading < 6 * text.len() && said.request < text.len() + 2000, "{said:?}");
}
