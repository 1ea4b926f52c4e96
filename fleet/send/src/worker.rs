//! Delivers the bodies of one output, oldest first, one at a time.

use crate::answer::{Cause, DeliveryResult, Failure, Rejected};
use crate::backoff::{Backoff, Pace};
use crate::board::{Board, now_unix_ns};
use crate::keeper::Keeper;
use crate::lake;
use crate::server::{Attempt, Server};
use crate::thrift::Thrift;
use crate::watch::Watch;
use aiprof_fleet::config::{Output, To};
use aiprof_fleet::spool::{Body, Queue};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// How long a request under way may still take when the program ends.
const GRACE: Duration = Duration::from_secs(3);
/// How often a directory is read that is watched: events can be missed.
const RARELY: Duration = Duration::from_secs(300);
/// How often a directory is read that is not.
const OFTEN: Duration = Duration::from_secs(5);
/// How often a server may fail at a body before others are tried first. Some bodies make a server
/// fail whenever it gets them, and must not hold up all later ones.
const MAX_ATTEMPTS: u32 = 3;
/// Reading a directory takes at most one part in this many of the time.
const SCAN_SHARE: u32 = 500;

/// What a worker works with.
pub(crate) struct WorkerContext {
    /// The output.
    pub(crate) output: Output,
    /// The directory of the spool.
    pub(crate) spool: PathBuf,
    /// Where it shows how it is.
    pub(crate) board: Board,
    /// Reads what the configuration names.
    pub(crate) keeper: Keeper,
    /// What watches its directory.
    pub(crate) watch: Arc<Watch>,
    /// What CPU time is left.
    pub(crate) thrift: Arc<Thrift>,
    /// Whether it shall stop.
    pub(crate) stop: watch::Receiver<bool>,
    /// Whether it ends when nothing waits, and tries each body once.
    pub(crate) once: bool,
    /// What it has reported already.
    pub(crate) report: OutputReports,
    /// Notified when a body comes.
    pub(crate) wake: Arc<Notify>,
    /// Notified when what failed is worth another try at once.
    pub(crate) hurry: Arc<Notify>,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerEnd {
    /// Whether all that waited was delivered.
    pub(crate) all: bool,
}

/// What was reported about an output already.
#[derive(Default)]
pub(crate) struct OutputReports {
    /// Failures in a row.
    failures: u64,
    /// Causes of these.
    failing: BTreeSet<Cause>,
    /// Causes of refusals.
    refused: BTreeSet<Cause>,
    rejected: bool,
    too_old: bool,
    unread: bool,
}

/// Delivers until it is asked to stop.
pub(crate) async fn run(mut context: WorkerContext) -> WorkerEnd {
    let server = match context.output.to.clone() {
        To::Files(_) => return WorkerEnd { all: true },
        To::Lake(lake) => return lake::run(context, &lake).await,
        To::Server(target) => Server::new(&target, &context.keeper),
    };
    match server {
        Ok(server) => OutputWorker::new(context, server).run().await,
        Err(why) => {
            context.scan();
            context.failed(&Failure {
                cause: Cause::Credentials,
                why: format!("invalid configuration: {why}; nothing is sent until you change it"),
                pace: Pace::Slow,
                wait: None,
            });
            if !context.once {
                context.stopped().await;
            }
            WorkerEnd { all: false }
        }
    }
}

impl WorkerContext {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.output.name
    }

    /// What waits, oldest first; nothing, where it cannot be read.
    pub(crate) fn scan(&mut self) -> VecDeque<(Body, u64)> {
        let scanned = Queue::open(&self.spool, &self.output.name).and_then(|queue| {
            // Before it is read: what comes later wakes the worker.
            let watched = self.watch.add(queue.directory(), &self.wake);
            Ok((queue.bodies()?, watched.is_ok()))
        });
        let name = &self.output.name;
        let bodies = match scanned {
            Ok((bodies, _)) => {
                self.report.unread = false;
                bodies
            }
            Err(error) => {
                let directory = self.spool.join(name);
                if !self.report.unread {
                    tracing::error!("{name}: {}: {error}", directory.display());
                }
                self.report.unread = true;
                self.board.update(name, |status| {
                    status.last_error = format!("{}: {error}", directory.display());
                });
                return VecDeque::new();
            }
        };
        let bytes = bodies.iter().map(|(_, bytes)| bytes).sum();
        self.board.update(name, |status| {
            status.waiting = bodies.len() as u64;
            status.waiting_bytes = bytes;
            status.oldest_unix_ns = bodies.first().map_or(0, |(body, _)| body.start_unix_ns);
        });
        bodies.into()
    }

    /// Waits until it shall stop.
    pub(crate) async fn stopped(&mut self) {
        // An error: the sender of the stop signal is gone.
        let _ = self.stop.wait_for(|stop| *stop).await;
    }

    /// Waits a while, or until it shall hurry; `false`: it shall stop.
    pub(crate) async fn sleep(&mut self, wait: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = self.hurry.notified() => true,
            _ = self.stop.wait_for(|stop| *stop) => false,
        }
    }

    /// What `work` comes to; `None`: it shall stop, and the work took too long for that.
    pub(crate) async fn finish<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            _ = self.stop.wait_for(|stop| *stop) => {}
        }
        tokio::time::timeout(GRACE, work).await.ok()
    }

    /// Shows a failure that is tried again: in the log when its cause is new.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        self.report.failures += 1;
        let name = &self.output.name;
        if self.report.failing.insert(failure.cause) {
            match failure.pace {
                Pace::Normal => tracing::warn!("{name}: {}; retrying", failure.why),
                Pace::Slow => {
                    tracing::error!("{name}: {}; retrying every few minutes", failure.why);
                }
            }
        }
        self.board.update(name, |status| {
            status.retried += 1;
            status.last_error.clone_from(&failure.why);
        });
    }

    /// Shows that a body was delivered.
    pub(crate) fn delivered(&mut self, bytes: u64, rejected: &Rejected) {
        let name = &self.output.name;
        let failures = std::mem::take(&mut self.report.failures);
        self.report.failing.clear();
        if failures > 0 {
            tracing::info!("{name}: sending works again after {failures} failures");
        }
        let said = rejected.profiles > 0 || !rejected.message.is_empty();
        if said && !std::mem::replace(&mut self.report.rejected, true) {
            let Rejected { profiles, message } = rejected;
            tracing::warn!(
                "{name}: the server accepted a request but rejected {profiles} profiles in it: \
                 {message}; further rejections are only counted"
            );
        }
        self.board.update(name, |status| {
            status.sent += 1;
            status.sent_bytes = status.sent_bytes.saturating_add(bytes);
            status.rejected = status.rejected.saturating_add(rejected.profiles);
            status.last_sent_unix_ns = now_unix_ns();
            status.last_error.clear();
        });
    }

    /// Shows that `bodies` bodies went into a lake, as `bytes` bytes, and that `refused` are no
    /// profiles.
    pub(crate) fn rolled_up(&mut self, bodies: u64, bytes: u64, refused: u64) {
        self.report.failures = 0;
        self.report.failing.clear();
        self.board.update(&self.output.name, |status| {
            status.sent += bodies;
            status.sent_bytes = status.sent_bytes.saturating_add(bytes);
            status.refused += refused;
            status.last_sent_unix_ns = now_unix_ns();
            status.last_error.clear();
        });
    }

    fn refused(&mut self, cause: Cause, why: &str) {
        let name = &self.output.name;
        if self.report.refused.insert(cause) {
            tracing::error!(
                "{name}: a profile is dropped, because it can never be sent: {why}; further ones \
                 are only counted"
            );
        }
        self.board.update(name, |status| {
            status.refused += 1;
            why.clone_into(&mut status.last_error);
        });
    }

    fn too_old(&mut self, why: &str) {
        let name = &self.output.name;
        if !std::mem::replace(&mut self.report.too_old, true) {
            tracing::warn!(
                "{name}: a profile is dropped, because it is too old: {why}; further ones are only \
                 counted"
            );
        }
        self.board.update(name, |status| status.too_old += 1);
    }
}

/// What to do next.
enum NextStep {
    /// The body is out of the way.
    Next,
    /// The same body again, later.
    Wait(Duration),
    /// End.
    Stop,
}

struct OutputWorker {
    context: WorkerContext,
    server: Server,
    backoff: Backoff,
    waiting: VecDeque<(Body, u64)>,
    /// Bodies of these that the server failed at, and how often.
    attempts: BTreeMap<Body, u32>,
    /// A body at which the server failed as it does at all bodies (no connection, too many
    /// requests), and how often it has failed since.
    held: Option<(Body, u32)>,
    /// When the directory may be read again.
    scan_after: Instant,
    lost: bool,
}

impl OutputWorker {
    fn new(context: WorkerContext, server: Server) -> Self {
        Self {
            context,
            server,
            backoff: Backoff::default(),
            waiting: VecDeque::new(),
            attempts: BTreeMap::new(),
            held: None,
            scan_after: Instant::now(),
            lost: false,
        }
    }

    async fn run(mut self) -> WorkerEnd {
        tracing::debug!("{}: sending to {}", self.context.name(), self.server.name());
        loop {
            self.scan();
            if self.waiting.is_empty() {
                if self.context.once {
                    return self.end();
                }
                if !self.idle().await {
                    return self.end();
                }
                continue;
            }
            if !self.drain().await {
                return self.end();
            }
        }
    }

    fn end(&self) -> WorkerEnd {
        WorkerEnd {
            all: self.waiting.is_empty() && !self.lost && !self.context.report.unread,
        }
    }

    fn scan(&mut self) {
        let began = Instant::now();
        self.waiting = self.context.scan();
        if !self.attempts.is_empty() {
            let there: BTreeSet<_> = self.waiting.iter().map(|(body, _)| body).collect();
            self.attempts.retain(|body, _| there.contains(body));
        }
        let waiting = &self.waiting;
        self.held
            .take_if(|(held, _)| waiting.iter().all(|(body, _)| body != held));
        self.scan_after = Instant::now() + began.elapsed() * SCAN_SHARE;
    }

    /// Waits for a body; `false`: it shall stop.
    async fn idle(&mut self) -> bool {
        let wake = Arc::clone(&self.context.wake);
        let often = !self.context.watch.is_working() || self.context.report.unread;
        let wait = if often { OFTEN } else { RARELY };
        tokio::select! {
            () = wake.notified() => {}
            () = tokio::time::sleep(wait) => {}
            () = self.context.stopped() => return false,
        }
        let rest = self.scan_after.saturating_duration_since(Instant::now());
        self.context.sleep(rest).await
    }

    /// The body whose turn it is: the oldest, of those first that the server did not fail at
    /// again and again. Where it fails at one as it does at all, every other attempt is the one
    /// after it: if that is delivered, the body was the cause.
    fn next(&self) -> Option<(usize, Body)> {
        let bodies = self.waiting.iter().map(|(body, _)| body).enumerate();
        let mut bodies = bodies.filter(|(_, body)| !self.is_suspect(body));
        let first = bodies.next();
        let is_held = first.is_some_and(|(_, first)| {
            let held = self.held.as_ref().filter(|(held, _)| held == first);
            held.is_some_and(|(_, failed)| {
                *failed >= MAX_ATTEMPTS && (*failed - MAX_ATTEMPTS).is_multiple_of(2)
            })
        });
        let second = if is_held { bodies.next() } else { None };
        let next = second.or(first);
        let oldest = || self.waiting.front().map(|(body, _)| (0, body));
        next.or_else(oldest).map(|(at, body)| (at, body.clone()))
    }

    fn is_suspect(&self, body: &Body) -> bool {
        let attempts = self.attempts.get(body);
        attempts.is_some_and(|attempts| *attempts >= MAX_ATTEMPTS)
    }

    /// Delivers what was found; `false`: it shall stop.
    async fn drain(&mut self) -> bool {
        while let Some((at, body)) = self.next() {
            match self.step(&body).await {
                NextStep::Stop => return false,
                NextStep::Next => {
                    self.attempts.remove(&body);
                    if let Some((_, bytes)) = self.waiting.remove(at) {
                        self.show(bytes);
                    }
                    if !self.pace().await {
                        return false;
                    }
                }
                NextStep::Wait(_) if self.context.once => return false,
                NextStep::Wait(wait) => {
                    if !self.wait(wait, &body).await {
                        return false;
                    }
                    // The oldest may have gone meanwhile, and others have come.
                    if self.scan_after <= Instant::now() {
                        self.scan();
                    }
                }
            }
            if *self.context.stop.borrow() {
                return false;
            }
        }
        true
    }

    /// Waits before the next body of a backlog; `false`: it shall stop.
    async fn pace(&mut self) -> bool {
        if self.context.once || self.waiting.is_empty() {
            return true;
        }
        let pause = self.context.thrift.pause();
        pause.is_zero() || self.context.sleep(pause).await
    }

    /// Waits after a failure; `false`: it shall stop.
    async fn wait(&mut self, wait: Duration, body: &Body) -> bool {
        if !self.is_suspect(body) || self.waiting.len() > self.attempts.len() {
            return self.context.sleep(wait).await;
        }
        // Only such are left: a new one need not wait.
        let wake = Arc::clone(&self.context.wake);
        tokio::select! {
            () = wake.notified() => {}
            go_on = self.context.sleep(wait) => return go_on,
        }
        let rest = self.scan_after.saturating_duration_since(Instant::now());
        self.context.sleep(rest).await
    }

    fn show(&self, bytes: u64) {
        let oldest = self
            .waiting
            .front()
            .map_or(0, |(body, _)| body.start_unix_ns);
        let left = self.waiting.len() as u64;
        self.context.board.update(self.context.name(), |status| {
            status.waiting = left;
            status.waiting_bytes = status.waiting_bytes.saturating_sub(bytes);
            status.oldest_unix_ns = oldest;
        });
    }

    /// Tries to deliver a body.
    async fn step(&mut self, body: &Body) -> NextStep {
        if let Some(why) = self.age(body) {
            self.context.too_old(&why);
            self.lost = true;
            return self.remove(body).await;
        }
        let queue = match Queue::open(&self.context.spool, self.context.name()) {
            Ok(queue) => queue,
            Err(error) => return self.again(&Failure::soon(Cause::Storage, error.to_string())),
        };
        let attempt = self.server.deliver(&queue, body);
        match self.context.finish(attempt).await {
            None => NextStep::Stop,
            Some(Attempt::Gone) => NextStep::Next,
            Some(Attempt::Done { verdict, bytes }) => self.done(body, verdict, bytes).await,
        }
    }

    async fn done(&mut self, body: &Body, verdict: DeliveryResult, bytes: u64) -> NextStep {
        match verdict {
            DeliveryResult::Failed(failure) => {
                if failure.cause.may_be_the_bodys() {
                    let attempts = self.attempts.entry(body.clone()).or_default();
                    *attempts = attempts.saturating_add(1);
                } else {
                    let held = self.held.get_or_insert_with(|| (body.clone(), 0));
                    held.1 = held.1.saturating_add(1);
                }
                return self.again(&failure);
            }
            DeliveryResult::Delivered(rejected) => {
                self.context.delivered(bytes, &rejected);
                self.lost |= rejected.profiles > 0;
            }
            DeliveryResult::Refused(cause, why) => {
                self.context.refused(cause, &why);
                self.lost = true;
            }
            DeliveryResult::TooOld(why) => {
                self.context.too_old(&why);
                self.lost = true;
            }
        }
        self.backoff.reset();
        if let Some((held, failed)) = self.held.take()
            && held != *body
            && failed >= MAX_ATTEMPTS
        {
            self.attempts.insert(held, MAX_ATTEMPTS);
        }
        self.remove(body).await
    }

    fn again(&mut self, failure: &Failure) -> NextStep {
        self.context.failed(failure);
        let wait = self.backoff.next(failure.pace, failure.wait);
        tracing::debug!(
            "{}: {}; next attempt in {wait:?}",
            self.context.name(),
            failure.why
        );
        NextStep::Wait(wait)
    }

    /// Takes a body out. Where that fails nothing else is sent: it would all be sent twice.
    async fn remove(&mut self, body: &Body) -> NextStep {
        let mut backoff = Backoff::default();
        loop {
            let removed = Queue::open(&self.context.spool, self.context.name())
                .and_then(|queue| queue.remove(body));
            let Err(error) = removed else {
                return NextStep::Next;
            };
            let file = self
                .context
                .spool
                .join(self.context.name())
                .join(body.name());
            let why = format!("cannot delete {}: {error}", file.display());
            self.context.failed(&Failure::soon(Cause::Storage, why));
            if self.context.once {
                return NextStep::Stop;
            }
            let wait = backoff.next(Pace::Normal, None);
            if !self.context.sleep(wait).await {
                return NextStep::Stop;
            }
        }
    }

    /// Why a body is too old to be sent.
    fn age(&self, body: &Body) -> Option<String> {
        let most = self.server.max_age()?;
        let age = Duration::from_nanos(now_unix_ns().saturating_sub(body.start_unix_ns));
        (age > most).then(|| {
            let age = Duration::from_secs(age.as_secs());
            format!("the window began {age:?} ago, and `max_age` is {most:?}")
        })
    }
}
