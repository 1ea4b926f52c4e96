//! `--check`: whether all is there that outputs need, and whether servers can be reached and
//! take the credentials.

use crate::answer::DeliveryResult;
use crate::app::is_locked;
use crate::confine::Looked;
use crate::keeper::Keeper;
use crate::lake::without_body;
use crate::payload::Payload;
use crate::server::Server;
use aiprof_fleet::config::{self, Config, ServerTarget, To};
use aiprof_fleet::place;
use aiprof_lake::Lake;
use aiprof_system::errors::chain;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

/// How long a lake may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// How long an address gets to become free: an earlier aiprof-send ends in 3 s.
const FREE: Duration = Duration::from_secs(5);
/// How often it is tried.
const TRIES: u32 = 50;

/// Looks at what each output needs, asks its server with a message that has nothing in it, and
/// prints a line each; whether all is well. `offline`: sends no request, and prints only what is
/// wrong.
pub(crate) async fn run(config: &Config, keeper: &Keeper, looked: &Looked, offline: bool) -> bool {
    let mut all = true;
    let mut sent = 0;
    let mut print = |name: &str, found: Result<String, String>| {
        match &found {
            Ok(text) if !offline => println!("{name}: ok: {text}"),
            Ok(_) => {}
            Err(why) => println!("{name}: FAILED: {why}"),
        }
        all &= found.is_ok();
    };
    for output in config.outputs.iter().filter(|output| output.to.is_sent()) {
        sent += 1;
        let found =
            spooled(config, &output.name, looked).and_then(|()| look(&output.to, keeper, looked));
        let found = match (found, offline) {
            (Ok(()), false) => reach(&output.to, keeper).await,
            (found, _) => found.map(|()| String::new()),
        };
        print(&output.name, found);
    }
    if let Some(address) = config.metrics.listen {
        let found = listens(address, config).await;
        let shown = format!("metrics can be served at {address}");
        print("metrics.listen", found.map(|()| shown));
    }
    if sent == 0 && !offline {
        println!("the configuration is valid; no output needs aiprof-send");
    }
    all
}

/// Whether what was delivered can be taken out of the spool, where there is one already.
fn spooled(config: &Config, name: &str, looked: &Looked) -> Result<(), String> {
    let directory = config.spool_directory().join(name);
    match looked.get(&directory) {
        Some(found) => found.clone(),
        None if directory.exists() => place::check(&directory, 0),
        None => Ok(()),
    }
}

/// What shows without asking anybody.
fn look(to: &To, keeper: &Keeper, looked: &Looked) -> Result<(), String> {
    match to {
        To::Lake(lake) => match lake.directory().and_then(|path| looked.get(&path)) {
            Some(found) => found.clone(),
            None => {
                let read = |file: &Path| keeper.read_to_string(file);
                Lake::check_config(lake, &read).map_err(|error| chain(&error))
            }
        },
        To::Server(target) => Server::new(target, keeper)?.check(),
        To::Files(_) => Ok(()),
    }
}

async fn reach(to: &To, keeper: &Keeper) -> Result<String, String> {
    match to {
        To::Lake(lake) => reach_lake(lake, keeper).await,
        To::Server(target) => reach_server(target, keeper).await,
        To::Files(_) => Ok(String::new()),
    }
}

async fn reach_lake(lake: &config::Lake, keeper: &Keeper) -> Result<String, String> {
    if lake.directory().is_some() {
        return Ok(format!("{} can be written to", lake.url));
    }
    let read = |file: &Path| keeper.read_to_string(file);
    let opened =
        Lake::open_with(lake, "", "", &read).map_err(|error| without_body(&chain(&error)))?;
    match tokio::time::timeout(ANSWER, opened.reach()).await {
        Ok(Ok(())) => Ok(format!("{} is reachable", lake.url)),
        Ok(Err(error)) => Err(without_body(&chain(&error))),
        Err(_) => Err(format!("{}: no answer within {ANSWER:?}", lake.url)),
    }
}

async fn reach_server(target: &ServerTarget, keeper: &Keeper) -> Result<String, String> {
    let mut server = Server::new(target, keeper)?;
    let name = server.name();
    match server.send(Payload::empty(server.is_grpc())).await {
        DeliveryResult::Delivered(_) => Ok(format!("{name} accepts profiles")),
        // Its answer to a real profile may differ.
        DeliveryResult::Refused(_, why) | DeliveryResult::TooOld(why) => Ok(format!(
            "{name} is reachable (it rejects empty requests: {why})"
        )),
        DeliveryResult::Failed(failure) => Err(format!("{name}: {}", failure.why)),
    }
}

/// Whether metrics can be served at an address. The aiprof-send that delivers from this state
/// may have it.
async fn listens(address: SocketAddr, config: &Config) -> Result<(), String> {
    for _ in 0..TRIES {
        match TcpListener::bind(address) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(format!(
                    "{address}: {error}: name an address of this machine"
                ));
            }
            Err(_) if is_locked(config) => return Ok(()),
            Err(_) => tokio::time::sleep(FREE / TRIES).await,
        }
    }
    Err(format!(
        "{address}: another program uses this port: choose another one, or write \"off\""
    ))
}
