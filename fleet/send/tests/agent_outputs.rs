//! What `aiprof agent` records reaches servers through `aiprof-send`, though they are down for
//! a while and the agent is killed meanwhile.

use std::fs::Permissions;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use prost::Message as _;

use aiprof_tests::agent::{Agent, tree};
use aiprof_tests::aiprof::sender;
use aiprof_tests::child::{Child, LONG};
use aiprof_tests::http::{Request, Server};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::pprof;
use aiprof_tests::workload::Workshop;

/// As Pyroscope's `api/push/v1/push.proto` has it.
#[derive(Clone, PartialEq, prost::Message)]
struct Push {
    #[prost(message, repeated, tag = "1")]
    series: Vec<Series>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Series {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Raw>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Raw {
    #[prost(bytes = "vec", tag = "1")]
    profile: Vec<u8>,
}

/// The bodies that wait, by output.
fn waiting(agent: &Agent) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for output in std::fs::read_dir(agent.state.join("spool"))?.flatten() {
        for body in std::fs::read_dir(output.path())?.flatten() {
            // The queue's own files.
            if body.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            found.push(body.path());
        }
    }
    Ok(found)
}

/// An agent that finds `aiprof-send`, in a place that others may come to.
fn start(shop: &Workshop, lines: &str) -> anyhow::Result<Agent> {
    std::fs::set_permissions(shop.path(""), Permissions::from_mode(0o711))?;
    let folder = sender()?.parent().context("no folder")?.to_owned();
    Agent::start_with(shop, lines, |command| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(folders) {
            command.env("PATH", path);
        }
    })
}

fn of<'a>(requests: &'a [Request], path: &'a str) -> impl Iterator<Item = &'a Request> {
    requests.iter().filter(move |request| request.path == path)
}

#[test]
fn windows_reach_servers_that_were_down() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    // An address without a listener yet.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    // Root's alone.
    let token = shop.path("token");
    std::fs::write(&token, "s3cret\n")?;
    std::fs::set_permissions(&token, Permissions::from_mode(0o600))?;
    let lines = format!(
        "window = \"2s\"\nlabels = {{ cluster = \"c1\" }}\n\
         [budget]\ncpu = \"50%\"\n[metrics]\nlisten = \"off\"\n\
         [[output]]\ntype = \"otlp\"\nurl = \"http://{address}/otlp\"\n\
         [[output]]\ntype = \"pyroscope\"\nurl = \"http://{address}\"\ntenant = \"t1\"\n\
         token_file = {token:?}\n"
    );
    let mut busy = Command::new("sh");
    busy.args(["-c", "while :; do :; done"])
        .stdin(Stdio::null());
    let busy = Child::start(&mut busy)?;
    let mut agent = start(&shop, &lines)?;
    agent.await_lines("window of", 3)?;
    let kept = waiting(&agent)?;
    ensure!(kept.len() >= 6, "{} bodies wait", kept.len());
    let senders: Vec<String> = tree(agent.pid())?
        .iter()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok())
        .filter(|status| status.starts_with("Name:\taiprof-send"))
        .collect();
    let [sender] = &senders[..] else {
        anyhow::bail!("{} of aiprof-send run", senders.len());
    };
    for line in sender.lines() {
        let Some((name, value)) = line.split_once(":\t") else {
            continue;
        };
        let expected = match name {
            "CapInh" | "CapPrm" | "CapEff" | "CapAmb" => "0000000000000000",
            "Uid" => "65534\t65534\t65534\t65534",
            "NoNewPrivs" => "1",
            "Seccomp" => "2",
            _ => continue,
        };
        ensure!(value == expected, "aiprof-send has {line}");
    }
    let state = agent.state.clone();
    agent.kill()?;
    let server = Server::at(address)?;
    let mut agent = start(&shop, &lines)?;
    agent.await_lines("window of", 2)?;
    let begun = Instant::now();
    while kept.iter().any(|body| body.exists()) {
        ensure!(begun.elapsed() < LONG, "not delivered:\n{}", agent.said()?);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let said = agent.end()?;
    ensure!(
        state.join("sender/sender.json").exists(),
        "no status of aiprof-send:\n{said}"
    );

    let requests = server.requests();
    let pushed: Vec<_> = of(&requests, "/push.v1.PusherService/Push").collect();
    ensure!(pushed.len() >= 3, "{} pushes", pushed.len());
    let mut seconds = 0.0;
    let mut starts = Vec::new();
    for request in &pushed {
        ensure!(
            request
                .headers
                .get("x-scope-orgid")
                .is_some_and(|id| id == "t1")
        );
        let token = request.headers.get("authorization");
        ensure!(
            token.is_some_and(|token| token == "Bearer s3cret"),
            "{token:?}"
        );
        let push = Push::decode(&request.body[..])?;
        for series in &push.series {
            let label = |name: &str| {
                let found = series.labels.iter().find(|label| label.name == name);
                found.map_or("", |label| label.value.as_str())
            };
            ensure!(label("__name__") == "process_cpu", "{:?}", series.labels);
            ensure!(label("cluster") == "c1", "{:?}", series.labels);
            ensure!(!label("service_name").is_empty(), "{:?}", series.labels);
            let file = shop.path("pushed.pb.gz");
            let raw = series
                .samples
                .first()
                .context("a series without a profile")?;
            std::fs::write(&file, &raw.profile)?;
            starts.push(pprof::about(&file)?.start_unix_ns);
            if label("service_name") == "sh" {
                let samples = pprof::read(&file)?;
                let cpu = samples.iter().filter_map(|sample| sample.values.get("cpu"));
                seconds += cpu.sum::<i64>() as f64 / 1e9;
            }
        }
    }
    // Three windows of a loop, at the least.
    ensure!(seconds > 3.0, "{seconds} s of sh");
    ensure!(starts.is_sorted(), "{starts:?}");
    for request in of(&requests, "/otlp") {
        ensure!(
            request
                .headers
                .get("content-encoding")
                .is_some_and(|e| e == "gzip")
        );
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&request.body[..]).read_to_end(&mut plain)?;
        let has = |text: &str| plain.windows(text.len()).any(|at| at == text.as_bytes());
        ensure!(
            has("aiprof.own_cpu_ns") && has("cluster") && has("host.id"),
            "no facts"
        );
    }
    ensure!(of(&requests, "/otlp").count() >= 3, "too few of OTLP");
    drop(busy);
    Ok(())
}

#[test]
fn an_agent_may_leave_the_delivery_to_a_service() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Tool("setpriv")]);
    let shop = Workshop::new()?;
    let server = Server::start()?;
    let lines = format!(
        "window = \"1s\"\n[budget]\ncpu = \"50%\"\n[metrics]\nlisten = \"off\"\n\
         [control]\nlocal = false\n\
         [[output]]\ntype = \"otlp\"\nurl = \"http://{}/otlp\"\n",
        server.address()
    );
    let mut agent = Agent::start_with(&shop, &lines, |command| {
        command.arg("--no-send");
    })?;
    agent.await_line("window of")?;
    ensure!(tree(agent.pid())?.iter().all(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        !name.is_ok_and(|name| name.starts_with("aiprof-send"))
    }));
    ensure!(server.requests().is_empty() && !waiting(&agent)?.is_empty());
    // As in the unit, it is another user: the group comes to what waits.
    std::fs::set_permissions(shop.path(""), Permissions::from_mode(0o711))?;
    std::fs::set_permissions(&agent.config, Permissions::from_mode(0o640))?;
    let delivered = Command::new("setpriv")
        .args([
            "--reuid=65532",
            "--regid=0",
            "--clear-groups",
            "--no-new-privs",
            "--",
        ])
        .arg(sender()?)
        .arg("--config")
        .arg(&agent.config)
        .arg("--once")
        .output()?;
    let said = String::from_utf8_lossy(&delivered.stderr).into_owned();
    ensure!(delivered.status.success(), "{said}");
    ensure!(
        of(&server.requests(), "/otlp").count() > 0,
        "nothing was sent: {said}"
    );
    agent.end().map(drop)
}

/// `aiprof-send` is another user's process, which the agent may send no signal.
#[test]
fn a_reload_of_the_agent_reaches_its_aiprof_send_and_so_does_its_end() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let (first, second) = (Server::start()?, Server::start()?);
    let output = |server: &Server| {
        format!(
            "[[output]]\ntype = \"otlp\"\nurl = \"http://{}/otlp\"\n",
            server.address()
        )
    };
    let lines = format!(
        "window = \"1s\"\n[budget]\ncpu = \"50%\"\n[metrics]\nlisten = \"off\"\n\
         [control]\nlocal = false\n{}",
        output(&first)
    );
    let mut agent = start(&shop, &lines)?;
    let arrives = |server: &Server, agent: &Agent| -> anyhow::Result<()> {
        let begun = Instant::now();
        while server.requests().is_empty() {
            ensure!(begun.elapsed() < LONG, "nothing arrives: {}", agent.said()?);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Ok(())
    };
    arrives(&first, &agent)?;
    agent.configure(&lines.replace(&output(&first), &output(&second)))?;
    agent.await_line("configuration reloaded")?;
    arrives(&second, &agent)?;
    let said = agent.end()?;
    ensure!(said.contains("stopping: stdin was closed"), "{said}");
    ensure!(!said.contains("has not exited"), "{said}");
    Ok(())
}
