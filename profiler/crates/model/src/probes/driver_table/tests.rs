//! Tables: what is read, what is refused and where, which devices they are for.

use super::devices::{DeviceNode, Observed, resolve};
use super::*;
use crate::probes::table::Compiled;
use crate::probes::{CallKind, ProbeTable, ValueFormat};
use aiprof_common::*;

fn tables() -> DriverTables {
    DriverTables::built_in()
}

fn compiled(table: &str, name: &str) -> Compiled {
    let tables = tables();
    let table = tables.get(table).unwrap();
    let ioctl = table.ioctls.iter().find(|i| i.name == name).unwrap();
    table.compile(ioctl)
}

#[test]
fn built_in_tables_have_no_mistakes() {
    for (source, text) in DriverTable::BUILT_IN {
        if let Err(mistakes) = DriverTable::parse(source, text) {
            let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
            panic!("{}", lines.join("\n"));
        }
    }
    let tables = tables();
    assert_eq!(tables.iter().count(), DriverTable::BUILT_IN.len());
    for table in tables.iter() {
        for name in &table.includes {
            assert!(tables.get(name).is_some(), "{name}");
        }
        for device in &table.devices {
            let with = device.with.as_deref();
            assert!(with.is_none_or(|name| tables.get(name).is_some()));
        }
        assert!(!table.handlers.is_empty(), "{}", table.name);
    }
}

#[test]
fn a_command_becomes_operations() {
    let compiled = compiled("xe", "DRM_IOCTL_XE_EXEC_QUEUE_CREATE");
    let spec = compiled.spec;
    let names: Vec<_> = compiled
        .probe
        .values
        .iter()
        .map(|v| v.name.as_str())
        .collect();
    // The pointer to the engines is read once, into a slot without a name.
    assert_eq!(
        names,
        [
            "vm",
            "width",
            "placements",
            "",
            "engine",
            "instance",
            "gt",
            "queue"
        ]
    );
    assert_eq!((spec.n_entry, spec.n_exit, spec.n_values), (7, 1, 8));
    let read = |from, index, offset, size, to| FetchOp {
        from,
        index,
        how: FETCH_READ,
        size,
        to,
        offset,
        ..FetchOp::default()
    };
    assert_eq!(spec.ops[0], read(FROM_ARGUMENT, 2, 12, 4, 0));
    assert_eq!(spec.ops[3], read(FROM_ARGUMENT, 2, 24, 8, 3));
    assert_eq!(spec.ops[6], read(FROM_VALUE, 3, 4, 2, 6));
    assert_eq!(spec.ops[7], read(FROM_ARGUMENT, 2, 20, 4, 7));
    assert_eq!(
        spec.flags,
        SPEC_EXIT | SPEC_KEEP | SPEC_STACK | SPEC_KERNEL_STACK
    );
    assert_ne!(spec.function, 0);
    let probe = compiled.probe;
    assert_eq!((probe.kind, probe.is_ioctl), (CallKind::Queue, true));
    assert!(probe.values[7].at_exit && !probe.values[0].at_exit);
    let layout = probe.layout.unwrap();
    assert_eq!(layout.names_of("engine").unwrap().text(4), "compute");
}

#[test]
fn an_array_becomes_bytes_and_a_single_element_values() {
    let compiled = compiled("xe", "DRM_IOCTL_XE_VM_BIND");
    let names: Vec<_> = compiled
        .probe
        .values
        .iter()
        .map(|v| v.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "vm", "queue", "", "", "op", "address", "bytes", "object", "offset", "flags"
        ]
    );
    let ops = &compiled.spec.ops[..usize::from(compiled.spec.n_entry)];
    // The element's operation is at 40; the element lies at 24.
    assert_eq!((ops[4].offset, ops[4].size), (64, 4));
    let bytes = ops.last().unwrap();
    assert_eq!(
        (bytes.how, bytes.from, bytes.index, bytes.count, bytes.unit),
        (FETCH_BYTES, FROM_VALUE, 2, 3, 80)
    );
    let layout = compiled.probe.layout.unwrap();
    let array = &layout.arrays[0];
    assert!(array.in_place);
    assert_eq!((array.tag, array.count, array.stride), (0, 3, 80));
    assert_eq!(array.fields[0].name, "op");
    assert_eq!(layout.names_of("op").unwrap().text(2), "map-userptr");
}

#[test]
fn an_argument_can_be_the_value_or_a_text() {
    let set = compiled("vfio", "VFIO_SET_IOMMU");
    assert_eq!(set.spec.ops[0].how, FETCH_VALUE);
    assert_eq!((set.spec.ops[0].from, set.spec.ops[0].index), (0, 2));
    let open = compiled("vfio", "VFIO_GROUP_GET_DEVICE_FD");
    assert_eq!(open.spec.ops[0].how, FETCH_TEXT);
    assert_eq!(open.probe.data[0].name, "name");
    assert_eq!(open.probe.result, ResultKind::Number);
    let signed = compiled("i915", "DRM_IOCTL_I915_GEM_WAIT");
    assert_eq!(signed.probe.values[1].format, ValueFormat::Signed(8));
}

#[test]
fn included_commands_come_last_and_do_not_replace() {
    let mut tables = tables();
    let text = "name = \"own\"\napi = \"own\"\ntype = \"d\"\nincludes = [\"drm\", \"gone\"]\n\
                [[device]]\ndriver = \"own\"\n\
                [[ioctl]]\nname = \"MY_CLOSE\"\nnumber = 9\nkind = \"free\"\n";
    tables.add("own.toml", text).unwrap();
    let own = tables.get("own").unwrap().clone();
    let commands = tables.commands(&own);
    let drm = tables.get("drm").unwrap().clone();
    assert_eq!(commands.len(), drm.ioctls.len());
    assert_eq!(commands[0].1.name, "MY_CLOSE");
    assert!(
        commands
            .iter()
            .all(|(_, i)| i.name != "DRM_IOCTL_GEM_CLOSE")
    );
    assert_eq!(commands[1].0.name, "drm");
    // A circle ends.
    tables
        .add("own.toml", &text.replace("gone", "own"))
        .unwrap();
    let own = tables.get("own").unwrap().clone();
    assert_eq!(tables.commands(&own).len(), drm.ioctls.len());
}

#[test]
fn numbering() {
    assert_eq!(Numbering::Type(b'd').command(0x45), 0x6445);
    assert_eq!(Numbering::Type(b'd').mask(), 0xffff);
    assert_eq!(Numbering::Whole.command(0x3000_0001), 0x3000_0001);
    let tables = tables();
    let uvm = tables.get("nvidia-uvm").unwrap();
    assert_eq!(uvm.numbering, Numbering::Whole);
}

/// One mistake each in an otherwise right table, with its line and column.
#[test]
fn mistakes_have_their_place() {
    const GOOD: &str = "name = \"x\"\napi = \"X\"\ntype = \"d\"\n[[device]]\nmajor = 226\n\
        [[ioctl]]\nname = \"A\"\nnumber = 1\nkind = \"bind\"\nargs = { n = \"u32 n@0\", p = \"hex p@8\" }\n\
        [[ioctl.array]]\nname = \"all\"\npointer = \"p@8\"\ncount = \"u32 n@0\"\nstride = 8\nfields = { v = \"u64 @0\" }\n";
    assert!(DriverTable::parse("x.toml", GOOD).is_ok());
    let many = (0..13)
        .map(|i| format!("v{i} = \"u32 v@{i}\""))
        .collect::<Vec<_>>();
    let many = format!("args = {{ {} }}", many.join(", "));
    for (from, to, place, says) in [
        ("name = \"x\"", "name = \"X y\"", "1:8", "lower-case"),
        ("api = \"X\"\n", "", "1:1", "`api` is missing"),
        ("type = \"d\"", "type = \"dd\"", "3:8", "one character"),
        (
            "type = \"d\"",
            "types = \"d\"",
            "3:1",
            "unknown key `types`",
        ),
        (
            "type = \"d\"",
            "type = \"d\"\nwhole_number = true",
            "3:8",
            "not both",
        ),
        ("major = 226", "major = 4096", "5:9", "from 0 to 4095"),
        (
            "major = 226",
            "pci = [\"1014:6a7\"]",
            "5:8",
            "VENDOR:DEVICE",
        ),
        ("major = 226", "with = \"y\"", "4:1", "a device needs"),
        (
            "major = 226",
            "major = 226\nfile = \"f\"",
            "4:1",
            "a device needs",
        ),
        ("number = 1", "number = 256", "8:10", "from 0 to 255"),
        ("number = 1", "number = -1", "8:10", "from 0 to 255"),
        ("number = 1\n", "", "6:1", "`number` is missing"),
        (
            "\"bind\"",
            "\"tie\"",
            "9:8",
            "unknown kind `tie`; known: submit",
        ),
        ("u32 n@0\", p", "u31 n@0\", p", "10:15", "expected a type"),
        (
            "u32 n@0\", p",
            "u32 n@0x0\", p",
            "10:21",
            "an offset must be",
        ),
        ("n = \"u32", "N = \"u32", "10:10", "lower-case"),
        ("n = \"u32", "p = \"u32", "10:", "duplicate key"),
        (
            "n = \"u32 n",
            "v = 1, n = \"u32 n",
            "10:14",
            "expected a text in quotes",
        ),
        ("p@8\"\n", "arg\"\n", "13:11", "a member of the argument"),
        ("stride = 8", "stride = 0", "15:10", "at least one byte"),
        ("stride = 8", "stride = 4", "11:1", "`v` lies outside"),
        ("stride = 8", "stride = 256", "15:10", "from 0 to 255"),
        ("count = \"u32 n@0\"\n", "", "11:1", "`count` is missing"),
        (
            "kind = \"bind\"",
            "kind = \"bind\"\nnames.q = { a = 1 }",
            "10:7",
            "no value is named `q`",
        ),
        (
            "kind = \"bind\"",
            "kind = \"bind\"\nbits.n = 3",
            "10:10",
            "names of numbers",
        ),
        (
            "kind = \"bind\"",
            "kind = \"bind\"\nout = { n = \"u8 a@0\" }",
            "6:1",
            "value `n` is defined twice",
        ),
        (
            "args = { n = \"u32 n@0\", p = \"hex p@8\" }",
            many.as_str(),
            "6:1",
            "too many values (limit: 12)",
        ),
        (
            "[[device]]\nmajor = 226\n",
            "",
            "1:1",
            "at least one [[device]]",
        ),
        ("name = \"all\"", "name = 'all", "12:", "invalid"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let errors = DriverTable::parse("x.toml", &GOOD.replacen(from, to, 1)).unwrap_err();
        let all: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let at = format!("x.toml:{place}");
        assert!(
            all.iter()
                .any(|text| text.starts_with(&at) && text.contains(says)),
            "{to}: expected {at} {says}, got\n{}",
            all.join("\n")
        );
    }
    let twice = GOOD.to_owned() + "[[ioctl]]\nname = \"B\"\nnumber = 1\nkind = \"free\"\n";
    let errors = DriverTable::parse("x.toml", &twice).unwrap_err();
    assert_eq!(errors[0].line, 17);
    assert!(errors[0].message.contains("line 6"), "{}", errors[0]);
    assert_eq!(
        DriverTable::parse("x.toml", &" ".repeat(1 << 21))
            .unwrap_err()
            .len(),
        1
    );
}

fn node(major: u32, minor: u32, major_name: &str, driver: Option<&str>) -> DeviceNode {
    DeviceNode {
        major,
        minor,
        major_name: major_name.into(),
        driver: driver.map(str::to_owned),
        name: format!("{major_name}{minor}"),
        ..DeviceNode::default()
    }
}

/// Table by device name, then by file name.
fn names(observed: &Observed) -> Vec<String> {
    let devices = observed.devices.values();
    let devices = devices.map(|d| format!("{}={}", d.name, d.table.name));
    let files = observed.files.iter();
    let files = files.map(|(file, table)| format!("{file}={}", table.name));
    devices.chain(files).collect()
}

#[test]
fn the_table_that_asks_for_most_gets_the_device() {
    let nodes = [
        node(226, 0, "drm", Some("xe")),
        node(226, 128, "drm", Some("xe")),
        node(226, 129, "drm", Some("nouveau")),
        node(261, 0, "accel", Some("habanalabs")),
        node(195, 255, "nvidia", None),
        node(511, 0, "nvidia-uvm", None),
        node(510, 0, "kfd", None),
        node(4, 1, "tty", None),
    ];
    let observed = resolve(&tables(), &nodes, &[]);
    assert_eq!(
        names(&observed),
        [
            "nvidia255=nvidia",
            "drm0=xe",
            "drm128=xe",
            "drm129=drm",
            "accel0=habanalabs",
            "kfd0=kfd",
            "nvidia-uvm0=nvidia-uvm",
        ]
    );
    assert!(observed.devices.contains_key(&(226 << 20 | 128)));
}

#[test]
fn vfio_is_observed_for_accelerators_only() {
    let misc = |minor, name: &str| DeviceNode {
        misc: Some(name.into()),
        ..node(10, minor, "misc", None)
    };
    let group = |minor, device| DeviceNode {
        pci: vec![PciId {
            vendor: 0x1014,
            device,
        }],
        ..node(240, minor, "vfio", None)
    };
    let mut nodes = vec![misc(196, "vfio"), misc(125, "iommu"), group(7, 0x1234)];
    assert!(names(&resolve(&tables(), &nodes, &[])).is_empty());
    nodes.push(group(9, 0x06a8));
    let observed = resolve(&tables(), &nodes, &[]);
    let expected = [
        "misc125=iommufd",
        "misc196=vfio",
        "vfio9=vfio",
        "[vfio-device]=vfio-device",
    ];
    assert_eq!(names(&observed), expected);
    let mut tables: Vec<_> = observed.tables().iter().map(|t| t.name.clone()).collect();
    tables.sort();
    assert_eq!(tables, ["iommufd", "vfio", "vfio-device"]);
    // The same for a device that stands in for one.
    let forced = [("vfio".to_owned(), group(7, 0x1234))];
    nodes.pop();
    let expected = expected.map(|name| name.replace("vfio9", "vfio7"));
    assert_eq!(names(&resolve(&self::tables(), &nodes, &forced)), expected);
}

#[test]
fn a_forced_table_wins_and_an_unknown_one_does_nothing() {
    let stand_in = node(244, 0, "cuse", None);
    let forced = [
        ("xe".to_owned(), stand_in.clone()),
        ("nope".to_owned(), stand_in),
    ];
    let nodes = [node(226, 0, "drm", Some("i915"))];
    assert_eq!(
        names(&resolve(&tables(), &nodes, &forced)),
        ["drm0=i915", "cuse0=xe"]
    );
    let taken = [("xe".to_owned(), nodes[0].clone())];
    assert_eq!(names(&resolve(&tables(), &nodes, &taken)), ["drm0=xe"]);
}
