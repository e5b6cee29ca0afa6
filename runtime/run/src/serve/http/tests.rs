//! Clients that are slow, silent or gone, against a server without an engine.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path as FilePath;
use std::thread;
use std::time::Instant;

use plans::Plan;

use super::super::super::reasoning::Channel;
use super::super::budget::Budget;
use super::super::queue::Bounds;
use super::super::{Job, Told, Usage};
use super::asking::BODY_COPIES;
use super::*;

/// Metrics of some plan.
pub(in super::super) fn metrics() -> Arc<Metrics> {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../plans/amd-epyc-zen5-2c-24g/oxide-dense/plan-20M.toml");
    let plan = plans::file::read::<Plan>(FilePath::new(path)).unwrap();
    Arc::new(Metrics::new(&plan.value))
}

const BODY_BYTES: usize = 16 << 10;
/// Bodies of full length that have room.
const BODIES: usize = 4;
const CONNECTIONS: usize = 16;

/// Limits that a test can wait for.
const LIMITS: Limits = Limits {
    head: Duration::from_millis(600),
    body: Duration::from_millis(900),
    piece: Duration::from_millis(300),
    patience: Duration::from_millis(300),
};

fn open(limits: Limits) -> (Door, Arc<Queue>) {
    let (door, queue, _) = opened(limits);
    (door, queue)
}

fn opened(limits: Limits) -> (Door, Arc<Queue>, Arc<Shares>) {
    let shares = Arc::new(Shares {
        connections: CONNECTIONS,
        requests: Budget::new((BODIES * BODY_COPIES * BODY_BYTES) as u64),
        reading: 1 << 20,
        answers: Arc::new(Budget::new(1 << 20)),
    });
    let metrics = metrics();
    let queue = Arc::new(Queue::new(
        Bounds { bytes: 2 * BODIES * BODY_BYTES, time: Duration::from_secs(60) },
        Arc::clone(&metrics),
    ));
    let site = Site {
        model: "m".to_owned(),
        is_strict: false,
        about: About::default(),
        key: None,
        asked: Arc::clone(&queue),
        context: 4096,
        body_bytes_max: BODY_BYTES,
        shares: Arc::clone(&shares),
        metrics,
        log: Log::Text,
    };
    (Door::open("127.0.0.1:0".parse().unwrap(), site, limits).unwrap(), queue, shares)
}

/// Whether all that was taken is given back, within some seconds.
fn all_is_free(shares: &Shares) -> bool {
    let clock = Instant::now();
    let free = || {
        let Shares { requests, answers, .. } = shares;
        requests.free() == requests.bytes() && answers.free() == answers.bytes()
    };
    while !free() && clock.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(5));
    }
    free()
}

fn connect(door: &Door) -> TcpStream {
    let stream = TcpStream::connect(door.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn head(door: &Door, method: &str, path: &str, bytes: usize) -> String {
    let address = door.address();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
    )
}

/// Sends some bytes; the connection.
fn sent(door: &Door, text: &str) -> TcpStream {
    let mut stream = connect(door);
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

/// The answer's status and body; nothing if the connection was closed without one.
fn answer(mut stream: TcpStream) -> Option<(u16, String)> {
    let mut all = Vec::new();
    // what was not read when it was closed is told as an error, and no less an end
    let _end = stream.read_to_end(&mut all);
    let all = String::from_utf8_lossy(&all).into_owned();
    let (head, body) = all.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// A short request; how long its answer took.
#[track_caller]
fn is_answered(door: &Door) -> Duration {
    let clock = Instant::now();
    let body = r#"{"prompt": "a"}"#;
    let stream = sent(door, &(head(door, "POST", "/v1/completions", body.len()) + body));
    let (status, body) = answer(stream).expect("an answer");
    assert_eq!(status, 200, "{body}");
    clock.elapsed()
}

/// Answers all requests, as long as a test runs.
fn with_answers<T>(queue: &Queue, test: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let Some(job) = queue.take(Duration::from_millis(20)) else {
                    if queue.is_closed() {
                        return;
                    }
                    continue;
                };
                let text = Told::Text {
                    choice: 0,
                    part: Channel::Answer,
                    text: "b".to_owned(),
                    likelihoods: Vec::new(),
                };
                let choice = Told::Choice { choice: 0, cut: false, stop: None };
                for told in [
                    Told::Begins { prompt: 1, ignored: Vec::new() },
                    text,
                    choice,
                    Told::Ended(Usage::default()),
                ] {
                    let _gone = job.told.send(told);
                }
            }
        });
        // a test that fails must end, too
        let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
        queue.close();
        tested.unwrap_or_else(|failed| std::panic::resume_unwind(failed))
    })
}

#[test]
fn silent_connections_and_half_a_head_keep_nobody_out() {
    // no client is timed out here
    let (door, queue) = open(Limits { head: Duration::from_secs(60), ..LIMITS });
    with_answers(&queue, || {
        let first = connect(&door);
        thread::sleep(Duration::from_millis(20));
        let others: Vec<TcpStream> = (1..CONNECTIONS)
            .map(|i| if i % 2 == 0 { connect(&door) } else { sent(&door, "POST /v1/comp") })
            .collect();
        thread::sleep(Duration::from_millis(50));
        assert!(is_answered(&door) < Duration::from_secs(5));
        assert_eq!(answer(first), None, "the one that was silent for longest made room");
        let mut last = others.into_iter().next_back().unwrap();
        last.write_all(b"letions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        assert_eq!(answer(last).expect("it is still there").0, 415);
        // Ollama's clients name no type, or another
        let form = "content-type: application/x-www-form-urlencoded\r\n";
        for kind in ["", form] {
            let head = format!("POST /api/chat HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{kind}");
            let asked = sent(&door, &format!("{head}content-length: 2\r\n\r\n{{}}"));
            assert_eq!(answer(asked).expect("an answer").0, 400, "{kind}");
        }
    });
    door.close();
}

#[test]
fn half_a_head_and_idle_connections_are_closed_in_time() {
    let (door, _queue) = open(LIMITS);
    let clock = Instant::now();
    let half = sent(&door, "GET /health HTTP/1.1\r\nhost: local");
    let idle = sent(&door, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(answer(half), None);
    let (status, body) = answer(idle).unwrap();
    assert!(status == 200 && body.contains("ok"), "{body}");
    assert!((LIMITS.head..Duration::from_secs(10)).contains(&clock.elapsed()), "{:?}", clock.elapsed());
    door.close();
}

#[test]
fn bodies_that_never_end_keep_nobody_out_and_are_told_so() {
    let (door, queue) =
        open(Limits { piece: Duration::from_secs(3), body: Duration::from_secs(6), ..LIMITS });
    with_answers(&queue, || {
        // more of them than there is room for long ones
        let slow: Vec<TcpStream> = (0..3 * BODIES)
            .map(|_| sent(&door, &(head(&door, "POST", "/v1/completions", BODY_BYTES) + r#"{"prompt": "#)))
            .collect();
        thread::sleep(Duration::from_millis(50));
        assert!(is_answered(&door) < Duration::from_secs(2));
        for stream in slow {
            let (status, body) = answer(stream).expect("it is told why");
            assert!(status == 408 && body.contains("did not come in time"), "{status} {body}");
        }
    });
    door.close();
}

#[test]
fn bytes_of_bodies_are_bounded_and_come_free_again() {
    let (door, queue) = open(LIMITS);
    with_answers(&queue, || {
        let almost = "a".repeat(BODY_BYTES - 1);
        let slow: Vec<TcpStream> = (0..2 * BODIES)
            .map(|_| sent(&door, &(head(&door, "POST", "/v1/completions", BODY_BYTES) + &almost)))
            .collect();
        let statuses: Vec<u16> =
            slow.into_iter().map(|stream| answer(stream).expect("an answer").0).collect();
        assert!(statuses.iter().all(|status| [408, 503].contains(status)), "{statuses:?}");
        assert!(statuses.contains(&408), "{statuses:?}");
        is_answered(&door);
        let long = BODY_BYTES + 1;
        for announced in [head(&door, "POST", "/v1/completions", long), {
            let address = door.address();
            let chunk = "a".repeat(long);
            format!(
                "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{long:x}\r\n{chunk}"
            )
        }] {
            let (status, body) = answer(sent(&door, &announced)).expect("an answer");
            assert!(status == 413 && body.contains("has more than 16384 bytes"), "{status} {body}");
        }
    });
    door.close();
}

#[test]
fn a_body_that_trickles_is_given_up_in_time() {
    let (door, _queue) = open(LIMITS);
    let mut stream = sent(&door, &head(&door, "POST", "/v1/completions", BODY_BYTES));
    let clock = Instant::now();
    // each piece comes in time, and all of them do not
    while clock.elapsed() < Duration::from_secs(10) && stream.write_all(b"a").is_ok() {
        thread::sleep(Duration::from_millis(100));
        stream.set_nonblocking(true).unwrap();
        let told = !matches!(stream.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        if told {
            break;
        }
    }
    assert!((LIMITS.body..Duration::from_secs(8)).contains(&clock.elapsed()), "{:?}", clock.elapsed());
    assert_eq!(answer(stream).expect("it is told why").0, 408);
    door.close();
}

/// The memory of a reply is held until its client has taken it.
#[test]
fn a_reply_to_a_question_is_charged_until_it_is_read() {
    let (door, queue, shares) = opened(Limits { patience: Duration::from_secs(20), ..LIMITS });
    let body = r#"{"content": "a"}"#;
    let stream = sent(&door, &(head(&door, "POST", "/tokenize", body.len()) + body));
    let job = queue.take(Duration::from_secs(20)).unwrap();
    let bytes = 900 << 10;
    job.told.charge(shares.answers.take(bytes).unwrap());
    job.told.send(Told::Said("a".repeat(bytes))).unwrap();
    drop(job);
    // the kernel's buffers have some of it
    thread::sleep(Duration::from_millis(300));
    assert!(shares.answers.free() <= shares.answers.bytes() - bytes);
    let (status, said) = answer(stream).unwrap();
    assert_eq!((status, said.len()), (200, bytes));
    assert!(all_is_free(&shares));
    queue.close();
    door.close();
}

#[test]
fn who_never_reads_is_given_up_and_who_hangs_up_is_known_to_at_once() {
    let (door, queue) = open(LIMITS);
    let body = r#"{"prompt": "a", "stream": true}"#;
    let ask = || sent(&door, &(head(&door, "POST", "/v1/completions", body.len()) + body));
    let gone = |job: &Job| {
        let clock = Instant::now();
        while !job.told.is_closed() && clock.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(5));
        }
        job.told.is_closed()
    };
    let taken = || queue.take(Duration::from_secs(20)).unwrap();
    // it has not read a word of some MB
    let (deaf, job) = (ask(), taken());
    job.told.send(Told::Begins { prompt: 1, ignored: Vec::new() }).unwrap();
    for _ in 0..4000 {
        let text = "b".repeat(1000);
        let told = Told::Text { choice: 0, part: Channel::Answer, text, likelihoods: Vec::new() };
        if job.told.send(told).is_err() {
            break;
        }
    }
    assert!(gone(&job));
    drop(deaf);
    // before its answer begins, and while it waits
    let (quick, job) = (ask(), taken());
    drop(quick);
    assert!(gone(&job));
    let waits = ask();
    while !queue.has_some() {
        thread::sleep(Duration::from_millis(5));
    }
    drop(waits);
    let clock = Instant::now();
    while queue.has_some() && clock.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!queue.has_some());
    queue.close();
    door.close();
}

#[test]
fn a_body_that_weighs_too_much_is_refused_before_it_is_read() {
    let (door, queue, shares) = opened(LIMITS);
    with_answers(&queue, || {
        let lists = format!("{{\"prompt\":[{}[1]]}}", "[1],".repeat(BODY_BYTES / 4 - 10));
        for _ in 0..3 {
            let head = head(&door, "POST", "/v1/completions", lists.len());
            let (status, body) = answer(sent(&door, &(head + &lists))).expect("an answer");
            assert!(status == 413 && body.contains("the request may take"), "{status} {body}");
        }
        is_answered(&door);
        // no answer repeats all of a long key
        let key = "k".repeat(10_000);
        let body = format!("{{\"prompt\": \"a\", \"{key}\": 1}}");
        let head = head(&door, "POST", "/v1/completions", body.len());
        let (status, body) = answer(sent(&door, &(head + &body))).expect("an answer");
        assert!(status == 200, "an unknown key is harmless: {status} {body}");
        assert!(body.len() < 5000, "{} bytes", body.len());
    });
    assert!(all_is_free(&shares), "{shares:?}");
    door.close();
}

#[test]
fn heads_that_are_too_long_or_never_end_take_no_more_than_their_connections() {
    let (door, queue) = open(LIMITS);
    with_answers(&queue, || {
        let long = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}", "a".repeat(3 * HEAD_BYTES));
        let (status, _) = answer(sent(&door, &long)).unwrap_or((431, String::new()));
        assert_eq!(status, 431);
        is_answered(&door);
    });
    door.close();
}

#[test]
fn an_answer_keeps_its_charge_until_its_client_has_it_or_is_gone() {
    let (door, queue, shares) = opened(LIMITS);
    for stream in ["true", "false"] {
        let body = format!("{{\"prompt\": \"a\", \"stream\": {stream}}}");
        let ask = || sent(&door, &(head(&door, "POST", "/v1/completions", body.len()) + &body));
        let tell = |job: &Job| {
            job.told.charge(shares.answers.take(1000).expect("there is room"));
            job.told.send(Told::Begins { prompt: 1, ignored: Vec::new() }).unwrap();
            for _ in 0..2000 {
                let text = "b".repeat(1000);
                let told = Told::Text { choice: 0, part: Channel::Answer, text, likelihoods: Vec::new() };
                let _gone = job.told.send(told);
            }
            let choice = Told::Choice { choice: 0, cut: false, stop: None };
            let _gone = (job.told.send(choice), job.told.send(Told::Ended(Usage::default())));
        };
        let taken = || queue.take(Duration::from_secs(20)).unwrap();
        // a client that reads all of it, and one that reads nothing
        let (stream, deaf) = (ask(), ask());
        let (first, second) = (taken(), taken());
        tell(&first);
        tell(&second);
        drop((first, second));
        let (status, body) = answer(stream).expect("an answer");
        assert!(status == 200 && body.matches('b').count() >= 2_000_000, "{status}, {} bytes", body.len());
        assert!(all_is_free(&shares), "{shares:?}");
        drop(deaf);
    }
    queue.close();
    door.close();
}

#[test]
fn the_system_watches_over_connections() {
    use rustix::net::sockopt;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        watch(&stream, Duration::from_secs(30)).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 30_000);
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), STILL_THERE);
    });
}

#[test]
fn the_page_is_compressed_and_runs_no_other_script() {
    let (door, _queue) = open(LIMITS);
    let host = door.address();
    let get = |path: &str, more: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n");
        let mut all = Vec::new();
        sent(&door, &request).read_to_end(&mut all).expect("an answer");
        let head = all.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
        let body = all.split_off(head + 4);
        (String::from_utf8(all).expect("text"), body)
    };
    let (head, body) = get("/", "accept-encoding: gzip, br\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-encoding: gzip"), "{head}");
    assert!(body.starts_with(&[0x1f, 0x8b]), "not gzip");
    let policy =
        head.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).expect("a policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    let (head, body) = get("/", "");
    assert!(head.starts_with("HTTP/1.1 406"), "{head}");
    assert!(String::from_utf8_lossy(&body).contains("curl --compressed"), "{body:?}");
    let (head, _) = get("/v1", "");
    assert!(head.starts_with("HTTP/1.1 307") && head.contains("location: /\r\n"), "{head}");
    door.close();
}
