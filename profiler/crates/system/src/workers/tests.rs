//! Tests of `workers.rs`.

use super::*;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A job: a number to give back, after something was received if there is a
/// receiver.
type Job = (u32, Option<Receiver<()>>);

fn pool(limits: PoolLimits) -> Pool<Job, u32> {
    Pool::new("test", limits, || {
        Box::new(|(n, gate): Job| {
            if let Some(gate) = gate {
                let _ = gate.recv();
            }
            assert_ne!(n, 13);
            n
        })
    })
    .unwrap()
}

fn user(uid: u32) -> Owner {
    Owner { uid, container: 0 }
}

fn gated(n: u32) -> (Job, Sender<()>) {
    let (open, gate) = channel();
    ((n, Some(gate)), open)
}

/// The answers that come until there are `n`, ten seconds at most.
fn collect(pool: &mut Pool<Job, u32>, n: usize) -> Vec<(Ticket, String)> {
    let end = Instant::now() + Duration::from_secs(10);
    let mut all = Vec::new();
    while all.len() < n && Instant::now() < end {
        pool.wait(Instant::now() + Duration::from_millis(5));
        let answers = pool.answers().into_iter();
        all.extend(answers.map(|(t, o)| (t, format!("{o:?}"))));
    }
    all
}

const SHORT: PoolLimits = PoolLimits {
    threads: 1,
    patience: Duration::from_millis(50),
    queue: 4,
    at_once: usize::MAX,
    at_once_new: usize::MAX,
    stuck_of_owner: 2,
    stuck: 3,
};

#[test]
fn a_thread_that_does_not_return_is_replaced() {
    let mut pool = pool(SHORT);
    let (job, open) = gated(1);
    let stuck = pool.give(user(5), job).unwrap();
    let behind = pool.give(user(5), (2, None)).unwrap();
    let answers = collect(&mut pool, 2);
    assert_eq!(answers[0], (stuck, "Stuck".into()));
    assert_eq!(answers[1], (behind, "Done(2)".into()));
    assert_eq!(pool.stuck(), 1);
    open.send(()).unwrap();
    assert_eq!(collect(&mut pool, 1), [(stuck, "Done(1)".into())]);
    assert_eq!(pool.stuck(), 0);
}

#[test]
fn who_gets_threads_stuck_is_refused_and_others_are_not() {
    let mut pool = pool(SHORT);
    let mut gates = Vec::new();
    for n in 0..2 {
        let (job, open) = gated(n);
        gates.push(open);
        pool.give(user(5), job).unwrap();
    }
    let waiting = pool.give(user(5), (7, None)).unwrap();
    let other = pool.give(user(6), (8, None)).unwrap();
    let answers = collect(&mut pool, 4);
    assert!(answers.contains(&(waiting, "Stuck".into())), "{answers:?}");
    assert!(answers.contains(&(other, "Done(8)".into())), "{answers:?}");
    assert_eq!(pool.give(user(5), (9, None)), Err(Refused::Stuck));
    assert!(pool.give(user(6), (9, None)).is_ok());
    drop(gates);
    assert_eq!(collect(&mut pool, 3).len(), 3);
    assert!(pool.give(user(5), (9, None)).is_ok());
}

#[test]
fn root_has_a_reserve_when_many_users_are_stuck() {
    let mut pool = pool(SHORT);
    let mut gates = Vec::new();
    for uid in 10..13 {
        let (job, open) = gated(uid);
        gates.push(open);
        pool.give(user(uid), job).unwrap();
    }
    assert_eq!(collect(&mut pool, 3).len(), 3);
    assert_eq!(pool.give(user(20), (1, None)), Err(Refused::Stuck));
    pool.give(Owner::ROOT, (2, None)).unwrap();
    assert_eq!(collect(&mut pool, 1)[0].1, "Done(2)");
}

/// No job is late however slow the machine is.
const PATIENT: PoolLimits = PoolLimits {
    patience: Duration::from_secs(60),
    ..SHORT
};

/// Jobs that get stuck and then end, as those of processes that can be killed. No owner is ever
/// refused, and ten of them have work for both threads all the time.
#[test]
fn owners_whose_jobs_got_stuck_share_a_thread() {
    let mut pool = pool(PoolLimits {
        threads: 2,
        at_once: 1,
        stuck: 100,
        stuck_of_owner: 100,
        ..SHORT
    });
    // A job of this owner was done before.
    pool.give(user(20), (0, None)).unwrap();
    assert_eq!(collect(&mut pool, 1)[0].1, "Done(0)");
    let mut gates = Vec::new();
    for uid in 1..=10 {
        for n in 0..2 {
            let (job, open) = gated(n);
            gates.push(open);
            pool.give(user(uid), job).unwrap();
        }
    }
    // The first of each.
    assert_eq!(collect(&mut pool, 10).len(), 10);
    for owner in [user(20), Owner::ROOT, user(20), Owner::ROOT] {
        let ticket = pool.give(owner, (1, None)).unwrap();
        let is_done = |answers: &[(Ticket, String)]| answers.iter().any(|a| a.0 == ticket);
        while !is_done(&collect(&mut pool, 1)) {}
    }
    // Ten more of 50 ms each wait for one thread.
    assert!(pool.stuck() < 20, "an owner waited for all others");
}

#[test]
fn owners_take_turns() {
    let mut pool = pool(PATIENT);
    let (job, open) = gated(0);
    pool.give(user(1), job).unwrap();
    while pool.shared.lock().working() == 0 {
        thread::yield_now();
    }
    for n in 1..=4 {
        pool.give(user(1), (n, None)).unwrap();
    }
    assert_eq!(pool.give(user(1), (5, None)), Err(Refused::Full));
    pool.give(user(2), (100, None)).unwrap();
    open.send(()).unwrap();
    let order: Vec<_> = collect(&mut pool, 6).into_iter().map(|a| a.1).collect();
    let at = order.iter().position(|o| o == "Done(100)").unwrap();
    assert!(at <= 2, "{order:?}");
}

#[test]
fn what_is_for_later_waits_for_the_rest_of_its_owner_only() {
    let mut pool = pool(PATIENT);
    let (job, open) = gated(0);
    pool.give(user(1), job).unwrap();
    while pool.shared.lock().working() == 0 {
        thread::yield_now();
    }
    pool.give_later(user(1), (1, None)).unwrap();
    pool.give_later(user(2), (2, None)).unwrap();
    pool.give(user(1), (3, None)).unwrap();
    open.send(()).unwrap();
    let order: Vec<_> = collect(&mut pool, 4).into_iter().map(|a| a.1).collect();
    assert_eq!(order, ["Done(0)", "Done(3)", "Done(2)", "Done(1)"]);
}

#[test]
fn one_owner_does_not_have_all_threads() {
    let mut pool = pool(PoolLimits {
        threads: 2,
        at_once: 1,
        ..PATIENT
    });
    let (job, open) = gated(1);
    pool.give(user(1), job).unwrap();
    let (job, other) = gated(2);
    pool.give(user(1), job).unwrap();
    pool.give(user(2), (100, None)).unwrap();
    let first: Vec<_> = collect(&mut pool, 1).into_iter().map(|a| a.1).collect();
    assert_eq!(first, ["Done(100)"]);
    drop((open, other));
    assert_eq!(collect(&mut pool, 2).len(), 2);
}

/// Before any job got stuck: of users who are all new one may hold a thread up.
#[test]
fn new_owners_leave_a_thread_to_root() {
    let mut pool = pool(PoolLimits {
        threads: 2,
        at_once_new: 1,
        ..PATIENT
    });
    let mut gates = Vec::new();
    for uid in 1..=3 {
        let (job, open) = gated(uid);
        gates.push(open);
        pool.give(user(uid), job).unwrap();
    }
    pool.give(Owner::ROOT, (100, None)).unwrap();
    assert_eq!(collect(&mut pool, 1)[0].1, "Done(100)");
    drop(gates);
    assert_eq!(collect(&mut pool, 3).len(), 3);
    // Now they are known.
    let (job, first) = gated(1);
    pool.give(user(1), job).unwrap();
    pool.give(user(2), (2, None)).unwrap();
    assert_eq!(collect(&mut pool, 1)[0].1, "Done(2)");
    drop(first);
}

#[test]
fn a_panic_is_an_answer_and_the_next_job_is_done() {
    let mut pool = pool(PATIENT);
    pool.give(user(1), (13, None)).unwrap();
    pool.give(user(1), (14, None)).unwrap();
    let answers: Vec<_> = collect(&mut pool, 2).into_iter().map(|a| a.1).collect();
    assert_eq!(answers, ["Failed", "Done(14)"]);
}

#[test]
fn an_answer_wakes_who_polls() {
    let mut pool = pool(SHORT);
    pool.give(user(1), (3, None)).unwrap();
    let fd = pool.fd().try_clone_to_owned().unwrap();
    let mut polled = [rustix::event::PollFd::new(
        &fd,
        rustix::event::PollFlags::IN,
    )];
    let limit = rustix::event::Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    assert_eq!(rustix::event::poll(&mut polled, Some(&limit)), Ok(1));
    assert_eq!(pool.answers().len(), 1);
    assert_eq!(pool.pending(), 0);
}
