use super::*;
use std::io::Write as _;

const NOP: u8 = 0x90;
/// `lock incl (%rsp)`: a locked instruction cannot be single-stepped.
const LOCKED: [u8; 4] = [0xf0, 0xff, 0x04, 0x24];

/// A file of no-operations that this process has mapped privately, with
/// `LOCKED` at some offsets: only then does the kernel look at them.
struct Text {
    file: tempfile::NamedTempFile,
    _mapped: memmap2::Mmap,
}

fn text(locked: &[u64]) -> Text {
    let mut bytes = vec![NOP; 8192];
    for &at in locked {
        bytes[at as usize..][..4].copy_from_slice(&LOCKED);
    }
    // Beside this program, for /tmp may forbid programs.
    let program = std::env::current_exe().unwrap();
    let mut file = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
    file.write_all(&bytes).unwrap();
    file.flush().unwrap();
    // SAFETY: a file of this test's own, which nothing truncates.
    let mapped = unsafe {
        memmap2::MmapOptions::new()
            .map_copy_read_only(&file)
            .unwrap()
    };
    Text {
        file,
        _mapped: mapped,
    }
}

fn target(text: &Text) -> ProbeTarget<'_> {
    ProbeTarget {
        path: text.file.path(),
        ret: false,
        pid: None,
    }
}

fn points(offsets: impl IntoIterator<Item = u64>) -> Vec<Point> {
    let point = |offset| Point {
        offset,
        cookie: offset << 32 | 7,
    };
    offsets.into_iter().map(point).collect()
}

/// A program of this type, or a visible skip.
fn program(test: &str, kind: sys::bpf_prog_type, attach: sys::bpf_attach_type) -> Option<OwnedFd> {
    if attach == sys::BPF_TRACE_UPROBE_MULTI && !uprobe_multi().exists() {
        println!("skipped: {test}: needs root and uprobe.multi links (Linux 6.6)");
        return None;
    }
    empty_program(kind, attach)
        .inspect_err(|error| println!("skipped: {test}: needs root: {error}"))
        .ok()
}

#[test]
fn one_link_takes_many_points() {
    let name = "one_link_takes_many_points";
    let kind = sys::BPF_PROG_TYPE_KPROBE;
    let Some(program) = program(name, kind, sys::BPF_TRACE_UPROBE_MULTI) else {
        return;
    };
    let text = text(&[]);
    for (ret, pid) in [
        (false, None),
        (true, None),
        (false, Some(std::process::id())),
    ] {
        let target = ProbeTarget {
            ret,
            pid,
            ..target(&text)
        };
        let result = attach_uprobe_multi(program.as_fd(), &target, &points(0..100));
        match result {
            Ok(Attached { links, refused }) => {
                assert_eq!((links.len(), refused.len()), (1, 0));
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                assert!(pid.is_some() && uprobe_multi() == UprobeMulti::WithoutPid);
            }
        }
    }
    // By descriptor, as for a file that is in another mount namespace.
    let path = format!("/proc/self/fd/{}", text.file.as_file().as_raw_fd());
    let target = ProbeTarget {
        path: Path::new(&path),
        ret: false,
        pid: None,
    };
    let attached = attach_uprobe_multi(program.as_fd(), &target, &points([0])).unwrap();
    assert_eq!(attached.links.len(), 1);
}

#[test]
fn points_that_cannot_be_probed_are_told_and_the_others_attached() {
    let name = "points_that_cannot_be_probed_are_told_and_the_others_attached";
    let kind = sys::BPF_PROG_TYPE_KPROBE;
    let Some(program) = program(name, kind, sys::BPF_TRACE_UPROBE_MULTI) else {
        return;
    };
    let locked = [64, 640, 704, 3200];
    let text = text(&locked);
    let all = points((0..64).map(|i| i * 64).chain([1 << 40]));
    let attached = attach_uprobe_multi(program.as_fd(), &target(&text), &all).unwrap();
    let mut refused: Vec<u64> = attached.refused.iter().map(|r| r.point.offset).collect();
    refused.sort_unstable();
    assert_eq!(refused, [64, 640, 704, 3200, 1 << 40]);
    assert!(attached.links.len() > 1 && attached.links.len() < 40);
    let texts: Vec<String> = attached
        .refused
        .iter()
        .map(RefusedPoint::to_string)
        .collect();
    let expected = "offset 0x280: this instruction cannot be probed";
    assert!(texts.iter().any(|text| text == expected), "{texts:?}");
}

#[test]
fn a_file_that_is_not_there_is_an_error_of_its_own() {
    let name = "a_file_that_is_not_there_is_an_error_of_its_own";
    let kind = sys::BPF_PROG_TYPE_KPROBE;
    let Some(program) = program(name, kind, sys::BPF_TRACE_UPROBE_MULTI) else {
        return;
    };
    let target = ProbeTarget {
        path: Path::new("/no/such/file"),
        ret: false,
        pid: None,
    };
    let error = attach_uprobe_multi(program.as_fd(), &target, &points(0..10)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let none = attach_uprobe_multi(program.as_fd(), &target, &[]).unwrap();
    assert!(none.links.is_empty() && none.refused.is_empty());
}

#[test]
fn single_points_attach_through_perf_events() {
    let name = "single_points_attach_through_perf_events";
    let Some(program) = program(name, sys::BPF_PROG_TYPE_KPROBE, 0) else {
        return;
    };
    let text = text(&[64]);
    let point = |offset| Point { offset, cookie: 1 };
    for (ret, pid) in [
        (false, None),
        (true, None),
        (false, Some(std::process::id())),
    ] {
        let target = ProbeTarget {
            ret,
            pid,
            ..target(&text)
        };
        attach_uprobe_perf(program.as_fd(), &target, point(128)).unwrap();
    }
    let refused = attach_uprobe_perf(program.as_fd(), &target(&text), point(64));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(ENOTSUPP));
}

#[test]
fn tracepoints_attach_by_name() {
    let name = "tracepoints_attach_by_name";
    let Some(program) = program(name, sys::BPF_PROG_TYPE_TRACEPOINT, 0) else {
        return;
    };
    if tracepoint_id("sched", "sched_switch").is_err() {
        println!("skipped: {name}: needs tracefs");
        return;
    }
    attach_tracepoint(program.as_fd(), "sched", "sched_switch", 1).unwrap();
    let wrong = attach_tracepoint(program.as_fd(), "sched", "no_such", 1).unwrap_err();
    assert_eq!(wrong.kind(), io::ErrorKind::NotFound);
    let hostile = attach_tracepoint(program.as_fd(), "..", "../x", 1).unwrap_err();
    assert_eq!(hostile.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn raw_tracepoints_attach_by_name() {
    let name = "raw_tracepoints_attach_by_name";
    let Some(program) = program(name, sys::BPF_PROG_TYPE_RAW_TRACEPOINT, 0) else {
        return;
    };
    attach_raw_tracepoint(program.as_fd(), "sched_switch").unwrap();
    let wrong = attach_raw_tracepoint(program.as_fd(), "no_such").unwrap_err();
    assert_eq!(wrong.kind(), io::ErrorKind::NotFound);
}

#[test]
fn kernel_functions_attach_by_name_where_there_are_kprobes() {
    let name = "kernel_functions_attach_by_name_where_there_are_kprobes";
    let Some(program) = program(name, sys::BPF_PROG_TYPE_KPROBE, 0) else {
        return;
    };
    if pmu("kprobe", "type").is_err() {
        println!("skipped: {name}: needs kprobes");
        let error = attach_kprobe(program.as_fd(), "vfs_read", false, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        return;
    }
    for ret in [false, true] {
        attach_kprobe(program.as_fd(), "vfs_read", ret, 1).unwrap();
    }
    assert!(attach_kprobe(program.as_fd(), "no_such_function", false, 1).is_err());
}

#[test]
fn reads_the_return_bit() {
    assert_eq!(parse_bit("config:0\n"), Some(1));
    assert_eq!(parse_bit("config:5"), Some(32));
    assert_eq!(parse_bit("config:64"), None);
    assert_eq!(parse_bit("config1:0"), None);
    assert_eq!(parse_bit(""), None);
}
