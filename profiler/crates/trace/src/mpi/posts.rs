//! Sends and receives as processes begin them, in the order of each process.

use super::calls::{CallSpan, MpiArgs, MpiCall, MpiLibrary, MpiProcess, Peer};
use super::comms::{CommId, Comms, Handles};
use super::function::{Flow, Mode, MpiFunction, is_begun_only};
use aiprof_model::timeline::Timeline;
use rustc_hash::FxHashMap;

/// A number that is no tag, for tags that no message was seen with.
const ANY_TAG: i64 = -1;

/// A send or a receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Post {
    pub(super) is_send: bool,
    pub(super) is_synchronous: bool,
    /// It is over when its call returns.
    pub(super) is_blocking: bool,
    pub(super) comm: CommId,
    /// Whom it names.
    pub(super) peer: Peer,
    /// The tag it names; `None`: any.
    pub(super) tag: Option<i64>,
    /// Bytes sent, or room for.
    pub(super) bytes: Option<u64>,
    /// The call that began it.
    pub(super) call: CallSpan,
    /// The call in which it was over.
    pub(super) over: Option<CallSpan>,
    /// The status of the message: sender, tag.
    pub(super) from: Option<(u32, i64)>,
    pub(super) received: Option<u64>,
    pub(super) is_cancelled: bool,
}

/// A process's part in a collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankPart {
    pub(super) comm: CommId,
    pub(super) call: CallSpan,
    pub(super) flow: Flow,
    pub(super) root: Option<u32>,
    pub(super) bytes: Option<u64>,
    /// The call returns when the process's part is over.
    pub(super) is_blocking: bool,
}

/// What a process does, in its order.
#[derive(Debug, Default)]
pub(super) struct Posts {
    pub(super) posts: Vec<Post>,
    pub(super) parts: Vec<RankPart>,
}

/// Interprets the calls of a process.
pub(super) fn of(
    timeline: &Timeline,
    process: &MpiProcess,
    number: usize,
    comms: &mut Comms,
    handles: Handles,
) -> Posts {
    let mut reader = PostReader {
        process,
        number,
        comms,
        handles,
        out: Posts::default(),
        requests: FxHashMap::default(),
        prepared: FxHashMap::default(),
    };
    for call in &process.calls {
        reader.call(call, timeline);
    }
    reader.out
}

struct PostReader<'r> {
    process: &'r MpiProcess,
    number: usize,
    comms: &'r mut Comms,
    handles: Handles,
    out: Posts,
    /// The send or receive of a request.
    requests: FxHashMap<u64, usize>,
    /// Those that can be started again and again.
    prepared: FxHashMap<u64, Post>,
}

impl PostReader<'_> {
    fn call(&mut self, call: &MpiCall, timeline: &Timeline) {
        let args = MpiArgs::new(timeline, call);
        self.comms
            .call(&mut self.handles, call.function, args, self.number);
        match call.function {
            MpiFunction::Send(mode) => {
                let mut post = self.post(call, args, true, mode);
                (post.is_blocking, post.over) = (true, over(call));
                self.add(post);
            }
            MpiFunction::Isend(mode) => {
                let post = self.post(call, args, true, mode);
                self.begin(post, args);
            }
            MpiFunction::Recv => {
                let post = self.post(call, args, false, Mode::Standard);
                self.received(post, call, args);
            }
            MpiFunction::Irecv => {
                let post = self.post(call, args, false, Mode::Standard);
                self.begin(post, args);
            }
            MpiFunction::SendInit(mode) => self.prepare(call, args, true, mode),
            MpiFunction::RecvInit => self.prepare(call, args, false, Mode::Standard),
            MpiFunction::Mprobe => self.take(call, args),
            MpiFunction::Mrecv | MpiFunction::Imrecv => self.take_up(call, args),
            MpiFunction::Sendrecv => self.both(call, args),
            MpiFunction::Start => self.start(call, args),
            MpiFunction::WaitOne => self.wait_one(call, args),
            MpiFunction::WaitAll => self.wait_all(call, args),
            MpiFunction::WaitAny => self.wait_any(call, args),
            MpiFunction::Cancel => {
                let found = args.handle("request").and_then(|r| self.requests.get(&r));
                if let Some(post) = found.and_then(|at| self.out.posts.get_mut(*at)) {
                    post.is_cancelled = true;
                }
            }
            MpiFunction::Collective(flow) => self.part(call, args, flow, timeline),
            _ => {}
        }
    }

    fn post(&mut self, call: &MpiCall, args: MpiArgs<'_>, is_send: bool, mode: Mode) -> Post {
        let comm = args.handle("communicator");
        let library = self.process.library;
        // What unitrace has: size, peer and tag of what is received, and of what is sent.
        let keys = match (library, is_send) {
            (MpiLibrary::Unknown, true) => ("dst", "dtag"),
            (MpiLibrary::Unknown, false) => ("src", "stag"),
            _ => ("peer", "tag"),
        };
        let peer = args.number(keys.0).map(|number| library.peer(number));
        let tag = args.number(keys.1).filter(|tag| *tag != ANY_TAG);
        Post {
            is_send,
            is_synchronous: mode == Mode::Synchronous,
            is_blocking: false,
            comm: self.comms.of(&mut self.handles, comm, self.number),
            peer: peer.unwrap_or(Peer::Any),
            tag,
            bytes: self.bytes(args, "count").or_else(|| {
                // As unitrace counts: elements of the size of a handle.
                let bytes = args.number(if is_send { "dsize" } else { "ssize" });
                u64::try_from(bytes?).ok()
            }),
            call: call.span,
            over: None,
            from: None,
            received: None,
            is_cancelled: false,
        }
    }

    /// Bytes of `count` elements: Open MPI's tables read the size of one, MPICH has it in the
    /// handle of predefined types.
    fn bytes(&self, args: MpiArgs<'_>, count: &str) -> Option<u64> {
        let count = u64::try_from(args.number(count)?).ok()?;
        let element = match self.process.library {
            MpiLibrary::Mpich => predefined(args.handle("datatype")?),
            _ => args.handle("element").or_else(|| {
                let number = args.number("element")?;
                u64::try_from(number).ok()
            }),
        };
        element?.checked_mul(count)
    }

    fn add(&mut self, post: Post) {
        if post.peer != Peer::Nobody {
            self.out.posts.push(post);
        }
    }

    /// Adds what a request is over for.
    fn begin(&mut self, post: Post, args: MpiArgs<'_>) {
        self.add(post);
        if let Some(request) = args.handle("request") {
            match post.peer {
                Peer::Nobody => self.requests.remove(&request),
                _ => self.requests.insert(request, self.out.posts.len() - 1),
            };
        }
    }

    /// A receive that is over with its call.
    fn received(&mut self, mut post: Post, call: &MpiCall, args: MpiArgs<'_>) {
        (post.is_blocking, post.over) = (true, over(call));
        status(&mut post, args);
        self.add(post);
    }

    fn both(&mut self, call: &MpiCall, args: MpiArgs<'_>) {
        let mut send = self.post(call, args, true, Mode::Standard);
        let mut receive = send;
        receive.is_send = false;
        let library = self.process.library;
        if library == MpiLibrary::Unknown {
            // unitrace has it the other way round here; with one buffer it has no source.
            let peer = |key| args.number(key).map(|number| library.peer(number));
            (send.peer, send.tag) = (peer("src").unwrap_or(Peer::Any), args.number("stag"));
            send.bytes = args.number("ssize").and_then(|n| u64::try_from(n).ok());
            (receive.peer, receive.tag) = (peer("dst").unwrap_or(Peer::Any), args.number("dtag"));
            receive.tag = receive.tag.filter(|tag| *tag != ANY_TAG);
        } else {
            let peer = args.number("recv_peer").map(|number| library.peer(number));
            receive.peer = peer.unwrap_or(Peer::Any);
            receive.tag = args.number("recv_tag").filter(|tag| *tag != ANY_TAG);
            receive.bytes = None;
        }
        // It is over with the later of both: of the send nothing follows.
        self.add(send);
        self.received(receive, call, args);
    }

    fn prepare(&mut self, call: &MpiCall, args: MpiArgs<'_>, is_send: bool, mode: Mode) {
        let post = self.post(call, args, is_send, mode);
        if let Some(request) = args.handle("request") {
            self.prepared.insert(request, post);
        }
    }

    fn start(&mut self, call: &MpiCall, args: MpiArgs<'_>) {
        let one = args.handle("request");
        for request in one.into_iter().chain(self.array(args)) {
            let Some(mut post) = self.prepared.get(&request).copied() else {
                continue;
            };
            post.call = call.span;
            self.add(post);
            if post.peer != Peer::Nobody {
                self.requests.insert(request, self.out.posts.len() - 1);
            }
        }
    }

    /// A message that is taken keeps its place in the order.
    fn take(&mut self, call: &MpiCall, args: MpiArgs<'_>) {
        if args.number("done") == Some(0) {
            return;
        }
        let mut post = self.post(call, args, false, Mode::Standard);
        status(&mut post, args);
        if post.peer == Peer::Nobody {
            return;
        }
        self.add(post);
        if let Some(message) = args.handle("message") {
            let at = self.out.posts.len() - 1;
            self.requests.insert(message, at);
        }
    }

    fn take_up(&mut self, call: &MpiCall, args: MpiArgs<'_>) {
        let message = args.handle("message");
        let Some(at) = message.and_then(|message| self.requests.remove(&message)) else {
            return;
        };
        match args.handle("request") {
            Some(request) => {
                self.requests.insert(request, at);
            }
            None => self.over(at, call, None),
        }
    }

    /// Notes that a send or receive was over at the end of a call.
    fn over(&mut self, at: usize, call: &MpiCall, said: Option<MpiArgs<'_>>) {
        if let Some(post) = self.out.posts.get_mut(at) {
            post.over = over(call);
            if let Some(args) = said.filter(|_| !post.is_send) {
                status(post, args);
            }
        }
    }

    fn wait_one(&mut self, call: &MpiCall, args: MpiArgs<'_>) {
        if args.number("done") == Some(0) {
            return;
        }
        let request = args.handle("request");
        if let Some(at) = request.and_then(|request| self.requests.remove(&request)) {
            self.over(at, call, Some(args));
        }
    }

    fn wait_all(&mut self, call: &MpiCall, args: MpiArgs<'_>) {
        if args.number("done") == Some(0) {
            return;
        }
        for request in self.array(args) {
            if let Some(at) = self.requests.remove(&request) {
                self.over(at, call, None);
            }
        }
    }

    fn wait_any(&mut self, call: &MpiCall, args: MpiArgs<'_>) {
        if args.number("done") == Some(0) {
            return;
        }
        let index = args.number("index").and_then(|i| usize::try_from(i).ok());
        let request = index.and_then(|index| self.array(args).get(index).copied());
        if let Some(at) = request.and_then(|request| self.requests.remove(&request)) {
            self.over(at, call, Some(args));
        }
    }

    /// The requests of an array.
    fn array(&self, args: MpiArgs<'_>) -> Vec<u64> {
        let words = args.handles("requests");
        if self.process.library != MpiLibrary::Mpich {
            return words;
        }
        let count = args.number("count").unwrap_or(0);
        let halves = words
            .iter()
            .flat_map(|word| [word & 0xffff_ffff, word >> 32]);
        halves.take(usize::try_from(count).unwrap_or(0)).collect()
    }

    fn part(&mut self, call: &MpiCall, args: MpiArgs<'_>, flow: Flow, timeline: &Timeline) {
        let comm = args.handle("communicator");
        let bytes = self.bytes(args, "count");
        let root = args
            .number("root")
            .and_then(|root| u32::try_from(root).ok());
        self.out.parts.push(RankPart {
            comm: self.comms.of(&mut self.handles, comm, self.number),
            call: call.span,
            flow,
            root,
            bytes: bytes.or_else(|| self.bytes(args, "recv_count")),
            is_blocking: call.is_ended && !is_begun_only(timeline.name(call.span.name)),
        });
    }
}

/// The call in which something was over, if its end was seen.
fn over(call: &MpiCall) -> Option<CallSpan> {
    call.is_ended.then_some(call.span)
}

/// Takes the fields of a status.
fn status(post: &mut Post, args: MpiArgs<'_>) {
    let source = args.number("source").and_then(|n| u32::try_from(n).ok());
    if let Some((source, tag)) = source.zip(args.number("received_tag")) {
        post.from = Some((source, tag));
        let bytes = args.number("received");
        post.received = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    }
}

/// Bytes of an element of a predefined datatype of MPICH: the second lowest byte of its
/// handle, whose upper bits are 0x4c (`MPIR_Datatype_get_basic_size`).
fn predefined(handle: u64) -> Option<u64> {
    (handle >> 24 == 0x4c).then_some(handle >> 8 & 0xff)
}
