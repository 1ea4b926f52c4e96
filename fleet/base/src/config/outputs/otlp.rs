//! `otlp`: OpenTelemetry's profiles, sent to a collector.

use super::{BodyForm, Http, OutputKind, ServerApi, ServerTarget, To, Transport, UrlForm};
use crate::spool::BodyPacking;
use serde::Deserialize;
use serde::de;

pub(super) static OTLP: OutputKind = OutputKind {
    name: "otlp",
    help: "OpenTelemetry's profiles, sent to a collector",
    read,
};

/// In the answer of a server behind a collector: Pyroscope's.
const TOO_OLD: Option<&str> = super::pyroscope::API.too_old;

/// POST; the URL is the whole of it.
static HTTP: ServerApi = ServerApi {
    transport: Transport::Post(&[("content-type", "application/x-protobuf")]),
    url: UrlForm::Whole,
    body: BodyForm::Otlp,
    max_age: None,
    too_old: TOO_OLD,
    counts_rejected: true,
    advice: "check that `url` is the complete URL for OTLP profiles (usually with \
             /v1development/profiles); an OpenTelemetry Collector needs the feature gate \
             service.profilesSupport and a pipeline for profiles",
};

/// gRPC; the URL has no path.
static GRPC: ServerApi = ServerApi {
    transport: Transport::Grpc,
    url: UrlForm::Host(
        "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
    ),
    body: BodyForm::Otlp,
    max_age: None,
    too_old: TOO_OLD,
    counts_rejected: true,
    advice: "check that it accepts OTLP profiles (v1development); an OpenTelemetry Collector needs \
             the feature gate service.profilesSupport and a pipeline for profiles",
};

/// A protocol of OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OtlpProtocol {
    #[default]
    Http,
    Grpc,
}

/// How bodies are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OtlpCompression {
    #[default]
    Gzip,
    None,
}

fn read(mut keys: toml::Table) -> Result<To, toml::de::Error> {
    let protocol = keys.remove("protocol").map(OtlpProtocol::deserialize);
    let compression = keys.remove("compression").map(OtlpCompression::deserialize);
    Ok(To::Server(ServerTarget {
        api: match protocol.transpose()?.unwrap_or_default() {
            OtlpProtocol::Http => &HTTP,
            OtlpProtocol::Grpc => &GRPC,
        },
        packing: match compression.transpose()?.unwrap_or_default() {
            OtlpCompression::Gzip => BodyPacking::Gzip,
            OtlpCompression::None => BodyPacking::Raw,
        },
        http: Http::deserialize(keys).map_err(with_own_keys)?,
    }))
}

/// The error of a key that no server has, which lists those that one can have.
fn with_own_keys(error: toml::de::Error) -> toml::de::Error {
    match error.message().starts_with("unknown field") {
        true => de::Error::custom(format!("{}, `protocol`, `compression`", error.message())),
        false => error,
    }
}
