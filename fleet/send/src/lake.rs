//! Rolls the windows of an output up into files of a lake.

use crate::answer::{Cause, Failure, clean};
use crate::backoff::{Backoff, Pace};
use crate::board::now_unix_ns;
use crate::keeper::Keeper;
use crate::thrift::Thrift;
use crate::worker::{WorkerContext, WorkerEnd};
use aiprof_fleet::config;
use aiprof_fleet::identity;
use aiprof_fleet::spool::Queue;
use aiprof_fleet::status::{self, AGENT_FILE, AgentStatus};
use aiprof_lake::{Lake, LakeError, RolledUp};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether a period is over.
const LOOK: Duration = Duration::from_secs(60);

/// Delivers to a lake until it is asked to stop; with `once` what is complete now.
pub(crate) async fn run(mut context: WorkerContext, lake: &config::Lake) -> WorkerEnd {
    let mut backoff = Backoff::default();
    loop {
        let waiting = context.scan().len();
        let done = context.finish(roll_up(&context_of(&context), lake)).await;
        let mut wait = LOOK;
        match done {
            Some(Ok(done)) => {
                backoff.reset();
                shown(&mut context, &done);
            }
            Some(Err(error)) => {
                wait = wait.max(backoff.next(Pace::Normal, None));
                context.failed(&Failure::soon(
                    Cause::Storage,
                    without_body(&error.to_string()),
                ));
            }
            // What was begun is gone on with later.
            None => return WorkerEnd { all: false },
        }
        let left = context.scan().len();
        if context.once {
            // What is of a period that is not over stays.
            return WorkerEnd {
                all: left < waiting || left == 0,
            };
        }
        if !context.sleep(wait).await {
            return WorkerEnd { all: left == 0 };
        }
    }
}

/// An error without what a server wrote beside code and message: S3 sends tokens back.
pub(crate) fn without_body(error: &str) -> String {
    let (head, body) = error.split_once('<').unwrap_or((error, ""));
    let part = |tag: &str| {
        let (_, rest) = body.split_once(&format!("<{tag}>"))?;
        Some(rest.split_once('<')?.0)
    };
    let parts: Vec<&str> = ["Code", "Message"].into_iter().filter_map(part).collect();
    clean(&format!("{head}{}", parts.join(": ")))
}

/// What a roll-up needs of a context.
struct RollUpContext {
    spool: std::path::PathBuf,
    output: String,
    state: std::path::PathBuf,
    keeper: Keeper,
    /// Paces it; `None`: somebody waits for it.
    thrift: Option<Arc<Thrift>>,
}

fn context_of(context: &WorkerContext) -> RollUpContext {
    RollUpContext {
        spool: context.spool.clone(),
        output: context.output.name.clone(),
        state: context.board.directory(),
        keeper: context.keeper.clone(),
        thrift: (!context.once).then(|| Arc::clone(&context.thrift)),
    }
}

async fn roll_up(source: &RollUpContext, lake: &config::Lake) -> Result<RolledUp, LakeError> {
    // As the agent has it; without one, as it would.
    let agent = status::read::<AgentStatus>(&source.state, AGENT_FILE).unwrap_or_default();
    let host_id = match agent.host_id.as_str() {
        "" => identity::of_this_host().unwrap_or_else(|| agent.host.clone()),
        host_id => host_id.to_owned(),
    };
    // Anew each time: credentials may be others by then.
    let read = |file: &std::path::Path| source.keeper.read_to_string(file);
    let mut lake = Lake::open_with(lake, &host_id, &agent.host, &read)?;
    if let Some(thrift) = &source.thrift {
        let thrift = Arc::clone(thrift);
        lake = lake.with_pauses(move || tokio::time::sleep(thrift.pause()));
    }
    let path = source.spool.join(&source.output);
    let queue = Queue::open(&source.spool, &source.output)
        .map_err(|cause| LakeError::Local { path, cause })?;
    lake.roll_up(&queue, now_unix_ns()).await
}

/// Shows what became of bodies.
fn shown(context: &mut WorkerContext, done: &RolledUp) {
    let name = context.name().to_owned();
    if done.refused > 0 {
        let why = &done.last_refusal;
        tracing::error!(
            "{name}: {} profiles are dropped, because they cannot be read: {why}",
            done.refused
        );
    }
    if done.refused_samples > 0 || done.refused_labels > 0 {
        tracing::warn!(
            "{name}: dropped {} samples that are too large or invalid, and {} labels beyond the \
             limit",
            done.refused_samples,
            done.refused_labels
        );
    }
    if done.bodies == 0 && done.refused == 0 {
        return;
    }
    tracing::info!(
        "{name}: rolled up {} profiles into {} rows in {} files, {} bytes",
        done.bodies,
        done.rows,
        done.files,
        done.bytes
    );
    context.rolled_up(done.bodies, done.bytes, done.refused);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_sends_back_is_not_shown() {
        let body = "403 Forbidden: <?xml version=\"1.0\"?>\n<Error><Code>ExpiredToken</Code>\
                    <Message>The token has\u{1b}[31m expired</Message>\
                    <Token-0>s3cret</Token-0></Error>";
        let shown = without_body(body);
        assert_eq!(
            shown,
            "403 Forbidden: ExpiredToken: The token has [31m expired"
        );
        assert_eq!(without_body("no such host"), "no such host");
        assert_eq!(without_body("a <Code>"), "a");
    }
}
