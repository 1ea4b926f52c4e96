//! What a reader must know of an ioctl beyond its values: what it does to an
//! address space, how its numbers are called, how its arrays are laid out.

use super::{Probe, ValueFormat};
use serde::{Deserialize, Serialize};

named! {
    /// What an ioctl does, finer than [`CallKind`](super::CallKind).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Action {
        /// Hands work to the device.
        Submit = "submit",
        /// Puts memory into an address space.
        Bind = "bind",
        /// Takes it out.
        Unbind = "unbind",
        /// Makes memory reachable for the CPU.
        Map = "map",
        /// Makes a buffer.
        Alloc = "alloc",
        /// Releases it.
        Free = "free",
        /// Reads, writes or moves a buffer's content.
        Copy = "copy",
        /// Waits for the device.
        Wait = "wait",
        /// Makes, signals or asks for a fence or an event.
        Event = "event",
        /// Makes a queue: an exec queue, a context, a ring.
        QueueCreate = "queue-create",
        /// Releases it.
        QueueDestroy = "queue-destroy",
        /// Does several things to queues, or changes them.
        Queue = "queue",
        /// Makes an address space.
        VmCreate = "vm-create",
        /// Releases it.
        VmDestroy = "vm-destroy",
        /// Joins files, groups and address spaces.
        Context = "context",
        /// Asks.
        Query = "query",
        /// Anything else.
        #[default]
        Other = "other",
    }
}

/// Names of the numbers that a value can have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberNames {
    /// The value, or field of an array's elements.
    pub value: String,
    /// The names are of bits, several of which may be set.
    pub bits: bool,
    /// Name and number, in the order of the table.
    pub names: Vec<(String, u64)>,
}

/// A field of an array's elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementField {
    /// Its name; some have a meaning, see [`role`](super::role).
    pub name: String,
    /// Where it begins in the element.
    pub offset: u16,
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// How people want to read it.
    pub format: ValueFormat,
}

/// An array in the program's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayLayout {
    /// Its data's tag in [`Probe::data`].
    pub tag: u8,
    /// The value that holds the number of elements.
    pub count: u8,
    /// A single element is not in the array but among the values, with the names
    /// of its fields.
    pub in_place: bool,
    /// Bytes from one element to the next, never 0.
    pub stride: u16,
    /// The fields.
    pub fields: Vec<ElementField>,
}

/// What the values and data of an ioctl are made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoctlLayout {
    /// What it does.
    pub action: Action,
    /// Names of numbers.
    pub names: Vec<NumberNames>,
    /// Arrays.
    pub arrays: Vec<ArrayLayout>,
}

/// The elements of an array that could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    /// The fields of each element, in the order of [`ArrayLayout::fields`].
    pub elements: Vec<Vec<u64>>,
    /// Elements that were not recorded or could not be read.
    pub missing: u64,
}

impl IoctlLayout {
    /// The names of a value's numbers.
    pub fn names_of(&self, value: &str) -> Option<&NumberNames> {
        self.names.iter().find(|names| names.value == value)
    }
}

impl NumberNames {
    /// The name of a number; of bits, if it is a single one.
    pub fn name(&self, number: u64) -> Option<&str> {
        let found = self.names.iter().find(|(_, n)| *n == number);
        found.map(|(name, _)| name.as_str())
    }

    /// The number as names: `map`, or `read|write`; what has none is hexadecimal
    /// among bits and decimal elsewhere.
    pub fn text(&self, number: u64) -> String {
        if !self.bits {
            return self
                .name(number)
                .map_or_else(|| number.to_string(), str::to_owned);
        }
        let mut rest = number;
        let mut words = Vec::new();
        for (name, bits) in &self.names {
            if *bits != 0 && rest & bits == *bits {
                words.push(name.clone());
                rest &= !bits;
            }
        }
        if rest != 0 || words.is_empty() {
            words.push(format!("{rest:#x}"));
        }
        words.join("|")
    }
}

impl ArrayLayout {
    /// The array's elements in a call with these values, by slot, and with `data` of this
    /// array's tag. Total: values and data may be anything.
    pub fn elements(
        &self,
        probe: &Probe,
        value: impl Fn(usize) -> Option<u64>,
        data: &[u8],
    ) -> Elements {
        let Some(count) = value(usize::from(self.count)) else {
            return Elements::default();
        };
        if self.in_place && count == 1 {
            return self.single(probe, value);
        }
        let elements: Vec<Vec<u64>> = data
            .chunks_exact(usize::from(self.stride).max(1))
            .take(usize::try_from(count).unwrap_or(usize::MAX))
            .map(|element| self.fields.iter().map(|f| f.of(element)).collect())
            .collect();
        Elements {
            missing: count.saturating_sub(elements.len() as u64),
            elements,
        }
    }

    /// The one element that lies among the values.
    fn single(&self, probe: &Probe, value: impl Fn(usize) -> Option<u64>) -> Elements {
        let value = |field: &ElementField| value(probe.slot(&field.name)?);
        match self.fields.iter().map(value).collect::<Option<Vec<u64>>>() {
            Some(element) => Elements {
                elements: vec![element],
                missing: 0,
            },
            None => Elements {
                elements: Vec::new(),
                missing: 1,
            },
        }
    }

    /// Which of an element's fields has this name.
    pub fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }
}

impl ElementField {
    /// The field's content; 0 where the element is too short for it.
    fn of(&self, element: &[u8]) -> u64 {
        let at = usize::from(self.offset);
        let size = usize::from(self.size.min(8));
        let Some(bytes) = element.get(at..at + size) else {
            return 0;
        };
        let mut word = [0; 8];
        // Raw memory of the machine that was recorded: so far all such are
        // little-endian.
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        u64::from_le_bytes(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::{CallKind, DataFormat, DataInfo, ResultKind, ValueInfo};

    fn probe() -> Probe {
        let value = |name: &str| ValueInfo {
            name: name.into(),
            format: ValueFormat::Decimal,
            at_exit: false,
        };
        let field = |name: &str, offset, size| ElementField {
            name: name.into(),
            offset,
            size,
            format: ValueFormat::Hex,
        };
        Probe {
            id: 0,
            table: "xe".into(),
            api: "xe".into(),
            function: "BIND".into(),
            kind: CallKind::Bind,
            role: None,
            is_ioctl: true,
            values: ["count", "op", "address"].map(value).into(),
            data: vec![DataInfo {
                name: "binds".into(),
                format: DataFormat::Blob,
            }],
            result: ResultKind::Errno,
            has_exit: true,
            layout: Some(Box::new(IoctlLayout {
                action: Action::Bind,
                names: Vec::new(),
                arrays: vec![ArrayLayout {
                    tag: 0,
                    count: 0,
                    in_place: true,
                    stride: 16,
                    fields: vec![field("op", 0, 4), field("address", 8, 8)],
                }],
            })),
        }
    }

    fn elements(values: [(u64, bool); 3], data: Option<Vec<u8>>) -> Elements {
        let probe = probe();
        let arrays = &probe.layout.as_ref().unwrap().arrays;
        let value = |slot: usize| {
            let (value, is_read) = *values.get(slot)?;
            is_read.then_some(value)
        };
        arrays[0].elements(&probe, value, &data.unwrap_or_default())
    }

    #[test]
    fn a_single_element_lies_among_the_values() {
        let one = elements([(1, true), (2, true), (0x1000, true)], Some(vec![0xff; 16]));
        assert_eq!((one.elements, one.missing), (vec![vec![2, 0x1000]], 0));
        let unread = elements([(1, true), (2, true), (0x1000, false)], None);
        assert_eq!((unread.elements.len(), unread.missing), (0, 1));
    }

    #[test]
    fn several_elements_are_data() {
        let mut data = vec![0; 32];
        data[0] = 3;
        data[9] = 0x10;
        data[16] = 4;
        data[31] = 0x80;
        let values = |count| [(count, true), (0, true), (0, true)];
        let two = vec![vec![3, 0x1000], vec![4, 0x80 << 56]];
        let all = elements(values(2), Some(data.clone()));
        assert_eq!((&all.elements, all.missing), (&two, 0));
        // More were passed than were recorded; the last one is cut.
        data.extend([1; 15]);
        let some = elements(values(5), Some(data));
        assert_eq!((&some.elements, some.missing), (&two, 3));
        assert_eq!(elements(values(7), None).missing, 7);
        assert_eq!(elements(values(u64::MAX), None).missing, u64::MAX);
        let unknown = elements([(0, false), (0, true), (0, true)], Some(vec![0; 64]));
        assert_eq!(unknown, Elements::default());
    }

    #[test]
    fn numbers_have_names() {
        let mut names = NumberNames {
            value: "flags".into(),
            bits: true,
            names: vec![("read".into(), 1), ("write".into(), 2), ("none".into(), 0)],
        };
        assert_eq!(names.text(3), "read|write");
        assert_eq!(names.text(0x12), "write|0x10");
        assert_eq!(names.text(0), "0x0");
        names.bits = false;
        assert_eq!(names.text(0), "none");
        assert_eq!(names.text(9), "9");
    }
}
