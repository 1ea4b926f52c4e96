//! What to observe on this machine: pure, from tables and devices to the entries
//! of the kernel side's maps.

use aiprof_common::{CLASS_SYSCALL, CLASS_WHOLE, COMMAND_OTHER, FILE_NAME_BYTES, IoctlKey};
use aiprof_model::probes::driver_table::devices::Observed;
use aiprof_model::probes::driver_table::{DriverTable, DriverTables, Numbering};
use aiprof_model::probes::table::Compiled;
use std::{collections::HashMap, sync::Arc};

/// The table whose devices have no driver table of their own: what it does not
/// know is mostly about displays.
const GENERIC: &str = "drm";

/// The files of one table.
#[derive(Clone, Debug)]
pub(super) struct IoctlClass {
    /// The table.
    pub(super) table: Arc<DriverTable>,
    /// Whether its ioctls are seen at a handler; if not, at the system call.
    pub(super) handled: bool,
}

/// All that is observed.
#[derive(Clone, Debug, Default)]
pub(super) struct IoctlPlan {
    /// Devices and files.
    pub(super) observed: Observed,
    /// Classes, by number.
    pub(super) classes: Vec<IoctlClass>,
    /// Devices that tests stand in with: their ioctls do not come by the table's
    /// handlers.
    pub(super) stand_ins: Vec<u32>,
    /// Commands, by number.
    pub(super) commands: Vec<Compiled>,
    /// Number of the command by class and command.
    pub(super) keys: Vec<(IoctlKey, u32)>,
}

impl IoctlPlan {
    /// For these devices.
    pub(super) fn new(tables: &DriverTables, observed: Observed, stand_ins: Vec<u32>) -> Self {
        let mut plan = Self {
            stand_ins,
            ..Self::default()
        };
        let mut known = HashMap::new();
        for (number, table) in observed.tables().into_iter().enumerate() {
            // A class is half a word.
            let Ok(class) = u16::try_from(number) else {
                break;
            };
            plan.class(tables, table, class.into(), &mut known);
        }
        plan.observed = observed;
        plan
    }

    fn class(
        &mut self,
        tables: &DriverTables,
        table: Arc<DriverTable>,
        class: u32,
        known: &mut HashMap<(String, String), u32>,
    ) {
        for (from, ioctl) in tables.commands(&table) {
            let name = (from.name.clone(), ioctl.name.clone());
            let number = match known.get(&name) {
                Some(number) => *number,
                None => self.command(from.compile(&ioctl)),
            };
            known.insert(name, number);
            let command = from.numbering.command(ioctl.number);
            self.keys.push((IoctlKey { class, command }, number));
        }
        if table.name != GENERIC {
            let number = self.command(table.compile_other());
            let command = COMMAND_OTHER;
            self.keys.push((IoctlKey { class, command }, number));
        }
        self.classes.push(IoctlClass {
            table,
            handled: false,
        });
    }

    fn command(&mut self, compiled: Compiled) -> u32 {
        self.commands.push(compiled);
        // As many as the tables have, some hundreds.
        self.commands.len() as u32 - 1
    }

    /// Whether there is nothing to observe.
    pub(super) fn is_empty(&self) -> bool {
        self.observed.devices.is_empty() && self.observed.files.is_empty()
    }

    /// Entries of `DEVICES`.
    pub(super) fn devices(&self) -> Vec<(u32, u32)> {
        let devices = self.observed.devices.iter();
        devices
            .filter_map(|(number, device)| {
                let stand_in = self.stand_ins.contains(number);
                Some((*number, self.value(&device.table, stand_in)?))
            })
            .collect()
    }

    /// Entries of `FILES`.
    pub(super) fn files(&self) -> Vec<([u8; FILE_NAME_BYTES], u32)> {
        let files = self.observed.files.iter();
        files
            .filter_map(|(name, table)| {
                let mut key = [0; FILE_NAME_BYTES];
                // The last byte stays 0, as after a text that was cut.
                let room = key.iter_mut().take(FILE_NAME_BYTES - 1);
                room.zip(name.bytes()).for_each(|(to, from)| *to = from);
                Some((key, self.value(table, false)?))
            })
            .collect()
    }

    /// The value of a file of a table in those maps.
    fn value(&self, table: &Arc<DriverTable>, stand_in: bool) -> Option<u32> {
        let number = self
            .classes
            .iter()
            .position(|c| c.table.name == table.name)?;
        let class = self.classes.get(number)?;
        let mut value = u32::try_from(number).ok()?;
        if class.table.numbering == Numbering::Whole {
            value |= CLASS_WHOLE;
        }
        if stand_in || !class.handled {
            value |= CLASS_SYSCALL;
        }
        Some(value)
    }

    /// Whether kernel functions that handle ioctls must be probed.
    pub(super) fn has_handlers(&self) -> bool {
        self.classes
            .iter()
            .any(|class| !class.table.handlers.is_empty())
    }

    /// Whether the system call itself must be watched.
    pub(super) fn needs_syscall(&self) -> bool {
        let devices = self.devices().into_iter().map(|(_, value)| value);
        let files = self.files().into_iter().map(|(_, value)| value);
        devices.chain(files).any(|value| value & CLASS_SYSCALL != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::probes::driver_table::devices::{DeviceNode, resolve};

    fn plan(handled: &[&str]) -> IoctlPlan {
        let tables = DriverTables::built_in();
        let node = |major, minor, name: &str, driver: Option<&str>| DeviceNode {
            major,
            minor,
            major_name: name.into(),
            driver: driver.map(str::to_owned),
            ..DeviceNode::default()
        };
        let nodes = [
            node(226, 128, "drm", Some("xe")),
            node(226, 129, "drm", Some("i915")),
            node(226, 130, "drm", Some("panfrost")),
            node(511, 0, "nvidia-uvm", None),
        ];
        let forced = [("vfio".to_owned(), node(240, 3, "cuse", None))];
        let observed = resolve(&tables, &nodes, &forced);
        let stand_in = forced[0].1.kernel_number();
        let mut plan = IoctlPlan::new(&tables, observed, vec![stand_in]);
        for class in &mut plan.classes {
            class.handled = handled.contains(&class.table.name.as_str());
        }
        plan
    }

    fn class_of(plan: &IoctlPlan, name: &str) -> u32 {
        let mut classes = plan.classes.iter();
        classes.position(|c| c.table.name == name).unwrap() as u32
    }

    #[test]
    fn every_command_of_a_class_has_a_key_and_shared_ones_one_number() {
        let plan = plan(&[]);
        let find = |class: u32, command: u32| {
            let key = IoctlKey { class, command };
            let found = plan.keys.iter().find(|(k, _)| *k == key);
            found.map(|(_, n)| plan.commands[*n as usize].probe.function.clone())
        };
        let (xe, i915) = (class_of(&plan, "xe"), class_of(&plan, "i915"));
        assert_eq!(find(xe, 0x6449).unwrap(), "DRM_IOCTL_XE_EXEC");
        assert_eq!(
            find(i915, 0x6469).unwrap(),
            "DRM_IOCTL_I915_GEM_EXECBUFFER2"
        );
        assert_eq!(find(xe, 0x6409).unwrap(), "DRM_IOCTL_GEM_CLOSE");
        assert_eq!(find(xe, COMMAND_OTHER).unwrap(), "xe ioctl");
        let uvm = class_of(&plan, "nvidia-uvm");
        assert_eq!(find(uvm, 0x3000_0001).unwrap(), "UVM_INITIALIZE");
        // The `drm` table does not ask for an unknown driver's own commands.
        assert_eq!(find(class_of(&plan, "drm"), COMMAND_OTHER), None);
        let shared = plan.commands.iter();
        let shared = shared.filter(|c| c.probe.function == "DRM_IOCTL_GEM_CLOSE");
        assert_eq!(shared.count(), 1);
    }

    #[test]
    fn devices_say_their_class_and_where_they_are_seen() {
        let plan = plan(&["xe", "vfio", "vfio-device"]);
        let devices: HashMap<u32, u32> = plan.devices().into_iter().collect();
        assert_eq!(devices[&(226 << 20 | 128)], class_of(&plan, "xe"));
        let i915 = class_of(&plan, "i915") | CLASS_SYSCALL;
        assert_eq!(devices[&(226 << 20 | 129)], i915);
        let uvm = class_of(&plan, "nvidia-uvm") | CLASS_SYSCALL | CLASS_WHOLE;
        assert_eq!(devices[&(511 << 20)], uvm);
        // A stand-in has the table's commands but not its driver.
        let vfio = class_of(&plan, "vfio") | CLASS_SYSCALL;
        assert_eq!(devices[&(240 << 20 | 3)], vfio);
        let files = plan.files();
        assert_eq!(&files[0].0[..15], b"[vfio-device]\0\0");
        assert_eq!(files[0].1, class_of(&plan, "vfio-device"));
        assert!(plan.needs_syscall());
    }

    #[test]
    fn a_machine_without_devices_needs_nothing() {
        let tables = DriverTables::built_in();
        let plan = IoctlPlan::new(&tables, Observed::default(), Vec::new());
        assert!(plan.is_empty() && plan.commands.is_empty() && !plan.needs_syscall());
    }

    /// A name as long as the key's, and longer, is cut as the kernel side cuts it.
    #[test]
    fn long_names_are_cut() {
        let mut plan = plan(&[]);
        let table = plan.classes[0].table.clone();
        plan.observed.files.insert("n".repeat(40), table);
        let files = plan.files();
        let long = files.iter().find(|(key, _)| key[0] == b'n').unwrap();
        assert_eq!((long.0[30], long.0[31]), (b'n', 0));
    }
}
