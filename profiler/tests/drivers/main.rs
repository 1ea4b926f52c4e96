//! Ioctls and fences of device drivers, against programs that write down what
//! they do (xtask/vm).
//!
//! Most of these need devices that only the test VMs have (`cargo xtask vm-test`
//! runs this very program there); one runs on any machine.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]

mod calls;
mod fences;
mod recorded;

use aiprof::correlate::FinishedCall;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;
use anyhow::{Context as _, ensure};
use serde_json::Value;

use calls::{ROUNDS, compare, compare_stacks};
use recorded::{NODES, Recorded, number, record, recorded, value, vfio_device};

/// On any machine: a device that refuses every command is distinguished from other files, and its
/// calls are recorded with their input.
#[test]
fn refused_ioctls_of_a_stand_in() -> anyhow::Result<()> {
    let mut needs = vec![
        Need::Root,
        Need::Path("/sys/kernel/tracing/events/syscalls"),
    ];
    if std::env::var_os("AIPROF_VM_PROGRAMS").is_none() {
        needs.push(Need::Tool("cc"));
    }
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let args = ["xe", "/dev/null", ROUNDS];
    let (truth, recorded) = record(&shop, &["xe=/dev/null"], "ioctl_work", &args)?;
    // What is no device of ours is not seen: /dev/null is standard input too.
    compare_with_stdin(&truth, &recorded)?;
    compare_stacks(&truth, &recorded, false)
}

/// As [`compare`], where standard input is the device too.
fn compare_with_stdin(truth: &[Value], recorded: &Recorded) -> anyhow::Result<()> {
    let mut all = truth.to_vec();
    for line in &mut all {
        if line["bad"] == "file" {
            line["bad"] = "stdin".into();
        }
    }
    compare(&all, &recorded.calls, &["DRM_IOCTL_XE_", "DRM_IOCTL_"])
}

fn on_cuse(test: &str, table: &str, node: &'static str, prefixes: &[&str]) -> anyhow::Result<()> {
    skip_unless!(test, &[Need::Root, Need::Path(node)]);
    let (truth, recorded) = recorded(table)?;
    compare(&truth, &recorded.calls, prefixes)?;
    compare_stacks(&truth, &recorded, false)?;
    let submits = recorded.launches.len();
    let wanted = if table == "kfd" { 0 } else { 5 };
    ensure!(submits == wanted, "{submits} launches");
    Ok(())
}

#[test]
fn xe_ioctls() -> anyhow::Result<()> {
    on_cuse(
        "xe_ioctls",
        "xe",
        "/dev/xe_test",
        &["DRM_IOCTL_XE_", "DRM_IOCTL_"],
    )
}

#[test]
fn i915_ioctls() -> anyhow::Result<()> {
    let prefixes = ["DRM_IOCTL_I915_GEM_", "DRM_IOCTL_I915_", "DRM_IOCTL_"];
    on_cuse("i915_ioctls", "i915", "/dev/i915_test", &prefixes)
}

#[test]
fn amdgpu_ioctls() -> anyhow::Result<()> {
    on_cuse(
        "amdgpu_ioctls",
        "amdgpu",
        "/dev/amdgpu_test",
        &["DRM_IOCTL_AMDGPU_"],
    )
}

#[test]
fn kfd_ioctls() -> anyhow::Result<()> {
    on_cuse("kfd_ioctls", "kfd", "/dev/kfd_test", &["AMDKFD_IOC_"])
}

/// Real VFIO. The group stands in for an AIU's; the container and the opened
/// device then belong to it.
#[test]
fn vfio_ioctls() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Path("/tmp/vfio-device")]);
    let (_, address) = vfio_device().context("the device's place")?;
    let (truth, recorded) = recorded("vfio")?;
    compare(&truth, &recorded.calls, &["VFIO_"])?;
    let open = recorded
        .calls
        .iter()
        .find(|c| c.probe.function == "VFIO_GROUP_GET_DEVICE_FD");
    let name = open.and_then(|call| Some(&call.content(0)?.bytes));
    ensure!(
        name.map(Vec::as_slice) == Some(address.as_bytes()),
        "its name: {name:?}"
    );
    // The container's and the device's handlers are the kernel's own.
    let map = recorded
        .calls
        .iter()
        .find(|c| c.probe.function == "VFIO_IOMMU_MAP_DMA");
    let stack = map.and_then(|call| recorded.stacks.get(&call.stack));
    let kernel = stack.map_or(0, |stack| stack.kernel.len());
    ensure!(kernel > 2, "{kernel} kernel frames");
    Ok(())
}

/// vgem: real DRM ioctls, seen at the kernel's own handler.
#[test]
fn vgem_ioctls() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Path(NODES[1])]);
    let (truth, recorded) = recorded("vgem")?;
    let of = |name: &str| -> Vec<&FinishedCall> {
        recorded
            .calls
            .iter()
            .filter(|c| c.probe.function.ends_with(name))
            .collect()
    };
    for (event, function, field) in [
        ("attach", "VGEM_FENCE_ATTACH", "fence"),
        ("signal", "VGEM_FENCE_SIGNAL", "fence"),
        ("create", "MODE_CREATE_DUMB", "bytes"),
    ] {
        let said: Vec<_> = truth.iter().filter(|line| line["event"] == event).collect();
        let calls = of(function);
        ensure!(
            said.len() == calls.len(),
            "{} of {function}, not {}",
            calls.len(),
            said.len()
        );
        for (line, call) in said.into_iter().zip(calls) {
            ensure!(
                number(line, "before") <= Some(call.start_ns),
                "{line} {call:?}"
            );
            ensure!(call.end_ns <= number(line, "after"), "{line} {call:?}");
            let key = if field == "bytes" { "size" } else { field };
            ensure!(value(call, field) == number(line, key), "{line} {call:?}");
            if event == "attach" {
                let stack = recorded.stacks.get(&call.stack).context("no stack")?;
                ensure!(
                    stack.kernel.len() > 2,
                    "{} kernel frames",
                    stack.kernel.len()
                );
            }
        }
    }
    Ok(())
}
