//! A real collector that takes no profiles, rotel: nothing is lost, and the error shows what to do.

mod common;

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use common::{Host, free_port, wait_for};

/// Prints where the collector is and where the library is that it needs.
const FIND: &str = "import pathlib, rotel, sysconfig; \
    print(pathlib.Path(rotel.__file__).parent / 'rotel-agent'); \
    print(sysconfig.get_config_var('LIBDIR'))";

struct Collector(Child);

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it; why that does not work here.
fn start(http: u16, grpc: u16) -> Result<Collector, String> {
    let packages = ["rotel==0.0.1a15"];
    let found = aiprof_tests::packages::python("AIPROF_TESTS_ROTEL", "rotel", &packages, FIND)?.1;
    let (program, libraries) = found.split_once('\n').ok_or("no path")?;
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", libraries)
        .args(["start", "--exporter", "blackhole"]);
    for (option, port) in [
        ("--otlp-http-endpoint", http),
        ("--otlp-grpc-endpoint", grpc),
    ] {
        command.arg(option).arg(format!("127.0.0.1:{port}"));
    }
    command.stdout(Stdio::null());
    let mut collector = Collector(command.spawn().map_err(|error| error.to_string())?);
    // It ends at once where it finds no libpython3.11.
    wait_for("rotel", || {
        if let Ok(Some(status)) = collector.0.try_wait() {
            return Some(Err(status.to_string()));
        }
        let up = [http, grpc].map(|port| TcpStream::connect(("127.0.0.1", port)).is_ok());
        up.iter().all(|up| *up).then_some(Ok(()))
    })?;
    Ok(collector)
}

#[test]
fn a_collector_without_profiles_loses_none() {
    let (http, grpc) = (free_port(), free_port());
    let _collector = match start(http, grpc) {
        Ok(collector) => collector,
        Err(why) => {
            aiprof_tests::need::skip("a_collector_without_profiles_loses_none", &why);
            return;
        }
    };
    let mut host = Host::new(&format!(
        "[[output]]\nname = \"a\"\ntype = \"otlp\"\nurl = \"http://127.0.0.1:{http}/v1development/profiles\"\n\
         [[output]]\nname = \"b\"\ntype = \"otlp\"\nprotocol = \"grpc\"\nurl = \"http://127.0.0.1:{grpc}\""
    ));
    for output in ["a", "b"] {
        host.put_windows(output, 1..=2);
    }
    host.start();
    for (output, expected) in [("a", "HTTP 404"), ("b", "UNIMPLEMENTED")] {
        let status = host.wait_for_status(output, |status| status.retried == 1);
        assert_eq!((status.waiting, status.refused), (2, 0));
        assert!(status.last_error.contains(expected), "{status:?}");
        assert!(
            status.last_error.contains("service.profilesSupport"),
            "{status:?}"
        );
    }
    let (code, stdout, _) = host.run(&["--check"]);
    assert_eq!(code, 1);
    assert_eq!(stdout.matches(": FAILED: ").count(), 2, "{stdout}");
}
