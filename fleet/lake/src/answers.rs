//! Requests to S3, of whose error answers only so much is read.

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};

/// Largest error answer that is read, bytes. object_store keeps all of it.
const MAX_ERROR: usize = 64 << 10;

/// Makes clients that read at most [`MAX_ERROR`] of an error answer.
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
        let response = self.0.execute(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Ok(response.map(|body| {
            let limited = Limited::new(body, MAX_ERROR);
            HttpResponseBody::new(limited.map_err(|error| {
                HttpError::new(HttpErrorKind::Decode, std::io::Error::other(error))
            }))
        }))
    }
}
