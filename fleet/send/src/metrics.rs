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
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use table::Known;
use text::Format;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Most connections at a time; further ones are closed at once.
const MAX_CONNECTIONS: usize = 8;
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
                    tracing::error!("metrics at {address}: {error}; trying again");
                }
                said = true;
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    tracing::info!("metrics at http://{address}/metrics");
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                    let board = board.clone();
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(MAX_TIME, connection(board, stream)).await;
                        drop(place);
                    });
                }
            }
            // No file descriptors, for one: not better at once.
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
        }
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
        return simple(StatusCode::NOT_FOUND, "only /metrics is here\n");
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = simple(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let format = format_for(request.headers());
    let agent: Option<AgentStatus> = status::read(&board.directory(), AGENT_FILE).ok();
    let known = Known::new(agent, board.status(), board.window(), now_unix_ns());
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
