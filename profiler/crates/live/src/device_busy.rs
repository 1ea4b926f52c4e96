//! How much of the time accelerators are busy, as drivers of the DRM subsystem count it for
//! each client: `/proc/PID/fdinfo/FD` (Documentation/gpu/drm-usage-stats.rst), by i915, xe,
//! amdgpu, msm, panfrost, ivpu and others. It costs the device nothing, and needs no runtime.
//!
//! A device is as busy as the busiest kind of its engines. What a client did that came and
//! went between two looks is not seen: shares are the least.

use crate::device_use;
use aiprof_system::files::{kernel, others};
use rustc_hash::FxHashMap;
use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

/// Most descriptors of a process that are looked at.
const MAX_OPEN: usize = 4096;
/// Most clients that are remembered.
const MAX_CLIENTS: usize = 4096;
/// Most engines of a client.
const MAX_ENGINES: usize = 64;
/// Most devices that are looked at for each class.
const MAX_DEVICES: usize = 256;
/// Drivers of accelerators that count what clients use, as `drm-driver` names them: a
/// device of theirs without a client does nothing. What devices of other drivers do is not
/// known.
const DRIVERS: [&str; 5] = ["i915", "xe", "amdgpu", "amdxdna", "intel_vpu"];

/// A client: its device, and the number that the driver gave it.
type DrmClient = (String, u64);

/// What a client has used of a kind of engines since it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    /// `drm-engine-NAME`: nanoseconds.
    ns: Option<u64>,
    /// `drm-cycles-NAME` and `drm-total-cycles-NAME`: cycles in use, and all cycles in that time.
    cycles: Option<u64>,
    of_cycles: Option<u64>,
    /// `drm-engine-capacity-NAME`: engines of this kind; 0 is one.
    engines: u64,
}

type Engines = BTreeMap<String, Used>;

/// What a device did between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Share of the time in which it was busy.
    pub busy: f64,
    /// Whether a process had it open at either look.
    pub is_open: bool,
}

/// Looks at the clients of devices.
#[derive(Debug)]
pub struct DeviceBusy {
    clients: FxHashMap<DrmClient, Engines>,
    looked: Instant,
    /// What was used before the first look is of no window.
    is_first: bool,
}

impl Default for DeviceBusy {
    fn default() -> Self {
        Self {
            clients: FxHashMap::default(),
            looked: Instant::now(),
            is_first: true,
        }
    }
}

impl DeviceBusy {
    /// What devices did since the last look, by their names (`xe 0000:03:00.0`); none at the
    /// first look.
    pub fn look(&mut self) -> BTreeMap<String, Activity> {
        if !device_use::has_any() {
            return BTreeMap::new();
        }
        let is_first = self.is_first;
        let mut found = self.take(clients(), Instant::now());
        if !is_first {
            for device in devices() {
                found.entry(device).or_default();
            }
        }
        found
    }

    fn take(
        &mut self,
        now: FxHashMap<DrmClient, Engines>,
        when: Instant,
    ) -> BTreeMap<String, Activity> {
        let elapsed = when.duration_since(self.looked);
        self.looked = when;
        let before = std::mem::replace(&mut self.clients, now);
        if std::mem::take(&mut self.is_first) {
            return BTreeMap::new();
        }
        let mut shares: BTreeMap<(&str, &str), f64> = BTreeMap::new();
        for (client, engines) in &self.clients {
            for (engine, used) in engines {
                let earlier = before.get(client).and_then(|engines| engines.get(engine));
                let share = used.share(earlier, elapsed).unwrap_or(0.0);
                *shares.entry((&client.0, engine)).or_default() += share;
            }
        }
        let mut devices: BTreeMap<String, Activity> = BTreeMap::new();
        for (device, _) in before.keys().chain(self.clients.keys()) {
            if !devices.contains_key(device) {
                let new = Activity {
                    busy: 0.0,
                    is_open: true,
                };
                devices.insert(device.clone(), new);
            }
        }
        for ((device, _), share) in shares {
            let of = devices.entry(device.to_owned()).or_default();
            of.busy = of.busy.max(share.min(1.0));
        }
        devices
    }
}

/// The devices that drivers count for.
fn devices() -> Vec<String> {
    let classes = ["/sys/class/drm", "/sys/class/accel"];
    let nodes = classes.into_iter().flat_map(|class| {
        let nodes = kernel::read_dir(class).unwrap_or_default();
        nodes.into_iter().take(MAX_DEVICES)
    });
    let names = nodes.filter_map(|(node, _)| {
        let text = kernel::read_to_string(node.join("device/uevent")).ok()?;
        device(&text)
    });
    names.collect()
}

/// The name of a device, from the text of its `uevent`; `None`: its driver does not count use.
fn device(uevent: &str) -> Option<String> {
    let of = |key: &str| uevent.lines().find_map(|line| line.strip_prefix(key));
    let (driver, address) = (of("DRIVER=")?, of("PCI_SLOT_NAME=")?);
    (DRIVERS.contains(&driver) && is_word(address)).then(|| format!("{driver} {address}"))
}

/// Whether a text of a driver can be part of a name.
fn is_word(text: &str) -> bool {
    let byte = |b: u8| b.is_ascii_alphanumeric() || b".:_-".contains(&b);
    !text.is_empty() && text.len() <= 64 && text.bytes().all(byte)
}

impl Used {
    /// Share of the time that was used since an earlier count; `None`: it is not known.
    fn share(&self, earlier: Option<&Self>, elapsed: Duration) -> Option<f64> {
        let engines = self.engines.max(1) as f64;
        let share = match (self.cycles, self.of_cycles) {
            (Some(cycles), Some(of)) => {
                // Those of a client that is new are of no known time.
                let earlier = earlier?;
                let of = of.checked_sub(earlier.of_cycles?)?;
                let used = cycles.saturating_sub(earlier.cycles?);
                if of == 0 {
                    return None;
                }
                used as f64 / of as f64
            }
            _ => {
                let before = earlier.map_or(Some(0), |earlier| earlier.ns)?;
                let used = Duration::from_nanos(self.ns?.saturating_sub(before));
                used.as_secs_f64() / elapsed.as_secs_f64().max(1e-3)
            }
        };
        Some((share / engines).clamp(0.0, 1.0))
    }
}

/// The clients that processes have open now.
fn clients() -> FxHashMap<DrmClient, Engines> {
    let mut found = FxHashMap::default();
    for (process, name) in kernel::read_dir("/proc").unwrap_or_default() {
        let is_process = name.to_str().is_some_and(|n| n.parse::<u32>().is_ok());
        if !is_process {
            continue;
        }
        let open = others::read_dir(&process.join("fd"), MAX_OPEN).unwrap_or_default();
        for (descriptor, number) in open {
            let target = kernel::read_link(&descriptor).unwrap_or_default();
            let is_node = |folder: &Path| target.starts_with(folder);
            if !is_node(Path::new("/dev/dri")) && !is_node(Path::new("/dev/accel")) {
                continue;
            }
            let info = process.join("fdinfo").join(number);
            let text = kernel::read_to_string(info).unwrap_or_default();
            if found.len() < MAX_CLIENTS
                && let Some((client, engines)) = parse(&text)
            {
                // The same client may be open several times.
                found.insert(client, engines);
            }
        }
    }
    found
}

/// Reads the text of a descriptor; `None`: it is of no client of a device that has an
/// address.
fn parse(text: &str) -> Option<(DrmClient, Engines)> {
    let (mut driver, mut address, mut id) = ("", "", None);
    let mut engines = Engines::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match key {
            "drm-driver" => driver = value,
            "drm-pdev" => address = value,
            "drm-client-id" => id = value.parse().ok(),
            _ => engine(&mut engines, key, value),
        }
    }
    (is_word(driver) && is_word(address)).then_some(())?;
    Some(((format!("{driver} {address}"), id?), engines))
}

fn engine(engines: &mut Engines, key: &str, value: &str) {
    let number = value.split_whitespace().next();
    let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) else {
        return;
    };
    let Some(key) = key.strip_prefix("drm-") else {
        return;
    };
    // The longer begins first: a capacity is no engine of that name.
    let kinds = ["engine-capacity-", "engine-", "total-cycles-", "cycles-"];
    let found = kinds
        .into_iter()
        .find_map(|kind| Some((kind, key.strip_prefix(kind)?)));
    let Some((kind, name)) = found else {
        return;
    };
    if engines.len() >= MAX_ENGINES && !engines.contains_key(name) {
        return;
    }
    let used = engines.entry(name.to_owned()).or_default();
    match kind {
        "engine-capacity-" => used.engines = number,
        "engine-" => used.ns = Some(number),
        "total-cycles-" => used.of_cycles = Some(number),
        _ => used.cycles = Some(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel's document has it, for i915.
    fn i915(render: u64, video: u64) -> String {
        format!(
            "pos:\t0\nflags:\t0100002\nmnt_id:\t21\nino:\t397\ndrm-driver:\ti915\n\
             drm-client-id:\t7\ndrm-pdev:\t0000:00:02.0\ndrm-engine-render:\t{render} ns\n\
             drm-engine-video:\t{video} ns\ndrm-engine-capacity-video:\t2\n"
        )
    }

    fn xe(id: u64, cycles: u64, of: u64) -> String {
        format!(
            "drm-driver:\txe\ndrm-client-id:\t{id}\ndrm-pdev:\t0000:03:00.0\n\
             drm-total-system:\t0\ndrm-cycles-ccs:\t{cycles}\ndrm-total-cycles-ccs:\t{of}\n\
             drm-engine-capacity-ccs:\t4\n"
        )
    }

    fn all(texts: &[String]) -> FxHashMap<DrmClient, Engines> {
        texts.iter().filter_map(|text| parse(text)).collect()
    }

    #[test]
    fn a_device_is_as_busy_as_its_busiest_engines() {
        let mut busy = DeviceBusy::default();
        let begin = busy.looked;
        let at = |seconds| begin + Duration::from_secs(seconds);
        let second = 1_000_000_000;
        assert_eq!(
            busy.take(all(&[i915(50 * second, 9)]), at(1)),
            BTreeMap::new()
        );
        let found = busy.take(all(&[i915(54 * second, 12 * second)]), at(11));
        let of = |found: BTreeMap<String, Activity>| found["i915 0000:00:02.0"];
        let first = of(found);
        assert!((first.busy - 0.6).abs() < 1e-6, "{first:?}");
        assert!(first.is_open);
        // Nothing was done; then the client went, and another came.
        let open = Activity {
            busy: 0.0,
            is_open: true,
        };
        let found = busy.take(all(&[i915(54 * second, 12 * second)]), at(21));
        assert_eq!(of(found), open);
        assert_eq!(of(busy.take(all(&[]), at(31))), open);
        assert_eq!(busy.take(all(&[]), at(41)), BTreeMap::new());
        let last = of(busy.take(all(&[i915(second, 0)]), at(51)));
        assert!((last.busy - 0.1).abs() < 1e-6, "{last:?}");
    }

    #[test]
    fn devices_that_nobody_uses_are_those_of_drivers_that_count() {
        let uevent = |driver: &str| {
            format!(
                "DRIVER={driver}\nPCI_CLASS=30000\nPCI_ID=8086:0BD5\n\
                 PCI_SLOT_NAME=0000:03:00.0\nMODALIAS=pci:x\n"
            )
        };
        assert_eq!(device(&uevent("xe")).as_deref(), Some("xe 0000:03:00.0"));
        assert_eq!(device(&uevent("nvidia")), None);
        assert_eq!(device("DRIVER=xe\nOF_NAME=gpu\n"), None);
        assert_eq!(device(&uevent("xe").replace("0000:03", "\u{1b}[2J")), None);
        // This machine's own, whatever it has.
        let names = devices();
        assert!(names.iter().all(|name| name.contains(' ')), "{names:?}");
    }

    #[test]
    fn cycles_are_of_those_that_passed() {
        let mut busy = DeviceBusy::default();
        let when = busy.looked + Duration::from_secs(1);
        busy.take(all(&[xe(1, 100, 1000), xe(2, 0, 1000)]), when);
        let next = all(&[xe(1, 900, 2000), xe(2, 1200, 2000), xe(3, 500, 2000)]);
        let found = busy.take(next, when + Duration::from_secs(1));
        // 800 and 1200 of 4 x 1000; of the third it is not known when.
        let busy = found["xe 0000:03:00.0"].busy;
        assert!((busy - 0.5).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn what_is_no_client_is_passed_over() {
        for text in [
            "",
            "eventfd-count: 1\n",
            "drm-driver: xe\ndrm-client-id: 1\n",
            "drm-driver: xe\ndrm-pdev: 0000:03:00.0\n",
            "drm-driver: x\u{1b}[2J\ndrm-pdev: a\ndrm-client-id: 1\n",
            "drm-driver: xe\ndrm-pdev: a\ndrm-client-id: -1\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        let text = "drm-driver: xe\ndrm-pdev: a\ndrm-client-id: 1\ndrm-engine-x: many\n";
        let (client, engines) = parse(text).unwrap();
        assert_eq!((client.0.as_str(), engines.len()), ("xe a", 0));
        // This machine's own, whatever it has.
        DeviceBusy::default().look();
    }
}
