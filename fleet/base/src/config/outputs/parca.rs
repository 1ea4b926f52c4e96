//! `parca`: Parca's WriteRaw.

use super::{BodyForm, OutputKind, ServerApi, ServerTarget, Transport, UrlForm};

pub(super) static PARCA: OutputKind = OutputKind {
    name: "parca",
    help: "Parca's WriteRaw",
    read: |keys| ServerTarget::read(keys, &API),
};

static API: ServerApi = ServerApi {
    transport: Transport::Grpc,
    url: UrlForm::Base("/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw"),
    body: BodyForm::Parca,
    max_age: None,
    too_old: None,
    counts_rejected: false,
    advice: "check that `url` is the gRPC port of Parca",
};
