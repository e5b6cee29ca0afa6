//! Writes `device.toml` and `model.toml` of phones and models from published figures: `plans/<phone>/<model>`; and those of computers
//! that people own, with the mixture of 30B.
//!
//! `cargo run -p flashplan-planner --example published -- FOLDER`, and `--table` prints the paper's results beside what `plan` says. What nobody published is assumed, and every assumption is a sentence in
//! the files' notes. Source: PowerInfer-2 (v1 and v3), TurboSparse.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

mod computers;
mod devices;
mod misses;
mod models;
mod results;
mod sensitivity;

use std::path::Path;
use std::process::ExitCode;

use devices::Phone;
use models::{Assumed, Published};

/// The folder of the mixture of 30B, which was measured.
const MIXTURE: &str = "intel-xeon-2c-24g/qwen3-30b-a3b";

fn main() -> ExitCode {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let done = if folder == "--table" { table() } else { write(Path::new(&folder)) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for phone in [Phone::OnePlus12, Phone::Ace2] {
        for model in [Published::Mixtral47B, Published::Mistral7B] {
            let (device, model) = (devices::device(phone), models::model(model, &Assumed::PUBLISHED));
            let folder = folder.join(&device.name).join(&model.name);
            std::fs::create_dir_all(&folder)?;
            plans::file::write(&device, &folder.join("device.toml"))?;
            plans::file::write(&model, &folder.join("model.toml"))?;
        }
    }
    let mixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plans").join(MIXTURE);
    for device in computers::devices() {
        let folder = folder.join(&device.name).join("qwen3-30b-a3b");
        std::fs::create_dir_all(&folder)?;
        plans::file::write(&device, &folder.join("device.toml"))?;
        std::fs::copy(mixture.join("model.toml"), folder.join("model.toml"))?;
    }
    Ok(())
}

fn table() -> Result<(), Box<dyn std::error::Error>> {
    println!("| result | paper | planned | planned over paper | tested to be |\n|---|---|---|---|---|");
    for results::Compared { what, paper, planned, bounds: [least, most] } in results::compared()? {
        println!("| {what} | {paper} | {planned:.3} | {:.2} | {least} to {most} |", planned / paper);
    }
    println!("\n| assumption | x 0.8 | x 1.25 |\n|---|---|---|");
    for (what, [less, more]) in sensitivity::sensitivity()? {
        println!("| {what} | {less:.2} | {more:.2} |");
    }
    Ok(())
}
