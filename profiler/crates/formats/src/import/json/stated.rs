//! What a trace states about where it was recorded: host and devices.

use super::{is_analyzed, member};
use aiprof_model::timeline::{Stated, StatedRow};
use serde_json::Value;

/// Names of members with a host's name, without signs, in small letters.
const HOSTS: [&str; 4] = ["host", "hostname", "node", "nodename"];
/// Names of members that identify a device: the same in all processes.
const GPUS: [&str; 6] = ["uuid", "gpuuuid", "pcibusid", "pciaddress", "pci", "busid"];

/// What the members of the outermost object state.
pub(super) fn of(members: &[(String, String)]) -> Stated {
    let parsed = |key| serde_json::from_str::<Value>(member(members, key)?).ok();
    let devices = parsed("deviceProperties").unwrap_or_default();
    let devices = devices.as_array().map_or(&[][..], Vec::as_slice);
    let numbered = devices.iter().filter_map(|device| {
        let number = device.get("id")?.as_i64()?;
        Some((number, gpu(device)?))
    });
    let other = parsed("otherData").unwrap_or_default();
    let rows = other.get("processes").and_then(Value::as_array);
    Stated {
        host: host(members),
        gpus: numbered.collect(),
        rows: rows.into_iter().flatten().filter_map(row).collect(),
        devices: member(members, "deviceProperties")
            .unwrap_or_default()
            .to_owned(),
    }
}

/// The name of a member for comparison: `host_name` and `hostName` are the same.
fn plain(key: &str) -> String {
    let letters = key.chars().filter(|letter| letter.is_alphanumeric());
    letters.collect::<String>().to_ascii_lowercase()
}

/// The text of the first member of an object that has one of these names.
fn named(object: &Value, names: &[&str]) -> Option<String> {
    let members = object.as_object()?;
    let found = |name: &&str| {
        let mut known = members.iter().filter(|(key, _)| plain(key) == **name);
        let text = known.find_map(|(_, value)| value.as_str())?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    names.iter().find_map(found)
}

/// The host's name: as stated beside the rank or the events, else as the name has it under which
/// PyTorch's handler for TensorBoard saved the trace.
fn host(members: &[(String, String)]) -> Option<String> {
    let inner = ["distributedInfo", "otherData", "metadata"].into_iter();
    let inner = inner.filter_map(|key| serde_json::from_str::<Value>(member(members, key)?).ok());
    let stated = inner.filter_map(|value| named(&value, &HOSTS)).next();
    let outer = || {
        let mut own = members
            .iter()
            .filter(|(key, _)| HOSTS.contains(&plain(key).as_str()));
        own.find_map(|(_, text)| serde_json::from_str::<String>(text).ok())
    };
    let saved = || {
        // What an analysis writes there is the name of its own output.
        let name = member(members, "traceName").filter(|_| !is_analyzed(members))?;
        saved_on(&serde_json::from_str::<String>(name).ok()?)
    };
    stated.or_else(outer).or_else(saved)
}

/// The host in `host_1234.1700000000000.pt.trace.json`: name, process, time.
fn saved_on(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    let mut parts = name
        .strip_suffix(".gz")
        .unwrap_or(name)
        .strip_suffix(".pt.trace.json")?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some((front, _)) = parts.rsplit_once('.').filter(|(_, time)| is_number(time)) {
        parts = front;
    }
    let (host, process) = parts.rsplit_once('_')?;
    (is_number(process) && !host.is_empty()).then(|| host.to_owned())
}

/// What identifies a device: its UUID, else its PCI address.
fn gpu(device: &Value) -> Option<String> {
    let text = named(device, &GPUS).or_else(|| address(device))?;
    // Zeros are written where it is not known.
    let is_known = text
        .bytes()
        .any(|byte| byte.is_ascii_hexdigit() && byte != b'0');
    is_known.then(|| text.to_ascii_lowercase())
}

/// A PCI address that is given in numbers, as CUDA's and HIP's properties of devices have it.
fn address(device: &Value) -> Option<String> {
    let members = device.as_object()?;
    let number = |name| {
        let mut known = members.iter().filter(|(key, _)| plain(key) == name);
        known.find_map(|(_, value)| value.as_u64())
    };
    let (bus, slot) = (number("pcibusid")?, number("pcideviceid")?);
    let domain = number("pcidomainid").unwrap_or(0);
    Some(format!("{domain:04x}:{bus:02x}:{slot:02x}.0"))
}

/// An entry of `otherData.processes`.
fn row(entry: &Value) -> Option<(String, StatedRow)> {
    let text = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let row = StatedRow {
        host: text("host"),
        gpu: text("gpu"),
    };
    Some((entry.get("pid")?.to_string(), row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(members: &[(&str, &str)]) -> Stated {
        let members = members
            .iter()
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        of(&members.collect::<Vec<_>>())
    }

    #[test]
    fn hosts_are_stated_in_several_ways() {
        for (members, host) in [
            (
                &[("distributedInfo", r#"{"rank":1,"hostname":"a"}"#)][..],
                Some("a"),
            ),
            (&[("distributedInfo", r#"{"hostName":"a"}"#)], Some("a")),
            (&[("host_name", r#""b""#)], Some("b")),
            (&[("host_name", "7")], None),
            (&[("otherData", r#"{"host":"c"}"#)], Some("c")),
            (
                &[("traceName", r#""/x/n-1_77.17000.pt.trace.json.gz""#)],
                Some("n-1"),
            ),
            (
                &[("traceName", r#""n.example.org_77.pt.trace.json""#)],
                Some("n.example.org"),
            ),
            (&[("traceName", r#""trace.json""#)], None),
            (&[("traceName", r#""my_trace.pt.trace.json""#)], None),
            (
                &[
                    ("traceName", r#""n_77.pt.trace.json""#),
                    ("otherData", r#"{"Application":"aiprof 1"}"#),
                ],
                None,
            ),
            (&[], None),
        ] {
            assert_eq!(stated(members).host.as_deref(), host, "{members:?}");
        }
    }

    #[test]
    fn devices_are_identified_by_uuid_else_by_address() {
        let devices = r#"[{"id":0,"uuid":"GPU-AB","pciBusId":"0000:01:00.0"},
            {"id":1,"pci_bus_id":"0000:02:00.0"},{"id":2,"uuid":"000-0"},{"id":3},{"uuid":"x1"}]"#;
        let found = stated(&[("deviceProperties", devices)]).gpus;
        let gpus: Vec<_> = found.iter().map(|(id, gpu)| (*id, gpu.as_str())).collect();
        assert_eq!(gpus, [(0, "gpu-ab"), (1, "0000:02:00.0")]);
        let numbers = r#"[{"id":0,"pciBusID":23,"pciDeviceID":2,"pciDomainID":1},
            {"id":1,"pciBusId":202,"pciDeviceId":0},{"id":2,"pciBusId":3},
            {"id":3,"pciBusId":0,"pciDeviceId":0,"pciDomainId":0}]"#;
        let gpus = stated(&[("deviceProperties", numbers)]).gpus;
        let wanted = [(0, "0001:17:02.0"), (1, "0000:ca:00.0")];
        assert_eq!(gpus, wanted.map(|(id, gpu)| (id, gpu.to_owned())));
    }
}
