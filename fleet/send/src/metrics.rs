//! Serves /metrics.

mod table;
mod text;

use crate::board::{Board, now_unix_ns};
use aiprof_fleet::status::{self, AGENT_FILE, AgentStatus};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use table::MetricSources;
pub(crate) use table::open_own;
use text::Format;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Most connections at a time, of all peers and of one address. For one more, the oldest is
/// closed: a scrape takes milliseconds, so what is old is slow or idle.
const MAX_CONNECTIONS: usize = 64;
const MAX_OF_ADDRESS: usize = 8;
/// Longest time that a connection may take in all: one request each.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Largest head of a request.
const MAX_HEAD: usize = 8 << 10;
/// When an address that cannot be had is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// Serves at an address until it changes, for ever.
pub(crate) async fn serve(board: Board, mut listen: watch::Receiver<Option<SocketAddr>>) {
    loop {
        let address = *listen.borrow_and_update();
        tokio::select! {
            () = serve_at(&board, address) => {}
            changed = listen.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

async fn serve_at(board: &Board, address: Option<SocketAddr>) {
    let Some(address) = address else {
        return std::future::pending().await;
    };
    let mut said = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                if !said {
                    tracing::error!("cannot serve metrics at {address}: {error}; retrying");
                }
                said = true;
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    tracing::info!("serving metrics at http://{address}/metrics");
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let answered = connection(board.clone(), stream);
                let task = tokio::spawn(async move {
                    let _ = tokio::time::timeout(MAX_TIME, answered).await;
                });
                connections.add(peer.ip(), task.abort_handle());
                // Whoever has sent a request is answered before others take its place.
                tokio::task::yield_now().await;
            }
            // No file descriptors, for one: not better at once.
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

/// The connections that are open, oldest first.
#[derive(Default)]
struct Connections(Vec<(IpAddr, AbortHandle)>);

impl Connections {
    /// Adds one, and closes the oldest where there are too many.
    fn add(&mut self, peer: IpAddr, connection: AbortHandle) {
        self.0.retain(|(_, connection)| !connection.is_finished());
        let of_peer = self.0.iter().filter(|(known, _)| *known == peer).count();
        let oldest = match of_peer < MAX_OF_ADDRESS {
            true => (self.0.len() >= MAX_CONNECTIONS).then_some(0),
            false => self.0.iter().position(|(known, _)| *known == peer),
        };
        if let Some(oldest) = oldest {
            self.0.remove(oldest).1.abort();
        }
        self.0.push((peer, connection));
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.0.iter().for_each(|(_, connection)| connection.abort());
    }
}

async fn connection(board: Board, stream: TcpStream) {
    let service = service_fn(move |request| {
        let board = board.clone();
        async move { Ok::<_, Infallible>(answer(&board, &request)) }
    });
    // What goes wrong here is the client's business.
    let _ = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .max_headers(64)
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_TIME / 2)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(board: &Board, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let simple = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return simple(StatusCode::NOT_FOUND, "not found: use /metrics\n");
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = simple(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD\n");
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let format = format_for(request.headers());
    let agent: Option<AgentStatus> = status::read(&board.directory(), AGENT_FILE).ok();
    let known = MetricSources::new(agent, board.status(), board.window(), now_unix_ns());
    let text = text::write(&known, format);
    let mut response = Response::new(Full::from(text));
    let kind = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// What a client asks for: OpenMetrics, unless it names the old format and not the new one.
fn format_for(headers: &HeaderMap) -> Format {
    let accepted = headers.get_all(ACCEPT).iter();
    let accepted: Vec<_> = accepted.filter_map(|value| value.to_str().ok()).collect();
    let names = |kind: &str| {
        let mut ranges = accepted.iter().flat_map(|value| value.split(','));
        ranges.any(|range| range.split(';').next().is_some_and(|it| it.trim() == kind))
    };
    match names("text/plain") && !names("application/openmetrics-text") {
        true => Format::Old,
        false => Format::OpenMetrics,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as Client;

    /// Every scrape of a busy address is answered while it has more idle and slow
    /// connections than are allowed, and has new ones all the time.
    #[test]
    fn idle_and_slow_clients_deny_no_scrape() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let (_listen, listening) = watch::channel(Some(address));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let board = Board::new(&aiprof_fleet::config::Config::default());
        std::thread::spawn(move || runtime.block_on(serve(board, listening)));
        let mut first = None;
        while first.is_none() {
            first = Client::connect(address).ok();
        }
        let mut clients = Vec::from_iter(first);
        for scrape in 0..20 {
            for client in 0..2 * MAX_OF_ADDRESS {
                let mut client_of_anybody = Client::connect(address).unwrap();
                if client % 2 == 0 {
                    client_of_anybody.write_all(b"GET /metr").unwrap();
                }
                clients.push(client_of_anybody);
            }
            let mut scraper = Client::connect(address).unwrap();
            scraper
                .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap();
            let mut answer = String::new();
            scraper.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{scrape}: {answer}");
        }
    }

    #[tokio::test]
    async fn the_oldest_makes_room() {
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let idle = || tokio::spawn(std::future::pending::<()>());
        let mut connections = Connections::default();
        let mut tasks = Vec::new();
        let mut add = |connections: &mut Connections, last| {
            let task = idle();
            connections.add(address(last), task.abort_handle());
            tasks.push(task);
        };
        for _ in 0..20 {
            add(&mut connections, 1);
        }
        assert_eq!(connections.0.len(), MAX_OF_ADDRESS);
        for last in 2..200 {
            add(&mut connections, last);
        }
        assert_eq!(connections.0.len(), MAX_CONNECTIONS);
        assert_eq!(connections.0[0].0, address(200 - MAX_CONNECTIONS as u8));
        // Closed tasks end when they are polled.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let open = tasks.iter().filter(|task| !task.is_finished()).count();
        assert_eq!(open, MAX_CONNECTIONS);
        assert!(!tasks[217].is_finished());
    }

    #[test]
    fn the_old_format_is_for_those_who_ask_for_it_alone() {
        for (accept, expected) in [
            ("", Format::OpenMetrics),
            ("*/*", Format::OpenMetrics),
            (
                "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
                Format::OpenMetrics,
            ),
            ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Format::Old),
            ("text/plain", Format::Old),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(format_for(&headers), expected, "{accept}");
        }
        assert_eq!(format_for(&HeaderMap::new()), Format::OpenMetrics);
    }
}
