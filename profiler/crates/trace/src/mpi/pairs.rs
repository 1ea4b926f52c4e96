//! Which send belongs to which receive.
//!
//! Messages of one rank to another with one tag in one communicator do not overtake each other (MPI
//! 4.0, 3.5). So the k-th that is sent is received by the k-th receive that takes such a message,
//! in the order in which receives were begun. That needs no clock. Where a receive names its
//! source, but takes any tag, what it takes follows as well: the next that no receive before it
//! takes. A receive from any source takes what its status names. Where a program ignores the
//! status, the message is not known, and it is counted.

use super::calls::{CallSpan, MpiProcess, Peer};
use super::comms::{CommId, Comms};
use super::posts::{Post, Posts};
use super::{PairedMessage, Unmatched};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};

/// From whom to whom messages go. Those of one tag do not overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Channel {
    comm: CommId,
    from: u32,
    to: u32,
}

/// A post: its process and place there.
type PostAt = (usize, usize);

/// Sends and receives by tag, in their order.
#[derive(Default)]
struct Sides {
    sends: Vec<(i64, PostAt)>,
    /// Without a tag: of any, and no record shows which.
    receives: Vec<(Option<i64>, PostAt)>,
}

impl Sides {
    /// Whether as many were sent as received, of each tag.
    fn are_even(&self) -> bool {
        let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
        for (tag, _) in &self.sends {
            *counts.entry(*tag).or_default() += 1;
        }
        for (tag, _) in &self.receives {
            match tag {
                Some(tag) => *counts.entry(*tag).or_default() -= 1,
                None => return false,
            }
        }
        counts.values().all(|count| *count == 0)
    }

    /// The pairs: each message goes to the first receive that was begun, takes its tag and
    /// has none yet.
    fn pairs(&self, is_known: impl Fn(PostAt) -> bool) -> Vec<(i64, PostAt, PostAt)> {
        let mut waiting: BTreeMap<Option<i64>, VecDeque<PostAt>> = BTreeMap::new();
        for (tag, at) in self.receives.iter().filter(|(_, at)| is_known(*at)) {
            waiting.entry(*tag).or_default().push_back(*at);
        }
        let mut pairs = Vec::new();
        for (tag, send) in &self.sends {
            let first = |of: Option<i64>| {
                let first = waiting.get(&of).and_then(|all| all.front().copied());
                first.map(|(_, at)| (at, of))
            };
            let next = [first(Some(*tag)), first(None)].into_iter().flatten().min();
            let queue = next.and_then(|(_, of)| waiting.get_mut(&of));
            if let Some(receive) = queue.and_then(VecDeque::pop_front) {
                pairs.push((*tag, *send, receive));
            }
        }
        pairs
    }
}

pub(super) struct Matcher<'m> {
    pub(super) processes: &'m [MpiProcess],
    pub(super) posts: &'m [Posts],
    pub(super) comms: &'m Comms,
    /// Ranks in the run, by process.
    pub(super) ranks: &'m [Option<u32>],
}

impl Matcher<'_> {
    /// Finds all messages.
    pub(super) fn run(&self) -> (Vec<PairedMessage>, Unmatched) {
        let mut unmatched = Unmatched::default();
        let mut channels: BTreeMap<Channel, Sides> = BTreeMap::new();
        // By process and communicator: the first receive that nothing is known of.
        let mut unknown: FxHashMap<(usize, CommId), usize> = FxHashMap::default();
        for (number, posts) in self.posts.iter().enumerate() {
            for (at, post) in posts.posts.iter().enumerate() {
                if post.is_cancelled {
                    continue;
                }
                match self.channel(number, post, &mut unmatched) {
                    Some((channel, tag)) => {
                        let sides = channels.entry(channel).or_default();
                        match post.is_send {
                            true => sides.sends.push((tag.unwrap_or(-1), (number, at))),
                            false => sides.receives.push((tag, (number, at))),
                        }
                    }
                    None if !post.is_send => {
                        unknown.entry((number, post.comm)).or_insert(at);
                    }
                    None => {}
                }
            }
        }
        let mut messages = Vec::new();
        for (channel, sides) in &channels {
            self.pair(channel.comm, sides, &unknown, &mut messages, &mut unmatched);
        }
        messages.sort_by_key(|message| (message.send.begin, message.receive.begin));
        (messages, unmatched)
    }

    /// The channel of a send or receive; counts what has none.
    fn channel(
        &self,
        number: usize,
        post: &Post,
        unmatched: &mut Unmatched,
    ) -> Option<(Channel, Option<i64>)> {
        let own = self.comms.rank(post.comm, number);
        let own = own.filter(|rank| self.comms.process(post.comm, *rank) == Some(number));
        let Some(own) = own else {
            unmatched.unknown_ranks += 1;
            return None;
        };
        let named = match post.peer {
            Peer::Rank(rank) => Some(rank),
            _ => post.from.map(|(rank, _)| rank),
        };
        let tag = post.tag.or(post.from.map(|(_, tag)| tag));
        let Some(peer) = named else {
            unmatched.unknown_senders += 1;
            return None;
        };
        let (from, to) = match post.is_send {
            true => (own, peer),
            false => (peer, own),
        };
        let comm = post.comm;
        Some((Channel { comm, from, to }, tag))
    }

    fn post(&self, (number, at): PostAt) -> Option<&Post> {
        self.posts.get(number)?.posts.get(at)
    }

    fn pair(
        &self,
        comm: CommId,
        sides: &Sides,
        unknown: &FxHashMap<(usize, CommId), usize>,
        messages: &mut Vec<PairedMessage>,
        unmatched: &mut Unmatched,
    ) {
        let (sends, receives) = (sides.sends.len(), sides.receives.len());
        let ends = sides.sends.first().zip(sides.receives.first());
        let ends = ends.and_then(|((_, from), (_, to))| {
            let sender = self.processes.get(from.0)?;
            Some((sender, self.processes.get(to.0)?, to.0))
        });
        let Some((sender, receiver, number)) = ends else {
            return unmatched.add(sends, receives);
        };
        let is_lossy = sender.has_losses || receiver.has_losses;
        let is_whole = sender.has_begin && receiver.has_begin && !is_lossy;
        let is_even = sides.are_even();
        // Behind a receive of which nothing is known, one more message may be taken.
        let until = unknown.get(&(number, comm)).copied();
        let until = until.filter(|_| !is_even);
        let mut pairs = match is_whole || is_even && !is_lossy {
            true => sides.pairs(|(_, at)| until.is_none_or(|until| at < until)),
            false => Vec::new(),
        };
        let is_one_clock = sender.job == receiver.job;
        let is_possible = |(_, send, receive): &(i64, PostAt, PostAt)| {
            self.is_possible(*send, *receive, !is_whole && is_one_clock)
        };
        if !pairs.iter().all(is_possible) {
            pairs.clear();
        }
        if !is_whole {
            unmatched.by_number += pairs.len() as u64;
        }
        unmatched.add(sends - pairs.len(), receives - pairs.len());
        let found = pairs.into_iter();
        messages.extend(found.filter_map(|(tag, send, receive)| self.message(send, receive, tag)));
    }

    /// Whether as many bytes were received as sent, and not before. What is not known counts as
    /// right. If not, calls are missing.
    fn is_possible(&self, send: PostAt, receive: PostAt, by_time: bool) -> bool {
        let Some((send, receive)) = self.post(send).zip(self.post(receive)) else {
            return false;
        };
        let sizes = send.bytes.zip(receive.received);
        let over = receive.over.filter(|_| by_time);
        sizes.is_none_or(|(sent, received)| sent == received)
            && over.is_none_or(|over| over.end >= send.call.begin)
    }

    fn message(&self, send: PostAt, receive: PostAt, tag: i64) -> Option<PairedMessage> {
        let (from, to) = (self.post(send)?, self.post(receive)?);
        let job = |(number, _): PostAt| self.processes.get(number).map(|process| process.job);
        let rank = |(number, _): PostAt| self.ranks.get(number).copied().flatten();
        Some(PairedMessage {
            from: rank(send)?,
            to: rank(receive)?,
            from_job: job(send)?,
            to_job: job(receive)?,
            tag,
            bytes: from.bytes.or(to.received),
            send: from.call,
            sent: from.over,
            is_synchronous: from.is_synchronous,
            receive: to.call,
            arrived: to.over,
        })
    }
}

impl PairedMessage {
    /// Where the receiver waited for the sender, and how long, microseconds; 0: it came
    /// later. Needs clocks that agree.
    pub fn receiver_waits(&self) -> Option<(CallSpan, f64)> {
        let over = self.arrived?;
        Some((over, waits(over, self.send.begin)))
    }

    /// Where the sender waited for the receive to begin, and how long, microseconds.
    pub fn sender_waits(&self) -> Option<(CallSpan, f64)> {
        let over = self.sent?;
        // A send that returned before the receive began did not need it.
        let is_needed = over.end >= self.receive.begin;
        let us = is_needed.then(|| waits(over, self.receive.begin));
        Some((over, us.unwrap_or(0.0)))
    }
}

/// How long a call waited for something that began then.
fn waits(call: CallSpan, begin: aiprof_model::timeline::Time) -> f64 {
    (begin.min(call.end) - call.begin).micros().max(0.0)
}
