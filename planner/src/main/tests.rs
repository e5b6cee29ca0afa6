//! Tests of `main.rs`.

use super::*;
use clap::Parser as _;

#[test]
fn the_profiles_folder_is_kept_where_it_is_another() {
    for (arguments, folder) in [
        (&["plan"][..], None),
        (&["plan", "--model", "a/model.toml", "-o", "a/plan.toml"], None),
        (&["plan", "--model", "model.toml", "-o", "a/plan.toml"], None),
        (&["plan", "--model", "a/model.toml"], Some("a")),
        (&["plan", "--model", "/a/b/model.toml", "-o", "a/b/plan.toml"], Some("/a/b")),
    ] {
        let cli = Cli::try_parse_from(arguments).expect("arguments");
        assert_eq!(model_folder(&cli).as_deref(), folder, "{arguments:?}");
    }
}

#[test]
fn a_plan_whose_prompts_are_slow_is_warned_of_with_the_remedy() {
    let folder = Path::new("../plans/amd-epyc-2c-24g/oxide-dense");
    let inputs = planner::read_inputs(&folder.join("device.toml"), &folder.join("model.toml"));
    let inputs = inputs.expect("profiles");
    let mut plan = plans::file::read::<Plan>(&folder.join("plan-20M.toml")).expect("a committed plan").value;
    let long = plan.context.tokens - 1;
    assert!(long < LONG_PROMPT, "the context bounds the long prompt");
    let rate = f64::from(long)
        / prompt_seconds(&plan, long as usize, &Factors::NONE).expect("a prompt of the whole context");
    // a short prompt is slow, a long one is not
    plan.expected.decode_tokens_per_second = rate;
    plan.expected.prefill_tokens_per_second = rate / 10.0;
    assert_eq!(slow_prefill(&inputs, &plan), None);
    plan.expected.decode_tokens_per_second = 1.01 * rate;
    let said = slow_prefill(&inputs, &plan).expect("a warning");
    assert!(said.starts_with(&format!("a prompt of {long} tokens is expected at ")), "{said}");
    // of a plan without its terms, the measured prompt is known alone
    plan.terms = None;
    let most = inputs.device.capacity.plannable_bytes();
    for (objective, limit, remedy) in [
        (Objective::Memory, most, "plan with more memory (--objective speed)"),
        (Objective::Speed, most - 1, "plan with a larger --mem"),
        (Objective::Speed, most, "this machine has no more memory to give"),
    ] {
        (plan.request.objective, plan.memory.limit_bytes) = (objective, limit);
        let said = slow_prefill(&inputs, &plan).expect("a warning");
        assert!(said.starts_with("a prompt of 64 tokens is expected at "), "{said}");
        assert!(said.ends_with(remedy), "{said}");
    }
}
