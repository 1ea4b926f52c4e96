//! The end of stdin, where it is a pipe: the agent has ended.

use rustix::fs::FileType;
use std::io;
use std::os::fd::AsFd as _;
use tokio::net::unix::pipe::Receiver;

/// Waits until stdin ends; for ever where it is no pipe.
pub(crate) async fn end() {
    match pipe() {
        Ok(Some(pipe)) => read_to_end(&pipe).await,
        Ok(None) => std::future::pending().await,
        Err(error) => {
            tracing::warn!("stdin: {error}: aiprof-send will not notice when the agent ends");
            std::future::pending().await
        }
    }
}

/// Whether it is one.
pub(crate) fn is_pipe() -> bool {
    let about = rustix::fs::fstat(std::io::stdin());
    about.is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Fifo)
}

/// Stdin, if it is a pipe.
fn pipe() -> io::Result<Option<Receiver>> {
    if !is_pipe() {
        return Ok(None);
    }
    let stdin = std::io::stdin();
    Receiver::from_owned_fd(stdin.as_fd().try_clone_to_owned()?).map(Some)
}

async fn read_to_end(pipe: &Receiver) {
    // What comes is of no interest.
    let mut buffer = [0; 512];
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
}
