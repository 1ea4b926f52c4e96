//! `--check`: whether each server can be reached and takes the credentials.

use crate::answer::Verdict;
use crate::keeper::Keeper;
use crate::payload::Payload;
use crate::server::Server;
use aiprof_fleet::config::{Config, To};

/// Asks each server with a message that has nothing in it, and prints a line each; whether
/// all is well.
pub(crate) async fn run(config: &Config, keeper: &Keeper) -> bool {
    let mut all = true;
    let mut sent = 0;
    for output in config.outputs.iter().filter(|output| output.to.is_sent()) {
        sent += 1;
        let (is_well, text) = match &output.to {
            To::Lake(_) => (true, "a lake: not checked".to_owned()),
            to => reach(to, keeper).await,
        };
        let word = if is_well { "ok" } else { "FAILED" };
        println!("{}: {word}: {text}", output.name);
        all &= is_well;
    }
    if sent == 0 {
        println!("the configuration is right, and has no output that is sent");
    }
    all
}

async fn reach(to: &To, keeper: &Keeper) -> (bool, String) {
    let mut server = match Server::new(to, keeper) {
        Ok(Some(server)) => server,
        Ok(None) => return (true, String::new()),
        Err(why) => return (false, why),
    };
    let name = server.name();
    match server.send(Payload::empty(server.is_grpc())).await {
        Verdict::Delivered(_) => (true, format!("{name} takes profiles")),
        // What it says of a profile that is there is another matter.
        Verdict::Refused(_, why) | Verdict::TooOld(why) => (
            true,
            format!("{name} answers, and refuses an empty message, as some do: {why}"),
        ),
        Verdict::Failed(failure) => (false, format!("{name}: {}", failure.why)),
    }
}
