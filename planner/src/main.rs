//! The program `plan`: reads two profiles, solves, writes a plan.

use std::path::Path;

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_default();
    let mem = std::env::args().nth(2).and_then(|m| plans::size::parse(&m).ok());
    let speed = std::env::args().nth(3).and_then(|m| m.parse().ok());
    let loss: f64 = std::env::args().nth(4).and_then(|m| m.parse().ok()).unwrap_or(0.01);
    let dir = Path::new(&dir);
    let inputs = planner::read_inputs(&dir.join("device.toml"), &dir.join("model.toml")).unwrap();
    let request = plans::plan::Request {
        objective: plans::plan::Objective::Speed,
        memory_limit_bytes: mem,
        decode_tokens_per_second_min: speed,
        cores: None,
        context_tokens: None,
        perplexity_change_fraction_max: loss,
        level: None,
        instruction_set: None,
        kv_format: None,
    };
    let t = std::time::Instant::now();
    match planner::plan(&inputs, &request).unwrap() {
        planner::Answer::Plan(solved) => {
            println!("{}", plans::file::render(&solved.plan, Path::new("x")).unwrap());
            println!(
                "{:?} compute {} reads {} groups {} stretches {:?}",
                solved.levels,
                solved.tables.compute.len(),
                solved.tables.reads.len(),
                solved.tables.groups.len(),
                solved.tables.groups.iter().map(|g| g.stretches.len()).collect::<Vec<_>>()
            );
            println!("{:#?}", solved.price);
        }
        planner::Answer::Infeasible(why) => println!("{why}"),
    }
    println!("{:?}", t.elapsed());
}
