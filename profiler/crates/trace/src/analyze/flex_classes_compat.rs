//! Classes by the rules of the AIU's runtime, with which acelyzer compares its own.

use super::classes::{self, Class};
use aiprof_model::timeline::{Dialect, Event, Kinds, Timeline};

/// How many slices of FLEX traces have another class than the runtime gives them. Needs classes.
/// `compat_bugs`: as in acelyzer 1.3.0, all count.
pub(super) fn mismatches(timeline: &Timeline, kinds: &Kinds, compat_bugs: bool) -> usize {
    let slices = timeline.events.iter().filter(|event| {
        event.is_slice() && !event.dropped && timeline.dialect(event) == Dialect::Flex
    });
    let differs = |event: &&Event| {
        let name = timeline.name(event.name);
        class_of(name, kinds.is_collective(timeline, event)) as u8 != event.class
    };
    slices.filter(|event| compat_bugs || differs(event)).count()
}

/// The runtime's class of a name.
fn class_of(name: &str, is_collective: bool) -> Class {
    let has = |part: &str| name.contains(part);
    let mut class = if has("Cmpt Prep") {
        Class::ComputePrep
    } else if has("Cmpt Exec") {
        Class::ComputeExec
    } else if has("DmaI") {
        match has("Cleanup Host DMA Wait for ACK") {
            true => Class::HostWaitAck,
            false => Class::DataIn,
        }
    } else if has("DmaO") {
        Class::DataOut
    } else {
        Class::Other
    };
    for (is_it, other) in [
        (
            has("Compute of") && !has("SenFusedDeviceNode"),
            Class::DataConvert,
        ),
        (has("PrepareAndSyncRdma"), Class::WireUp),
        (has("Barrier:"), Class::Barrier),
        (has("Flex RoundTrip"), Class::RoundTripFlex),
        (has("AIU Roundtrip"), Class::RoundTripAiu),
    ] {
        if is_it {
            class = other;
        }
    }
    match is_collective {
        true => classes::in_collective(name, class),
        false => class,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_testkit::scene;

    #[test]
    fn names_have_the_classes_of_the_runtime() {
        for (name, is_collective, class) in [
            ("a Cmpt Prep of b", false, Class::ComputePrep),
            ("xDmaI", false, Class::DataIn),
            (
                "Cleanup Host DMA Wait for ACK DmaI",
                false,
                Class::HostWaitAck,
            ),
            ("Compute of mm", false, Class::DataConvert),
            ("my Flex RoundTrip", false, Class::RoundTripFlex),
            ("x DmaO", true, Class::PeerSend),
            ("x HCOLL DmaI", true, Class::HostReceive),
            ("DLM Wait", true, Class::HostWaitData),
            ("SenRdmaSend - Set BcList DmaO", true, Class::ProtocolSerial),
            ("else", true, Class::Other),
        ] {
            assert_eq!(class_of(name, is_collective), class, "{name}");
        }
    }

    /// The classes of the sample are those of the runtime, but acelyzer counts all slices.
    #[test]
    fn only_classes_that_differ_count() {
        let mut timeline = scene::allreduce_tp4_raw();
        let kinds = Kinds::new(&timeline);
        classes::run(&mut timeline, &kinds, false);
        let slices = timeline.events.iter().filter(|event| event.is_slice());
        let slices = slices.count();
        assert_eq!(mismatches(&timeline, &kinds, true), slices);
        let is_send = |event: &&mut Event| event.class == Class::PeerSend as u8;
        let before = mismatches(&timeline, &kinds, false);
        let send = timeline.events.iter_mut().find(is_send).unwrap();
        send.class = Class::Other as u8;
        assert_eq!((before, mismatches(&timeline, &kinds, false)), (0, 1));
    }
}
