//! One request to a server.

use crate::answer::{self, Cause, DeliveryResult, Failure, clean};
use crate::backoff::Pace;
use crate::client::ServerClient;
use crate::credentials::Credentials;
use crate::keeper::Keeper;
use crate::payload::{NoPayload, Payload};
use aiprof_fleet::config::{Http, ServerApi, ServerTarget, Transport, UrlForm};
use aiprof_fleet::spool::{Body, Queue};
use aiprof_system::errors::chain;
use http_body_util::BodyExt as _;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most bytes of an answer that are read.
const MAX_ANSWER: usize = 64 << 10;

/// A server that bodies are sent to.
pub(crate) struct Server {
    api: &'static ServerApi,
    url: Url,
    headers: HeaderMap,
    timeout: Duration,
    max_age: Option<Duration>,
    http: Http,
    keeper: Keeper,
    client: ServerClient,
    /// Whether it was found to take no packed messages.
    unpack: bool,
}

/// What came of one attempt to deliver a body.
pub(crate) enum Attempt {
    /// It was sent, or will never be.
    Done {
        /// What became of it.
        verdict: DeliveryResult,
        /// Bytes that were sent.
        bytes: u64,
    },
    /// It is gone already.
    Gone,
}

impl Server {
    /// That of an output, of which the keeper reads the files.
    ///
    /// # Errors
    /// In words: what in its configuration cannot be.
    pub(crate) fn new(target: &ServerTarget, keeper: &Keeper) -> Result<Self, String> {
        let ServerTarget { api, http, .. } = target;
        Ok(Self {
            api,
            url: url(api, &http.url)?,
            headers: headers(api, http)?,
            timeout: http.timeout,
            max_age: target.max_age(),
            http: http.clone(),
            keeper: keeper.clone(),
            client: ServerClient::new(http.clone(), api.is_grpc(), keeper.clone()),
            unpack: false,
        })
    }

    /// How old a window may be for it to be worth a request.
    pub(crate) fn max_age(&self) -> Option<Duration> {
        self.max_age
    }

    /// Checks its credentials and the certificates that it trusts, without a request.
    ///
    /// # Errors
    /// In words: a file is not what it must be.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        Credentials::read(&self.http, |file| self.keeper.read_to_string(file))?;
        self.client.get().map(drop)
    }

    /// Whether it is asked by gRPC.
    pub(crate) fn is_grpc(&self) -> bool {
        self.api.is_grpc()
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        match self.url.port_or_known_default() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// Sends a body.
    pub(crate) async fn deliver(&mut self, queue: &Queue, body: &Body) -> Attempt {
        let is_grpc = self.api.is_grpc();
        loop {
            let payload = match Payload::read(queue, body, is_grpc, self.unpack) {
                Ok(payload) => payload,
                Err(NoPayload::Gone) => return Attempt::Gone,
                Err(NoPayload::Unfit(cause, why)) => {
                    let verdict = DeliveryResult::Refused(cause, why);
                    return Attempt::Done { verdict, bytes: 0 };
                }
                Err(NoPayload::Unread(error)) => {
                    let why = format!("cannot read the spool: {error}");
                    let verdict = DeliveryResult::Failed(Failure::soon(Cause::Storage, why));
                    return Attempt::Done { verdict, bytes: 0 };
                }
            };
            let bytes = payload.bytes.len() as u64;
            let was_packed = is_grpc && payload.is_gzip;
            let verdict = self.send(payload).await;
            // A gRPC server that knows no gzip answers as if it did not know the method.
            if was_packed && is_unimplemented(&verdict) {
                self.unpack = true;
                continue;
            }
            if self.unpack && is_unimplemented(&verdict) {
                self.unpack = false;
            }
            return Attempt::Done { verdict, bytes };
        }
    }

    /// Sends a payload and reads the answer.
    pub(crate) async fn send(&mut self, payload: Payload) -> DeliveryResult {
        let credentials =
            match Credentials::read(&self.http, |file| self.keeper.read_to_string(file)) {
                Ok(credentials) => credentials,
                Err(why) => return DeliveryResult::Failed(Failure::soon(Cause::Credentials, why)),
            };
        let client = match self.client.get() {
            Ok(client) => client,
            Err(why) => return DeliveryResult::Failed(Failure::soon(Cause::Credentials, why)),
        };
        let exchange = self.exchange(&client, payload, &credentials);
        let verdict = match tokio::time::timeout(self.timeout, exchange).await {
            Ok(verdict) => verdict,
            Err(_) => {
                let why = format!("no answer within {:?} (`timeout`)", self.timeout);
                DeliveryResult::Failed(Failure::soon(Cause::Timeout, why))
            }
        };
        if let DeliveryResult::Failed(failure) = &verdict
            && matches!(failure.cause, Cause::Connection | Cause::Timeout)
        {
            self.client.reset();
        }
        hide(verdict, &credentials)
    }

    async fn exchange(
        &self,
        client: &reqwest::Client,
        payload: Payload,
        credentials: &Credentials,
    ) -> DeliveryResult {
        let mut headers = self.headers.clone();
        if payload.is_gzip {
            let name = match self.api.is_grpc() {
                true => "grpc-encoding",
                false => "content-encoding",
            };
            headers.insert(name, HeaderValue::from_static("gzip"));
        }
        if let Some(header) = &credentials.header {
            headers.insert("authorization", header.clone());
        }
        if payload.bytes.is_empty() {
            // Some servers require it.
            headers.insert("content-length", HeaderValue::from_static("0"));
        }
        let request = client.post(self.url.clone());
        let response = match request.headers(headers).body(payload.bytes).send().await {
            Ok(response) => response,
            Err(error) => return DeliveryResult::Failed(broken(error)),
        };
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let answer = read(response).await;
        match self.api.is_grpc() {
            true => self.of_grpc(status, &headers, answer),
            // A status is an answer, whatever became of the rest.
            false => answer::of_http(self.api, status, &headers, &answer.bytes),
        }
    }

    fn of_grpc(&self, status: u16, headers: &HeaderMap, answer: ServerAnswer) -> DeliveryResult {
        let trailers = match &answer.trailers {
            Some(trailers) => trailers,
            None => headers,
        };
        if trailers.contains_key("grpc-status") {
            return answer::of_grpc(self.api, trailers, &answer.bytes);
        }
        match answer.broken {
            Some(failure) if status == 200 => DeliveryResult::Failed(failure),
            _ => answer::of_no_grpc(self.api, status, headers, &answer.bytes),
        }
    }
}

/// The part of an answer's body that came and is of interest.
#[derive(Default)]
struct ServerAnswer {
    bytes: Vec<u8>,
    trailers: Option<HeaderMap>,
    broken: Option<Failure>,
}

async fn read(response: Response) -> ServerAnswer {
    let mut body = reqwest::Body::from(response);
    let mut answer = ServerAnswer::default();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                answer.broken = Some(broken(error));
                break;
            }
        };
        match frame.into_data() {
            Ok(data) => {
                let room = MAX_ANSWER - answer.bytes.len();
                answer.bytes.extend(data.iter().take(room));
                if data.len() > room {
                    answer.broken = Some(Failure {
                        cause: Cause::Protocol,
                        why: "the answer is larger than the limit of 64 KiB".to_owned(),
                        pace: Pace::Slow,
                        wait: None,
                    });
                    break;
                }
            }
            Err(frame) => answer.trailers = frame.into_trailers().ok(),
        }
    }
    answer
}

fn broken(error: reqwest::Error) -> Failure {
    let cause = match error.is_timeout() {
        true => Cause::Timeout,
        false => Cause::Connection,
    };
    Failure::soon(cause, clean(&chain(&error.without_url())))
}

fn is_unimplemented(verdict: &DeliveryResult) -> bool {
    matches!(verdict, DeliveryResult::Failed(failure) if failure.cause == Cause::Grpc(12))
}

/// The verdict, with nothing secret in its words: servers send back what they were sent.
fn hide(verdict: DeliveryResult, credentials: &Credentials) -> DeliveryResult {
    match verdict {
        DeliveryResult::Delivered(mut rejected) => {
            rejected.message = credentials.hide(rejected.message);
            DeliveryResult::Delivered(rejected)
        }
        DeliveryResult::Refused(cause, why) => {
            DeliveryResult::Refused(cause, credentials.hide(why))
        }
        DeliveryResult::TooOld(why) => DeliveryResult::TooOld(credentials.hide(why)),
        DeliveryResult::Failed(mut failure) => {
            failure.why = credentials.hide(failure.why);
            DeliveryResult::Failed(failure)
        }
    }
}

/// Where requests go.
fn url(api: &ServerApi, base: &str) -> Result<Url, String> {
    let whole = match api.url {
        UrlForm::Whole => base.to_owned(),
        UrlForm::Base(method) | UrlForm::Host(method) => {
            format!("{}{method}", base.trim_end_matches('/'))
        }
    };
    Url::parse(&whole).map_err(|error| format!("url: {error}"))
}

/// The headers that all requests have.
fn headers(api: &ServerApi, http: &Http) -> Result<HeaderMap, String> {
    let mut headers = own_headers(http)?;
    let mut set = |name: &'static str, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    match api.transport {
        Transport::Post(all) => all.iter().for_each(|(name, value)| set(name, value)),
        Transport::Grpc => {
            set("content-type", "application/grpc");
            set("te", "trailers");
            // At most 8 digits.
            let millis = http.timeout.as_millis().min(99_999_999);
            let value = HeaderValue::from_str(&format!("{millis}m"));
            headers.insert("grpc-timeout", value.map_err(|error| error.to_string())?);
        }
    }
    Ok(headers)
}

/// The headers that the configuration asks for.
fn own_headers(http: &Http) -> Result<HeaderMap, String> {
    let tenant = http.tenant.as_ref().map(|tenant| ("x-scope-orgid", tenant));
    let given: BTreeMap<_, _> = http
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value))
        .chain(tenant)
        .collect();
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let wrong = |what: &str| format!("headers.{name}: {what}");
        let parsed = HeaderName::from_bytes(name.as_bytes());
        let parsed = parsed.map_err(|_| wrong("is not a header name"))?;
        let value = HeaderValue::from_str(value);
        let mut value = value.map_err(|_| wrong("has characters that a header cannot have"))?;
        value.set_sensitive(true);
        headers.insert(parsed, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_fleet::config::{Config, To};
    use std::path::Path;

    fn server(output: &str) -> Result<Server, String> {
        let text = format!("[[output]]\n{output}");
        let config = Config::parse(Path::new("x"), &text).unwrap();
        match &config.outputs[0].to {
            To::Server(target) => Server::new(target, &Keeper::gone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_go_to_the_method_of_the_protocol() {
        for (output, expected) in [
            (
                "type = \"otlp\"\nurl = \"https://h/api/x/v1/profiles?a=b\"",
                "https://h/api/x/v1/profiles?a=b",
            ),
            (
                "type = \"otlp\"\nprotocol = \"grpc\"\nurl = \"http://h:4317/\"",
                "http://h:4317/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
            ),
            (
                "type = \"pyroscope\"\nurl = \"http://h:4040/base/\"",
                "http://h:4040/base/push.v1.PusherService/Push",
            ),
            (
                "type = \"parca\"\nurl = \"http://h:7070\"",
                "http://h:7070/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw",
            ),
        ] {
            assert_eq!(server(output).unwrap().url.as_str(), expected);
        }
    }

    #[test]
    fn headers_are_those_that_can_be() {
        let with = |headers: &str| {
            server(&format!(
                "type = \"parca\"\nurl = \"http://x\"\ntenant = \"t\"\n{headers}"
            ))
        };
        let found = with("headers = { Abc = \"d\" }").unwrap().headers;
        assert_eq!(found["abc"], "d");
        assert_eq!(found["x-scope-orgid"], "t");
        assert_eq!(found["grpc-timeout"], "30000m");
    }

    #[test]
    fn only_pyroscope_is_known_to_refuse_old_windows() {
        let age = |output: &str| server(output).unwrap().max_age().map(|age| age.as_secs());
        assert_eq!(age("type = \"parca\"\nurl = \"http://x\""), None);
        assert_eq!(age("type = \"pyroscope\"\nurl = \"http://x\""), Some(3_480));
        let set = "type = \"pyroscope\"\nurl = \"http://x\"\nmax_age = \"7d\"";
        assert_eq!(age(set), Some(604_800));
    }
}
