use super::*;

/// All argument registers.
const ALL: u8 = 0x3f;

fn whole(bytes: &[u8]) -> FunctionCode<'_> {
    FunctionCode {
        start: 0x1000,
        bytes,
        whole: true,
    }
}

/// Offset of the entry's probe from the function's start, and whether it is
/// emulated.
fn entry_at(bytes: &[u8]) -> Option<(u64, bool)> {
    entry(&whole(bytes), ALL).map(|e| (e.address - 0x1000, e.emulated))
}

#[test]
fn a_push_or_branch_that_everyone_passes_is_the_entry() {
    // push rbp; mov rbp, rsp; pop rbp; ret
    assert_eq!(entry_at(b"\x55\x48\x89\xe5\x5d\xc3"), Some((0, true)));
    // endbr64; push r15; pop r15; ret
    assert_eq!(
        entry_at(b"\xf3\x0f\x1e\xfa\x41\x57\x41\x5f\xc3"),
        Some((4, true))
    );
    // mov rax, [rip+0]; mov r10, [rax]; test r10, r10; je +2; jmp r10; ret: a
    // loader's stub.
    let stub = b"\x48\x8b\x05\0\0\0\0\x4c\x8b\x10\x4d\x85\xd2\x74\x03\x41\xff\xe2\xc3";
    assert_eq!(entry_at(stub), Some((13, true)));
    // jmp +0x10: a function that is nothing but a tail call.
    assert_eq!(entry_at(b"\xe9\x10\0\0\0"), Some((0, true)));
    // xor eax, eax; 2-byte nop; ret
    assert_eq!(entry_at(b"\x31\xc0\x66\x90\xc3"), Some((2, true)));
}

#[test]
fn what_changes_an_argument_ends_the_search() {
    // sub rsp, 8; call +0; add rsp, 8; ret
    let stack = b"\x48\x83\xec\x08\xe8\0\0\0\0\x48\x83\xc4\x08\xc3";
    assert_eq!(entry_at(stack), Some((0, false)));
    // mov edi, 1 (zeroes the rest of rdi); jmp +0x10
    assert_eq!(entry_at(b"\xbf\x01\0\0\0\xeb\x10"), Some((0, false)));
    // xor ecx, ecx; je; xor r9b, r9b; je: also parts of registers
    assert_eq!(entry_at(b"\x31\xc9\x74\0\xc3"), Some((0, false)));
    assert_eq!(entry_at(b"\x45\x30\xc9\x74\0\xc3"), Some((0, false)));
    // mov qword ptr [rsi], 0; je: what a pointer leads to
    let store = b"\x48\xc7\x06\0\0\0\0\x74\0\xc3";
    assert_eq!(entry_at(store), Some((0, false)));
    // mov eax, 1; lea r11, [rsp+8]; push rbx; ret: these change nothing
    let harmless = b"\xb8\x01\0\0\0\x4c\x8d\x5c\x24\x08\x53\xc3";
    assert_eq!(entry_at(harmless), Some((10, true)));
    // cpuid writes rcx and rdx; syscall rcx; rep movsb all of them
    for writes in [
        &b"\x0f\xa2\x53\xc3"[..],
        b"\x0f\x05\x53\xc3",
        b"\xf3\xa4\x53\xc3",
    ] {
        assert_eq!(entry_at(writes), Some((0, false)), "{writes:x?}");
    }
}

#[test]
fn arguments_that_are_not_read_may_change() {
    // mov rdx, [rax]; je: a function of two arguments.
    let bytes = b"\x48\x8b\x10\x74\0\xc3";
    for (arguments, wanted) in [
        (ALL, (0, false)),
        (4, (0, false)),
        (3, (3, true)),
        (0, (3, true)),
    ] {
        let found = entry(&whole(bytes), arguments).unwrap();
        assert_eq!(
            (found.address - 0x1000, found.emulated),
            wanted,
            "{arguments:#x}"
        );
    }
    // The stack pointer is always needed.
    let found = entry(&whole(b"\x48\x83\xec\x08\x74\0\xc3"), 0).unwrap();
    assert_eq!(found.address, 0x1000);
}

#[test]
fn an_instruction_that_a_loop_returns_to_is_not_the_entry() {
    // top: test rax, rax; je end; dec rax; jmp top; end: ret
    let bytes = b"\x48\x85\xc0\x74\x05\x48\xff\xc8\xeb\xf6\xc3";
    // Nothing jumps to the branch, but every turn passes it all the same.
    let found = entry(&whole(bytes), ALL).unwrap();
    assert_eq!((found.address - 0x1000, found.emulated), (0, false));
    // xor eax, eax; top: nop; inc eax; cmp eax, 9; jne top; ret
    let bytes = b"\x31\xc0\x90\xff\xc0\x83\xf8\x09\x75\xf8\xc3";
    assert_eq!(entry_at(bytes), Some((0, false)));
}

#[test]
fn of_code_that_is_not_all_known_only_the_first_instruction_counts() {
    let code = |bytes| FunctionCode {
        start: 0x1000,
        bytes,
        whole: false,
    };
    let offset = |bytes| entry(&code(bytes), ALL).map(|e| (e.address - 0x1000, e.emulated));
    assert_eq!(offset(b"\x55\xc3"), Some((0, true)));
    assert_eq!(offset(b"\x31\xc0\x55\xc3"), Some((0, false)));
    assert_eq!(offset(b"\xf3\x0f\x1e\xfa\x55\xc3"), Some((4, true)));
    assert_eq!(offset(b""), None);
    assert_eq!(offset(b"\x06"), None);
}

#[test]
fn what_the_kernel_refuses_is_passed_over() {
    // lock cmpxchg would write; lock add [rax], eax is refused and writes.
    assert_eq!(entry_at(b"\xf0\x01\x00\xc3"), None);
    // cs nopw 0(rax,rax,1); ret: the next one will do.
    let nop = b"\x66\x2e\x0f\x1f\x84\0\0\0\0\0\xc3";
    assert_eq!(entry_at(nop), Some((10, false)));
    for (bytes, wanted) in [
        (&b"\x55"[..], Handling::Emulated),
        (b"\x41\x54", Handling::Emulated),
        (b"\x48\x55", Handling::Stepped),
        (b"\x66\x55", Handling::Stepped),
        (b"\x90", Handling::Emulated),
        (b"\x66\x66\x90", Handling::Emulated),
        (b"\x41\x90", Handling::Refused),
        (b"\xf3\x90", Handling::Refused),
        (b"\x0f\x1f\x00", Handling::Stepped),
        (b"\xf3\x0f\x1e\xfa", Handling::Stepped),
        (b"\x0f\x84\0\0\0\0", Handling::Emulated),
        (b"\xf2\xe9\0\0\0\0", Handling::Emulated),
        (b"\x2e\x74\0", Handling::Refused),
        (b"\x3e\xff\xe0", Handling::Refused),
        (b"\x66\xe8\0\0", Handling::Refused),
        (b"\xe3\0", Handling::Stepped),
        (b"\xff\x25\0\0\0\0", Handling::Stepped),
        (b"\xc3", Handling::Stepped),
        (b"\xcc", Handling::Refused),
        (b"\x66", Handling::Refused),
        (b"", Handling::Refused),
    ] {
        assert_eq!(handling(bytes), wanted, "{bytes:x?}");
    }
}

#[test]
fn exits_are_returns_and_jumps_out() {
    // test edi, edi; je +1; ret; jmp 0x2000; ret 8; rep ret
    let bytes = b"\x85\xff\x74\x01\xc3\xe9\xf6\x0f\0\0\xc2\x08\0\xf3\xc3";
    let found = exits(&whole(bytes)).unwrap();
    assert_eq!(found.returns, [0x1004, 0x100a, 0x100d]);
    let jumps = |found: &Exits| -> Vec<_> {
        let jumps = found.jumps.iter();
        jumps.map(|j| (j.at, j.to, j.is_conditional)).collect()
    };
    assert_eq!(jumps(&found), [(0x1005, 0x2000, false)]);
    assert!(found.slots.is_empty());
    // A conditional jump out is an exit like any other; the target of jmp rax is not known.
    let found = exits(&whole(b"\x74\x7f\xff\xe0")).unwrap();
    assert_eq!(jumps(&found), [(0x1000, 0x1081, true)]);
    assert!(found.slots.is_empty());
}

#[test]
fn jumps_through_an_objects_table_have_their_place_in_it() {
    // mov rax, [rdi]; mov rax, [rax+0x18]; jmp rax
    let through = b"\x48\x8b\x07\x48\x8b\x40\x18\xff\xe0";
    // mov rax, [rdi]; jmp [rax+0x128]; ret
    let direct = b"\x48\x8b\x07\xff\xa0\x28\x01\0\0\xc3";
    for (bytes, slots) in [
        (&through[..], &[0x18][..]),
        (direct, &[0x128]),
        // No place in an object's table: a jump with an index, through the stack or through the
        // code itself. Nor a value that was changed since, the marked jump of a `switch`, or a
        // value that another way left.
        (b"\xff\x24\xc8", &[]),
        (b"\xff\x64\x24\x08", &[]),
        (b"\xff\x25\0\0\0\0", &[]),
        (b"\x48\x8b\x47\x18\x48\x01\xf8\xff\xe0", &[]),
        (b"\x48\x8b\x47\x18\x3e\xff\xe0", &[]),
        (b"\x48\x8b\x47\x18\xc3\xff\xe0", &[]),
        // What was loaded is whole: mov eax, [rdi+0x18] is half a pointer.
        (b"\x8b\x47\x18\xff\xe0", &[]),
    ] {
        assert_eq!(exits(&whole(bytes)).unwrap().slots, slots, "{bytes:x?}");
    }
    // mov rax, [rdi+8]; jmp out of the function: to a thunk, perhaps.
    let found = exits(&whole(b"\x48\x8b\x47\x08\xe9\0\x10\0\0")).unwrap();
    let [jump] = found.jumps.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(jump.slot(Register::RAX), Some(8));
    assert_eq!(jump.slot(Register::RCX), None);
}

#[test]
fn thunks_stand_for_one_instruction() {
    // call +7; pause; lfence; jmp -7; then ...
    let head = b"\xe8\x07\0\0\0\xf3\x90\x0f\xae\xe8\xeb\xf9";
    let with = |rest: &[u8]| thunk(0x1000, &[head, rest].concat());
    assert_eq!(
        with(b"\x48\x89\x04\x24\xc3"),
        Some(Thunk::Jump(Register::RAX))
    );
    assert_eq!(
        with(b"\x4c\x89\x1c\x24\xc3"),
        Some(Thunk::Jump(Register::R11))
    );
    assert_eq!(with(b"\x48\x8d\x64\x24\x08\xc3"), Some(Thunk::Return));
    assert_eq!(with(b"\x48\x83\xc4\x08\xc3"), Some(Thunk::Return));
    // Another place on the stack, another register's worth, no return, half of it.
    for rest in [
        &b"\x48\x89\x44\x24\x08\xc3"[..],
        b"\x48\x8d\x64\x24\x10\xc3",
        b"\x48\x83\xc4\x10\xc3",
        b"\x48\x89\x04\x24\x90",
        b"\x48\x89\x04",
        b"",
    ] {
        assert_eq!(with(rest), None, "{rest:x?}");
    }
    assert_eq!(thunk(0x1000, b"\xe8\x07"), None);
    assert_eq!(thunk(0x1000, b"\xc3"), None);
}

#[test]
fn a_retpolines_return_is_no_exit() {
    // call +7; pause; lfence; jmp -7; mov [rsp], rax; ret
    let thunk = b"\xe8\x07\0\0\0\xf3\x90\x0f\xae\xe8\xeb\xf9\x48\x89\x04\x24\xc3";
    assert_eq!(exits(&whole(thunk)), None);
    // A call of itself is one: call -5; ret
    let recursive = exits(&whole(b"\xe8\xfb\xff\xff\xff\xc3")).unwrap();
    assert_eq!(recursive.returns.len(), 1);
}

#[test]
fn bytes_that_are_no_code_make_the_exits_unknown() {
    // jmp +1; (06: no instruction); ret
    assert_eq!(exits(&whole(b"\xeb\x01\x06\xc3")), None);
    // jmp into the midst of mov eax, imm32
    assert_eq!(exits(&whole(b"\xeb\x01\xb8\x01\0\0\0\xc3")), None);
    // cut off within an instruction
    assert_eq!(exits(&whole(b"\xc3\xe9\0")), None);
    assert_eq!(exits(&whole(b"")), None);
    let part = FunctionCode {
        whole: false,
        ..whole(b"\xc3")
    };
    assert_eq!(exits(&part), None);
}

#[test]
fn every_byte_sequence_is_survived() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..2000 {
        let bytes: Vec<u8> = (0..1 + round % 64)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        for whole in [true, false] {
            let code = FunctionCode {
                start: u64::MAX - 40,
                bytes: &bytes,
                whole,
            };
            let _ = (entry(&code, ALL), exits(&code));
            let code = FunctionCode { start: 7, ..code };
            if let Some(found) = entry(&code, ALL) {
                assert!((7..7 + bytes.len() as u64).contains(&found.address));
            }
        }
    }
}
