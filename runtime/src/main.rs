//! `run`: executes a plan.

fn main() -> std::process::ExitCode {
    runtime::program::main()
}
