//! Signals, in a process of their own: this test's program, started again.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The child process: reports the first signal and continues.
#[test]
#[ignore = "the other test starts it, and ends it"]
fn goes_on() {
    let before = AtomicBool::new(false);
    let stop = move || {
        let again = before.swap(true, Ordering::Relaxed);
        if !again {
            terminal::say("heard");
        }
        again
    };
    terminal::interrupt::on_interrupt(stop).unwrap();
    terminal::say("listening");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn the_first_signal_asks_and_the_second_ends_at_once() {
    for signals in [["INT", "INT"], ["TERM", "INT"], ["INT", "TERM"]] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "goes_on", "--ignored", "--nocapture"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = || {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            line
        };
        let id = child.id().to_string();
        let send = |signal: &str| {
            let sent = Command::new("kill").args(["-s", signal, &id]).status().unwrap();
            assert!(sent.success());
        };
        assert_eq!(line(), "listening\n");
        send(signals[0]);
        assert_eq!(line(), "heard\n");
        assert!(child.try_wait().unwrap().is_none(), "the first only asks");
        send(signals[1]);
        assert!(line().starts_with("error: ended at once"), "{signals:?}");
        assert_eq!(child.wait().unwrap().code(), Some(1));
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}
