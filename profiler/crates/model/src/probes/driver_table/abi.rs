//! The built-in tables against the kernel's own headers.
//!
//! abi.txt holds what a C compiler gives for every command, member and element that the
//! tables name. It is made again, after a change of a table, by
//!
//! ```text
//! AIPROF_UAPI="-I DIR..." cargo test -p aiprof-model --lib abi -- --ignored
//! ```
//!
//! The folders hold drm/*.h, linux/kfd_ioctl.h, linux/vfio.h and linux/iommufd.h of a
//! kernel as new as the tables. (Debian: linux-libc-dev has the latter,
//! linux-headers-*-common all of them in include/uapi.) They also hold uvm_ioctl.h and
//! uvm_linux_ioctl.h of NVIDIA's open kernel modules, with the headers they include
//! (Debian: nvidia-open-kernel-source).

use super::{DriverTable, DriverTables, Member, Members, Numbering, members};
use crate::probes::ProbeTable;
use crate::probes::expr::Type;
use crate::probes::program::Field;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Command;

const GOLDEN: &str = include_str!("abi.txt");

/// The headers that a table names in its first lines, in the sentence after `Source:`, as C
/// includes them.
fn headers(text: &str) -> Vec<&str> {
    let comments = text.lines().take_while(|line| line.starts_with('#'));
    let words = comments.flat_map(|line| line.split([' ', ',', ';', '(', ')']));
    let mut words = words.skip_while(|word| *word != "Source:");
    let mut headers = Vec::new();
    loop {
        let Some(word) = words.next() else {
            return headers;
        };
        let path = word.strip_suffix('.').unwrap_or(word);
        if path.ends_with(".h") {
            headers.push(path.strip_prefix("include/uapi/").unwrap_or(path));
        }
        if word.ends_with('.') {
            return headers;
        }
    }
}

/// The headers of the tables that are compared.
fn all_headers() -> BTreeSet<&'static str> {
    let compared = DriverTable::BUILT_IN.iter().filter(|(source, text)| {
        let table = DriverTable::parse(source, text).unwrap();
        !claims(&table).is_empty()
    });
    compared.flat_map(|(_, text)| headers(text)).collect()
}

/// What the headers are asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    /// The value of a command.
    Command(String),
    /// Offset and size of a member.
    Member(String, String),
    /// Size of a structure.
    Size(String),
}

impl Fact {
    /// A C statement that prints the fact's line of abi.txt.
    fn question(&self) -> String {
        match self {
            Self::Command(name) => {
                format!("printf(\"command|{name}|%#lx\\n\", (unsigned long){name});")
            }
            Self::Member(of, name) => format!(
                "printf(\"member|{of}|{name}|%zu|%zu\\n\", offsetof({of}, {name}), \
                 sizeof((({of} *)0)->{name}));"
            ),
            Self::Size(of) => format!("printf(\"size|{of}|%zu\\n\", sizeof({of}));"),
        }
    }
}

/// A table's claim: the fact, and the numbers that it must have.
type Claim = (Fact, Vec<u64>);

fn tables() -> DriverTables {
    DriverTables::built_in()
}

/// What the tables claim of things that public headers have.
fn claims(table: &DriverTable) -> Vec<Claim> {
    let mut claims = Vec::new();
    let public = |name: &str| {
        let known = ["DRM_IOCTL_", "AMDKFD_IOC_", "VFIO_", "IOMMU_", "UVM_"];
        known.iter().any(|prefix| name.starts_with(prefix))
    };
    for ioctl in table
        .ioctls
        .iter()
        .filter(|i| !i.assumed && public(&i.name))
    {
        let number = u64::from(table.numbering.command(ioctl.number));
        claims.push((Fact::Command(ioctl.name.clone()), vec![number]));
        let fields = ioctl.args.iter().chain(&ioctl.out);
        let counts = ioctl.arrays.iter().map(|array| &array.count);
        for field in fields.chain(counts) {
            claims.extend(member_claims(ioctl.structure.as_deref(), field));
        }
        for array in &ioctl.arrays {
            let pointer = format!("hex {}", array.pointer.text);
            if let (Some(of), (_, Members::At(member))) = (&ioctl.structure, members(&pointer)) {
                claims.push(member_claim(of, member, 8));
            }
            let Some(of) = &array.structure else { continue };
            claims.push((Fact::Size(of.clone()), vec![u64::from(array.stride)]));
            for field in &array.fields {
                claims.extend(member_claims(Some(of), field));
            }
        }
    }
    claims
}

fn member_claims(of: Option<&str>, field: &Field) -> Vec<Claim> {
    let Type::Scalar { size, .. } = field.expr.ty else {
        return Vec::new();
    };
    match (members(&field.text).1, of) {
        (Members::At(member), Some(of)) => vec![member_claim(of, member, size)],
        (
            Members::Through {
                pointer,
                structure,
                member,
            },
            Some(of),
        ) => vec![
            member_claim(of, pointer, 8),
            member_claim(&format!("struct {structure}"), member, size),
        ],
        _ => Vec::new(),
    }
}

fn member_claim(of: &str, member: Member<'_>, size: u8) -> Claim {
    (
        Fact::Member(of.into(), member.name.into()),
        vec![u64::from(member.offset), u64::from(size)],
    )
}

/// abi.txt: the numbers of each fact.
fn golden() -> BTreeMap<Fact, Vec<u64>> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    };
    let lines = GOLDEN.lines().filter(|l| !l.starts_with('#'));
    lines
        .map(|line| {
            let parts: Vec<_> = line.split('|').collect();
            match parts[..] {
                ["command", name, value] => (Fact::Command(name.into()), vec![number(value)]),
                ["size", of, size] => (Fact::Size(of.into()), vec![number(size)]),
                ["member", of, name, offset, size] => (
                    Fact::Member(of.into(), name.into()),
                    vec![number(offset), number(size)],
                ),
                _ => panic!("abi.txt: {line}"),
            }
        })
        .collect()
}

/// Why a claim is wrong, if it is.
fn wrong(table: &DriverTable, claim: &Claim, golden: &BTreeMap<Fact, Vec<u64>>) -> Option<String> {
    let (fact, claimed) = claim;
    let Some(truth) = golden.get(fact) else {
        return Some("abi.txt does not have it: make it again".into());
    };
    let right = match (fact, &truth[..], &claimed[..]) {
        (Fact::Command(_), [truth], [claimed]) => match table.numbering {
            Numbering::Type(_) => truth & 0xffff == *claimed,
            Numbering::Whole => truth == claimed,
        },
        // An array in place lies over the pointer's member, which may be any
        // union's.
        (Fact::Member(..), [offset, size], [at, bytes]) => offset == at && bytes <= size,
        (Fact::Size(_), [size], [stride]) => size == stride,
        _ => false,
    };
    (!right).then(|| format!("the header says {truth:?}, the table {claimed:?}"))
}

#[test]
fn tables_say_what_the_headers_say() {
    let golden = golden();
    let (mut checked, mut mistakes) = (0, Vec::new());
    for table in tables().iter() {
        for claim in claims(table) {
            checked += 1;
            if let Some(why) = wrong(table, &claim, &golden) {
                mistakes.push(format!("{}: {:?}: {why}", table.source, claim.0));
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    assert!(checked > 700, "only {checked} claims");
}

#[test]
fn compared_tables_name_their_headers() {
    let xe = include_str!("../../../../../probes/drivers/xe.toml");
    assert_eq!(headers(xe), ["drm/xe_drm.h"]);
    for (source, text) in DriverTable::BUILT_IN {
        assert!(!headers(text).is_empty(), "{source}");
    }
    assert_eq!(all_headers().len(), 15, "{:?}", all_headers());
}

/// The check itself: a shifted member, a wrong number and a wrong stride are seen.
#[test]
fn wrong_claims_are_seen() {
    let tables = tables();
    let golden = golden();
    let good = include_str!("../../../../../probes/drivers/xe.toml");
    for (from, to) in [
        ("vm_id@8\", queue", "vm_id@12\", queue"),
        ("number = 0x49", "number = 0x59"),
        ("stride = 80", "stride = 88"),
        ("u32 op@40", "u64 op@40"),
        ("gt_id@4", "gt_id@2"),
        ("vector_of_binds@24", "vector_of_binds@32"),
    ] {
        assert!(good.contains(from), "{from}");
        let table = DriverTable::parse("xe.toml", &good.replace(from, to)).unwrap();
        let wrong = claims(&table)
            .iter()
            .filter(|claim| wrong(&table, claim, &golden).is_some())
            .count();
        assert!(wrong > 0, "{from} -> {to}");
    }
    assert!(tables.get("xe").is_some());
}

#[test]
#[ignore = "makes abi.txt again; see the module"]
fn make_abi() {
    let flags = std::env::var("AIPROF_UAPI").expect("AIPROF_UAPI=\"-I DIR...\"");
    let facts: BTreeSet<Fact> = tables()
        .iter()
        .flat_map(|table| claims(table))
        .map(|(fact, _)| fact)
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("abi.c"), dir.path().join("abi"));
    std::fs::write(&source, c_program(&facts)).unwrap();
    let status = Command::new("cc")
        .args(["-w", "-D__user=", "-D__counted_by(x)="])
        .args(flags.split_whitespace())
        .arg("-o")
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(status.success());
    let output = Command::new(&program).output().unwrap();
    let text = "# Made by a C compiler from the headers, see abi.rs.\n".to_owned()
        + &String::from_utf8(output.stdout).unwrap();
    std::fs::write(
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/probes/driver_table/abi.txt"
        ),
        text,
    )
    .unwrap();
}

fn c_program(facts: &BTreeSet<Fact>) -> String {
    let mut text = "#include <stddef.h>\n#include <stdio.h>\n#include <sys/ioctl.h>\n".to_owned();
    for header in all_headers() {
        writeln!(text, "#include \"{header}\"").unwrap();
    }
    text += "int main(void)\n{\n";
    for fact in facts {
        writeln!(text, "\t{}", fact.question()).unwrap();
    }
    text + "}\n"
}
