//! The table of decisions: each runner-up is priced in the problem that was solved.

use planner::cost::{PromptChoice, PromptPrice};
use planner::room::with_page_tables;
use planner::space::Space;
use planner::{Inputs, Solved};
use plans::model::Drafts;
use plans::plan::{Objective, Request};

use crate::small::{inputs, plan, request};

/// Plans a request. No runner-up may be better than the bound of the plan's own problem, but for a hundredth that only exact splits prove.
fn no_runner_up_is_better(inputs: &Inputs, request: &Request) -> (Solved, Vec<planner::decisions::Taken>) {
    let solved = plan(inputs, request);
    let (rows, tick_seconds) = planner::search::decisions(inputs, &solved).expect("decisions");
    let mut seen = 0;
    for row in &rows {
        let Some((option, bound)) = &row.runner_up else { continue };
        seen += 1;
        match solved.bytes_proven {
            Some(least) => {
                let bytes = with_page_tables(*bound) as f64;
                assert!(bytes >= 0.99 * least as f64, "{}: {option} takes {bytes} of {least}", row.name);
            }
            None => {
                let seconds = *bound as f64 * tick_seconds;
                assert!(seconds >= 0.99 * solved.seconds_proven, "{}: {option} takes {seconds}", row.name);
            }
        }
    }
    assert!(seen >= 4, "{rows:?}");
    (solved, rows)
}

#[test]
fn with_least_memory_runners_up_are_priced_in_bytes() {
    let inputs = inputs(4);
    let least =
        Request { objective: Objective::Memory, decode_tokens_per_second_min: Some(40.0), ..request(None) };
    let (solved, _) = no_runner_up_is_better(&inputs, &least);
    let said = planner::report::explanation(&inputs, &solved);
    assert!(said.contains("memory at least"), "{said}");
}

#[test]
fn with_a_limit_on_prompts_no_runner_up_breaks_it() {
    let inputs = inputs(4);
    let free = request(Some(26 << 20));
    let prefill = plan(&inputs, &free).plan.expected.prefill_tokens_per_second;
    let limited = Request { prefill_tokens_per_second_min: Some(1.3 * prefill), ..free };
    let (solved, rows) = no_runner_up_is_better(&inputs, &limited);
    // chunks that are too slow even with everything in memory
    let question = planner::request::resolve(&inputs, &limited).expect("a question");
    let space = Space::new(&question);
    let ways = &space.options[solved.config.level];
    let limit = question.limits.prompts_max[0];
    let seconds = |chunk: u32| {
        let reads = ways.reads[solved.config.read].price();
        let embedding_rows = ways.computes[solved.config.compute].embedding_rows;
        let cores = &space.prompts[solved.config.prompt].cores;
        PromptPrice::new(&question, &PromptChoice { reads, embedding_rows, cores, chunk }, limit.tokens)
            .seconds(&vec![question.model.architecture.neurons() as u32; question.model.layers.len()])
    };
    let row = rows.iter().find(|row| row.name == "prompt, tokens").expect("a row");
    let chunk = |(chunk, _): &(String, i64)| chunk.parse::<u32>().expect("a number");
    if let Some(chunk) = row.runner_up.as_ref().map(chunk) {
        assert!(seconds(chunk) <= limit.seconds_allowed(), "{chunk} tokens: {row:?}");
    }
    let too_slow =
        space.prompts.iter().filter(|prompt| seconds(prompt.chunk) > limit.seconds_allowed()).count();
    println!("{too_slow} too slow; {rows:?}");
}

#[test]
fn with_drafts_that_were_chosen_runners_up_have_them_too() {
    let mut inputs = inputs(4);
    let of_lengths = |of_one: f64| (1..=7).map(|k| of_one * f64::from(k).sqrt()).collect();
    inputs.model.drafts = Some(Drafts { drafted_tokens: of_lengths(0.95), kept_tokens: of_lengths(0.9) });
    let auto = Request { draft_tokens_auto: true, ..request(Some(26 << 20)) };
    let (solved, _) = no_runner_up_is_better(&inputs, &auto);
    assert!(solved.plan.speculation.is_some() && solved.limits.draft_tokens > 0, "{:?}", solved.drafts);
}
