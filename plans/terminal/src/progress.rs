//! Progress of a long job: a bar on a terminal, otherwise one line a minute.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Destination and form of progress.
#[derive(Debug, Clone)]
pub struct Progress(How);

#[derive(Debug, Clone)]
enum How {
    Bars,
    Lines { interval: Duration, sink: Sink },
}

/// Where lines go.
#[derive(Clone)]
struct Sink(Arc<Mutex<dyn Write + Send>>);

impl Sink {
    /// Writes a line, and ignores a closed stream.
    fn write(&self, line: &str) {
        let mut sink = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = sink.write_all(format!("{line}\n").as_bytes());
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

/// Unit of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Steps of any kind.
    Steps,
    /// Bytes.
    Bytes,
}

impl Progress {
    /// On standard error: bars on a terminal unless `plain`, otherwise a line a minute.
    pub fn on_stderr(plain: bool) -> Self {
        if io::stderr().is_terminal() && !plain {
            Self(How::Bars)
        } else {
            Self::lines(INTERVAL, io::stderr())
        }
    }

    /// Lines, `interval` apart, to `sink`.
    pub fn lines(interval: Duration, sink: impl Write + Send + 'static) -> Self {
        Self(How::Lines { interval, sink: Sink(Arc::new(Mutex::new(sink))) })
    }

    /// Begins a part of the job.
    pub fn bar(&self, length: u64, message: &str, unit: Unit) -> Bar {
        tracing::info!(length, ?unit, "begins: {message}");
        match &self.0 {
            How::Bars => Bar(Kind::Drawn(drawn(length, message, unit))),
            How::Lines { interval, sink } => {
                let lines = Lines::new(length, message, unit, *interval);
                Bar(Kind::Lines { lines: Mutex::new(lines), started: Instant::now(), sink: sink.clone() })
            }
        }
    }
}

fn drawn(length: u64, message: &str, unit: Unit) -> ProgressBar {
    let template = match unit {
        Unit::Steps => "{msg:28} [{bar:32}] {pos}/{len}  {elapsed} gone, {eta} left",
        Unit::Bytes => "{msg:28} [{bar:32}] {bytes}/{total_bytes}  {bytes_per_sec}, {eta} left",
    };
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr())
        .with_message(message.to_owned());
    let bar = match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    };
    bar.tick();
    bar
}

/// Progress of one part of a job; dropping it clears the bar.
#[derive(Debug)]
pub struct Bar(Kind);

#[derive(Debug)]
enum Kind {
    Drawn(ProgressBar),
    Lines { lines: Mutex<Lines>, started: Instant, sink: Sink },
}

impl Bar {
    /// Adds `count` finished steps or bytes.
    pub fn inc(&self, count: u64) {
        match &self.0 {
            Kind::Drawn(bar) => bar.inc(count),
            Kind::Lines { .. } => self.line(|lines| lines.position += count),
        }
    }

    /// Sets the number of finished steps or bytes.
    pub fn set_position(&self, position: u64) {
        match &self.0 {
            Kind::Drawn(bar) => bar.set_position(position),
            Kind::Lines { .. } => self.line(|lines| lines.position = position),
        }
    }

    /// Sets the total number of steps or bytes.
    pub fn set_length(&self, length: u64) {
        match &self.0 {
            Kind::Drawn(bar) => bar.set_length(length),
            Kind::Lines { .. } => self.line(|lines| lines.length = length),
        }
    }

    /// Names the current step.
    pub fn set_message(&self, message: String) {
        tracing::debug!("{message}");
        match &self.0 {
            Kind::Drawn(bar) => bar.set_message(message),
            Kind::Lines { .. } => self.line(|lines| lines.message = message),
        }
    }

    /// Prints a sentence above the bar.
    pub fn say(&self, sentence: &str) {
        match &self.0 {
            Kind::Drawn(bar) => bar.println(sentence),
            Kind::Lines { sink, .. } => sink.write(sentence),
        }
    }

    fn line(&self, change: impl FnOnce(&mut Lines)) {
        let Kind::Lines { lines, started, sink } = &self.0 else { return };
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut lines);
        if let Some(line) = lines.due(started.elapsed()) {
            sink.write(&line);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Kind::Drawn(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Progress of one part as lines.
#[derive(Debug)]
struct Lines {
    position: u64,
    length: u64,
    message: String,
    unit: Unit,
    interval: Duration,
    /// Time of the next line.
    next: Duration,
    /// First position and its time: a resumed part does not start at 0.
    first: Option<(u64, Duration)>,
}

impl Lines {
    fn new(length: u64, message: &str, unit: Unit, interval: Duration) -> Self {
        let message = message.to_owned();
        Self { position: 0, length, message, unit, interval, next: interval, first: None }
    }

    /// The next line, if it is due.
    fn due(&mut self, elapsed: Duration) -> Option<String> {
        let (begun, at) = *self.first.get_or_insert((self.position, elapsed));
        if elapsed < self.next {
            return None;
        }
        self.next = elapsed + self.interval;
        let amount = |value: u64| match self.unit {
            Unit::Steps => value.to_string(),
            Unit::Bytes => BinaryBytes(value).to_string(),
        };
        let done = self.position.saturating_sub(begun);
        let each = (elapsed - at).as_secs_f64() / done as f64;
        let left = each * self.length.saturating_sub(self.position) as f64;
        let left = if done > 0 { format!(", about {} left", time(left)) } else { String::new() };
        Some(format!(
            "{}: {} of {} after {}{left}",
            self.message,
            amount(self.position),
            amount(self.length),
            time(elapsed.as_secs_f64())
        ))
    }
}

/// Seconds, or minutes where there are many.
pub fn time(seconds: f64) -> String {
    if seconds < 100.0 { format!("{:.0} s", seconds.ceil()) } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_a_minute_and_none_before() {
        let mut lines = Lines::new(32, "layers", Unit::Steps, INTERVAL);
        let at = Duration::from_secs;
        // resumed at layer 8: the rate is that of what was done since
        lines.position = 8;
        assert_eq!(lines.due(at(0)), None);
        lines.position = 10;
        assert_eq!(lines.due(at(59)), None);
        assert_eq!(lines.due(at(60)).unwrap(), "layers: 10 of 32 after 60 s, about 11 min left");
        lines.position = 20;
        assert_eq!(lines.due(at(119)), None);
        assert_eq!(lines.due(at(180)).unwrap(), "layers: 20 of 32 after 3 min, about 3 min left");
    }

    #[test]
    fn bytes_are_shown_as_such_and_nothing_is_promised_before_anything_is_done() {
        let mut lines = Lines::new(3 << 30, "writing", Unit::Bytes, INTERVAL);
        assert_eq!(lines.due(Duration::from_secs(61)).unwrap(), "writing: 0 B of 3.00 GiB after 61 s");
    }

    #[test]
    fn lines_go_where_standard_error_goes() {
        let kept = Kept::default();
        let bar = Progress::lines(Duration::ZERO, kept.clone()).bar(4, "tokens", Unit::Steps);
        bar.inc(1);
        bar.set_message("other tokens".to_owned());
        bar.say("a sentence");
        bar.set_position(3);
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let starts: Vec<_> = text.lines().map(|line| line.split(" after").next().unwrap()).collect();
        assert_eq!(starts, ["tokens: 1 of 4", "other tokens: 1 of 4", "a sentence", "other tokens: 3 of 4"]);
    }
}
