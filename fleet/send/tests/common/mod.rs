//! aiprof-send, and the servers that it is tested against.

#![allow(
    dead_code,
    reason = "each test program is built with this and uses a part of it"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "these are tests, of which clippy sees only the functions"
)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use aiprof_fleet::spool::{Body, BodyPacking, Queue};
use aiprof_fleet::status::{self, SENDER_FILE, SenderStatus, SentStatus};
use aiprof_formats::export::{self, ExportOptions};
use aiprof_model::profile::{FrameKind, Location, Meta, Profile, ProfileBuilder, Sample, Stack};
use serde_json::Value;

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The interpreter with the packages of the servers; `None`, after saying so: there is none.
pub(crate) fn python(test: &str) -> Option<PathBuf> {
    const PACKAGES: [&str; 4] = [
        "grpcio",
        "opentelemetry-proto==1.45.2",
        "prometheus-client",
        "cryptography",
    ];
    const FIND: &str = "import grpc, cryptography, prometheus_client; \
         import opentelemetry.proto.collector.profiles.v1development as p; print(p)";
    // One test at a time installs them.
    static ONCE: Mutex<()> = Mutex::new(());
    let _turn = ONCE.lock().unwrap();
    match aiprof_tests::packages::python("AIPROF_TESTS_SEND", "send", &PACKAGES, FIND) {
        Ok((python, _)) => Some(python),
        Err(why) => {
            aiprof_tests::need::skip(test, &why);
            None
        }
    }
}

/// The program of the servers.
pub(crate) fn servers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers.py")
}

pub(crate) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.unwrap().as_nanos()).unwrap()
}

/// Waits for something.
pub(crate) fn wait_for<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = get() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Takes all rights to a file from others.
pub(crate) fn make_secret(file: &Path) {
    fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

/// Writes a file that others cannot read.
pub(crate) fn write_secret(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    make_secret(file);
}

/// A server in Python.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    lines: Receiver<String>,
}

impl Server {
    /// Starts one: its kind, a port (0: any), and what it answers.
    pub(crate) fn start(
        python: &Path,
        kind: &str,
        port: u16,
        answers: &str,
        tls: &[&Path],
    ) -> Self {
        let mut command = Command::new(python);
        command.arg(servers()).arg(kind);
        command.args([&port.to_string(), answers]).args(tls);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let ready = lines.recv_timeout(PATIENCE).unwrap();
        let port = ready.strip_prefix("ready ").unwrap().parse().unwrap();
        Self { child, port, lines }
    }

    /// The next request.
    pub(crate) fn request(&self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("a request");
        serde_json::from_str(&line).unwrap()
    }

    /// Whether another request comes within a time.
    pub(crate) fn request_within(&self, wait: Duration) -> Option<Value> {
        let line = self.lines.recv_timeout(wait).ok()?;
        Some(serde_json::from_str(&line).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A window's profile, identified by its number.
fn profile(number: u64) -> Profile {
    let meta = Meta {
        host: "h1".to_owned(),
        start_unix_ns: 1_700_000_000_000_000_000 + number,
        duration_ns: 60_000_000_000,
        cpus: 2,
        frequency_hz: 19,
        period_ns: 52_631_578,
        ..Meta::default()
    };
    let mut builder = ProfileBuilder::new(meta);
    let process = builder.process(7, "train");
    let thread = builder.string("train");
    let locations = ["main", &format!("f{number}")].map(|name| {
        let frames = vec![builder.frame(name, FrameKind::Native, None)];
        builder.location(Location {
            binary: None,
            address: 0,
            frames,
        })
    });
    let stack = builder.stack(Stack {
        locations: locations.into(),
        complete: true,
        driver: 0,
    });
    builder.sample(Sample {
        process,
        tid: 7,
        thread,
        cgroup: None,
        stack,
        count: number,
        time_ns: number * 52_631_578,
        bytes: 0,
        device: None,
    });
    builder.finish()
}

/// A window as an OTLP request.
pub(crate) fn otlp(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    export::otlp::write(&profile(number), &ExportOptions::default(), &mut out).unwrap();
    out
}

/// A window as pprof.
pub(crate) fn pprof(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    export::pprof::write(&profile(number), &ExportOptions::default(), &mut out).unwrap();
    out
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// The number of the window that a request has, by OpenTelemetry's messages.
pub(crate) fn number(request: &Value) -> u64 {
    let sample = &request["samples"][0];
    let number = sample["values"][0]
        .as_u64()
        .unwrap_or_else(|| panic!("{request}"));
    assert_eq!(
        sample["frames"],
        serde_json::json!(["main", format!("f{number}")])
    );
    assert_eq!(sample["kind"], "samples");
    assert_eq!(sample["period"], 52_631_578);
    assert_eq!(
        (&sample["service"], &sample["host"]),
        (&"train".into(), &"h1".into())
    );
    assert_eq!(sample["time"], 1_700_000_000_000_000_000 + number);
    number
}

/// The state of an agent, with a spool, and a sender that runs or not.
pub(crate) struct Host {
    folder: tempfile::TempDir,
    child: Option<Child>,
    log: Arc<Mutex<String>>,
    next: u64,
}

impl Host {
    /// With these outputs.
    pub(crate) fn new(outputs: &str) -> Self {
        let host = Self {
            folder: tempfile::tempdir().unwrap(),
            child: None,
            log: Arc::default(),
            next: 0,
        };
        host.configure(outputs);
        host
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the configuration; without an address of metrics there are none.
    pub(crate) fn configure(&self, rest: &str) {
        let state = self.path("state");
        let metrics = match rest.contains("[metrics]") {
            true => "",
            false => "[metrics]\nlisten = \"off\"\n",
        };
        let text = format!("state = {state:?}\n{metrics}{rest}\n");
        fs::write(self.path("agent.toml"), text).unwrap();
    }

    pub(crate) fn queue(&self, output: &str) -> Queue {
        Queue::open(&self.path("state/spool"), output).unwrap()
    }

    /// Puts a body into the spool.
    pub(crate) fn put_at(
        &mut self,
        output: &str,
        start_unix_ns: u64,
        kind: BodyPacking,
        content: &[u8],
    ) {
        self.next += 1;
        let body = Body {
            start_unix_ns,
            number: self.next,
            samples: 1,
            kind,
        };
        self.queue(output).put(&body, content).unwrap();
    }

    pub(crate) fn put(&mut self, output: &str, kind: BodyPacking, content: &[u8]) {
        self.put_at(output, now_ns(), kind, content);
    }

    /// Puts windows with these numbers into the spool.
    pub(crate) fn put_windows(&mut self, output: &str, numbers: std::ops::RangeInclusive<u64>) {
        for number in numbers {
            self.put(output, BodyPacking::Gzip, &gzip(&otlp(number)));
        }
    }

    /// The command of the sender.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aiprof-send"));
        command.arg("--config").arg(self.path("agent.toml"));
        command.args(args).stdin(Stdio::null());
        for proxy in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(proxy).env_remove(proxy.to_uppercase());
        }
        command
    }

    /// Starts the sender.
    pub(crate) fn start(&mut self) {
        self.start_with(Stdio::null());
    }

    pub(crate) fn start_with(&mut self, stdin: Stdio) {
        assert!(self.child.is_none());
        let mut command = self.command(&[]);
        let mut child = command.stdin(stdin).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let log = Arc::clone(&self.log);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stderr.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                eprint!("{text}");
                log.lock().unwrap().push_str(&text);
            }
        });
        self.child = Some(child);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the sender's end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        wait_for("the end of aiprof-send", || child.try_wait().unwrap())
    }

    /// Ends the sender; how, and how long it took.
    pub(crate) fn stop(&mut self) -> (ExitStatus, Duration) {
        let began = Instant::now();
        self.signal("-TERM");
        (self.ended(), began.elapsed())
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_for(text, || self.log().contains(text).then_some(()));
    }

    /// What the sender reports about an output.
    pub(crate) fn status(&self, output: &str) -> SentStatus {
        let status = status::read::<SenderStatus>(&self.path("state/sender"), SENDER_FILE);
        let status = status.unwrap_or_default();
        status.outputs.get(output).cloned().unwrap_or_default()
    }

    pub(crate) fn wait_for_status(
        &self,
        output: &str,
        is: impl Fn(&SentStatus) -> bool,
    ) -> SentStatus {
        let mut last = SentStatus::default();
        let began = Instant::now();
        loop {
            let status = self.status(output);
            if is(&status) {
                return status;
            }
            last.clone_from(&status);
            assert!(began.elapsed() < PATIENCE, "waited in vain: {last:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn wait_until_empty(&self, output: &str) {
        let queue = self.queue(output);
        wait_for("an empty spool", || {
            queue.bodies().unwrap().is_empty().then_some(())
        });
    }

    /// Runs to the end: exit code, stdout, stderr.
    pub(crate) fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.command(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap();
        (code, text(&output.stdout), text(&output.stderr))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends bytes to an address and reads what comes back.
pub(crate) fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A port that is free.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
