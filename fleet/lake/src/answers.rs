//! Limits how much of an S3 server's answer is read. object_store keeps errors and lists of any
//! length in memory.

use async_trait::async_trait;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};

/// Most bytes of an error that are kept.
const MAX_ERROR: usize = 64 << 10;
/// Largest answer that is no object: a list has at most 1,000 names of up to 1,024 bytes.
const MAX_LIST: usize = 16 << 20;

/// Makes clients that limit how much of an answer they read.
#[derive(Debug, Default)]
pub(crate) struct Bounded(ReqwestConnector);

impl HttpConnector for Bounded {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        self.0.connect(options).map(Service).map(HttpClient::new)
    }
}

#[derive(Debug)]
struct Service(HttpClient);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Objects are read in ranges of known lengths, by requests without a query.
        let is_object = request.uri().query().is_none();
        let (head, body) = self.0.execute(request).await?.into_parts();
        let body = match head.status.is_success() {
            true if is_object => body,
            true => limited(body),
            false => beginning(body).await.into(),
        };
        Ok(HttpResponse::from_parts(head, body))
    }
}

/// A body that fails where it is longer than a list can be.
fn limited(body: HttpResponseBody) -> HttpResponseBody {
    let limited = Limited::new(body, MAX_LIST);
    HttpResponseBody::new(
        limited
            .map_err(|error| HttpError::new(HttpErrorKind::Decode, std::io::Error::other(error))),
    )
}

/// The first bytes of an error, which is text. Its status counts, however it goes on.
async fn beginning(body: HttpResponseBody) -> String {
    let mut kept = Vec::new();
    let mut chunks = body.bytes_stream();
    while kept.len() < MAX_ERROR
        && let Some(Ok(chunk)) = chunks.next().await
    {
        let left = MAX_ERROR - kept.len();
        kept.extend_from_slice(chunk.get(..left).unwrap_or(&chunk));
    }
    String::from_utf8_lossy(&kept).into_owned()
}
