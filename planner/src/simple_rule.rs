//! The best simple rule, priced with the same cost model: what a plan must beat to be worth its solver.
//!
//! Fill by frequency: the same number of neurons of every layer pinned, as many as fit; all cores; the deepest
//! reads, none of them prefetched; each bundle by itself; prompts with the least memory that keeps the limits on them. Best: of
//! the allowed levels and back ends, those that are fastest that way. It is one of the configurations that the search looks at, so
//! that no plan is slower.

use plans::Backend;
use plans::model::Level;
use plans::plan::{Plan, SimpleRule};

use crate::assemble;
use crate::cost;
use crate::decided::Decided;
use crate::error::PlanError;
use crate::question::{DIGITS, Question};
use crate::room::{regions_within, with_page_tables};
use crate::rules;
use crate::space::{Configuration, Space};
use crate::uniform::{need, pairs, pinned_most, room};
use crate::verify::verify;

/// The simple rule with one back end at one level: its decisions and its price.
#[derive(Debug)]
pub struct Simple<'a> {
    /// Quality level.
    pub level: &'a Level,
    /// Which of the configurations it is.
    pub config: Configuration,
    /// All that the rule decides.
    pub decided: Decided,
    /// Price of the rule, as plans have it.
    pub rule: SimpleRule,
}

/// The best simple rule with all that it decides, or `None` where not even it fits. The space was made for the question's
/// device, model, cores and context.
pub fn best<'a>(question: &Question<'_>, space: &Space<'a>) -> Option<Simple<'a>> {
    let of_level = |level: usize| {
        let pairs = pairs(question, &space.options[level]);
        pairs.into_iter().filter_map(move |pair| priced(question, space, level, pair))
    };
    (0..space.options.len())
        .flat_map(of_level)
        .max_by(|a, b| a.rule.decode_tokens_per_second.total_cmp(&b.rule.decode_tokens_per_second))
}

/// The plan of the best simple rule, to be run beside one that was planned; `None` where not even it fits.
///
/// # Errors
/// It is not what was priced.
pub fn plan(question: &Question<'_>) -> Result<Option<Plan>, PlanError> {
    let space = Space::new(question);
    let Some(Simple { level, decided, rule, .. }) = best(question, &space) else { return Ok(None) };
    let plan = assemble::plan(question, level, &decided, rule);
    // six digits are printed
    verify(question, &plan, &decided, DIGITS / rule.decode_tokens_per_second)?;
    Ok(Some(plan))
}

/// The rule with such cores and reads, and the first prompt that keeps the limits; `None` where none does.
fn priced<'a>(
    question: &Question<'_>,
    space: &Space<'a>,
    level: usize,
    (compute, read): (usize, usize),
) -> Option<Simple<'a>> {
    let options = &space.options[level];
    let layers = options.level.layers.len();
    let (of_compute, of_read) = (&options.computes[compute], &options.reads[read]);
    let of_decoding = (level, read, of_compute.embedding_rows);
    let (prompt, pinned) = space.prompts.iter().enumerate().find_map(|(place, prompt)| {
        let pinned = pinned_most(question, options, (of_compute, of_read), prompt)?;
        let hot = vec![pinned; layers];
        let mut limits = question.limits.prompts_max.iter();
        let in_time = limits.all(|limit| {
            let price = space.prompt_price(question, of_decoding, place, limit.tokens);
            price.seconds(&hot) <= limit.seconds_allowed()
        });
        in_time.then_some((place, pinned))
    })?;
    let decided = Decided {
        cores: of_compute.cores.clone(),
        io_cores: match of_read.choice.backend {
            Backend::Pread => of_compute.io_cores.clone(),
            Backend::IoUring => Vec::new(),
        },
        shared: of_compute.shared,
        cluster: rules::cluster(options.level),
        read: of_read.choice,
        hot: vec![pinned; layers],
        cold: vec![0; layers],
        policy: options.policy,
        slice_neurons: question.model.parts.bundle.slice_neurons,
        prompt: space.prompts[prompt].clone(),
        embedding_rows: of_compute.embedding_rows,
    };
    let seconds =
        cost::decode(question, &decided.decision(options.level)).mean_seconds(question.limits.context);
    let room = room(question, options, (of_compute, of_read), &space.prompts[prompt]);
    let regions =
        regions_within(question.limits.memory_bytes) - room.bytes + room.taken(need(options, pinned));
    let rule = SimpleRule {
        decode_tokens_per_second: plans::file::significant(1.0 / seconds),
        memory_peak_bytes: with_page_tables(regions) as u64,
    };
    Some(Simple {
        level: options.level,
        config: Configuration { level, compute, read, prompt },
        decided,
        rule,
    })
}
