//! An event's arguments, and what analyses want to know of them.

use super::{Fields, ObjectKey, Parsed};
use aiprof_model::timeline::Transfer;
use aiprof_model::timeline::number::parse_counter;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Reads an event's arguments.
pub(super) struct Arguments<'f, 'a, 'p> {
    pub fields: &'f mut Fields<'a>,
    pub parsed: &'p mut Parsed,
}

impl<'a> DeserializeSeed<'a> for Arguments<'_, 'a, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl Arguments<'_, '_, '_> {
    /// It is no object.
    fn none<E>(self) -> Result<(), E> {
        self.fields.has_bad_arguments = true;
        Ok(())
    }
}

impl<'a> Visitor<'a> for Arguments<'_, 'a, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("arguments")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.none()
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.none()
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.none()
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.none()
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        self.none()
    }

    fn visit_seq<S: SeqAccess<'a>>(self, mut list: S) -> Result<(), S::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        self.none()
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        let Self { fields, parsed } = self;
        while let Some(key) = map.next_key_seed(ObjectKey)? {
            let value: &'a RawValue = map.next_value()?;
            let text = value.get();
            fields.argument(parsed, &key, text);
        }
        Ok(())
    }
}

/// Notes what analyses want to know of an argument that is kept as text as well.
pub(super) fn hint(parsed: &mut Parsed, fields: &mut Fields<'_>, key: &str, text: &str) {
    if CORRELATIONS.contains(&key) {
        fields.correlation = text.trim_matches('"').parse().unwrap_or(0);
        return;
    }
    if !TRANSFER.contains(&key) {
        return;
    }
    let transfer = fields.transfer.get_or_insert(Transfer {
        bytes: -1,
        gigabytes_per_second: f64::NAN,
        ..Transfer::default()
    });
    let mut name = || parsed.names.intern(text.trim_matches('"'));
    match key {
        "CollGroup" => transfer.group = name(),
        "Type" => transfer.kind = name(),
        "Peer" | "Peers" => {
            transfer.peers = name();
            transfer.is_plural = key == "Peers";
        }
        "memory bandwidth (GB/s)" => {
            transfer.gigabytes_per_second = text.parse().unwrap_or(f64::NAN);
        }
        _ => transfer.bytes = parse_counter(text).unwrap_or(-1),
    }
}

/// Names of the argument that a launch and its work share.
const CORRELATIONS: [&str; 3] = ["correlation", "correlation_id", "corr_id"];

/// Arguments that describe a transfer.
const TRANSFER: [&str; 7] = [
    "CollGroup",
    "Peer",
    "Peers",
    "Type",
    "Bytes",
    "bytes",
    "memory bandwidth (GB/s)",
];
