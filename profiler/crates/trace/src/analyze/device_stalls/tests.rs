//! Graphs made by hand, real kernels read in another way, hostile code.

use super::graph::Graph;
use super::search::{Index, Want};
use super::*;
use aiprof_symbols::symbolize::device::isa::{Distance, Flow, Pipe, Swsb, Token, TokenUse, decode};
use std::time::{Duration, Instant};

/// Instructions of 16 bytes from lines `LABEL: MNEMONIC SWSB PIPE FLOW TARGET...`, all
/// but the mnemonic optional: `loop: add F@1 f`, `jmpi br loop`, `call call sub`.
fn program(text: &str) -> Vec<Instruction> {
    let lines: Vec<(Option<&str>, &str)> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| match line.split_once(": ") {
            Some((label, rest)) => (Some(label), rest),
            None => (None, line),
        })
        .collect();
    let at = |label: &str| {
        let found = lines.iter().position(|(l, _)| *l == Some(label));
        found.unwrap_or_else(|| panic!("no {label}")) as u32 * 16
    };
    let instruction = |(i, (_, line)): (usize, &(Option<&str>, &str))| {
        let mut words = line.split_whitespace();
        let mnemonic = words.next().unwrap().to_owned();
        let (mut swsb, mut pipe, mut flow) = (Swsb::default(), None, Flow::Next);
        while let Some(word) = words.next() {
            match word {
                "f" => pipe = Some(Pipe::Float),
                "i" => pipe = Some(Pipe::Integer),
                "m" => pipe = Some(Pipe::Math),
                "ret" => flow = Flow::Return,
                "end" => flow = Flow::End,
                "computed" => flow = Flow::Unknown,
                "jump" => {
                    flow = Flow::Jump {
                        target: at(words.next().unwrap()),
                    }
                }
                "call" => {
                    flow = Flow::Call {
                        target: words.next().map(at),
                    }
                }
                "br" => {
                    flow = Flow::Branch {
                        targets: words.by_ref().map(at).collect(),
                    }
                }
                annotation => swsb = read_swsb(annotation),
            }
        }
        Instruction {
            offset: i as u32 * 16,
            length: 16,
            mnemonic: mnemonic.into(),
            swsb,
            flow,
            pipe,
            text: None,
        }
    };
    lines.iter().enumerate().map(instruction).collect()
}

/// `A@1,$3.dst` as Intel's disassembler writes it.
fn read_swsb(text: &str) -> Swsb {
    let mut swsb = Swsb::default();
    for part in text.split(',') {
        if let Some((pipe, value)) = part.split_once('@') {
            let pipe = match pipe {
                "" => Pipe::Any,
                "A" => Pipe::All,
                "F" => Pipe::Float,
                "I" => Pipe::Integer,
                "L" => Pipe::Long,
                "M" => Pipe::Math,
                "S" => Pipe::Scalar,
                other => panic!("{other}"),
            };
            let value = value.parse().unwrap();
            swsb.distance = Some(Distance { pipe, value });
        } else if let Some(token) = part.strip_prefix('$') {
            let (number, use_) = match token.split_once('.') {
                Some((number, "dst")) => (number, TokenUse::WaitDst),
                Some((number, "src")) => (number, TokenUse::WaitSrc),
                None => (token, TokenUse::Set),
                other => panic!("{other:?}"),
            };
            let number = number.parse().unwrap();
            swsb.token = Some(Token { number, use_ });
        } else {
            panic!("{text}");
        }
    }
    swsb
}

/// Why the instruction of an index stalls.
fn why(program: &[Instruction], at: usize, reason: StallReason) -> Why {
    let graph = Graph::of(program);
    Explainer::new(Index::new(program, &graph), program.len() * 16).why(at, reason)
}

/// Producers: index, whether directly, whether round a loop.
fn holders(program: &[Instruction], at: usize) -> Vec<(usize, bool, bool)> {
    let why = why(program, at, StallReason::Sbid);
    let mut all: Vec<_> = why
        .producers
        .iter()
        .map(|p| (p.instruction, p.direct, p.looped))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn both_sides_of_a_branch_may_hold_the_token() {
    let code = program(
        "cmp i
         jmpi br else
         send.ugm $1
         jmpi jump endif
         else: send.slm $1
         add i
         endif: mov $1.dst
         send.ugm end",
    );
    assert_eq!(holders(&code, 6), [(2, true, false), (4, true, false)]);
    let graph = Graph::of(&code);
    let begins: Vec<usize> = graph.blocks.iter().map(|b| b.range.start).collect();
    assert_eq!(begins, [0, 2, 4, 6]);
    assert!(graph.loops.is_empty());
}

#[test]
fn what_was_waited_for_before_is_done() {
    let code = program(
        "send.ugm $1
         cmp i
         jmpi br else
         sync.nop $1.dst
         else: mov $1.dst
         mov $1.dst
         send.ugm end",
    );
    // On the path past the branch it is done, on the other one not.
    assert_eq!(holders(&code, 4), [(0, true, false)]);
    let again = why(&code, 5, StallReason::Sbid);
    assert!(again.producers.is_empty());
    assert_eq!(
        again.open,
        "no holder found; an earlier instruction already waited for it"
    );
}

#[test]
fn having_read_the_operands_is_not_having_written_the_result() {
    let code = program("send.ugm $1\n mov $1.src\n mov $1.dst\n mov $1.src\n send.ugm $1 end");
    assert_eq!(holders(&code, 1), [(0, true, false)]);
    assert_eq!(holders(&code, 2), [(0, true, false)]);
    assert_eq!(holders(&code, 3), []);
    // Taking the token again.
    assert_eq!(holders(&code, 4), []);
    let code = program("send.ugm $1\n mov $1.src\n send.ugm $1 end");
    assert_eq!(holders(&code, 2), [(0, true, false)]);
}

#[test]
fn the_holder_may_come_only_round_the_loop() {
    let code = program(
        "mov i
         loop: mov $2.dst
         send.ugm $2
         jmpi br loop
         send.ugm end",
    );
    assert_eq!(holders(&code, 1), [(2, false, true)]);
    let why = why(&code, 1, StallReason::Sbid);
    // The first turn has none: the kernel begins without one, which is no news.
    assert_eq!((why.more, why.open.as_str()), (0, ""));
    // Without the loop it would be none.
    assert_eq!(holders(&code[..3], 1), []);
}

#[test]
fn a_holder_before_the_loop_and_one_in_it() {
    let code = program(
        "send.ugm $2
         loop: mov $2.dst
         send.ugm $2
         jmpi br loop
         mov $2.dst
         send.ugm end",
    );
    assert_eq!(holders(&code, 1), [(0, true, false), (2, false, true)]);
    assert_eq!(holders(&code, 4), [(2, true, false)]);
}

/// Intel's report never ends on this: it queues the blocks before a block again and
/// again as long as it finds no instruction that takes the token.
#[test]
fn a_loop_without_a_producer_on_which_analyzeperfmetrics_hangs() {
    let code = program(
        "mov i
         outer: add i
         inner: mov $7.dst
         jmpi br inner
         jmpi br outer
         send.ugm end",
    );
    let why = why(&code, 2, StallReason::Sbid);
    assert!(why.producers.is_empty());
    // Round the loop it meets itself, which waits for the same.
    let open = "no holder found; the kernel has none before this instruction; an earlier \
                instruction already waited for it";
    assert_eq!(why.open, open);
    assert_eq!(holders(&code, 4), []);
}

#[test]
fn nested_loops() {
    let code = program(
        "outer: send.ugm $1
         inner: mov $1.dst
         send.slm $2
         jmpi br inner
         mov $2.dst
         jmpi br outer
         send.ugm end",
    );
    // Only the first turn of the inner loop waits.
    assert_eq!(holders(&code, 1), [(0, true, false)]);
    assert_eq!(holders(&code, 4), [(2, true, false)]);
    // Each turn of the inner loop but the first waits for the turn before.
    assert_eq!(holders(&code, 2), [(2, false, true)]);
    let graph = Graph::of(&code);
    assert_eq!(graph.loops.len(), 2);
    let (first, end) = graph.loop_around(2).map(|l| (l.first, l.end)).unwrap();
    assert_eq!((first, end), (1, 4));
    assert_eq!(graph.loop_around(5).map(|l| l.end - l.first), Some(6));
    assert_eq!(graph.loop_around(6), None);
}

#[test]
fn loops_with_two_entries_end() {
    let code = program(
        "cmp i
         jmpi br second
         first: send.ugm $1
         add i
         second: mov $1.dst
         jmpi br first
         send.ugm end",
    );
    // From the side there is none; by the first part of the loop there is one.
    assert_eq!(holders(&code, 4), [(2, true, false)]);
    assert_eq!(Graph::of(&code).loops.len(), 1);
}

#[test]
fn instructions_that_nothing_leads_to_are_no_producers() {
    let code = program(
        "jmpi jump on
         send.ugm $1
         on: mov $1.dst
         send.ugm end",
    );
    // Its code goes on into what follows: that is no path from the kernel's start, but
    // nothing rules out a jump that leads there.
    assert_eq!(holders(&code, 2), [(1, true, false)]);
    let code = program(
        "jmpi jump on
         send.ugm $1
         send.ugm end
         on: mov $1.dst
         send.ugm end",
    );
    assert_eq!(holders(&code, 3), []);
}

#[test]
fn functions_are_gone_through_from_where_they_were_called() {
    let code = program(
        "send.ugm $1
         call call sub
         mov $1.dst
         send.ugm $2
         call call sub
         mov $2.dst
         mov $1.dst
         send.ugm end
         sub: send.slm $3
         jmpi br skip
         add i
         skip: ret ret",
    );
    assert_eq!(holders(&code, 2), [(0, true, false)]);
    assert_eq!(holders(&code, 5), [(3, true, false)]);
    // The second call is no way back to the first one.
    assert_eq!(holders(&code, 6), []);
    // In the function: from both calls.
    let in_function = program(
        "send.ugm $1
         call call sub
         send.slm $1
         call call sub
         mov $3.dst
         send.ugm end
         sub: send.ugm $3
         mov $1.dst
         ret ret",
    );
    assert_eq!(
        holders(&in_function, 7),
        [(0, true, false), (2, true, false)]
    );
    assert_eq!(holders(&in_function, 4), [(6, true, false)]);
}

#[test]
fn functions_elsewhere_and_computed_jumps_are_told() {
    let code = program("send.ugm $1\n calla call\n mov $1.dst\n mov $2.dst\n send.ugm end");
    let known = why(&code, 2, StallReason::Sbid);
    assert_eq!(known.producers[0].instruction, 0);
    let unknown = why(&code, 3, StallReason::Sbid);
    assert!(unknown.producers.is_empty());
    assert!(
        unknown.open.contains("not in this code"),
        "{}",
        unknown.open
    );
    let code = program("send.ugm $1\n jmpi computed\n mov $1.dst\n send.ugm end");
    let jumped = why(&code, 2, StallReason::Sbid);
    assert_eq!(jumped.producers[0].instruction, 0);
    assert!(jumped.open.contains("computed jumps"), "{}", jumped.open);
}

#[test]
fn sync_of_all_tokens_waits_for_all_of_them() {
    let code = program(
        "send.ugm $1
         send.slm $2
         sync.nop $2.dst
         dpas.8x8 $3
         sync.allwr
         mov $1.dst
         send.ugm end",
    );
    assert_eq!(holders(&code, 4), [(0, true, false), (3, true, false)]);
    // For which tokens is known from its syntax only.
    assert_eq!(holders(&code, 5), [(0, true, false)]);
    let mut known = code.clone();
    known[4].text = Some("        sync.allwr             null".into());
    assert_eq!(holders(&known, 5), []);
    let named = |text: &str| {
        let mut sync = code[4].clone();
        sync.text = Some(text.into());
        super::search::tokens_of_sync(&sync)
    };
    assert_eq!(
        named("        sync.allwr             ($0,$3,$31)   {I@1}"),
        Some(1 << 31 | 9)
    );
    assert_eq!(
        named("        sync.allwr             null          {$4}"),
        Some(u32::MAX)
    );
    assert_eq!(
        named("        sync.allwr             ($77)"),
        Some(u32::MAX)
    );
}

/// Producers of a distance.
fn nearest(program: &[Instruction], at: usize) -> Vec<usize> {
    let why = why(program, at, StallReason::DistAcc);
    let mut all: Vec<_> = why.producers.iter().map(|p| p.instruction).collect();
    all.sort_unstable();
    all
}

#[test]
fn distances_count_the_instructions_of_a_pipe() {
    let code = program(
        "add i
         mul f
         add i
         mul F@1 f
         add I@2 i
         mov @1 i
         send.ugm A@2,$1
         send.ugm end",
    );
    assert_eq!(nearest(&code, 3), [1]);
    assert_eq!(nearest(&code, 4), [0]);
    // Its own pipe.
    assert_eq!(nearest(&code, 5), [4]);
    // Every pipe.
    assert_eq!(nearest(&code, 6), [1, 4]);
}

#[test]
fn distances_count_along_each_path() {
    let code = program(
        "add i
         add i
         jmpi br else
         add i
         jmpi jump endif
         else: mul f
         endif: mov I@2 i
         loop: add I@2 i
         jmpi br loop
         send.ugm end",
    );
    assert_eq!(nearest(&code, 6), [0, 1]);
    // First turn: one of before the branch's end; second: the one before the loop; later
    // ones: itself.
    assert_eq!(nearest(&code, 7), [1, 3, 6, 7]);
    let why = why(&code, 7, StallReason::DistAcc);
    let itself = why.producers.iter().find(|p| p.instruction == 7).unwrap();
    assert!(itself.looped && !itself.direct);
}

#[test]
fn of_every_pipe_only_what_is_near_counts() {
    let far =
        "add i\n".to_owned() + &"nop\n".repeat(100) + "mul f\n send.ugm A@1,$1\n send.ugm end";
    let code = program(&far);
    assert_eq!(nearest(&code, 102), [101]);
}

#[test]
fn accumulators_have_no_annotation() {
    let code = program("mul i\n mach i\n nop\n macl i\n mov i\n send.ugm end");
    assert_eq!(nearest(&code, 3), [1]);
    let open = why(&code, 4, StallReason::DistAcc);
    assert!(
        open.producers.is_empty() && open.open.contains("no distance"),
        "{}",
        open.open
    );
    let mut written = code.clone();
    written[2].mnemonic = "mul".into();
    written[2].text = Some(
        "(W)     mul (16|M0)              acc0.0<1>:d   r4.0<1;1,0>:d     r2.0<0;1,0>:uw".into(),
    );
    assert_eq!(nearest(&written, 3), [2]);
    written[4].text = Some("        mov (16|M0)              r6.0<1>:d   acc0.0<1;1,0>:d".into());
    assert_eq!(nearest(&written, 4), [2]);
}

#[test]
fn other_reasons_say_what_to_look_at() {
    let code = program(
        "send.ugm $1
         send.ugm $2
         send.slm $3
         send.ugm $4
         send.gtwy $5
         sync.bar
         jmpi br else
         add f
         else: add i
         send.ugm end",
    );
    let text = |at, reason| why(&code, at, reason).text;
    let of = |at, reason| -> Vec<usize> {
        why(&code, at, reason)
            .producers
            .iter()
            .map(|p| p.instruction)
            .collect()
    };
    assert_eq!(of(3, StallReason::Send), [1, 0]);
    assert!(text(3, StallReason::Send).contains("send to ugm"));
    assert_eq!(of(5, StallReason::Sync), [4]);
    assert!(text(5, StallReason::Sync).contains("barrier"));
    assert!(text(6, StallReason::Control).ends_with("to 0x80"));
    assert_eq!(of(8, StallReason::Control), [6]);
    assert!(text(7, StallReason::PipeStall).contains("float pipe"));
    assert!(text(0, StallReason::InstFetch).contains("160 bytes"));
    assert!(!why(&code, 0, StallReason::Sync).open.is_empty());
    for reason in StallReason::ALL {
        for at in 0..code.len() {
            assert!(!text(at, reason).is_empty());
        }
    }
}

// ---- tables ---------------------------------------------------------------------------

fn tally(reason: StallReason, count: u64) -> Tally {
    let mut tally = Tally::default();
    tally.counts[reason as usize] = count;
    tally
}

const LISTINGS: [(Platform, &str); 6] = [
    (
        Platform::XeLp,
        include_str!("../../../../symbols/src/symbolize/device/isa/fixtures/xelp.txt"),
    ),
    (
        Platform::XeHpg,
        include_str!("../../../../symbols/src/symbolize/device/isa/fixtures/xehpg.txt"),
    ),
    (
        Platform::XeHpc,
        include_str!("../../../../symbols/src/symbolize/device/isa/fixtures/xehpc.txt"),
    ),
    (
        Platform::Xe2,
        include_str!("../../../../symbols/src/symbolize/device/isa/fixtures/xe2.txt"),
    ),
    (
        Platform::Xe3,
        include_str!("../../../../symbols/src/symbolize/device/isa/fixtures/xe3.txt"),
    ),
    (
        Platform::Xe3p,
        include_str!("../../../../symbols/src/symbolize/device/isa/fixtures/xe3p.txt"),
    ),
];

/// An instruction as Intel's disassembler lists it.
struct Listed {
    bytes: Vec<u8>,
    mnemonic: String,
    swsb: String,
    is_branch: bool,
}

fn listed() -> Vec<(Platform, Vec<Listed>)> {
    let mut kernels = Vec::new();
    for (platform, listing) in LISTINGS {
        for line in listing.lines() {
            if line.starts_with('#') {
                kernels.push((platform, Vec::new()));
                continue;
            }
            let fields: Vec<&str> = line.split(' ').collect();
            let hex = |at: usize| u8::from_str_radix(&fields[0][at..at + 2], 16).unwrap();
            kernels.last_mut().unwrap().1.push(Listed {
                bytes: (0..fields[0].len()).step_by(2).map(hex).collect(),
                mnemonic: fields[1].to_owned(),
                swsb: fields[2].trim_matches('-').to_owned(),
                is_branch: fields[3] != "-" || fields.get(4).is_some(),
            });
        }
    }
    kernels
}

fn decoded(kernel: &[Listed], platform: Platform) -> Decoded {
    let code: Vec<u8> = kernel.iter().flat_map(|i| i.bytes.clone()).collect();
    decode(&code, platform)
}

/// Where control may come to other than from the instruction before, by the listing's
/// own words: behind branches, and at their targets.
fn straight(kernel: &[Listed], ours: &Decoded, from: usize, to: usize) -> bool {
    let targets: Vec<u32> = ours
        .instructions
        .iter()
        .flat_map(|i| super::graph::targets(&i.flow))
        .collect();
    kernel[from..to]
        .iter()
        .all(|i| !i.is_branch && !i.mnemonic.starts_with("call"))
        && ours.instructions[from + 1..=to]
            .iter()
            .all(|i| !targets.contains(&i.offset))
}

/// The holder of a token in straight code, read from the disassembler's text alone.
#[test]
fn producers_in_real_kernels_are_those_of_the_disassemblers_text() {
    let (mut checked, mut waits) = (0, 0);
    for (platform, kernel) in listed() {
        let ours = decoded(&kernel, platform);
        for (at, listed) in kernel.iter().enumerate() {
            let wanted = listed
                .swsb
                .split(',')
                .find_map(|part| part.strip_prefix('$')?.split_once('.'));
            let Some((token, use_)) = wanted else {
                continue;
            };
            waits += 1;
            let is_set = |i: &usize| {
                kernel[*i]
                    .swsb
                    .split(',')
                    .any(|part| part.strip_prefix('$') == Some(token))
            };
            let waited = |i: &usize| {
                let parts: Vec<&str> = kernel[*i].swsb.split(',').collect();
                parts.contains(&&*format!("${token}.dst"))
                    || (use_ == "src" && parts.contains(&&*format!("${token}.src")))
            };
            let nearest = (0..at).rev().find(|i| is_set(i) || waited(i));
            let Some(nearest) = nearest.filter(|n| straight(&kernel, &ours, *n, at)) else {
                continue;
            };
            checked += 1;
            let found = holders(&ours.instructions, at);
            let expected = match is_set(&nearest) {
                true => vec![(nearest, true, false)],
                false => vec![],
            };
            assert_eq!(
                found, expected,
                "{platform:?} {:#x}",
                ours.instructions[at].offset
            );
        }
    }
    assert!(checked > 80 && waits > 120, "{checked} of {waits}");
}

#[test]
fn every_wait_in_real_kernels_has_a_holder_or_is_over() {
    let (mut held, mut over) = (0, 0);
    for (platform, kernel) in listed() {
        let ours = decoded(&kernel, platform);
        for (at, listed) in kernel.iter().enumerate() {
            if !listed.swsb.contains(".dst") && !listed.swsb.contains(".src") {
                continue;
            }
            let why = why(&ours.instructions, at, StallReason::Sbid);
            match why.producers.is_empty() {
                false => held += 1,
                true => {
                    let offset = ours.instructions[at].offset;
                    assert!(
                        why.open.contains("already waited for it"),
                        "{platform:?} {offset:#x}"
                    );
                    over += 1;
                }
            }
        }
    }
    // Waits for reads that have been waited for.
    assert!(held > 110 && over < 4, "{held}, {over}");
}

fn kernel_of(code: &[u8]) -> DeviceFunction {
    DeviceFunction::bare("k", code)
}

/// A kernel with samples at every instruction and at offsets that are none.
fn sampled(platform: Platform, code: &[u8], decoded: Decoded) -> (Sampled, Tally) {
    let (mut rows, mut all) = (Vec::new(), Tally::default());
    let offsets = (0..code.len() as u64 + 64)
        .step_by(8)
        .chain([1 << 33, u64::MAX]);
    for (n, offset) in offsets.map(Some).chain([None]).enumerate() {
        let mut row = tally(StallReason::ALL[n % 10], n as u64 + 1);
        row.add(&tally(StallReason::Sbid, 1));
        all.add(&row);
        rows.push((offset, row));
    }
    let code = Code {
        kernel: kernel_of(code),
        platform,
        decoded,
        origin: "a test".to_owned(),
        note: String::new(),
    };
    let sampled = Sampled {
        device: "GT0".to_owned(),
        kernel: "k".to_owned(),
        code: Ok(code),
        rows,
    };
    (sampled, all)
}

fn assert_sums(kernel: &KernelStalls, all: Tally) {
    assert_eq!(kernel.samples, all);
    let instructions: Tally = kernel.instructions.iter().map(|i| i.samples).sum();
    assert_eq!(instructions, all);
    let lines: Tally = kernel.lines.iter().map(|l| l.samples).sum();
    assert_eq!(lines, all);
    for instruction in &kernel.instructions {
        let why: u64 = instruction.why.iter().map(|(_, count, _)| count).sum();
        let stalled = instruction.samples.stalled();
        assert_eq!(
            why,
            if instruction.index.is_some() {
                stalled
            } else {
                0
            }
        );
    }
    let counted: usize = kernel.lines.iter().map(|l| l.instructions).sum();
    assert_eq!(counted, kernel.instructions.len());
}

#[test]
fn every_sample_is_in_each_table_once() {
    for (platform, kernel) in listed() {
        let bytes: Vec<u8> = kernel.iter().flat_map(|i| i.bytes.clone()).collect();
        let (input, all) = sampled(platform, &bytes, decode(&bytes, platform));
        let (beyond, mut without) = (10 * (64 / 8 + 3), input.clone());
        let stalls = KernelStalls::of(input);
        assert_sums(&stalls, all);
        assert!(stalls.astray > beyond);
        assert_eq!(stalls.instructions.last().unwrap().offset, None);
        // Each offset once, in order.
        let offsets: Vec<_> = stalls
            .instructions
            .iter()
            .filter_map(|i| i.offset)
            .collect();
        assert!(offsets.is_sorted_by(|a, b| a < b));
        without.code = Err("no module".to_owned());
        let stalls = KernelStalls::of(without);
        assert_sums(&stalls, all);
        assert_eq!((stalls.astray, stalls.lines.len()), (0, 1));
    }
}

/// Samples inside of an instruction are not its samples, nor the next one's.
#[test]
fn offsets_inside_an_instruction_are_counted_apart() {
    let (platform, listed) = listed().remove(0);
    let bytes: Vec<u8> = listed.iter().flat_map(|i| i.bytes.clone()).collect();
    let (mut input, _) = sampled(platform, &bytes, decode(&bytes, platform));
    let decoded = &input.code.as_ref().unwrap().decoded.instructions;
    let long = decoded.iter().position(|i| i.length == 16).unwrap();
    let begin = u64::from(decoded[long].offset);
    let counts = [(begin, 3), (begin + 8, 5), (begin + 16, 7)];
    let rows = counts.map(|(at, n)| (Some(at), tally(StallReason::Sbid, n)));
    input.rows = rows.to_vec();
    let stalls = KernelStalls::of(input);
    let found = stalls.instructions.iter();
    let found: Vec<_> = found
        .map(|i| (i.offset, i.index, i.samples.total()))
        .collect();
    let expected = [
        (Some(begin), Some(long), 3),
        (Some(begin + 8), None, 5),
        (Some(begin + 16), Some(long + 1), 7),
    ];
    assert_eq!(found, expected);
    assert_eq!(stalls.astray, 5);
}

#[test]
fn hostile_code_and_counts() {
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    for round in 0..40 {
        let bytes: Vec<u8> = (0..round * 64).map(|_| random()).collect();
        for platform in Platform::ALL {
            let (input, all) = sampled(platform, &bytes, decode(&bytes, platform));
            assert_sums(&KernelStalls::of(input), all);
        }
    }
    // Sums that do not fit stay what they can be at most.
    let rows = vec![(Some(0), tally(StallReason::Sbid, u64::MAX)); 3];
    let kernel = KernelStalls::of(Sampled {
        device: String::new(),
        kernel: String::new(),
        code: Err(String::new()),
        rows,
    });
    assert_eq!(kernel.samples.total(), u64::MAX);
    assert_eq!(
        StallReport::of(String::new(), vec![], vec![]).samples,
        Tally::default()
    );
}

/// Some hundred thousand instructions, all stalled.
fn analyse_large(text: &str) -> (KernelStalls, Duration) {
    let instructions = program_large(text);
    let rows: Vec<_> = instructions
        .iter()
        .map(|i| {
            let mut samples = tally(StallReason::Sbid, 3);
            samples.add(&tally(StallReason::DistAcc, 2));
            (Some(u64::from(i.offset)), samples)
        })
        .collect();
    let began = Instant::now();
    let stalls = KernelStalls::of(Sampled {
        device: String::new(),
        kernel: String::new(),
        code: Ok(Code {
            kernel: kernel_of(&[]),
            platform: Platform::Xe2,
            decoded: Decoded {
                instructions,
                bad: 0,
            },
            origin: String::new(),
            note: String::new(),
        }),
        rows,
    });
    (stalls, began.elapsed())
}

/// `program`, 100,000 instructions long: labels are looked up in each copy.
fn program_large(text: &str) -> Vec<Instruction> {
    let part = program(text);
    let bytes = part.len() as u32 * 16;
    let mut all = Vec::new();
    for copy in 0..100_000 / part.len() as u32 {
        let moved = |target: &u32| target + copy * bytes;
        all.extend(part.iter().cloned().map(|mut i| {
            i.offset = moved(&i.offset);
            match &mut i.flow {
                Flow::Branch { targets } => *targets = targets.iter().map(moved).collect(),
                Flow::Jump { target } => *target = moved(target),
                _ => {}
            }
            i
        }));
    }
    all
}

#[test]
fn a_hundred_thousand_instructions_take_seconds() {
    // Straight code whose producers are never there; loops; branches everywhere.
    for (text, explained) in [
        ("add f\n mov I@7,$3.dst f\n mul", false),
        (
            "loop: send.ugm $1\n mov I@1,$1.dst i\n add F@2 f\n jmpi br loop",
            true,
        ),
        ("top: jmpi br end\n mov $9.dst\n end: jmpi br top", false),
    ] {
        let (stalls, took) = analyse_large(text);
        assert!(took < Duration::from_secs(60), "{text}: {took:?}");
        let with = stalls.instructions.iter().filter(|i| {
            i.why
                .iter()
                .any(|(reason, _, why)| *reason == StallReason::Sbid && !why.producers.is_empty())
        });
        assert_eq!(with.count() > 20_000, explained, "{text}");
        println!("{text:?}: {took:?}");
    }
}

#[test]
fn searches_are_bounded() {
    // Every block can be reached from every second one: paths without number.
    let code = program_large("a: jmpi br b\n b: jmpi br a\n mov $1.dst");
    let graph = Graph::of(&code);
    let mut index = Index::new(&code, &graph);
    let found = index.search(code.len() - 1, Want::Token(1, TokenUse::Set));
    assert!(found.ends.waited || found.ends.limit);
}
