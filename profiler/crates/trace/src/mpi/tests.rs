use super::*;
use crate::analyze::message_arrows;
use crate::messages::Level;
use aiprof_model::timeline::{Dialect, Event, Id, Job, Ph, Stated, Track};

/// A call: rank, begin and end in microseconds, name, arguments.
type Called<'c> = (u32, f64, f64, &'c str, &'c str);

const WORLD: &str = r#""api":"MPICH","communicator":"0x44000000""#;

/// A timeline of processes whose numbers are 100 more than their ranks. `files` has the file that
/// each rank is in.
fn timeline(files: &[u32], calls: &[Called<'_>]) -> Timeline {
    let mut timeline = Timeline::default();
    for file in 0..=files.iter().copied().max().unwrap_or(0) {
        timeline.jobs.push(Job {
            path: format!("{file}.json"),
            name: format!("{file}.json"),
            hash: 0,
            writer: "",
            dialect: Dialect::Torch,
            rank: None,
            is_processed: false,
            stated: Stated::default(),
            is_recording: true,
        });
    }
    let mut add = |rank: u32, ph: Ph, name: &str, at: (f64, f64), args: &str| {
        let pid = Id::Number(100 + i64::from(rank));
        let track = timeline.tracks.intern(Track {
            job: files[rank as usize],
            ..Track::row(pid, pid)
        });
        let name = timeline.names.intern(name);
        let mut event = Event::new(ph, name, track, Time::from_micros(at.0));
        event.set_dur(at.1 - at.0);
        event.args = timeline.texts.add(args);
        timeline.events.push(event);
    };
    for rank in (0..).take(files.len()) {
        let label = format!(r#""values":{{"rank":"{rank}","user":"root"}}"#);
        add(rank, Ph::Metadata, "process_labels", (0.0, 0.0), &label);
    }
    for (rank, begin, end, name, args) in calls {
        add(*rank, Ph::Complete, name, (*begin, *end), args);
    }
    timeline
}

/// The same with `MPI_Init` of all ranks.
fn begun(files: &[u32], calls: &[Called<'_>]) -> Timeline {
    let inits = (0..).take(files.len());
    let mut all: Vec<Called<'_>> = inits
        .map(|rank| (rank, -1000.0, -900.0, "PMPI_Init", r#""api":"MPICH""#))
        .collect();
    all.extend_from_slice(calls);
    timeline(files, &all)
}

fn send(peer: u32, tag: i32, count: u32) -> String {
    format!(r#"{WORLD},"count":{count},"datatype":"0x4c00080b","peer":{peer},"tag":{tag}"#)
}

fn receive(peer: i32, tag: i32, status: Option<(u32, i32, u32)>) -> String {
    let status = match status {
        Some((source, tag, bytes)) => {
            format!(r#""source":{source},"received_tag":{tag},"received":{bytes}"#)
        }
        None => r#""source":"[not readable]","received_tag":"[not readable]""#.to_owned(),
    };
    format!(r#"{WORLD},"count":9,"datatype":"0x4c00080b","peer":{peer},"tag":{tag},{status}"#)
}

/// From, to, tag, begin of the send, begin of the receive.
fn pairs(traffic: &MpiTraffic) -> Vec<(u32, u32, i64, f64, f64)> {
    let all = traffic.messages.iter();
    let pair = |one: &PairedMessage| {
        let begins = (one.send.begin.micros(), one.receive.begin.micros());
        (one.from, one.to, one.tag, begins.0, begins.1)
    };
    all.map(pair).collect()
}

#[test]
fn messages_of_one_tag_do_not_overtake_each_other() {
    let (five, six) = (send(1, 5, 1), send(1, 6, 2));
    let (first, second) = (receive(0, 5, None), receive(0, 6, None));
    let timeline = begun(
        &[0, 0],
        &[
            (0, 0.0, 1.0, "PMPI_Send", &five),
            (0, 2.0, 3.0, "PMPI_Send", &six),
            (0, 4.0, 5.0, "PMPI_Send", &five),
            (1, 10.0, 11.0, "PMPI_Recv", &second),
            (1, 12.0, 13.0, "PMPI_Recv", &first),
            (1, 14.0, 15.0, "PMPI_Recv", &first),
        ],
    );
    let traffic = MpiTraffic::of(&timeline);
    let expected = [
        (0, 1, 5, 0.0, 12.0),
        (0, 1, 6, 2.0, 10.0),
        (0, 1, 5, 4.0, 14.0),
    ];
    assert_eq!(pairs(&traffic), expected);
    assert_eq!(traffic.unmatched, Unmatched::default());
    let bytes: Vec<_> = traffic.messages.iter().map(|one| one.bytes).collect();
    assert_eq!(bytes, [Some(8), Some(16), Some(8)]);
}

/// A sample that was taken in a function is called as it is.
#[test]
fn samples_are_no_calls() {
    let (sent, received) = (send(1, 5, 1), receive(0, 5, None));
    let mut timeline = begun(
        &[0, 0],
        &[
            (0, 0.0, 1.0, "PMPI_Send", &sent),
            (1, 2.0, 5.0, "PMPI_Recv", &received),
            (1, 2.0, 3.0, "PMPI_Mprobe", r#""cpu":0"#),
            (1, 3.0, 4.0, "PMPI_Recv", r#""cpu":0"#),
        ],
    );
    let sample = timeline.names.intern("sample");
    for event in timeline.events.iter_mut().rev().take(2) {
        event.cat = sample;
    }
    let traffic = MpiTraffic::of(&timeline);
    assert_eq!(pairs(&traffic), [(0, 1, 5, 0.0, 2.0)]);
    assert_eq!(traffic.unmatched, Unmatched::default());
}

#[test]
fn any_tag_takes_the_next_that_no_receive_before_it_takes() {
    let (five, six) = (send(1, 5, 1), send(1, 6, 1));
    let (any, named) = (receive(0, -1, None), receive(0, 5, None));
    let timeline = begun(
        &[0, 0],
        &[
            (0, 0.0, 1.0, "MPI_Send", &six),
            (0, 2.0, 3.0, "MPI_Send", &five),
            (1, 10.0, 11.0, "MPI_Recv", &named),
            (1, 12.0, 13.0, "MPI_Recv", &any),
        ],
    );
    let expected = [(0, 1, 6, 0.0, 12.0), (0, 1, 5, 2.0, 10.0)];
    assert_eq!(pairs(&MpiTraffic::of(&timeline)), expected);
}

#[test]
fn receives_from_anybody_take_what_their_status_says() {
    let (to, any) = (send(2, 7, 1), receive(-2, -1, Some((1, 7, 8))));
    let ignored = receive(-2, 7, None);
    let calls = [
        (0, 0.0, 1.0, "PMPI_Send", &*to),
        (1, 0.5, 1.0, "PMPI_Send", &*to),
        (2, 10.0, 11.0, "PMPI_Recv", &*any),
    ];
    let traffic = MpiTraffic::of(&begun(&[0, 0, 0], &calls));
    assert_eq!(pairs(&traffic), [(1, 2, 7, 0.5, 10.0)]);
    assert_eq!(traffic.unmatched.sends, 1);
    // Behind one of which nothing is known, none is matched by its number.
    let named = receive(1, 7, None);
    let mut calls = calls.to_vec();
    calls.extend([
        (1, 3.0, 4.0, "PMPI_Send", &*to),
        (1, 5.0, 6.0, "PMPI_Send", &*to),
        (2, 12.0, 13.0, "PMPI_Recv", &*ignored),
        (2, 14.0, 15.0, "PMPI_Recv", &*named),
    ]);
    let traffic = MpiTraffic::of(&begun(&[0, 0, 0], &calls));
    assert_eq!(pairs(&traffic), [(1, 2, 7, 0.5, 10.0)]);
    let found = traffic.unmatched;
    assert_eq!(
        (found.unknown_senders, found.receives, found.sends),
        (1, 1, 3)
    );
}

#[test]
fn what_was_cut_off_is_not_guessed() {
    let (to, from) = (send(1, 5, 1), receive(0, 5, None));
    let mut calls = vec![
        (0, 0.0, 1.0, "PMPI_Send", &*to),
        (0, 2.0, 3.0, "PMPI_Send", &*to),
        (1, 10.0, 11.0, "PMPI_Recv", &*from),
    ];
    // The end is missing: the first belong together.
    let traffic = MpiTraffic::of(&begun(&[0, 0], &calls));
    assert_eq!(pairs(&traffic), [(0, 1, 5, 0.0, 10.0)]);
    assert_eq!(traffic.unmatched.sends, 1);
    // The begin is missing: the match is not known.
    let traffic = MpiTraffic::of(&timeline(&[0, 0], &calls));
    assert_eq!((pairs(&traffic).len(), traffic.unmatched.sends), (0, 2));
    assert_eq!(traffic.unmatched.receives, 1);
    // As many as were sent, but one is over before.
    calls.push((1, 0.5, 1.5, "PMPI_Recv", &*from));
    let traffic = MpiTraffic::of(&timeline(&[0, 0], &calls));
    assert_eq!(traffic.unmatched.by_number, 2);
    calls.push((1, -5.0, -4.0, "PMPI_Recv", &*from));
    calls.push((0, 20.0, 21.0, "PMPI_Send", &*to));
    let traffic = MpiTraffic::of(&timeline(&[0, 0], &calls));
    assert_eq!((pairs(&traffic).len(), traffic.unmatched.receives), (0, 3));
}

#[test]
fn sizes_that_differ_are_no_pairs() {
    let (to, from) = (send(1, 5, 3), receive(0, 5, Some((0, 5, 8))));
    let calls = [
        (0, 0.0, 1.0, "PMPI_Send", &*to),
        (1, 10.0, 11.0, "PMPI_Recv", &*from),
    ];
    let traffic = MpiTraffic::of(&begun(&[0, 0], &calls));
    let found = traffic.unmatched;
    assert_eq!(
        (pairs(&traffic).len(), found.sends, found.receives),
        (0, 1, 1)
    );
}

#[test]
fn two_ranks_of_one_number_at_one_time_are_not_told_apart() {
    let (to, from) = (send(1, 5, 1), receive(0, 5, None));
    let calls = [
        (0, 0.0, 1.0, "PMPI_Send", &*to),
        (1, 10.0, 11.0, "PMPI_Recv", &*from),
        (2, 0.0, 1.0, "PMPI_Send", &*to),
    ];
    let mut timeline = begun(&[0, 0, 0], &calls);
    let text = timeline.texts.add(r#""values":{"rank":"0"}"#);
    timeline.events[2].args = text;
    let traffic = MpiTraffic::of(&timeline);
    assert_eq!(
        (pairs(&traffic).len(), traffic.unmatched.unknown_ranks),
        (0, 3)
    );
}

#[test]
fn split_communicators_have_their_own_ranks() {
    let split = |color: u32, key: i32| {
        format!(r#"{WORLD},"color":{color},"key":{key},"new_communicator":"0x84000001""#)
    };
    let sizes = format!(r#"{WORLD},"size":4"#);
    let own = |text: String| text.replace("0x44000000", "0x84000001");
    // Ranks 1 and 3 in the reverse order: 3 is 0, 1 is 1.
    let (to, from) = (own(send(0, 5, 1)), own(receive(1, 5, None)));
    let splits: Vec<String> = (0..4).map(|rank| split(rank % 2, -(rank as i32))).collect();
    let mut calls: Vec<Called<'_>> = Vec::new();
    for (rank, text) in (0..).zip(&splits) {
        calls.push((rank, -10.0, -9.0, "PMPI_Comm_size", &sizes));
        calls.push((rank, -5.0, -4.0, "PMPI_Comm_split", text));
    }
    calls.push((1, 0.0, 1.0, "PMPI_Ssend", &to));
    calls.push((3, 0.0, 1.0, "PMPI_Recv", &from));
    let traffic = MpiTraffic::of(&begun(&[0; 4], &calls));
    assert_eq!(pairs(&traffic), [(1, 3, 5, 0.0, 0.0)]);
    // Without one of the four, its place is not known.
    let calls: Vec<_> = calls.into_iter().filter(|call| call.0 != 2).collect();
    let traffic = MpiTraffic::of(&begun(&[0; 4], &calls));
    assert_eq!(pairs(&traffic).len(), 0, "{traffic:?}");
}

#[test]
fn requests_are_over_where_they_are_waited_for() {
    let begin = |request: &str| format!(r#"{},"request":"{request}""#, receive(0, 5, None));
    let (one, two) = (begin("0x98000001"), begin("0x98000002"));
    // Two requests of 32 bits in each value of 64.
    let all = r#""api":"MPICH","count":2,"requests":["0x9800000198000002","0xdead"]"#;
    let to = send(1, 5, 1);
    let timeline = begun(
        &[0, 0],
        &[
            (0, 3.0, 4.0, "PMPI_Send", &to),
            (0, 5.0, 6.0, "PMPI_Send", &to),
            (1, 0.0, 0.5, "PMPI_Irecv", &one),
            (1, 1.0, 1.5, "PMPI_Irecv", &two),
            (1, 2.0, 8.0, "PMPI_Waitall", all),
        ],
    );
    let traffic = MpiTraffic::of(&timeline);
    let over = |one: &PairedMessage| one.arrived.map(|over| over.end.micros());
    let over: Vec<_> = traffic.messages.iter().map(over).collect();
    assert_eq!(over, [Some(8.0), Some(8.0)]);
    // The call waited for the later of both.
    let waits = traffic.waits();
    assert_eq!(waits.len(), 1);
    assert_eq!(
        (waits[0].rank, waits[0].waits_for, waits[0].us),
        (1, 0, 3.0)
    );
}

#[test]
fn unitrace_s_arguments_are_read() {
    // A receive has its source as `src`, a send its destination as `dst`.
    let calls = [
        (0, 0.0, 1.0, "MPI_Send", r#""dsize":400,"dst":1,"dtag":7"#),
        (1, 0.5, 2.0, "MPI_Recv", r#""ssize":400,"src":0,"stag":7"#),
        (0, 3.0, 4.0, "MPI_Barrier", ""),
        (1, 3.5, 4.0, "MPI_Barrier", ""),
    ];
    let mut timeline = timeline(&[0, 1], &calls);
    let name = timeline.names.intern("process_name");
    for rank in 0..2 {
        let args = format!(r#""name":"RANK {rank} HOST<node>""#);
        timeline.events[rank].name = name;
        timeline.events[rank].args = timeline.texts.add(&args);
    }
    let traffic = MpiTraffic::of(&timeline);
    assert_eq!(pairs(&traffic), [(0, 1, 7, 0.0, 0.5)]);
    assert_eq!(traffic.messages[0].bytes, Some(400));
    assert_eq!(traffic.collectives.len(), 1);
    assert_eq!(traffic.waits()[0].us, 0.5);
}

#[test]
fn clocks_of_files_are_brought_together_and_arrows_drawn() {
    let (to, back) = (send(1, 5, 1), send(0, 6, 1));
    let (from, answer) = (receive(0, 5, None), receive(1, 6, None));
    // The second file's clock is 1 s ahead. Both ways take 2 us.
    let mut timeline = begun(
        &[0, 1],
        &[
            (0, 0.0, 1.0, "PMPI_Send", &to),
            (1, 999_990.0, 1_000_002.0, "PMPI_Recv", &from),
            (1, 1_000_010.0, 1_000_011.0, "PMPI_Send", &back),
            (0, 9.0, 12.0, "PMPI_Recv", &answer),
        ],
    );
    let traffic = MpiTraffic::of(&timeline);
    let found = clocks::run(&mut timeline, &traffic, Level::Info).unwrap();
    assert!(found.is_done);
    let line = found.clocks[1].line.unwrap();
    assert!((line.us + 1e6).abs() < 0.01, "{line:?}");
    assert!((1.9..2.1).contains(&line.error_us), "{line:?}");
    // The way back was seen 10 us after it was sent by clocks that differ by a second.
    assert_eq!((found.reversed_before, found.reversed_after), (1, 0));
    // An arrow that is there keeps its number.
    let flow = Event::new(
        Ph::FlowStart,
        timeline.events[3].name,
        timeline.events[3].track,
        Time::ORIGIN,
    );
    timeline.events.push(Event {
        id: Id::Number(41),
        ..flow
    });
    let traffic = MpiTraffic::of(&timeline);
    assert_eq!(message_arrows::add(&mut timeline, &traffic), 2);
    let ids: Vec<_> = timeline
        .events
        .iter()
        .rev()
        .take(4)
        .map(|event| event.id)
        .collect();
    assert_eq!(ids, [43, 43, 42, 42].map(Id::Number));
}

#[test]
fn ranks_of_another_group_are_not_ours() {
    // To and from rank 0 of the other group, which is not this process.
    let made = format!(r#"{WORLD},"new_communicator":"0x84000007""#);
    let own = |text: String| text.replace("0x44000000", "0x84000007");
    let (to, from) = (own(send(0, 5, 1)), own(receive(0, 5, None)));
    let asked = r#""api":"MPICH","communicator":"0x84000007","rank":0,"size":1"#;
    let timeline = begun(
        &[0],
        &[
            (0, -9.0, -8.0, "PMPI_Intercomm_create", &made),
            (0, -7.0, -6.0, "PMPI_Comm_rank", asked),
            (0, -5.0, -4.0, "PMPI_Comm_size", asked),
            (0, 0.0, 1.0, "PMPI_Send", &to),
            (0, 2.0, 3.0, "PMPI_Recv", &from),
        ],
    );
    let traffic = MpiTraffic::of(&timeline);
    assert_eq!(
        (pairs(&traffic).len(), traffic.unmatched.unknown_ranks),
        (0, 2)
    );
    // To itself.
    let own = |text: String| text.replace("0x44000000", "0x44000001");
    let (to, from) = (own(send(0, 5, 1)), own(receive(0, 5, None)));
    let calls = [
        (0, 0.0, 1.0, "PMPI_Send", &*to),
        (0, 2.0, 3.0, "PMPI_Recv", &*from),
    ];
    let traffic = MpiTraffic::of(&begun(&[0], &calls));
    assert_eq!(pairs(&traffic), [(0, 0, 5, 0.0, 2.0)]);
}
