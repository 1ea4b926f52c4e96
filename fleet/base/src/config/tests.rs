//! Configurations, right and wrong.

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("agent.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn nothing_is_the_default() {
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn all_of_it_is_read() {
    let config = parse(
        r#"
        frequency = 49
        window = "30s"
        host = "web-1"
        labels = { cluster = "c1" }
        [record]
        off_cpu = true
        devices = true
        [budget]
        cpu = "0.5%"
        memory = "100MiB"
        [metrics]
        listen = "off"
        [[output]]
        type = "files"
        directory = "/var/lib/aiprof/files"
        keep = 10
        [[output]]
        name = "collector"
        type = "otlp"
        protocol = "grpc"
        url = "https://collector:4317"
        token_file = "/etc/aiprof/token"
        timeout = "5s"
        [[output]]
        type = "pyroscope"
        url = "http://pyroscope:4040"
        max_age = "1h"
        [[output]]
        type = "lake"
        url = "s3://profiles/prod"
        endpoint = "http://127.0.0.1:8333"
        "#,
    )
    .unwrap();
    assert_eq!(config.frequency, 49);
    assert!((config.budget.cpu - 0.005).abs() < 1e-12);
    assert_eq!(config.metrics.listen, None);
    assert!(config.record.launches && config.record.devices && config.record.off_cpu);
    let names: Vec<_> = config.outputs.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["files", "collector", "pyroscope", "lake"]);
    let kinds: Vec<_> = config.outputs.iter().map(|o| o.kind.name).collect();
    assert_eq!(kinds, ["files", "otlp", "pyroscope", "lake"]);
    let To::Server(collector) = &config.outputs[1].to else {
        panic!()
    };
    assert!(collector.api.is_grpc());
    assert_eq!(collector.http.timeout, Duration::from_secs(5));
}

/// The keys of a kind of output that each one must have.
const NEEDED: [(&str, &str); 2] = [("files", "directory = \"/x\""), ("", "url = \"/x\"")];

/// An output of a kind with what it must have, and these lines.
fn least(kind: &str, lines: &str) -> String {
    let needed = NEEDED.iter().find(|(of, _)| [kind, ""].contains(of));
    output(kind, &format!("{}\n{lines}", needed.unwrap().1))
}

#[test]
fn an_unknown_type_is_answered_with_all_that_are_known() {
    let error = parse(&output("smoke", "")).unwrap_err();
    for kind in OUTPUTS {
        assert!(error.contains(&format!("{:?}", kind.name)), "{error}");
    }
}

#[test]
fn a_key_that_no_output_has_is_an_error_whatever_the_kind() {
    for kind in OUTPUTS {
        let error = parse(&least(kind.name, "tokenfile = \"/x\"")).expect_err(kind.name);
        let expected = "unknown field `tokenfile`, expected one of `";
        assert!(error.contains(expected), "{}: {error}", kind.name);
        assert!(error.contains("agent.toml: ") && error.contains("line 1"));
    }
}

/// The page of the configuration has each kind, with its keys, in an item of a list or below it.
#[test]
fn the_documentation_lists_every_output_and_its_keys() {
    let page = include_str!("../../../../docs/always-on.md");
    for kind in OUTPUTS {
        let name = format!("`{}`", kind.name);
        let mut items = page.lines().filter(|line| line.starts_with("- `"));
        let listed = items.any(|line| line.split(':').next().is_some_and(|it| it.contains(&name)));
        assert!(listed, "docs/always-on.md has no item of {name}");
        let error = parse(&least(kind.name, "x = 1")).expect_err(kind.name);
        let (_, keys) = error.split_once("expected one of ").unwrap();
        for key in keys.split('`').skip(1).step_by(2) {
            assert!(page.contains(&format!("`{key}`")), "{name}: {key}");
        }
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (text, expected) in [
        ("frequenzy = 1", "line 1"),
        ("frequency = 0", "agent.toml: frequency: must be 1 to 1000"),
        ("window = \"1d\"", "window: must be 1s to 1h"),
        ("one_in = 0", "one_in: must be 1 (always) to 1000"),
        ("[budget]\ncpu = 0.1", "line 2"),
        ("[budget]\ncpu = \"0%\"", "budget.cpu"),
        (
            "[[output]]\ntype = \"files\"\ndirectory = \"x\"",
            "output.files.directory: must be an absolute path",
        ),
        (
            "[[output]]\ntype = \"parca\"\nurl = \"ftp://x\"",
            "output.parca.url: must begin with",
        ),
        (
            "[[output]]\ntype = \"parca\"\nurl = \"http://u:p@x\"",
            "basic_auth_file",
        ),
        (
            "[[output]]\ntype = \"parca\"\nurl = \"http://x\"\ntokenfile = \"x\"",
            "tokenfile",
        ),
        (
            "[[output]]\ntype = \"smoke\"",
            "`type` must be \"files\" or \"",
        ),
        ("[[output]]\nname = \"x\"", "missing field `type`"),
        ("[[output]]\ntype = 5", "`type` must be a text in quotes"),
        ("[[output]]\ntype = \"parca\"\nurl = 5", "in `url`"),
        (
            "[[output]]\ntype = \"lake\"\nurl = \"/a\"\n[[output]]\ntype = \"lake\"\nurl = \"/b\"",
            "two outputs have this name",
        ),
        (
            "[[output]]\nname = \"../x\"\ntype = \"lake\"\nurl = \"/a\"",
            "letters, digits",
        ),
        ("[metrics]\nlisten = \"x\"", "ADDRESS:PORT"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// An output, with these lines.
fn output(kind: &str, lines: &str) -> String {
    format!("[[output]]\ntype = \"{kind}\"\n{lines}\n")
}

#[test]
fn values_that_nothing_can_be_done_with_are_found() {
    let parca = |lines: &str| output("parca", lines);
    for (text, expected) in [
        (
            "host = \"a\\nb\"".to_owned(),
            "host: must have 1 to 253 bytes",
        ),
        ("host = \"\"".to_owned(), "host: must have"),
        ("host_id = \"a\\u0007\"".to_owned(), "host_id: must have"),
        (
            "state = \"x\"".to_owned(),
            "state: must be an absolute path",
        ),
        (
            "state = \"/a\\nb\"".to_owned(),
            "state: must be an absolute path",
        ),
        (
            "labels = { \"a b\" = \"c\" }".to_owned(),
            "labels.a b: the key of a label must have",
        ),
        (
            "labels = { a = \"b\\rc\" }".to_owned(),
            "labels.a: must have at most 255 bytes",
        ),
        (
            "labels = { \"host.id\" = \"x\" }".to_owned(),
            "use `host_id`",
        ),
        (
            "[spool]\nsize = 0".to_owned(),
            "spool.size: must be at least 1MiB",
        ),
        (
            "[budget]\nmemory = \"1MiB\"".to_owned(),
            "budget.memory: must be at least 16MiB",
        ),
        (
            "[budget]\ncpu = \"101%\"".to_owned(),
            "budget.cpu: must be above 0%",
        ),
        (
            "[control]\nname = \"../x\"".to_owned(),
            "control.name: must have 1 to 64 letters",
        ),
        (
            "[metrics]\nlisten = \"127.0.0.1:0\"".to_owned(),
            "metrics.listen: the port",
        ),
        (parca("url = \"http://\""), "output.parca.url: has no host"),
        (parca("url = \"http://:80\""), "url: has no host"),
        (
            parca("url = \"http://x:0\""),
            "url: PORT must be 1 to 65535",
        ),
        (parca("url = \"http://x:70000\""), "url: PORT must be"),
        (parca("url = \"http://x:+1\""), "url: PORT must be"),
        (
            parca("url = \"http://[x\""),
            "url: HOST must have only letters",
        ),
        (
            parca("url = \"http://a\\\\b/\""),
            "url: HOST must have only letters",
        ),
        (parca("url = \"http://x/a b\""), "url: has spaces"),
        (parca("url = \"http://x\\n\""), "url: has spaces"),
        (parca("url = \"http://x?a=b\""), "url: remove the part"),
        (
            output("otlp", "url = \"http://x/a\"\nprotocol = \"grpc\""),
            "output.otlp.url: has a path",
        ),
        (
            parca("url = \"http://x\"\ntoken_file = \"/t\""),
            "url: http:// would send the secret",
        ),
        (
            parca("url = \"http://127.0.0.1.example\"\nbasic_auth_file = \"/t\""),
            "url: http:// would send the secret",
        ),
        (
            parca("url = \"https://x\"\ntoken_file = \"t\""),
            "token_file: must be an absolute path",
        ),
        (
            parca("url = \"http://x\"\nca_file = \"/ca\""),
            "url: certificates need https://",
        ),
        (
            parca("url = \"http://x\"\ntenant = \"a\\r\\nb: c\""),
            "tenant: must be one line",
        ),
        (
            parca("url = \"http://x\"\ntenant = \"\""),
            "tenant: must be one line",
        ),
        (
            parca("url = \"http://x\"\nheaders = { a = \"b\\nc\" }"),
            "headers.a: must be one line",
        ),
        (
            parca("url = \"http://x\"\nheaders = { \"a b\" = \"c\" }"),
            "headers.a b: is not a header name",
        ),
        (
            parca("url = \"http://x\"\nheaders = { Host = \"c\" }"),
            "headers.Host: aiprof-send sets this header",
        ),
        (
            parca("url = \"http://x\"\nheaders = { Authorization = \"Bearer x\" }"),
            "headers.Authorization: would put a secret",
        ),
        (
            parca("url = \"http://x\"\ntimeout = \"0s\""),
            "timeout: must be more than 0s",
        ),
        (
            parca("url = \"http://x\"\nmax_age = \"10s\""),
            "max_age: must be longer than `window`",
        ),
        (
            format!(
                "window = \"1h\"\n{}",
                output("pyroscope", "url = \"http://x\"")
            ),
            "output.pyroscope.max_age: must be longer than `window`",
        ),
        (
            output("files", "directory = \"/x\"\nkeep = 0"),
            "output.files.keep: must be at least 1",
        ),
        (
            output("files", "directory = \"/x\"")
                + &output("files", "name = \"b\"\ndirectory = \"/x\""),
            "output.b.directory: another output writes the same files",
        ),
        (
            output("lake", "url = \"x\""),
            "output.lake.url: must be file:///PATH",
        ),
        (
            output("lake", "url = \"/a\\nb\""),
            "output.lake.url: must be file:///PATH",
        ),
        (
            output("lake", "url = \"s3:///x\""),
            "output.lake.url: must be s3://BUCKET",
        ),
        (
            output("lake", "url = \"/a\"\nroll_up = \"0s\""),
            "roll_up: must be 10s to 1d",
        ),
        (
            output("lake", "url = \"/a\"\nregion = \"x\""),
            "region: works with s3:// only",
        ),
        (
            output("lake", "url = \"s3://abc\"\nendpoint = \"abc\""),
            "endpoint: must begin with https://",
        ),
        (
            output("lake", "url = \"s3://abc\"\ncredentials_file = \"abc\""),
            "credentials_file: must be an absolute path",
        ),
    ] {
        let error = parse(&text).expect_err(&text);
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.starts_with("agent.toml: "), "{error}");
    }
}

#[test]
fn all_that_is_wrong_is_found_at_once_with_a_line_each() {
    let error = parse("frequency = 0\nhost = \"\"\nlabels = { \"a\\nb\" = \"c\" }").unwrap_err();
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{error}");
    assert!(lines[0].starts_with("agent.toml: frequency: "), "{error}");
    assert!(
        lines[2].starts_with("agent.toml: labels.a\\nb: "),
        "{error}"
    );
}

#[test]
fn a_secret_may_go_to_this_machine_and_by_tls() {
    for url in [
        "https://collector.example:4318",
        "http://127.0.0.1:4318",
        "http://127.1.2.3",
        "http://localhost:4318/v1",
        "http://[::1]:4318",
    ] {
        let text = output("otlp", &format!("url = \"{url}\"\ntoken_file = \"/t\""));
        assert!(parse(&text).is_ok(), "{url}: {:?}", parse(&text));
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::read(Path::new("/nonexistent/agent.toml")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/agent.toml"));
}
