//! What the agent that started this program asks for over stdin, where it is a pipe. Signals
//! would not do: the agent may not send any to another user's process.

use rustix::fs::FileType;
use std::io;
use std::os::fd::AsFd as _;
use tokio::net::unix::pipe::Receiver;

/// What the agent asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentRequest {
    /// Any byte: to read the configuration again.
    Reload,
    /// The agent has closed the pipe, or has ended.
    End,
}

/// The agent's requests.
#[derive(Debug)]
pub(crate) struct Requests {
    /// `None`: no agent started this program.
    pipe: Option<Receiver>,
}

impl Requests {
    /// Those that come over stdin.
    pub(crate) fn new() -> Self {
        let pipe = pipe().unwrap_or_else(|error| {
            tracing::warn!("stdin: {error}: aiprof-send will not notice when the agent ends");
            None
        });
        Self { pipe }
    }

    /// Whether an agent sends them.
    pub(crate) fn has_agent(&self) -> bool {
        self.pipe.is_some()
    }

    /// The next one; waits for ever where no agent sends any. Cancel-safe.
    pub(crate) async fn next(&self) -> AgentRequest {
        let Some(pipe) = &self.pipe else {
            return std::future::pending().await;
        };
        let mut buffer = [0; 512];
        while pipe.readable().await.is_ok() {
            match pipe.try_read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => return AgentRequest::Reload,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
        AgentRequest::End
    }
}

/// Stdin, if it is a pipe.
fn pipe() -> io::Result<Option<Receiver>> {
    let stdin = io::stdin();
    let about = rustix::fs::fstat(&stdin)?;
    if FileType::from_raw_mode(about.st_mode) != FileType::Fifo {
        return Ok(None);
    }
    Receiver::from_owned_fd(stdin.as_fd().try_clone_to_owned()?).map(Some)
}
