//! What deploy/ has does what docs/deploy.md describes, with real tools: Helm, kubernetes-validate,
//! Prometheus and Ansible; and the agent records with the capabilities that a pod gives it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use aiprof_tests::agent::Agent;
use aiprof_tests::aiprof::{binary, sender};
use aiprof_tests::child::{Child, LONG};
use aiprof_tests::folded::Folded;
use aiprof_tests::http::Server;
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::workload::{Workshop, checked};
use aiprof_tests::{packages, python};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn deploy(name: &str) -> PathBuf {
    root().join("deploy").join(name)
}

/// Python with a validator of Kubernetes' objects and a reader of YAML.
fn validator() -> Result<PathBuf, String> {
    let packages = ["kubernetes-validate==1.37.0"];
    let find = "import kubernetes_validate, yaml";
    let found = packages::python("AIPROF_DEPLOY_PYTHON", "deploy-python", &packages, find);
    found.map(|(python, _)| python)
}

/// What a test needs; without it the test is skipped.
fn or_skip<T>(test: &str, found: Result<T, String>) -> Option<T> {
    found.inspect_err(|why| skip(test, why)).ok()
}

/// The documents of YAML files.
fn documents(python: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<Value>> {
    let read = "import json, sys, yaml\n\
                all = [d for f in sys.argv[1:] for d in yaml.safe_load_all(open(f)) if d]\n\
                json.dump(all, sys.stdout)";
    let text = checked(Command::new(python).args(["-c", read]).args(files))?;
    Ok(serde_json::from_str(&text)?)
}

/// Checks objects against Kubernetes' schemas of a version; fields that it does not know are
/// wrong.
fn validate(python: &Path, version: &str, files: &[PathBuf]) -> anyhow::Result<String> {
    let program = python.with_file_name("kubernetes-validate");
    let mut command = Command::new(program);
    command.args(["--strict", "-k", version]).args(files);
    let output = command.output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(output.status.success(), "{said}");
    Ok(said)
}

fn manifests() -> [PathBuf; 2] {
    ["kubernetes/daemonset.yaml", "kubernetes/compact.yaml"].map(deploy)
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> anyhow::Result<&'a Value> {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.with_context(|| format!("no {kind}"))
}

/// The capabilities that the pod's container has.
fn capabilities(objects: &[Value]) -> anyhow::Result<Vec<String>> {
    let pod = &of_kind(objects, "DaemonSet")?["spec"]["template"]["spec"];
    let security = &pod["containers"][0]["securityContext"];
    ensure!(security["capabilities"]["drop"] == json!(["ALL"]));
    let added = security["capabilities"]["add"].as_array();
    let added = added.context("no capabilities")?.iter();
    Ok(added
        .filter_map(|it| Some(it.as_str()?.to_owned()))
        .collect())
}

#[test]
fn manifests_are_what_kubernetes_knows() -> anyhow::Result<()> {
    let name = "manifests_are_what_kubernetes_knows";
    skip_unless!(&[Need::Tool("python3")]);
    let Some(python) = or_skip(name, validator()) else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    for version in ["1.30", "1.37"] {
        let said = validate(&python, version, &manifests())?;
        ensure!(said.matches("passed").count() == 6, "{said}");
    }
    // What is wrong is found.
    let text = std::fs::read_to_string(deploy("kubernetes/daemonset.yaml"))?;
    let wrong = shop.path("wrong.yaml");
    std::fs::write(&wrong, text.replace("hostPID", "hostPid"))?;
    ensure!(validate(&python, "1.37", &[wrong]).is_err());
    // The configuration is one for the agent.
    let objects = documents(&python, &manifests())?;
    let config = &of_kind(&objects, "ConfigMap")?["data"]["agent.toml"];
    check_config(&shop, config.as_str().context("no agent.toml")?)?;
    let pod = &of_kind(&objects, "DaemonSet")?["spec"]["template"]["spec"];
    let security = &pod["containers"][0]["securityContext"];
    ensure!(security["privileged"] == false && security["readOnlyRootFilesystem"] == true);
    ensure!(!capabilities(&objects)?.contains(&"SYS_ADMIN".to_owned()));
    Ok(())
}

/// Has the agent check a configuration.
fn check_config(shop: &Workshop, text: &str) -> anyhow::Result<()> {
    let file = shop.path("checked.toml");
    // On a node the volume is there.
    let volume = shop.path("volume");
    std::fs::create_dir_all(&volume)?;
    let text = text.replace("/var/lib/aiprof", &volume.display().to_string());
    std::fs::write(&file, text)?;
    let mut command = Command::new(binary()?);
    command.args(["agent", "--check", "--config"]).arg(file);
    checked(with_sender(&mut command)?).map(drop)
}

/// Has a command find aiprof-send.
fn with_sender(command: &mut Command) -> anyhow::Result<&mut Command> {
    let folder = sender()?.parent().context("no folder")?.to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    Ok(command.env("PATH", std::env::join_paths(folders)?))
}

/// Python with Helm.
fn helm() -> Result<PathBuf, String> {
    let all = python::interpreters();
    let new = all.iter().rev().find(|it| {
        let minor = it.version.split('.').nth(1).and_then(|m| m.parse().ok());
        minor.is_some_and(|minor: u32| minor >= 12)
    });
    let new = new.ok_or("needs Python 3.12 or newer, for Helm")?;
    let packages = ["helm-sdkpy==0.1.32"];
    let found = packages::python_of(
        &new.program,
        "AIPROF_HELM_PYTHON",
        "deploy-helm",
        &packages,
        "import helm_sdkpy",
    );
    found.map(|(python, _)| python)
}

/// The objects that Helm makes of the chart, without what it adds to each.
fn chart(shop: &Workshop, python: &Path, values: &Value) -> anyhow::Result<Vec<Value>> {
    let file = shop.path("values.json");
    std::fs::write(&file, values.to_string())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/helm.py");
    let mut command = Command::new(python);
    command.arg(script).arg(deploy("helm/aiprof"));
    let text = checked(command.args(["aiprof", "aiprof"]).arg(file))?;
    let mut objects: Vec<Value> = serde_json::from_str(&text)?;
    for object in &mut objects {
        let meta = object["metadata"].as_object_mut().context("no metadata")?;
        meta.remove("annotations");
        let labels = meta.get_mut("labels").and_then(Value::as_object_mut);
        let by = labels
            .context("no labels")?
            .remove("app.kubernetes.io/managed-by");
        ensure!(by == Some(json!("Helm")), "{by:?}");
    }
    Ok(objects)
}

#[test]
fn helm_makes_what_the_manifests_have() -> anyhow::Result<()> {
    let name = "helm_makes_what_the_manifests_have";
    skip_unless!(&[Need::Tool("python3")]);
    let both = validator().and_then(|python| Ok((python, helm()?)));
    let Some((python, helm)) = or_skip(name, both) else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let plain = documents(&python, &manifests())?;
    let made = chart(&shop, &helm, &json!({"compact": {"enabled": true}}))?;
    for object in &plain {
        let kind = object["kind"].as_str().unwrap_or_default();
        // Helm makes the namespace itself (`--create-namespace`).
        if kind != "Namespace" {
            ensure!(of_kind(&made, kind)? == object, "{kind} differs: {made:#?}");
        }
    }
    ensure!(made.len() + 1 == plain.len(), "{made:#?}");
    // All that can be chosen.
    let values = json!({
        "sysAdmin": true,
        "seccompProfile": "RuntimeDefault",
        "stateHostPath": "",
        "restartOnChange": true,
        "imagePullSecrets": [{"name": "registry"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClass": {"create": false, "name": "system-node-critical"},
        "metrics": {"podMonitor": true, "port": 9000},
        "compact": {"enabled": true, "schedule": "5 * * * *"},
    });
    let made = chart(&shop, &helm, &values)?;
    ensure!(capabilities(&made)?.contains(&"SYS_ADMIN".to_owned()));
    let pod = &of_kind(&made, "DaemonSet")?["spec"]["template"];
    ensure!(pod["metadata"]["annotations"]["checksum/config"].is_string());
    ensure!(
        pod["spec"]["volumes"][1]["emptyDir"] == json!({}),
        "{pod:#}"
    );
    ensure!(pod["spec"]["priorityClassName"] == "system-node-critical");
    ensure!(of_kind(&made, "PriorityClass").is_err());
    ensure!(of_kind(&made, "CronJob")?["spec"]["schedule"] == "5 * * * *");
    of_kind(&made, "PodMonitor")?;
    let known = made.iter().filter(|object| object["kind"] != "PodMonitor");
    let files: Vec<PathBuf> = known
        .enumerate()
        .map(|(at, object)| {
            let file = shop.path(&format!("object-{at}.json"));
            std::fs::write(&file, object.to_string()).map(|()| file)
        })
        .collect::<Result<_, _>>()?;
    validate(&python, "1.37", &files)?;
    // The schema refuses what is no value.
    for wrong in [
        json!({"sysAdmin": "yes"}),
        json!({"sysadmin": true}),
        json!({"stateHostPath": "var"}),
    ] {
        ensure!(chart(&shop, &helm, &wrong).is_err(), "{wrong}");
    }
    Ok(())
}

/// Has the agent run as root with these capabilities and no way to get others, as in a container.
fn confine(command: &mut Command, capabilities: &[String], errors: &Path) -> anyhow::Result<()> {
    let bounding: String = capabilities
        .iter()
        .map(|it| format!(",+{}", it.to_lowercase()))
        .collect();
    let mut confined = Command::new("setpriv");
    confined
        .args(["--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all"])
        .arg(format!("--bounding-set=-all{bounding}"))
        .arg("--")
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::options().append(true).open(errors)?);
    *command = confined;
    Ok(())
}

/// What an agent with capabilities showed of a program of another user.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    program: bool,
    library: bool,
    kernel: bool,
}

fn seen(pid: u32, with: &[String]) -> anyhow::Result<(Option<Seen>, String)> {
    let shop = Workshop::new()?;
    let files = shop.path("files");
    let lines = format!(
        "window = \"2s\"\nfrequency = 99\n[budget]\ncpu = \"50%\"\n[metrics]\nlisten = \"off\"\n\
         [control]\nlocal = false\n\
         [[output]]\ntype = \"files\"\nformat = \"folded\"\ndirectory = \"{}\"\n",
        files.display()
    );
    let errors = shop.path("agent.err");
    let mut confined = Ok(());
    let started = Agent::start_with(&shop, &lines, |command| {
        confined = confine(command, with, &errors);
    });
    confined?;
    let mut agent = match started {
        Ok(agent) => agent,
        Err(_) => return Ok((None, std::fs::read_to_string(&errors)?)),
    };
    agent.await_line("window of")?;
    let said = agent.end()?;
    let mut text = String::new();
    for entry in std::fs::read_dir(&files)? {
        let path = entry?.path();
        if path.extension() == Some("folded".as_ref()) {
            text += &std::fs::read_to_string(path)?;
        }
    }
    let folded = Folded::parse(&text)?.of_pid(pid);
    ensure!(!folded.lines.is_empty(), "no samples of {pid}: {said}");
    let is_named = |frame: &String| frame.ends_with("_[k]") && !frame.starts_with('[');
    Ok((
        Some(Seen {
            program: folded.lines.iter().any(|line| line.has("loop_in_program")),
            library: folded.lines.iter().any(|line| line.has("loop_in_library")),
            kernel: folded
                .lines
                .iter()
                .any(|line| line.frames.iter().any(is_named)),
        }),
        said,
    ))
}

#[test]
fn a_pod_s_capabilities_are_enough_and_each_is_needed() -> anyhow::Result<()> {
    let name = "a_pod_s_capabilities_are_enough_and_each_is_needed";
    let needs = [Need::Root, Need::Tool("setpriv"), Need::Tool("python3")];
    skip_unless!(&needs);
    let Some(python) = or_skip(name, validator()) else {
        return Ok(());
    };
    let all = capabilities(&documents(&python, &manifests())?)?;
    // A program that only its user may read, and a library that is deleted while it runs.
    let shop = Workshop::new()?;
    let library = shop.library("other_library.c", "other", &[])?;
    let program = shop.build("other_user.c", "other_user", &["-lother"])?;
    let folder = program.parent().context("no folder")?;
    for path in [folder, program.as_path(), library.as_path()] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(path, mode)?;
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut other = Child::start(&mut command)?;
    other.read_line()?;
    std::fs::remove_file(&library)?;

    println!("| capabilities | records | program | deleted library | kernel |");
    let show = |what: &str, seen: &Option<Seen>| {
        let word = |is: bool| if is { "named" } else { "unnamed" };
        match seen {
            None => println!("| {what} | no | | | |"),
            Some(seen) => println!(
                "| {what} | yes | {} | {} | {} |",
                word(seen.program),
                word(seen.library),
                word(seen.kernel)
            ),
        }
    };
    let (with_all, said) = seen(other.pid(), &all)?;
    show(&all.join(" "), &with_all);
    let everything = Seen {
        program: true,
        library: true,
        kernel: true,
    };
    ensure!(with_all == Some(everything), "{with_all:?}: {said}");
    for without in &all {
        let fewer: Vec<String> = all.iter().filter(|it| *it != without).cloned().collect();
        let (found, said) = seen(other.pid(), &fewer)?;
        show(&format!("without {without}"), &found);
        ensure!(found != with_all, "{without} is not needed: {said}");
    }
    Ok(())
}

/// Names that metrics have when they are served, as the source of aiprof-send has them.
fn served() -> anyhow::Result<BTreeSet<String>> {
    let source = std::fs::read_to_string(root().join("fleet/send/src/metrics/table.rs"))?;
    let mut names = BTreeSet::new();
    for metric in source.split("metric!(").skip(1) {
        let mut words = metric.split_whitespace();
        let suffix = match words.next() {
            Some("Counter") => "_total",
            Some("Info") => "_info",
            _ => "",
        };
        let name = words.next().unwrap_or_default().trim_matches('"');
        names.insert(format!("{name}{suffix}"));
    }
    ensure!(names.len() > 30, "{names:?}");
    Ok(names)
}

/// The metrics of aiprof that an expression names.
fn named(expression: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(move |c| !is_word(c));
    words.filter(|word| word.starts_with("aiprof_"))
}

/// All expressions of a dashboard, by the titles of their panels, and of its variables.
fn expressions(board: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for panel in board["panels"].as_array().into_iter().flatten() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let title = panel["title"].as_str().unwrap_or_default();
            let text = target["expr"].as_str().unwrap_or_default();
            all.push((title.to_owned(), text.to_owned()));
        }
    }
    all
}

fn boards() -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    for name in ["grafana/fleet.json", "grafana/host.json"] {
        all.push(serde_json::from_slice(&std::fs::read(deploy(name))?)?);
    }
    Ok(all)
}

#[test]
fn dashboards_and_alerts_name_only_metrics_that_there_are() -> anyhow::Result<()> {
    let served = served()?;
    let mut used = BTreeSet::new();
    for board in boards()? {
        let expressions = expressions(&board);
        ensure!(expressions.len() > 10, "{}", board["title"]);
        let mut ids = BTreeSet::new();
        for panel in board["panels"].as_array().into_iter().flatten() {
            ensure!(ids.insert(panel["id"].as_u64()), "an id twice: {panel}");
        }
        let variables = board["templating"]["list"].as_array().into_iter().flatten();
        let queries = variables.filter_map(|it| it["definition"].as_str().map(str::to_owned));
        for text in expressions.into_iter().map(|(_, text)| text).chain(queries) {
            ensure!(named(&text).next().is_some(), "{text}: no metric");
            for name in named(&text) {
                ensure!(served.contains(name), "{text}: there is no {name}");
                used.insert(name.to_owned());
            }
        }
    }
    // Nothing that is served is in no dashboard.
    let unused: Vec<_> = served.difference(&used).collect();
    ensure!(unused.is_empty(), "in no dashboard: {unused:?}");
    let alerts = std::fs::read_to_string(deploy("prometheus/alerts.yaml"))?;
    let expressions = alerts.split("expr:").skip(1);
    for text in expressions.filter_map(|rest| rest.split("labels:").next()) {
        for name in named(text) {
            ensure!(served.contains(name), "alerts: there is no {name}");
        }
    }
    Ok(())
}

#[test]
fn alerts_fire_when_they_should() -> anyhow::Result<()> {
    skip_unless!(&[Need::Tool("promtool")]);
    let folder = deploy("prometheus");
    let promtool =
        |args: &[&str]| checked(Command::new("promtool").args(args).current_dir(&folder));
    promtool(&["check", "rules", "alerts.yaml"])?;
    promtool(&["check", "config", "scrape.yaml"])?;
    let said = promtool(&["test", "rules", "alerts_test.yaml"])?;
    ensure!(said.contains("SUCCESS"), "{said}");
    // Each alert has a test in which it fires.
    let alerts = std::fs::read_to_string(folder.join("alerts.yaml"))?;
    let tests = std::fs::read_to_string(folder.join("alerts_test.yaml"))?;
    for alert in alerts.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap_or_default();
        let line = format!("alertname: {name}\n");
        let of_it = tests.split(&line).skip(1);
        let mut fires = of_it.filter(|rest| {
            let rest = rest.trim_start();
            rest.starts_with("exp_alerts:\n") && rest.contains("- exp_labels:")
        });
        ensure!(fires.next().is_some(), "{name} fires in no test");
    }
    Ok(())
}

/// One request of HTTP by curl's means.
fn get(url: &str, accept: &str) -> anyhow::Result<String> {
    let program = "import sys, urllib.request as u\n\
                   r = u.Request(sys.argv[1], headers={'Accept': sys.argv[2]})\n\
                   print(u.urlopen(r, timeout=5).read().decode(), end='')";
    checked(Command::new("python3").args(["-c", program, url, accept]))
}

/// A port that is not in use.
fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

#[test]
fn prometheus_scrapes_the_agent_and_knows_every_expression() -> anyhow::Result<()> {
    let tools = ["promtool", "prometheus", "python3"].map(Need::Tool);
    let needs = [&[Need::Root][..], &tools].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let server = Server::start()?;
    let (agent_port, port) = (free_port()?, free_port()?);
    let lines = format!(
        "window = \"1s\"\nhost = \"web-1\"\n[budget]\ncpu = \"50%\"\n\
         [metrics]\nlisten = \"127.0.0.1:{agent_port}\"\n\
         [[output]]\ntype = \"otlp\"\nurl = \"http://{}/otlp\"\n",
        server.address()
    );
    let mut found = Ok(());
    let mut agent = Agent::start_with(&shop, &lines, |command| {
        found = with_sender(command).map(|_| ());
    })?;
    found?;
    agent.await_lines("window of", 2)?;
    // Both formats are what Prometheus's own linter wants.
    let url = format!("http://127.0.0.1:{agent_port}/metrics");
    let old = get(&url, "text/plain")?;
    let mut linter = Command::new("promtool");
    let input = shop.path("metrics");
    std::fs::write(&input, &old)?;
    linter
        .args(["check", "metrics"])
        .stdin(std::fs::File::open(&input)?);
    let linted = linter.output()?;
    let said = String::from_utf8_lossy(&linted.stderr).into_owned();
    ensure!(linted.status.success(), "{said}\n{old}");

    let config = format!(
        "scrape_configs:\n- job_name: aiprof\n  scrape_interval: 1s\n  static_configs:\n  \
         - targets: ['127.0.0.1:{agent_port}']\n    labels: {{instance: web-1}}\n"
    );
    std::fs::write(shop.path("prometheus.yml"), config)?;
    let mut command = Command::new("prometheus");
    command
        .arg(format!(
            "--config.file={}",
            shop.path("prometheus.yml").display()
        ))
        .arg(format!(
            "--storage.tsdb.path={}",
            shop.path("tsdb").display()
        ))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(shop.path("prometheus.err"))?);
    let prometheus = Child::start(&mut command)?;
    let ask = |expression: &str| -> anyhow::Result<usize> {
        let encoded: String = expression
            .bytes()
            .map(|byte| format!("%{byte:02x}"))
            .collect();
        let url = format!("http://127.0.0.1:{port}/api/v1/query?query={encoded}");
        let answer: Value = serde_json::from_str(&get(&url, "*/*")?)?;
        ensure!(answer["status"] == "success", "{expression}: {answer}");
        Ok(answer["data"]["result"].as_array().map_or(0, Vec::len))
    };
    let begun = Instant::now();
    // Rates take two scrapes.
    while !ask("count_over_time(aiprof_windows_total[1m]) > 3").is_ok_and(|found| found > 0) {
        let log = std::fs::read_to_string(shop.path("prometheus.err"))?;
        ensure!(begun.elapsed() < LONG, "nothing is scraped: {log}");
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut answered = 0;
    for board in boards()? {
        for (title, expression) in expressions(&board) {
            let found = ask(&expression.replace("$instance", "web-1"))?;
            // No accelerator is here, and what compares may find nothing.
            let may_be_empty = ["accelerator", "rejected", "losses", "> 0", ">= 3", "== 0"];
            let may_be_empty = may_be_empty.iter().any(|part| expression.contains(part));
            ensure!(
                found > 0 || may_be_empty,
                "{title}: no answer to {expression}"
            );
            answered += usize::from(found > 0);
        }
    }
    println!("{answered} expressions of dashboards have an answer");
    drop(prometheus);
    agent.end().map(drop)
}

/// A ConfigMap's files are links, and what they lead to is replaced.
#[test]
fn a_configuration_behind_links_is_read_again() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let (first, second) = (Server::start()?, Server::start()?);
    let lines = |to: &Server| {
        format!(
            "state = \"{}\"\nwindow = \"1s\"\n[budget]\ncpu = \"50%\"\n\
             [metrics]\nlisten = \"off\"\n[control]\nlocal = false\n\
             [[output]]\ntype = \"otlp\"\nurl = \"http://{}/otlp\"\n",
            shop.path("own-state").display(),
            to.address()
        )
    };
    let volume = shop.path("volume");
    let put = |version: &str, text: &str| -> anyhow::Result<()> {
        std::fs::create_dir_all(volume.join(version))?;
        std::fs::write(volume.join(version).join("agent.toml"), text)?;
        let data = volume.join("..data");
        std::os::unix::fs::symlink(version, volume.join("..data_tmp"))?;
        std::fs::rename(volume.join("..data_tmp"), data)?;
        Ok(())
    };
    put("..1", &lines(&first))?;
    let config = volume.join("agent.toml");
    std::os::unix::fs::symlink("..data/agent.toml", &config)?;
    let mut found = Ok(());
    let mut agent = Agent::start_with(&shop, "", |command| {
        found = with_sender(command).map(|_| ());
        command.env("AIPROF_HOST", "node-7");
        let errors = std::fs::File::options()
            .append(true)
            .open(shop.path("agent.err"));
        let mut own = Command::new(command.get_program());
        own.args(["agent", "--config"]).arg(&config);
        for (key, value) in command.get_envs() {
            own.env(key, value.unwrap_or_default());
        }
        own.stdin(Stdio::null()).stdout(Stdio::null());
        if let Ok(errors) = errors {
            own.stderr(errors);
        }
        *command = own;
    })?;
    found?;
    let arrives = |server: &Server, agent: &Agent| -> anyhow::Result<()> {
        let begun = Instant::now();
        while server.requests().is_empty() {
            ensure!(begun.elapsed() < LONG, "nothing arrives: {}", agent.said()?);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    };
    arrives(&first, &agent)?;
    put("..2", &lines(&second))?;
    std::fs::remove_dir_all(volume.join("..1"))?;
    agent.await_line("configuration reloaded")?;
    arrives(&second, &agent)?;
    let status = std::fs::read_to_string(shop.path("own-state/agent.json"))?;
    ensure!(status.contains("node-7"), "{status}");
    agent.end().map(drop)
}

#[test]
fn ansible_knows_the_role() -> anyhow::Result<()> {
    let name = "ansible_knows_the_role";
    skip_unless!(&[Need::Tool("python3")]);
    let packages = ["ansible-core>=2.14,<2.20"];
    let found = packages::python(
        "AIPROF_ANSIBLE_PYTHON",
        "deploy-ansible",
        &packages,
        "import ansible",
    );
    let python = match found {
        Ok((python, _)) => python,
        Err(why) => {
            skip(name, &why);
            return Ok(());
        }
    };
    let shop = Workshop::new()?;
    std::fs::create_dir(shop.path("roles"))?;
    std::os::unix::fs::symlink(deploy("ansible").canonicalize()?, shop.path("roles/aiprof"))?;
    // Its template, with all kinds of values, as the agent reads it.
    let playbook = json!([
        {"hosts": "all", "gather_facts": false, "roles": ["aiprof"], "tags": "role"},
        {"hosts": "all", "gather_facts": false, "tags": "template",
         "vars_files": ["roles/aiprof/defaults/main.yml", "given.json"],
         "tasks": [{"template": {
             "src": "roles/aiprof/templates/agent.toml.j2",
             "dest": shop.path("agent.toml"),
             "validate": format!("{} agent --config %s --check", binary()?.display()),
         }}]},
    ]);
    let token = shop.path("token");
    std::fs::write(&token, "t0k3n")?;
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let given = json!({
        "aiprof_fixed": "x",
        "aiprof_host": "web-1",
        "aiprof_labels": {"cluster": "c\"1", "team": "gr\u{fc}n \u{1f600}"},
        "aiprof_record": {"off_cpu": true},
        "aiprof_outputs": [
            {"type": "files", "directory": "/x", "keep": 10},
            {"type": "pyroscope", "url": "http://x:1", "headers": {"a": "b"}, "timeout": "5s"},
            {"name": "o", "type": "otlp", "url": "https://x/y", "token_file": token},
        ],
    });
    std::fs::write(shop.path("site.yml"), playbook.to_string())?;
    std::fs::write(shop.path("given.json"), given.to_string())?;
    let ansible = |args: &[&str]| -> anyhow::Result<String> {
        let mut command = Command::new(python.with_file_name("ansible-playbook"));
        command
            .args(["-i", "localhost,", "-c", "local", "site.yml"])
            .args(args)
            .current_dir(shop.path(""))
            .env("ANSIBLE_HOME", shop.path("home"))
            .env("ANSIBLE_PYTHON_INTERPRETER", &python);
        checked(with_sender(&mut command)?)
    };
    ansible(&["--syntax-check"])?;
    ansible(&["--tags", "template"])?;
    let written = std::fs::read_to_string(shop.path("agent.toml"))?;
    for line in [
        "host = \"web-1\"",
        "off_cpu = true",
        "headers = { \"a\" = \"b\" }",
        "keep = 10",
    ] {
        ensure!(
            written.lines().any(|it| it == line),
            "no {line}:\n{written}"
        );
    }
    // What the agent refuses is not written.
    let wrong = ansible(&[
        "--tags",
        "template",
        "-e",
        "{\"aiprof_window\": \"2 days\"}",
    ]);
    ensure!(wrong.is_err());
    ensure!(std::fs::read_to_string(shop.path("agent.toml"))? == written);
    Ok(())
}

/// What a reader copies from docs/deploy.md is there.
#[test]
fn files_that_the_documentation_names_are_there() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root().join("docs/deploy.md"))?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let mut names = 0;
    for word in text.split(|c| !is_part(c)) {
        let word = word.trim_start_matches("../").trim_end_matches('.');
        if word.starts_with("deploy/") || word.starts_with("docs/") {
            ensure!(root().join(word).exists(), "there is no {word}");
            names += 1;
        }
    }
    ensure!(names > 8, "{names} files are named");
    Ok(())
}
