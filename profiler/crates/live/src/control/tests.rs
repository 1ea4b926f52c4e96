//! Both sides of the socket, in directories of the tests' own.

use super::client::{ask_in, names};
use super::*;
use rustix::net::{SendFlags, SocketAddrUnix};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn place() -> (TempDir, impl Fn() -> PrivateDirectory) {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().to_owned();
    (parent, move || PrivateDirectory::below(&path).unwrap())
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(future)
}

/// Connects and sends bytes as they are.
fn raw(directory: &PrivateDirectory, name: &str, bytes: &[u8]) -> OwnedFd {
    let connection = socket().unwrap();
    let address = SocketAddrUnix::new(directory.path_of(&socket_of(name))).unwrap();
    rustix::net::connect(&connection, &address).unwrap();
    if !bytes.is_empty() {
        rustix::net::send(&connection, bytes, SendFlags::NOSIGNAL).unwrap();
    }
    connection
}

#[test]
fn names_lead_to_no_other_place() {
    for name in ["a", "7", "train.1", "A_b-c", &"x".repeat(64)] {
        assert!(is_name(name), "{name}");
    }
    for name in [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "-a",
        "a b",
        "ä",
        "a\0",
        &"x".repeat(65),
    ] {
        assert!(!is_name(name), "{name}");
    }
}

#[test]
fn a_request_is_answered_and_the_socket_is_the_users_alone() {
    let (parent, directory) = place();
    run(async {
        let mut control = Control::in_directory(directory(), "one").unwrap();
        let socket = parent.path().join("aiprof/control-one.sock");
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(names(&directory()).unwrap(), ["one"]);
        let client_side = directory();
        let client = thread::spawn(move || ask_in(&client_side, "one", Request::Pause, None));
        let asked = control.next().await;
        assert_eq!(asked.request, Request::Pause);
        let status = Status {
            samples: 9,
            ..Status::default()
        };
        let answer = Reply::Done(Box::new(status));
        control.answer(asked, &answer);
        assert_eq!(client.join().unwrap().unwrap(), answer);
        drop(control);
        assert!(!socket.exists());
        let gone = ask_in(&directory(), "one", Request::Stop, None);
        assert!(matches!(gone, Err(ControlError::Nobody(_))), "{gone:?}");
    });
}

#[test]
fn an_answer_arrives_though_more_was_said_than_is_read() {
    let (_parent, directory) = place();
    run(async {
        let mut control = Control::in_directory(directory(), "one").unwrap();
        let client = raw(&directory(), "one", b"nonsense");
        rustix::net::send(&client, b"and more", SendFlags::NOSIGNAL).unwrap();
        let nobody = tokio::time::timeout(Duration::from_millis(200), control.next()).await;
        assert!(nobody.is_err());
        let answer = String::from_utf8(receive(&client).unwrap()).unwrap();
        assert!(answer.starts_with("no "), "{answer}");
    });
}

#[test]
fn clients_that_say_nothing_or_nonsense_hold_nobody_up() {
    let (_parent, directory) = place();
    run(async {
        let mut control = Control::in_directory(directory(), "one").unwrap();
        let mut others = Vec::new();
        for _ in 0..100 {
            others.push(raw(&directory(), "one", b""));
            let nonsense = raw(&directory(), "one", &[b'x'; 4000]);
            drop(raw(&directory(), "one", b"aiprof-control-1 statu"));
            let client_side = directory();
            let client = thread::spawn(move || ask_in(&client_side, "one", Request::Status, None));
            let asked = control.next().await;
            control.answer(asked, &Reply::Refused("no".into()));
            assert_eq!(client.join().unwrap().unwrap(), Reply::Refused("no".into()));
            let answer = receive(&nonsense).unwrap();
            assert!(answer.starts_with(b"no "), "{answer:?}");
        }
    });
}

#[test]
fn a_client_that_goes_takes_nothing_with_it() {
    let (_parent, directory) = place();
    run(async {
        let mut control = Control::in_directory(directory(), "one").unwrap();
        let client = raw(&directory(), "one", Request::Stop.encode().as_bytes());
        let asked = control.next().await;
        drop(client);
        control.answer(asked, &Reply::Refused("late".into()));
        // Twice, and after another.
        control.answer(asked, &Reply::Refused("late".into()));
        let client = raw(&directory(), "one", Request::Resume.encode().as_bytes());
        assert_eq!(control.next().await.request, Request::Resume);
        drop(client);
    });
}

#[test]
fn a_recorder_that_ends_without_an_answer_is_told() {
    let (_parent, directory) = place();
    run(async {
        let mut control = Control::in_directory(directory(), "one").unwrap();
        let client_side = directory();
        let client = thread::spawn(move || ask_in(&client_side, "one", Request::Stop, None));
        control.next().await;
        drop(control);
        let told = client.join().unwrap();
        assert!(matches!(told, Err(ControlError::Died(_))), "{told:?}");
    });
}

#[test]
fn who_waits_is_answered_later_or_goes_when_its_time_is_over() {
    let (_parent, directory) = place();
    let wait = Request::Wait(RecordState::Known(7));
    run(async {
        let mut control = Control::in_directory(directory(), "one").unwrap();
        let client_side = directory();
        let soon = Some(Instant::now() + Duration::from_millis(50));
        let client = thread::spawn(move || ask_in(&client_side, "one", wait, soon));
        let early = control.next().await;
        assert_eq!(early.request, wait);
        let late = client.join().unwrap();
        assert!(matches!(late, Err(ControlError::Late(_))), "{late:?}");
        // Others are heard meanwhile, and the answer to a client that has gone is dropped.
        let client_side = directory();
        let client = thread::spawn(move || ask_in(&client_side, "one", wait, None));
        let asked = control.next().await;
        assert!(control.has(asked) && !control.has(early));
        control.answer(early, &Reply::Refused("late".into()));
        let answer = Reply::Done(Box::default());
        control.answer(asked, &answer);
        assert_eq!(client.join().unwrap().unwrap(), answer);
    });
}

#[test]
fn what_killed_recorders_left_is_taken_over_and_nothing_else() {
    let (parent, directory) = place();
    let own = parent.path().join("aiprof");
    run(async {
        for name in ["one", "two"] {
            directory();
            std::fs::write(own.join(lock_of(name)), "").unwrap();
            let only_own = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(own.join(lock_of(name)), only_own).unwrap();
            let listener = socket().unwrap();
            let address = SocketAddrUnix::new(own.join(socket_of(name))).unwrap();
            rustix::net::bind(&listener, &address).unwrap();
        }
        assert_eq!(names(&directory()).unwrap(), [""; 0]);
        let _control = Control::in_directory(directory(), "one").unwrap();
        assert_eq!(names(&directory()).unwrap(), ["one"]);
        assert!(!own.join(socket_of("two")).exists());
        // A link in its place is refused, and stays.
        std::os::unix::fs::symlink("/etc/passwd", own.join(lock_of("three"))).unwrap();
        Control::in_directory(directory(), "three").unwrap_err();
        assert!(own.join(lock_of("three")).is_symlink());
    });
}

#[test]
fn a_full_queue_is_waited_for() {
    let (_parent, directory) = place();
    run(async {
        let mut control = Control::in_directory(directory(), "one").unwrap();
        // No connection is accepted meanwhile: the queue fills.
        let mut others = Vec::new();
        let place = directory();
        let address = SocketAddrUnix::new(place.path_of(&socket_of("one"))).unwrap();
        let full = loop {
            let other = socket().unwrap();
            match rustix::net::connect(&other, &address) {
                Ok(()) => others.push(other),
                Err(error) => break error,
            }
        };
        assert_eq!(full, rustix::io::Errno::AGAIN);
        let late = Some(Instant::now() + Duration::from_millis(50));
        let asked = ask_in(&place, "one", Request::Status, late);
        assert!(matches!(asked, Err(ControlError::Late(_))), "{asked:?}");
        assert_eq!(names(&place).unwrap(), ["one"]);
        let asking = thread::spawn(move || ask_in(&place, "one", Request::Status, None));
        drop(others);
        let asked = control.next().await;
        control.answer(asked, &Reply::Refused("no".into()));
        assert!(asking.join().unwrap().is_ok());
    });
}
