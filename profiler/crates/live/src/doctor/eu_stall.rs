//! Whether the execution units of Intel GPUs can be sampled, judged from outside: no card
//! is opened.

use super::{Accelerator, Check, Status};
use crate::device::{
    xe_cards::{XeCard, cards},
    xe_eu_stall::NO_VIRTUAL,
};
use aiprof_model::eu_stall::Layout;
use aiprof_system::files::kernel;
use rustix::thread::CapabilitySet;
use std::path::Path;

const INTEL: u16 = 0x8086;
/// The first kernel whose xe driver samples execution units.
const SINCE: (u32, u32) = (6, 15);
const FALLBACK: &str = "there are no device samples, only launches and times of kernels";

/// What of the machine decides.
#[derive(Clone, Debug, Default)]
struct StallFacts {
    /// Version of the kernel.
    kernel: Option<(u32, u32)>,
    /// dev.xe.observation_paranoid, if there is such a setting.
    paranoid: Option<bool>,
    /// CAP_PERFMON, or what includes it.
    perfmon: bool,
    cards: Vec<XeCard>,
}

/// The result for a card.
#[derive(Debug, PartialEq, Eq)]
enum CardVerdict {
    Yes(String),
    /// Why not, and what mends it.
    No(String, String),
    /// Its hardware has none.
    None,
}

/// The check of all cards.
pub(super) fn check(accelerators: &[Accelerator]) -> Check {
    let paranoid = super::read_text("/proc/sys/dev/xe/observation_paranoid", 16);
    let release = rustix::system::uname();
    let machine = StallFacts {
        kernel: super::kernel::version_of(&release.release().to_string_lossy()),
        paranoid: paranoid.map(|text| text.trim() != "0"),
        perfmon: super::kernel::has(CapabilitySet::PERFMON),
        cards: cards(Path::new("/")),
    };
    summary(accelerators, &machine)
}

fn summary(accelerators: &[Accelerator], machine: &StallFacts) -> Check {
    let intel = accelerators.iter().filter(|a| a.vendor == INTEL);
    let verdicts = intel.map(|card| (card, verdict(card, machine)));
    let (mut details, mut remedies) = (Vec::new(), Vec::new());
    let mut status = Status::NotApplicable;
    for (card, verdict) in verdicts {
        let detail = match verdict {
            CardVerdict::None => continue,
            CardVerdict::Yes(detail) => {
                if status == Status::NotApplicable {
                    status = Status::Yes;
                }
                detail
            }
            CardVerdict::No(why, remedy) => {
                status = Status::No;
                if !remedies.contains(&remedy) {
                    remedies.push(remedy);
                }
                why
            }
        };
        details.push(format!("{} {detail}", card.address));
    }
    let none = "no GPU that supports it (Intel Ponte Vecchio, Xe2 and later)";
    let detail = match &*details {
        [] => none.into(),
        details => details.join("; "),
    };
    Check::new("devices", "eu_stall_sampling", status, detail)
        .otherwise(FALLBACK, remedies.join("; "))
}

fn verdict(card: &Accelerator, machine: &StallFacts) -> CardVerdict {
    let found = machine.cards.iter().find(|c| c.address == card.address);
    if Layout::of(card.device, None).is_err() {
        return match found {
            // Its IP version may identify it, once it is opened.
            Some(_) => CardVerdict::Yes(format!(
                "is unknown (device {:#06x}), but is sampled if its driver reports a known version",
                card.device
            )),
            None => CardVerdict::None,
        };
    }
    let no = |why: String, remedy: &str| CardVerdict::No(why, remedy.into());
    let Some(found) = found else {
        return match &*card.driver {
            "xe" => no(
                "has no render node".into(),
                "make /sys and /dev/dri visible here",
            ),
            "" => no(
                "has no driver".into(),
                "load the xe driver (Linux 6.15 or later)",
            ),
            "vfio-pci" => no(
                "is assigned to a virtual machine (vfio-pci)".into(),
                "run aiprof in that virtual machine",
            ),
            driver => no(
                format!("has the driver {driver}, which aiprof cannot sample"),
                "bind it to the xe driver (Linux 6.15 or later); Ponte Vecchio also needs \
                 xe.force_probe",
            ),
        };
    };
    if found.is_virtual {
        return no("is an SR-IOV virtual function".into(), NO_VIRTUAL);
    }
    if machine.kernel.is_none_or(|version| version < SINCE) {
        return no(
            "has an xe driver without EU stall sampling".into(),
            "use Linux 6.15 or later",
        );
    }
    if machine.paranoid == Some(true) && !machine.perfmon {
        return no(
            "cannot be sampled without CAP_PERFMON (dev.xe.observation_paranoid is 1)".into(),
            "sudo aiprof ..., or sudo sysctl dev.xe.observation_paranoid=0",
        );
    }
    if !kernel::is_readable(&found.node) {
        return no(
            format!("cannot be opened ({})", found.node.display()),
            "sudo aiprof ..., or add the user to the device node's group",
        );
    }
    let gts = found.gts;
    CardVerdict::Yes(format!("has {gts} GT{}", if gts == 1 { "" } else { "s" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accelerator(address: &str, device: u16, driver: &str) -> Accelerator {
        Accelerator {
            address: address.into(),
            vendor: INTEL,
            device,
            description: String::new(),
            driver: driver.into(),
        }
    }

    /// A machine with a card of xe that can be sampled.
    fn machine(node: &Path) -> StallFacts {
        StallFacts {
            kernel: Some((6, 15)),
            paranoid: Some(true),
            perfmon: true,
            cards: vec![XeCard {
                node: node.into(),
                address: "0000:03:00.0".into(),
                device: 0xe20b,
                number: 0,
                is_virtual: false,
                gts: 2,
            }],
        }
    }

    #[test]
    fn each_reason_is_told_with_its_remedy() {
        let node = tempfile::NamedTempFile::new().unwrap();
        let good = machine(node.path());
        let card = accelerator("0000:03:00.0", 0xe20b, "xe");
        let yes = CardVerdict::Yes("has 2 GTs".into());
        assert_eq!(verdict(&card, &good), yes);
        let allowed = StallFacts {
            paranoid: Some(false),
            perfmon: false,
            ..good.clone()
        };
        assert_eq!(verdict(&card, &allowed), yes);
        let with = |change: &dyn Fn(&mut StallFacts)| {
            let mut machine = good.clone();
            change(&mut machine);
            match verdict(&card, &machine) {
                CardVerdict::No(why, remedy) => format!("{why}: {remedy}"),
                other => panic!("{other:?}"),
            }
        };
        assert!(with(&|m| m.kernel = Some((6, 12))).contains("6.15"));
        assert!(with(&|m| m.kernel = None).contains("6.15"));
        assert!(with(&|m| m.perfmon = false).contains("observation_paranoid=0"));
        assert!(with(&|m| m.cards[0].is_virtual = true).contains("SR-IOV"));
        assert!(with(&|m| m.cards[0].node = "/none".into()).contains("/none"));
        assert!(with(&|m| m.cards.clear()).contains("/dev/dri"));
        for (driver, part) in [
            ("i915", "i915"),
            ("", "no driver"),
            ("vfio-pci", "virtual machine"),
        ] {
            let card = accelerator("0000:04:00.0", 0x0bd5, driver);
            let CardVerdict::No(why, remedy) = verdict(&card, &good) else {
                panic!("{driver}");
            };
            assert!(why.contains(part) && !remedy.is_empty(), "{why}");
        }
    }

    #[test]
    fn one_line_tells_of_all_cards() {
        let node = tempfile::NamedTempFile::new().unwrap();
        let machine = machine(node.path());
        // Alder Lake has no such sampling.
        let old = accelerator("0000:00:02.0", 0x46a6, "i915");
        let good = accelerator("0000:03:00.0", 0xe20b, "xe");
        let bad = accelerator("0000:04:00.0", 0x0bd5, "i915");
        let nothing = summary(std::slice::from_ref(&old), &machine);
        assert_eq!(nothing.status, Status::NotApplicable);
        assert!(nothing.detail.contains("Ponte Vecchio"));
        let check = summary(&[old.clone(), good.clone()], &machine);
        assert_eq!(check.status, Status::Yes);
        assert_eq!(check.detail, "0000:03:00.0 has 2 GTs");
        let check = summary(&[old, good, bad], &machine);
        assert_eq!(check.status, Status::No);
        assert!(
            check
                .detail
                .starts_with("0000:03:00.0 has 2 GTs; 0000:04:00.0 has the driver")
        );
        assert!(!check.required && check.remedy.contains("xe.force_probe"));
    }

    #[test]
    fn unknown_cards_of_xe_may_say_what_they_are() {
        let node = tempfile::NamedTempFile::new().unwrap();
        let card = accelerator("0000:03:00.0", 0xe2ff, "xe");
        let CardVerdict::Yes(text) = verdict(&card, &machine(node.path())) else {
            panic!("no");
        };
        assert!(text.contains("0xe2ff"), "{text}");
    }
}
