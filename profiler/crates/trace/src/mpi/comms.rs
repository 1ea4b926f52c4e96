//! Communicators: which handles of different processes are the same communicator, and
//! which ranks it has.
//!
//! Handles are of one process. But all ranks of a communicator make new ones from it in the same
//! order. So the n-th that they make from it in the same way is the same for all.

use super::calls::{MpiArgs, MpiLibrary, MpiProcess};
use super::function::{Maker, MpiFunction};
use aiprof_model::timeline::Timeline;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// MPICH's `MPI_COMM_WORLD` and `MPI_COMM_SELF`.
const MPICH_WORLD: u64 = 0x4400_0000;
const MPICH_SELF: u64 = 0x4400_0001;
/// `color` of ranks that take no part, in both libraries.
const UNDEFINED: i64 = -32_766;

/// Communicators from one to the world that its name has.
const MOST_WORDS: usize = 8;

/// A communicator's number in [`Comms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct CommId(u32);

/// Which communicator it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CommIdentity {
    /// `MPI_COMM_WORLD` of a run.
    World(u32),
    /// A communicator of one process, if its size is 1; else its owner is not known.
    Own(u32, u64),
    /// Between two groups of ranks: a rank means one of the other group.
    Between(u32, u64),
    /// The n-th that was made of another in one way, with one color.
    Made(CommId, Maker, u32, i64),
}

/// A process's part in a communicator.
#[derive(Clone, Copy, Debug, Default)]
struct Membership {
    /// Its rank, by the library.
    rank: Option<u32>,
    /// How many ranks there are, by the library.
    size: Option<u32>,
    /// The order it asked for, and its rank in the communicator split.
    key: Option<(i64, u32)>,
}

/// All communicators.
#[derive(Debug, Default)]
pub(super) struct Comms {
    all: Vec<CommIdentity>,
    index: FxHashMap<CommIdentity, CommId>,
    members: BTreeMap<(CommId, usize), Membership>,
    /// How many ranks were seen in each split of a communicator.
    splits: FxHashMap<(CommId, u32), u32>,
    /// By number: its ranks are known.
    are_known: Vec<bool>,
    /// Processes by their ranks; `None`: several claim the rank.
    by_rank: FxHashMap<(CommId, u32), Option<usize>>,
}

/// What a process's handles are, as its calls go on.
#[derive(Debug, Default)]
pub(super) struct Handles {
    known: FxHashMap<u64, CommId>,
    made: FxHashMap<(CommId, Maker), u32>,
    world: Option<u64>,
}

impl Comms {
    fn intern(&mut self, identity: CommIdentity) -> CommId {
        let new = CommId(self.all.len() as u32);
        let id = *self.index.entry(identity).or_insert(new);
        if id == new {
            self.all.push(identity);
        }
        id
    }

    /// Begins with a process. `run` is which run's world it belongs to.
    pub(super) fn begin(
        &mut self,
        timeline: &Timeline,
        process: &MpiProcess,
        number: usize,
        run: Option<u32>,
    ) -> Handles {
        let mut handles = Handles {
            world: world_of(timeline, process),
            ..Handles::default()
        };
        if let (Some(world), Some(run)) = (handles.world, run) {
            let id = self.intern(CommIdentity::World(run));
            handles.known.insert(world, id);
            let member = self.members.entry((id, number)).or_default();
            member.rank = process.rank;
        }
        if process.library == MpiLibrary::Mpich {
            let id = self.intern(CommIdentity::Own(number as u32, MPICH_SELF));
            handles.known.insert(MPICH_SELF, id);
            let member = self.members.entry((id, number)).or_default();
            (member.rank, member.size) = (Some(0), Some(1));
        }
        handles
    }

    /// The communicator of a handle; `None` is the world of a trace without handles.
    pub(super) fn of(
        &mut self,
        handles: &mut Handles,
        handle: Option<u64>,
        number: usize,
    ) -> CommId {
        let handle = handle.or(handles.world).unwrap_or(0);
        let own = || self.intern(CommIdentity::Own(number as u32, handle));
        *handles.known.entry(handle).or_insert_with(own)
    }

    /// Takes what a call shows of communicators.
    pub(super) fn call(
        &mut self,
        handles: &mut Handles,
        function: MpiFunction,
        args: MpiArgs<'_>,
        number: usize,
    ) {
        let of = args.handle("communicator");
        let told = |key| {
            args.number(key)
                .and_then(|number| u32::try_from(number).ok())
        };
        match function {
            MpiFunction::CommRank => {
                let id = self.of(handles, of, number);
                let rank = told("rank");
                let member = self.members.entry((id, number)).or_default();
                member.rank = rank.or(member.rank);
            }
            MpiFunction::CommSize => {
                let id = self.of(handles, of, number);
                let size = told("size");
                let member = self.members.entry((id, number)).or_default();
                member.size = size.or(member.size);
            }
            MpiFunction::NewComm(maker) => self.made(handles, maker, args, number),
            _ => {}
        }
    }

    fn made(&mut self, handles: &mut Handles, maker: Maker, args: MpiArgs<'_>, number: usize) {
        let Some(new) = args.handle("new_communicator") else {
            return;
        };
        let is_between = matches!(
            maker,
            Maker::Other("Intercomm_create" | "Comm_spawn" | "Comm_get_parent")
        );
        // One that is merged has no parent here: its origin is not known.
        let parent = args.handle("communicator").filter(|_| !is_between);
        let Some(parent) = parent else {
            let id = self.intern(CommIdentity::Between(number as u32, new));
            handles.known.insert(new, id);
            return;
        };
        let parent = self.of(handles, Some(parent), number);
        let nth = handles.made.entry((parent, maker)).or_default();
        let color = args.number("color").unwrap_or(0);
        let id = CommIdentity::Made(parent, maker, *nth, color);
        if maker == Maker::Split {
            *self.splits.entry((parent, *nth)).or_default() += 1;
        }
        *nth += 1;
        if color == UNDEFINED {
            return;
        }
        let id = self.intern(id);
        handles.known.insert(new, id);
        let of_parent = self.members.get(&(parent, number)).copied();
        let of_parent = of_parent.unwrap_or_default();
        let member = self.members.entry((id, number)).or_default();
        match maker {
            Maker::Dup => member.rank = of_parent.rank,
            Maker::Split => member.key = args.number("key").zip(of_parent.rank),
            Maker::Other(_) => {}
        }
    }

    /// Ranks where they follow from keys, once all calls were taken.
    pub(super) fn finish(&mut self) {
        let mut splits: BTreeMap<CommId, Vec<(usize, Membership)>> = BTreeMap::new();
        for ((id, number), member) in &self.members {
            if let Some(CommIdentity::Made(_, Maker::Split, ..)) = self.all.get(id.0 as usize) {
                splits.entry(*id).or_default().push((*number, *member));
            }
        }
        for (id, mut members) in splits {
            // Only where all that split the communicator are here.
            let Some(CommIdentity::Made(parent, _, nth, _)) = self.all.get(id.0 as usize).copied()
            else {
                continue;
            };
            let seen = self.splits.get(&(parent, nth)).copied();
            if seen != self.told_size(parent)
                || members.iter().any(|(_, member)| member.key.is_none())
            {
                continue;
            }
            members.sort_by_key(|(_, member)| member.key);
            for (rank, (number, _)) in (0..).zip(members) {
                let member = self.members.entry((id, number)).or_default();
                member.rank.get_or_insert(rank);
            }
        }
        // Parents have lower numbers.
        for at in 0..self.all.len() {
            let is_known = self.knows_ranks(at);
            self.are_known.push(is_known);
        }
        for ((id, number), member) in &self.members {
            if let Some(rank) = member.rank {
                let process = self.by_rank.entry((*id, rank));
                process.and_modify(|of| *of = None).or_insert(Some(*number));
            }
        }
    }

    /// Whether the ranks of a communicator are known, once that is known of its parent.
    fn knows_ranks(&self, at: usize) -> bool {
        let id = CommId(at as u32);
        let of = |parent: CommId| self.are_known.get(parent.0 as usize) == Some(&true);
        match self.all.get(at).copied() {
            Some(CommIdentity::World(_)) => true,
            Some(CommIdentity::Own(..)) => self.told_size(id) == Some(1),
            Some(CommIdentity::Made(parent, Maker::Other(_), ..)) => {
                of(parent) && self.is_whole(id)
            }
            Some(CommIdentity::Made(parent, ..)) => of(parent),
            Some(CommIdentity::Between(..)) | None => false,
        }
    }

    /// Whether the rank of every member of a communicator is known. Ranks may have made several at
    /// once.
    fn is_whole(&self, id: CommId) -> bool {
        let members = self.members.range((id, 0)..=(id, usize::MAX));
        let mut ranks: Vec<Option<u32>> = members.map(|(_, member)| member.rank).collect();
        ranks.sort_unstable();
        let is_it = |(at, rank): (u32, &Option<u32>)| *rank == Some(at);
        let size = self.told_size(id);
        (0..).zip(&ranks).all(is_it) && size.is_none_or(|size| size as usize == ranks.len())
    }

    /// How many ranks a communicator has, by the library.
    fn told_size(&self, id: CommId) -> Option<u32> {
        let members = self.members.range((id, 0)..=(id, usize::MAX));
        members.filter_map(|(_, member)| member.size).max()
    }

    /// A process's rank in a communicator.
    pub(super) fn rank(&self, id: CommId, number: usize) -> Option<u32> {
        let is_known = self.are_known.get(id.0 as usize) == Some(&true);
        self.members.get(&(id, number))?.rank.filter(|_| is_known)
    }

    /// How many ranks it has, by the library or its members.
    pub(super) fn size(&self, id: CommId) -> u32 {
        let count = || self.members.range((id, 0)..=(id, usize::MAX)).count() as u32;
        self.told_size(id).unwrap_or_else(count)
    }

    /// The process that has a rank in a communicator; `None`: none here, or several claim it.
    pub(super) fn process(&self, id: CommId, rank: u32) -> Option<usize> {
        self.by_rank.get(&(id, rank)).copied().flatten()
    }

    /// Its name in words: `world/split 1 #0`.
    pub(super) fn name(&self, id: CommId) -> String {
        let (mut at, mut words) = (id, Vec::new());
        while words.len() < MOST_WORDS {
            let (parent, maker, nth, color) = match self.all.get(at.0 as usize) {
                Some(CommIdentity::Made(parent, maker, nth, color)) => (parent, maker, nth, color),
                Some(CommIdentity::World(_)) => {
                    words.push("world".to_owned());
                    break;
                }
                _ => {
                    words.push("own".to_owned());
                    break;
                }
            };
            words.push(match maker {
                Maker::Dup => format!("dup #{nth}"),
                Maker::Split => format!("split {color} #{nth}"),
                Maker::Other(name) => format!("{name} #{nth}"),
            });
            at = *parent;
        }
        words.reverse();
        words.join("/")
    }
}

/// The handle of a process's `MPI_COMM_WORLD`; `Some(0)` where handles are not recorded.
///
/// Open MPI's is an address: the one that no call has made. Where there are several, those of one
/// rank are `MPI_COMM_SELF`. Among the others it is the one in which the process has the rank that
/// the launcher gave it.
pub(super) fn world_of(timeline: &Timeline, process: &MpiProcess) -> Option<u64> {
    match process.library {
        MpiLibrary::Unknown => return Some(0),
        MpiLibrary::Mpich => return Some(MPICH_WORLD),
        MpiLibrary::OpenMpi => {}
    }
    let mut given: BTreeMap<u64, Membership> = BTreeMap::new();
    let mut made = FxHashSet::default();
    for call in &process.calls {
        let args = MpiArgs::new(timeline, call);
        if let Some(new) = args.handle("new_communicator") {
            made.insert(new);
        }
        let Some(handle) = args.handle("communicator").filter(|h| !made.contains(h)) else {
            continue;
        };
        let told = |key| args.number(key).and_then(|n| u32::try_from(n).ok());
        let seen = given.entry(handle).or_default();
        seen.rank = told("rank").or(seen.rank);
        seen.size = told("size").or(seen.size);
    }
    if given.len() > 1 {
        given.retain(|_, seen| seen.size != Some(1));
    }
    if given.len() > 1 {
        let rank = process.rank;
        given.retain(|_, seen| seen.rank.is_some() && seen.rank == rank);
    }
    let mut given = given.into_keys();
    given.next().filter(|_| given.next().is_none())
}
