//! The messages, written by hand so that building needs no protoc: Pyroscope's
//! `api/push/v1/push.proto`, and Parca's
//! `proto/parca/profilestore/v1alpha1/profilestore.proto`.

/// Pyroscope's request.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) series: Vec<PushedSeries>,
}

/// A series of Pyroscope.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PushedSeries {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<RawSample>,
}

/// Parca's request.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WriteRawRequest {
    #[prost(message, repeated, tag = "2")]
    pub(super) series: Vec<WrittenSeries>,
    /// Addresses are those of the files.
    #[prost(bool, tag = "3")]
    pub(super) normalized: bool,
}

/// A series of Parca.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WrittenSeries {
    #[prost(message, optional, tag = "1")]
    pub(super) labels: Option<LabelSet>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<RawSample>,
}

/// Parca's labels.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LabelSet {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
}

/// A label of either.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Label {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// A pprof file, gzip and all.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) raw_profile: Vec<u8>,
}
