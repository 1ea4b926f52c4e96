//! An HTTP/1.1 server that keeps the requests it receives.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The path that it requests.
    pub path: String,
    /// Its headers, with names in small letters.
    pub headers: BTreeMap<String, String>,
    /// What it carries.
    pub body: Vec<u8>,
}

/// The server. It ends with the process.
#[derive(Clone, Debug)]
pub struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Starts one that answers everything with 200.
    ///
    /// # Errors
    /// No socket can be had.
    pub fn start() -> anyhow::Result<Self> {
        Self::on(TcpListener::bind("127.0.0.1:0")?)
    }

    /// The same at this address.
    ///
    /// # Errors
    /// Somebody else has it.
    pub fn at(address: SocketAddr) -> anyhow::Result<Self> {
        Self::on(TcpListener::bind(address)?)
    }

    fn on(listener: TcpListener) -> anyhow::Result<Self> {
        let server = Self {
            address: listener.local_addr()?,
            requests: Arc::default(),
        };
        let requests = Arc::clone(&server.requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let requests = Arc::clone(&requests);
                std::thread::spawn(move || serve(stream, &requests));
            }
        });
        Ok(server)
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it was sent so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        let requests = self.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(stream: TcpStream, requests: &Mutex<Vec<Request>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|n| n.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        let request = Request {
            path,
            headers,
            body,
        };
        requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request);
        writer
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .ok()?;
    }
}
