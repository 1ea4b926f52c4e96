use super::joined::{Attempt, join};
use super::*;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

fn job(rank: u32, local_size: Option<u32>) -> RankJob {
    RankJob {
        key: "a job".to_owned(),
        ranks: vec![("RANK", rank)],
        local_size,
    }
}

fn directory(parent: &TempDir) -> PrivateDirectory {
    std::fs::set_permissions(parent.path(), PermissionsExt::from_mode(0o700)).unwrap();
    PrivateDirectory::below(parent.path()).unwrap()
}

fn recorder(parent: &TempDir, job: RankJob) -> Recorder {
    let directory = directory(parent);
    let lock = directory.lock(&format!("{}.lock", job.name()));
    Recorder::new(job, directory, lock.unwrap().unwrap())
}

/// Joins from a thread, as another process would.
fn joining(parent: &TempDir, job: RankJob) -> tokio::task::JoinHandle<Attempt> {
    let directory = directory(parent);
    let deadline = Instant::now() + Duration::from_secs(20);
    tokio::task::spawn_blocking(move || join(&job, &directory, deadline).unwrap())
}

/// Serves until something else is done.
async fn serving<T>(others: &mut Others, until: impl Future<Output = T>) -> T {
    tokio::select! {
        done = until => done,
        () = others.serve(false) => unreachable!("it serves for ever"),
    }
}

#[tokio::test]
async fn ranks_join_leave_and_learn_of_the_end() {
    let parent = tempfile::tempdir().unwrap();
    let mut others = recorder(&parent, job(0, None)).listen("process 7").unwrap();
    let (first, second) = (
        joining(&parent, job(1, None)),
        joining(&parent, job(2, None)),
    );
    // No rank starts before the recording does.
    serving(&mut others, tokio::time::sleep(Duration::from_millis(200))).await;
    assert!(!first.is_finished() && !second.is_finished());
    assert_eq!(others.counts(), (2, 2));
    others.begin();
    let (Ok(Attempt::Joined(first)), Ok(Attempt::Joined(second))) = (first.await, second.await)
    else {
        panic!("not joined");
    };
    assert_eq!(first.recorder(), "process 7");
    drop(first);
    serving(&mut others, tokio::time::sleep(Duration::from_millis(50))).await;
    assert_eq!(others.counts(), (2, 1));
    // One that comes later begins at once.
    let third = serving(&mut others, joining(&parent, job(3, None))).await;
    let Attempt::Joined(third) = third.unwrap() else {
        panic!("not joined");
    };
    let refused = |attempt: Attempt, expected: &str| match attempt {
        Attempt::Refused(why) => assert!(why.contains(expected), "{why}"),
        other => panic!("{other:?}"),
    };
    for rank in [0, 1, 2] {
        let again = serving(&mut others, joining(&parent, job(rank, None))).await;
        refused(again.unwrap(), "same rank");
    }
    drop(third);
    let news = tokio::spawn(second.news());
    others.end();
    assert_eq!(news.await.unwrap().unwrap(), News::Over);
    // Its socket and lock are gone.
    assert_eq!(directory(&parent).names().unwrap().len(), 2);
    assert!(matches!(
        joining(&parent, job(4, None)).await.unwrap(),
        Attempt::Nobody
    ));
}

#[tokio::test]
async fn a_recording_ends_with_the_last_rank_and_waits_for_late_ones() {
    let parent = tempfile::tempdir().unwrap();
    let mut others = recorder(&parent, job(0, Some(2))).listen("x").unwrap();
    others.begin();
    let late = tokio::time::timeout(Duration::from_millis(300), others.serve(true));
    assert!(late.await.is_err(), "one of two ranks has not come");
    let attempt = serving(&mut others, joining(&parent, job(1, None))).await;
    let Attempt::Joined(joined) = attempt.unwrap() else {
        panic!("not joined");
    };
    let running = tokio::time::timeout(Duration::from_millis(300), others.serve(true));
    assert!(running.await.is_err(), "it runs");
    drop(joined);
    others.serve(true).await;
    // Without a number no rank is waited for.
    let parent = tempfile::tempdir().unwrap();
    let mut others = recorder(&parent, job(0, None)).listen("x").unwrap();
    others.serve(true).await;
    // Nor for ever.
    let mut recorder = recorder(&parent, job(9, Some(9)));
    recorder.age(LATECOMERS);
    recorder.listen("x").unwrap().serve(true).await;
}

#[tokio::test]
async fn a_recorder_that_dies_is_noticed_and_another_job_refused() {
    let parent = tempfile::tempdir().unwrap();
    let mut others = recorder(&parent, job(0, None)).listen("x").unwrap();
    let waits = joining(&parent, job(1, None));
    serving(&mut others, tokio::time::sleep(Duration::from_millis(100))).await;
    drop(others);
    assert!(
        matches!(waits.await.unwrap(), Attempt::Nobody),
        "it had not begun"
    );

    let mut others = recorder(&parent, job(0, None)).listen("x").unwrap();
    others.begin();
    let joined = serving(&mut others, joining(&parent, job(1, None))).await;
    let Attempt::Joined(joined) = joined.unwrap() else {
        panic!("not joined");
    };
    for hello in ["another job\nrank", "", "a job", "\n", "\u{0}"] {
        let directory = directory(&parent);
        let path = directory.path_of(&format!("{}.sock", job(0, None).name()));
        let socket = socket().unwrap();
        let address = rustix::net::SocketAddrUnix::new(path).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        let flags = rustix::net::SendFlags::NOSIGNAL;
        rustix::net::send(&socket, hello.as_bytes(), flags).unwrap();
        let answer = async {
            loop {
                match joined::receive(&socket) {
                    Ok(message) => return message.first().copied(),
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let answer = serving(&mut others, answer).await;
        // An empty message is the end.
        let expected = (!hello.is_empty()).then_some(REFUSED);
        assert_eq!(answer, expected, "{hello:?}");
    }
    assert_eq!(others.counts(), (1, 1));
    drop(others);
    assert_eq!(joined.news().await.unwrap(), News::Died);
}

#[test]
fn what_a_killed_recorder_left_is_no_obstacle() {
    let parent = tempfile::tempdir().unwrap();
    let own = parent.path().join("aiprof");
    drop(directory(&parent));
    let name = job(0, None).name();
    for stale in [
        &format!("{name}.lock"),
        &format!("{name}.sock"),
        "join-1.lock",
        "join-1.sock",
    ] {
        std::fs::write(own.join(stale), "").unwrap();
        std::fs::set_permissions(own.join(stale), PermissionsExt::from_mode(0o600)).unwrap();
    }
    let part = in_directory(job(0, None), directory(&parent), Instant::now());
    let JobPart::Recorder(recorder) = part.unwrap() else {
        panic!("not the recorder");
    };
    let names = directory(&parent).names().unwrap();
    assert!(
        !names.iter().any(|name| name.starts_with("join-1.")),
        "{names:?}"
    );
    drop(recorder);
}

#[test]
fn jobs_are_told_apart_by_launcher_variables_and_what_is_wanted() {
    let of = |wanted: &str, variables: &[(&str, &str)]| {
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        let own = std::process::id();
        RankJob::new(wanted, own, |name| {
            variables.get(name).map(|v| (*v).to_owned())
        })
    };
    assert_eq!(of("x", &[]), None);
    assert_eq!(of("x", &[("RANK", "colonel"), ("WORLD_SIZE", "2")]), None);
    let first = of("x", &[("RANK", "0"), ("LOCAL_WORLD_SIZE", "2")]).unwrap();
    let second = of("x", &[("RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]).unwrap();
    assert_eq!(first.local_size, Some(2));
    assert_eq!(first.key, second.key);
    assert_ne!(first.hello(), second.hello());
    assert_ne!(of("y", &[("RANK", "0")]).unwrap().key, first.key);
    let port = of("x", &[("RANK", "0"), ("MASTER_PORT", "29501")]).unwrap();
    assert_ne!(port.key, first.key);
    // A value on two lines stays on one, and a long one is cut.
    let odd = format!("a\nb{}", "é".repeat(1000));
    let odd = of("x", &[("RANK", "0"), ("SLURM_JOB_ID", &odd)]).unwrap();
    assert_eq!(odd.hello().lines().count(), 2);
    assert!(odd.key.len() < 1000);
    assert!(of(&"x".repeat(MAX_MESSAGE), &[("RANK", "0")]).is_none());
    // The parent of this process has no such ranks.
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
    let found = launcher(std::process::id(), &[("RANK", 4_000_000_000)]).unwrap();
    assert_eq!(found.0, parent.unsigned_abs());
}
