//! Messages between ranks, as collectives trace them: which send belongs to which
//! receive.
//!
//! The AIU's collectives name a synchronization in the events of both sides,
//! `SenRdmaSend_7 [sync=AllReduce_4_s0_r1_0] DmaO` and
//! `SenRdmaRecv_9 [sync=AllReduce_4_s0_r1_0] DmaI`. A trace has the same names again
//! in every iteration. The k-th send and the k-th receive of a name belong together,
//! which needs no common clock: the clocks are found by these pairs.

use aiprof_model::timeline::{Event, Sym, Timeline};
use rustc_hash::{FxHashMap, FxHashSet};

/// What an event does for a message: `args.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// `SingleCast`: sends the data to one rank.
    Send,
    /// `MultiCast XSEG`: announces data to one rank of a multicast.
    Segment,
    /// `MultiCast`: sends the data to several ranks.
    Multicast,
    /// `Set BCList`: names the receivers of a multicast.
    List,
    /// `WDone Barrier`: the data are there.
    Receive,
}

impl Role {
    fn of(kind: &str) -> Option<Self> {
        Some(match kind {
            "SingleCast" => Self::Send,
            "MultiCast XSEG" => Self::Segment,
            "MultiCast" => Self::Multicast,
            "Set BCList" => Self::List,
            "WDone Barrier" => Self::Receive,
            _ => return None,
        })
    }
}

/// A message: a send and its receive, both indices of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Event that sent the data.
    pub send: u32,
    /// Event that saw them arrive.
    pub receive: u32,
    /// Where an arrow starts: the event that announced the message to this receiver; else
    /// `send`.
    pub call: u32,
    /// Name of the synchronization.
    pub sync: Sym,
    /// Collective (`CollGroup`).
    pub group: Sym,
    /// Rank that sent.
    pub from: u32,
    /// Rank that received.
    pub to: u32,
    /// Whether it went to several ranks at once.
    pub is_multicast: bool,
}

/// All messages.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    /// Pairs, by the begin of the receive's event in the timeline's order.
    pub pairs: Vec<Exchange>,
    /// Sends that no receive was found for.
    pub lonely_sends: u64,
    /// Receives that no send was found for.
    pub lonely_receives: u64,
    /// Collectives with such sends or receives.
    pub incomplete: FxHashSet<Sym>,
}

/// How far the clocks of ranks can be relied on when sends and receives are paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Not at all: a name that was sent more or less often than it was received is left
    /// out, because it is not known which were cut off.
    Unaligned,
    /// They agree, so times show which belong together.
    Aligned,
}

/// Who, of one synchronization.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SyncRanks {
    group: Sym,
    sync: Sym,
    from: u32,
    /// [`ANYONE`] for multicasts.
    to: u32,
}

const ANYONE: u32 = u32::MAX;

/// Events by who sent or received them, each list in the order of time.
#[derive(Default)]
struct Sides {
    sends: FxHashMap<SyncRanks, Vec<u32>>,
    segments: FxHashMap<SyncRanks, Vec<u32>>,
    receives: FxHashMap<SyncRanks, Vec<u32>>,
    /// The ways of receives in the order they were first seen.
    order: Vec<SyncRanks>,
    /// Sender of each synchronization, if there is only one.
    senders: FxHashMap<(Sym, Sym), Option<u32>>,
}

/// The sending side of what was received.
struct Sent<'s> {
    /// With the sender, if the receive did not name it.
    way: SyncRanks,
    sends: &'s [u32],
    /// The events that announced them to the receiver.
    calls: Option<&'s [u32]>,
}

/// The name of the synchronization in an event's name: `x [sync=NAME] y`.
fn sync_of(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once(" [sync=")?;
    rest.rsplit_once(']').map(|(sync, _)| sync)
}

/// Ranks of a list like "0,1,2".
fn ranks_of(peers: &str) -> impl Iterator<Item = u32> {
    peers
        .split(',')
        .filter_map(|rank| rank.trim().trim_matches('"').parse().ok())
}

/// Finds all messages. Needs ranks, transfers and names; no order of events.
pub fn find(timeline: &mut Timeline, clocks: Clocks) -> Exchanges {
    let syncs = sync_names(timeline);
    let mut sides = Sides::default();
    for (index, event) in (0u32..).zip(&timeline.events) {
        let sync = syncs.get(event.name.index()).copied().unwrap_or_default();
        if event.is_slice() && !event.dropped && !sync.is_empty() {
            sides.add(timeline, index, event, sync);
        }
    }
    sides.pair(timeline, clocks)
}

/// By name, the name of its synchronization.
fn sync_names(timeline: &mut Timeline) -> Vec<Sym> {
    let found: Vec<(usize, String)> = timeline
        .names
        .iter()
        .filter_map(|(sym, text)| Some((sym.index(), sync_of(text)?.to_owned())))
        .collect();
    let mut syncs = vec![Sym::EMPTY; timeline.names.len()];
    for (index, sync) in found {
        let sym = timeline.names.intern(&sync);
        if let Some(at) = syncs.get_mut(index) {
            *at = sym;
        }
    }
    syncs
}

impl Sides {
    fn add(&mut self, timeline: &Timeline, index: u32, event: &Event, sync: Sym) {
        let Some(transfer) = timeline.transfer(event) else {
            return;
        };
        let Some(role) = Role::of(timeline.name(transfer.kind)) else {
            return;
        };
        let peer = ranks_of(timeline.name(transfer.peers)).next();
        let group = transfer.group;
        let mut way = SyncRanks {
            group,
            sync,
            from: timeline.rank(event),
            to: peer.unwrap_or(ANYONE),
        };
        let list = match role {
            Role::List => return,
            Role::Receive => {
                (way.from, way.to) = (peer.unwrap_or(ANYONE), timeline.rank(event));
                &mut self.receives
            }
            Role::Segment => &mut self.segments,
            Role::Send => &mut self.sends,
            Role::Multicast => {
                way.to = ANYONE;
                &mut self.sends
            }
        };
        let list = list.entry(way).or_default();
        list.push(index);
        if role == Role::Receive {
            if list.len() == 1 {
                self.order.push(way);
            }
        } else {
            let sender = self.senders.entry((group, sync));
            let sender = sender.or_insert(Some(timeline.rank(event)));
            if *sender != Some(timeline.rank(event)) {
                *sender = None;
            }
        }
    }

    fn pair(mut self, timeline: &Timeline, clocks: Clocks) -> Exchanges {
        for list in [&mut self.sends, &mut self.segments, &mut self.receives] {
            for events in list.values_mut() {
                events.sort_by(|a, b| end_of(timeline, *a).total_cmp(&end_of(timeline, *b)));
            }
        }
        let mut all = Exchanges::default();
        let mut heard: FxHashMap<SyncRanks, Vec<bool>> = FxHashMap::default();
        for way in &self.order {
            let receives = self.receives.get(way).map_or(&[][..], Vec::as_slice);
            let Some(Sent { way, sends, calls }) = self.sent(*way) else {
                all.lonely_receives += receives.len() as u64;
                all.incomplete.insert(way.group);
                continue;
            };
            let before = all.pairs.len();
            let pairs = matched(timeline, sends, receives, clocks);
            let (to, is_multicast) = (way.to, !self.sends.contains_key(&way));
            let known = heard.entry(self.key(way)).or_default();
            known.resize(sends.len(), false);
            for (send, receive) in pairs {
                if let Some(known) = known.get_mut(send) {
                    *known = true;
                }
                let (Some(&s), Some(&r)) = (sends.get(send), receives.get(receive)) else {
                    continue;
                };
                let call = calls.filter(|calls| calls.len() == sends.len());
                let call = call.and_then(|calls| calls.get(send)).copied();
                all.pairs.push(Exchange {
                    send: s,
                    receive: r,
                    call: call.unwrap_or(s),
                    sync: way.sync,
                    group: way.group,
                    from: way.from,
                    to,
                    is_multicast,
                });
            }
            let lonely = (receives.len() - (all.pairs.len() - before)) as u64;
            all.lonely_receives += lonely;
            if lonely > 0 {
                all.incomplete.insert(way.group);
            }
        }
        self.unheard(&heard, &mut all);
        all.pairs.sort_by_key(|pair| pair.receive);
        all
    }

    /// The key in `sends` of a way's sends.
    fn key(&self, way: SyncRanks) -> SyncRanks {
        if self.sends.contains_key(&way) {
            return way;
        }
        SyncRanks { to: ANYONE, ..way }
    }

    /// The sends of what was received on a way.
    fn sent(&self, mut way: SyncRanks) -> Option<Sent<'_>> {
        if way.from == ANYONE {
            way.from = self.senders.get(&(way.group, way.sync)).copied()??;
        }
        let calls = self.segments.get(&way).map(Vec::as_slice);
        let sends = self.sends.get(&self.key(way)).map(Vec::as_slice);
        // A capture without the data's event still has the events that announced it.
        let sends = sends.or(calls)?;
        Some(Sent { way, sends, calls })
    }

    /// Counts the sends without a receive.
    fn unheard(&self, heard: &FxHashMap<SyncRanks, Vec<bool>>, all: &mut Exchanges) {
        for (way, sends) in &self.sends {
            let known = heard.get(way).map_or(0, |known| {
                known
                    .iter()
                    .filter(|known| **known)
                    .count()
                    .min(sends.len())
            });
            if known < sends.len() {
                all.lonely_sends += (sends.len() - known) as u64;
                all.incomplete.insert(way.group);
            }
        }
    }
}

fn end_of(timeline: &Timeline, index: u32) -> f64 {
    let event = timeline.events.get(index as usize);
    event.map_or(0.0, Event::end_us)
}

fn start_of(timeline: &Timeline, index: u32) -> f64 {
    let event = timeline.events.get(index as usize);
    event.map_or(0.0, |event| event.ts())
}

/// Indices of sends and receives that belong together.
fn matched(
    timeline: &Timeline,
    sends: &[u32],
    receives: &[u32],
    clocks: Clocks,
) -> Vec<(usize, usize)> {
    if sends.len() == receives.len() {
        return (0..sends.len()).map(|i| (i, i)).collect();
    }
    if clocks == Clocks::Unaligned {
        return Vec::new();
    }
    let (mut s, mut r, mut pairs) = (0, 0, Vec::new());
    while let (Some(send), Some(receive)) = (sends.get(s), receives.get(r)) {
        let arrived = end_of(timeline, *receive);
        let next = sends.get(s + 1);
        if arrived < start_of(timeline, *send) {
            r += 1;
        } else if next.is_some_and(|next| start_of(timeline, *next) < arrived) {
            // A name is used again only once its message has arrived.
            s += 1;
        } else {
            pairs.push((s, r));
            (s, r) = (s + 1, r + 1);
        }
    }
    pairs
}
