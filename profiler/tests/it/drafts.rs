//! Drafts from profile to text: what is said is what is said without them, and they are refused where nothing is known of them.
use serde_json::Value;

use crate::programs::{Profiled, done, json, number, program, refused, text};

/// Text that goes round, and text that does not.
const PROMPTS: [&str; 2] = ["let x = 1;\nlet x = 1;\nlet x = 1;\nlet", "fn main() {"];
/// Ways to choose a token.
const CHOICES: [&[&str]; 3] = [
    &["--temp", "0"],
    &["--temp", "0.8", "--seed", "7"],
    &["--temp", "0.5", "--repeat-penalty", "1.3", "--top-k", "9", "--seed", "3"],
];

#[test]
fn drafts_change_no_text_and_are_told_beside_what_is_planned_of_them() {
    let here = Profiled::kept("oxide-dense");
    let profile = plans::file::read::<plans::Model>(&here.path("model.toml")).unwrap().value;
    let drafts = profile.drafts.unwrap();
    assert!(drafts.drafted_tokens[0] > 0.0 && drafts.kept_tokens[6] >= drafts.kept_tokens[0], "{drafts:?}");
    let plain = here.plan("plain.toml", &["--mem", "40M", "--context", "256"]);
    assert_eq!(plain.speculation, None);
    let same = ["--mem", "40M", "--context", "256", "--quality", "plain.toml", "--speculate"];
    let with = here.plan("drafts.toml", &[&same[..], &["4"]].concat());
    let speculation = with.speculation.unwrap();
    assert_eq!((speculation.draft_tokens, with.decode_rows(), with.request.draft_tokens), (4, 5, Some(4)));
    assert!((speculation.tokens_per_step - 1.0 - drafts.kept_tokens[3]).abs() < 1e-4, "{speculation:?}");
    assert!(with.memory.activations_bytes > plain.memory.activations_bytes);
    assert!(with.memory.process_bytes > plain.memory.process_bytes);
    let solved_again = done(program("plan").args(["--check", "drafts.toml"]).current_dir(here.folder.path()));
    assert!(text(&solved_again.stdout).contains("the same plan.toml"), "{}", text(&solved_again.stdout));

    for prompt in PROMPTS {
        for choice in CHOICES {
            let generate = |plan: &str, count: &str| -> Value {
                let asked = ["--no-probe", "--prompt", prompt, "-n", count, "--report", "tokens.csv"];
                json(here.run(plan).args(asked).args(choice))
            };
            let [without, with] = ["plain.toml", "drafts.toml"].map(|plan| generate(plan, "90"));
            for key in ["text", "tokens", "ended", "logits_hash", "decode_tokens", "decode_last_position"] {
                assert_eq!(with[key], without[key], "{key} of {prompt:?} {choice:?}");
            }
            assert_eq!(without["drafted_tokens"], Value::Null);
            let [drafted, kept, tokens, steps, a_step] =
                ["drafted_tokens", "kept_tokens", "decode_tokens", "decode_steps", "tokens_per_step"]
                    .map(|key| number(&with, key));
            assert!(kept <= drafted && tokens == steps + kept, "{with}");
            assert!((a_step * steps / tokens - 1.0).abs() < 1e-12, "{with}");
            assert_eq!(number(&with, "tokens_per_step_predicted"), speculation.tokens_per_step);
            assert!(number(&with, "memory_peak_bytes") <= number(&with, "memory_limit_bytes"), "{with}");
            if prompt == PROMPTS[0] && choice == CHOICES[0] {
                assert!(kept > 10.0, "a text that goes round: {with}");
                let csv = std::fs::read_to_string(here.path("tokens.csv")).unwrap();
                assert_eq!(csv.lines().count() as f64, 1.0 + steps, "a heading and a line for each step");
                // the end of the text, and of the context, inside a draft
                for count in ["20", "21", "22", "23", "1000"] {
                    let [without, with] = ["plain.toml", "drafts.toml"].map(|plan| generate(plan, count));
                    assert_eq!(
                        (&with["text"], &with["ended"]),
                        (&without["text"], &without["ended"]),
                        "{count}"
                    );
                }
            }
        }
    }
    let told = done(here.run("drafts.toml").args(["--no-probe", "--prompt", PROMPTS[0], "-n", "30"]));
    let told = text(&told.stderr);
    assert!(told.contains("tokens a step") && told.contains("drafted tokens were kept, in "), "{told}");
    // a stream that is given has no drafts, and its speed is the plan's without
    let bench = json(here.run("drafts.toml").args(["--no-probe", "--bench"]));
    assert_eq!((&bench["drafted_tokens"], &bench["decode_tokens"]), (&Value::Null, &bench["decode_steps"]));
}

#[test]
fn drafts_are_planned_where_they_are_asked_for_and_something_is_known_of_them() {
    let here = Profiled::kept("oxide-dense");
    let plan = |more: &[&str]| here.plan_command("p.toml", more);
    let said = text(&done(&mut plan(&["--explain", "--speculate", "2"])).stdout);
    assert!(
        said.contains("decode, with drafts") && said.contains("Drafts of up to 2 tokens, as requested."),
        "{said}"
    );
    let said = text(&done(&mut plan(&["--explain", "--speculate", "off"])).stdout);
    assert!(!said.contains("decode, with drafts") && said.contains("No drafts were requested"), "{said}");
    // by more than plans are wrong, or not at all
    done(&mut plan(&["--speculate", "auto"]));
    let auto = plans::file::read::<plans::Plan>(&here.path("p.toml")).unwrap().value;
    assert!(auto.request.draft_tokens_auto);
    assert!(
        auto.speculation.is_none_or(|with| {
            with.decode_tokens_per_second > 1.2 * auto.expected.decode_tokens_per_second
        })
    );
    for (asked, words) in [
        (&["--speculate", "8"][..], "a draft has 1 to 7 tokens"),
        (&["--speculate", "3", "--slots", "6"], "a step has 8 rows at most"),
    ] {
        let said = refused(1, &mut plan(asked));
        assert!(said.contains(words), "{said}");
    }
    // a model that keeps all that is drafted, and a profile that does not know
    let profile = std::fs::read_to_string(here.path("model.toml")).unwrap();
    let mut profile: plans::Model = plans::file::parse(&profile, &here.path("model.toml")).unwrap();
    let drafts = profile.drafts.as_mut().unwrap();
    drafts.drafted_tokens = (1..=7).map(f64::from).collect();
    drafts.kept_tokens.clone_from(&drafts.drafted_tokens);
    plans::file::write(&profile, &here.path("sure.toml")).unwrap();
    // at the fastest level, whatever its bound: where every neuron is computed a draft's rows cost about as much as tokens
    let sure = ["--model", "sure.toml", "--explain", "--speculate", "auto", "--max-loss", "100"];
    let said = text(&done(&mut plan(&sure)).stdout);
    assert!(said.contains(" tokens are taken."), "{said}");
    profile.drafts = None;
    plans::file::write(&profile, &here.path("old.toml")).unwrap();
    for asked in ["auto", "3"] {
        let said = refused(1, &mut plan(&["--model", "old.toml", "--speculate", asked]));
        assert!(said.contains("model.toml has no [drafts]; profile the model again"), "{said}");
    }
    done(&mut plan(&["--model", "old.toml"]));
}
