//! What a plan says to people: time and memory term by term, and who decided what.

use comfy_table::{CellAlignment, Table};
use plans::layout::Phases;
use plans::size::show;

use crate::cost::Work;
use crate::hardware;
use crate::request::{Inputs, measured_run};
use crate::search::Solved;

/// One paragraph: the plan in a nutshell.
pub fn summary(solved: &Solved) -> String {
    let (plan, e) = (&solved.plan, &solved.plan.expected);
    let simple = plan.simple_rule.decode_tokens_per_second;
    let beside = if simple > 0.0 {
        format!(
            "{simple:.2} tok/s by the best simple rule (fill by frequency, all cores): {:.2} times that",
            e.decode_tokens_per_second / simple
        )
    } else {
        "no simple rule fits".to_owned()
    };
    format!(
        "{:.2} tok/s decoding, {:.1} tok/s prefill, {} of {}; level `{}` ({:+.2} % perplexity), {:.1} % of requested neurons in memory, {} read per token\n{beside}",
        e.decode_tokens_per_second,
        e.prefill_tokens_per_second,
        show(e.memory_peak_bytes),
        show(plan.memory.limit_bytes),
        plan.quality.level,
        e.perplexity_change_fraction * 100.0,
        e.hit_fraction * 100.0,
        show(e.bytes_read_per_token as u64),
    )
}

/// Tables of time and memory, and the decisions by who made them.
pub fn explanation(inputs: &Inputs, solved: &Solved) -> String {
    format!(
        "Time of a token, in milliseconds\n{}\n\nMemory\n{}\n\n{}",
        time(solved),
        memory(solved),
        decisions(inputs, solved)
    )
}

fn time(solved: &Solved) -> String {
    let (p, plan) = (&solved.price, &solved.plan);
    let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
    let mut table = table(&["stage", "compute", "memory", "serial", "takes"]);
    let mut stage = |name: &str, work: &Work| {
        let cells = [name.to_owned(), ms(work.compute), ms(work.memory), ms(work.serial), ms(work.seconds())];
        table.add_row(cells);
    };
    stage("attention", &p.attention);
    stage("router and predictor", &p.predictor);
    if plan.read.look_ahead > 0 {
        stage("look-ahead: what the next layer will request", &p.look_ahead);
    }
    stage("gate-up", &p.gate_up);
    stage("down", &p.down);
    stage("insert into the cache", &p.insert);
    stage("norms, head, sampling", &p.rest);
    let mut line = |name: &str, takes: f64| {
        let blank = String::new;
        table.add_row([name.to_owned(), blank(), blank(), blank(), ms(takes)]);
    };
    line("reading flash", p.io);
    line("feed-forward and reading, overlapped", p.overlapped);
    line("token at position 0, warm", p.constant);
    let (prompt, generated) = measured_run(plan.context.tokens);
    line("context, each 1000 tokens", p.per_context_token * 1e3);
    line("cold start, once", p.cold_start);
    line(&format!("mean of {generated} tokens after {prompt}"), p.mean_seconds(plan.context.tokens));
    right(table)
}

fn memory(solved: &Solved) -> String {
    let m = &solved.plan.memory;
    let mut table = table(&["region", "bytes", ""]);
    for (name, bytes) in [
        ("process", m.process_bytes),
        ("fixed: attention, embeddings, head, level", m.fixed_bytes),
        ("hot: pinned neurons", m.hot_bytes),
        ("cold: slots", m.cold_bytes),
        ("a prompt's rows, beyond the slots", m.slots_or_prompt_bytes() - m.cold_bytes),
        ("keys and values", m.kv_bytes),
        ("activations", m.activations_bytes),
        ("I/O buffers", m.io_buffers_bytes),
        ("tables", m.tables_bytes),
        ("page tables", m.page_tables_bytes),
        ("together", m.prefill_total_bytes),
        ("limit", m.limit_bytes),
    ] {
        table.add_row([name.to_owned(), bytes.to_string(), show(bytes)]);
    }
    right(table)
}

fn decisions(inputs: &Inputs, solved: &Solved) -> String {
    let (plan, tables) = (&solved.plan, &solved.tables);
    let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let levels =
        solved.levels.iter().map(|(name, fate)| format!("{name}: {fate}")).collect::<Vec<_>>().join("; ");
    let mut text = format!(
        "Decided by branch and bound over {} ways to decode ({} priced layer by layer, the others beaten by their totals)\n  level `{}`, who leaves the cache: `{}` ({levels})\n  compute cores {}, reading {}, {} reads in flight, {} buffers of {}, {}, {}\n",
        solved.ways,
        solved.priced,
        plan.quality.level,
        plan.cache.policy,
        list(&plan.decode.compute_cores),
        match plan.read.backend {
            plans::Backend::Pread => format!("by threads on {}", list(&plan.decode.io_cores)),
            plans::Backend::IoUring => "by io_uring from the deciding thread".to_owned(),
        },
        plan.read.depth,
        plan.read.buffers,
        show(plan.read.buffer_bytes),
        prefetched(solved),
        match plan.read.phases {
            Phases::Whole => format!("neurons whole, gaps of {} bytes read over", plan.read.gap_bytes),
            Phases::TwoPhase => "gates first".to_owned(),
            Phases::Rows => "row by row".to_owned(),
        },
    );
    text += &format!(
        "  no plan within the limits is faster than {:.2} tok/s; this one reaches {:.2}\n",
        1.0 / solved.seconds_proven,
        plan.expected.decode_tokens_per_second
    );
    if let Some(bytes) = solved.bytes_proven {
        text += &format!("  none takes less than {}; this one takes {}\n", show(bytes), show(plan.memory.prefill_total_bytes));
    }
    text += "Decided by the exact split, a dynamic programme: each layer's pinned neurons and slots\n";
    text += &format!(
        "Decided by Z3 among {} plans that decode as fast: prefill of {} tokens together on cores {}, and which of them\n",
        tables.modes.len(),
        plan.prefill.chunk_tokens,
        list(&plan.prefill.compute_cores)
    );
    text += &format!(
        "Decided by rule: clusters of {} neurons, in prefill of {}",
        plan.decode.cluster_neurons,
        plan.prefill_cluster_neurons(),
    );
    let r = &plan.request;
    if let Some(rate) = r.prefill_tokens_per_second_min {
        let reached = plan.expected.prefill_tokens_per_second;
        text += &format!("\nAsked for: prompts at {rate} tok/s at least; {reached:.2} are expected");
    }
    if let (Some(most), Some(tokens)) = (r.first_token_seconds_max, r.prompt_tokens) {
        text += &format!("\nAsked for: the first token within {most} s of a prompt of {tokens} tokens");
    }
    let a = &inputs.model.architecture;
    for format in [&a.weight_format, &a.down_format] {
        let (kernel, exact) = hardware::kernel(&inputs.device, format, &plan.quality.instruction_set);
        if !exact {
            text += &format!(
                "\nNot measured: kernels for {format} with {}; priced as {} with {}, the slowest there is",
                plan.quality.instruction_set, kernel.format, kernel.instruction_set
            );
        }
    }
    text
}

/// What is read ahead for the next layer.
fn prefetched(solved: &Solved) -> String {
    match (solved.plan.read.look_ahead, solved.price.reads) {
        (0, _) => "none of them for the next layer".to_owned(),
        (most, (reads, prefetched)) => {
            format!("up to {most} more for the next layer ({prefetched:.0} of {reads:.0} reads a token)")
        }
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.set_header(header.to_vec());
    table
}

fn right(mut table: Table) -> String {
    for column in 1..table.column_count() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}
