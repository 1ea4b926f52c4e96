//! The part of `aiprof probes` that is about drivers.

use super::probes::{write_fields, write_item, write_origin};
use super::values::plural;
use aiprof_model::probes::driver_table::{
    DeviceMatch, DriverTable, DriverTables, Ioctl, Major, Members, Numbering, members,
};
use aiprof_model::probes::glob;
use aiprof_model::probes::ioctl::NumberNames;
use aiprof_model::probes::program::Field;
use std::io::{self, Write};

/// What a table is, without its commands.
pub(super) fn write_head(table: &DriverTable, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: {} (ioctls)", table.name, table.api)?;
    write_origin(&table.source, table.tested.as_deref(), out)?;
    let included = match table.includes.as_slice() {
        [] => String::new(),
        names => format!(" and those of {}", names.join(", ")),
    };
    let count = format!("{}{included}", table.ioctls.len());
    write_item("commands", &count, out)?;
    for device in &table.devices {
        write_item("device", &device_words(device), out)?;
    }
    Ok(())
}

/// A table in one line.
pub(super) fn in_short(table: &DriverTable) -> String {
    let (ioctls, devices) = (table.ioctls.len(), table.devices.len());
    format!(
        "driver table `{}`: {devices} device{}, {ioctls} command{}",
        table.name,
        plural(devices),
        plural(ioctls),
    )
}

/// Shows the table, or the commands, of that name; whether there is such.
pub(super) fn show(tables: &DriverTables, name: &str, out: &mut dyn Write) -> io::Result<bool> {
    if let Some(table) = tables.get(name) {
        write_head(table, out)?;
        for ioctl in &table.ioctls {
            write_ioctl(table, ioctl, out)?;
        }
        return Ok(true);
    }
    let mut found = false;
    for table in tables.iter() {
        for ioctl in table.ioctls.iter().filter(|i| glob::matches(name, &i.name)) {
            found = true;
            write_ioctl(table, ioctl, out)?;
        }
    }
    Ok(found)
}

fn write_ioctl(table: &DriverTable, ioctl: &Ioctl, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n{}", ioctl.name)?;
    let number = match table.numbering {
        Numbering::Type(kind) => format!("type '{}', number {:#04x}", kind as char, ioctl.number),
        Numbering::Whole => format!("number {:#x}", ioctl.number),
    };
    let probe = table.compile(ioctl).probe;
    writeln!(out, "  {}: {}; {number}", table.api, probe.kind.name())?;
    if ioctl.assumed {
        writeln!(
            out,
            "  assumed, because no public header defines this command"
        )?;
    }
    let words = |field: &Field| field_words(field, &ioctl.names);
    write_fields("at the entry", &ioctl.args, words, out)?;
    for array in &ioctl.arrays {
        let place = match array.in_place {
            true => ", a single element is in the structure itself",
            false => "",
        };
        let when = format!("array `{}`{place}", array.name);
        write_fields(&when, &array.fields, words, out)?;
    }
    write_fields("at the exit", &ioctl.out, words, out)
}

/// Type, place and names of numbers of a value.
fn field_words(field: &Field, names: &[NumberNames]) -> String {
    let named = names.iter().find(|n| n.value == field.name);
    let named = named.map_or(String::new(), |n| {
        let words: Vec<_> = n.names.iter().map(|(name, _)| name.as_str()).collect();
        format!(" ({})", words.join(if n.bits { "|" } else { ", " }))
    });
    let (kind, members) = members(&field.text);
    format!("{kind}: {}{named}", place_words(members))
}

fn place_words(members: Members<'_>) -> String {
    match members {
        Members::Argument => "the argument".into(),
        Members::At(member) => format!("[{}] {}", member.offset, member.name),
        Members::Through {
            pointer, member, ..
        } => format!(
            "[[{}] + {}] {}->{}",
            pointer.offset, member.offset, pointer.name, member.name
        ),
    }
}

fn device_words(device: &DeviceMatch) -> String {
    let mut words = Vec::new();
    match &device.major {
        Some(Major::Number(number)) => words.push(format!("major {number}")),
        Some(Major::Name(name)) => words.push(format!("major {name}")),
        None => {}
    }
    let named = [
        ("misc", &device.misc),
        ("driver", &device.driver),
        ("file", &device.file),
        ("only with a device of", &device.with),
    ];
    for (key, value) in named {
        words.extend(value.as_ref().map(|value| format!("{key} {value}")));
    }
    if !device.pci.is_empty() {
        let ids = device.pci.iter();
        let ids: Vec<_> = ids
            .map(|id| format!("{:04x}:{:04x}", id.vendor, id.device))
            .collect();
        words.push(format!("PCI {}", ids.join(" or ")));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str) -> Option<String> {
        let mut out = Vec::new();
        let found = show(&DriverTables::built_in(), name, &mut out).unwrap();
        found.then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_command_is_shown_with_its_members() {
        assert_eq!(
            shown("DRM_IOCTL_XE_VM_BIND").unwrap(),
            "\nDRM_IOCTL_XE_VM_BIND\n  xe: bind; type 'd', number 0x45\n  at the entry:\n    \
             vm     u32: [8] vm_id\n    queue  u32: [12] exec_queue_id\n  \
             array `binds`, a single element is in the structure itself:\n    \
             op       u32: [40] op (map, unmap, map-userptr, unmap-all, prefetch)\n    \
             address  hex: [32] addr\n    bytes    u64: [24] range\n    object   u32: [8] obj\n    \
             offset   hex: [16] obj_offset\n    flags    hex32: [44] flags (readonly|immediate|\
             null|dumpable|check-pxp|cpu-addr-mirror|madvise-autoreset|decompress)\n"
        );
        let queue = shown("DRM_IOCTL_XE_EXEC_QUEUE_CREATE").unwrap();
        assert!(queue.contains("[[24] + 4] instances->gt_id"), "{queue}");
        assert!(shown("*_I915_GEM_VM_*").unwrap().matches("i915: ").count() == 4);
        assert!(
            shown("PRELIM_DRM_IOCTL_I915_GEM_VM_BIND")
                .unwrap()
                .contains("assumed")
        );
        assert!(shown("NO_SUCH").is_none());
    }

    #[test]
    fn a_table_is_shown_with_its_devices() {
        let vfio = shown("vfio").unwrap();
        assert!(vfio.starts_with("vfio: VFIO (ioctls)\n  from       built in\n"));
        assert!(vfio.contains("device     major vfio, PCI 1014:06a7 or 1014:06a8\n"));
        assert!(vfio.contains("device     misc vfio, only with a device of vfio\n"));
        let untested = shown("nvidia").unwrap();
        assert!(untested.contains("  tested     no\n") && untested.contains("major 195\n"));
        let tables = DriverTables::built_in();
        assert_eq!(
            in_short(tables.get("vgem").unwrap()),
            "driver table `vgem`: 1 device, 2 commands"
        );
    }
}
