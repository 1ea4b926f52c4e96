//! `pyroscope`: Pyroscope's push API.

use super::{BodyForm, OutputKind, ServerApi, ServerTarget, Transport, UrlForm};
use std::time::Duration;

pub(super) static PYROSCOPE: OutputKind = OutputKind {
    name: "pyroscope",
    help: "Pyroscope's push API",
    read: |keys| ServerTarget::read(keys, &API),
};

/// By Connect.
pub(super) static API: ServerApi = ServerApi {
    transport: Transport::Post(&[
        ("content-type", "application/proto"),
        ("connect-protocol-version", "1"),
    ]),
    url: UrlForm::Base("/push.v1.PusherService/Push"),
    body: BodyForm::Pyroscope,
    // It refuses what is older than an hour. Requests take their time.
    max_age: Some(Duration::from_secs(58 * 60)),
    // It has no code of its own for it.
    too_old: Some("ingestion window starts at"),
    counts_rejected: false,
    advice: "check that `url` is the base URL of Pyroscope (1.0 or newer), without \
             /push.v1.PusherService",
};
