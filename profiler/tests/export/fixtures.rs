//! Profiles with known contents.

use aiprof::profile::{
    Binary, BuildId, Device, DeviceCode, DeviceId, DeviceSample, Frame, FrameKind, Location,
    LocationId, LossKind, Meta, Method, Profile, ProfileBuilder, Sample, Stack, StallReason,
};

/// The period of 99 Hz.
pub(crate) const PERIOD_NS: u64 = 10_101_010;

/// Name, kind, and file and line of a frame.
pub(crate) type NamedFrame<'a> = (&'a str, FrameKind, Option<(&'a str, u32)>);

/// Where a device was sampled, and how the sample got its stack.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) device: DeviceId,
    pub(crate) kernel: &'a str,
    pub(crate) inlined: &'a [&'a str],
    /// File, in the directory `src`, and line.
    pub(crate) line: (&'a str, u32),
    pub(crate) mnemonic: &'a str,
    pub(crate) reason: StallReason,
    pub(crate) offset: u64,
    pub(crate) method: Method,
}

/// A builder with a few short cuts.
pub(crate) struct Fixture {
    pub(crate) builder: ProfileBuilder,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let meta = Meta {
            host: "node-7".to_owned(),
            kernel: "6.12.0".to_owned(),
            command: "sleep 30".to_owned(),
            start_unix_ns: 1_780_000_000_000_000_000,
            duration_ns: 30_000_000_000,
            cpus: 2,
            frequency_hz: 99,
            period_ns: PERIOD_NS,
            ..Meta::default()
        };
        Self {
            builder: ProfileBuilder::new(meta),
        }
    }

    /// A location in a binary; frames from the outermost to the innermost.
    pub(crate) fn location(
        &mut self,
        binary: Option<(&str, &[u8])>,
        address: u64,
        frames: &[NamedFrame],
    ) -> LocationId {
        let binary = binary.map(|(path, build_id)| {
            self.builder.binary(Binary {
                path: path.to_owned(),
                build_id: BuildId::new(build_id),
            })
        });
        let frames = frames
            .iter()
            .map(|&(name, kind, source)| self.builder.frame(name, kind, source))
            .collect();
        self.builder.location(Location {
            binary,
            address,
            frames,
        })
    }

    /// A location of one frame without a binary.
    pub(crate) fn frame(&mut self, name: &str, kind: FrameKind) -> LocationId {
        self.location(None, 0, &[(name, kind, None)])
    }

    /// Samples of the main thread of a process, weighing the period each.
    pub(crate) fn samples(&mut self, pid: u32, comm: &str, stack: &[LocationId], count: u64) {
        self.weighed(pid, comm, stack, count, count * PERIOD_NS);
    }

    pub(crate) fn weighed(
        &mut self,
        pid: u32,
        comm: &str,
        stack: &[LocationId],
        count: u64,
        time_ns: u64,
    ) {
        let process = self.builder.process(pid, comm);
        let thread = self.builder.string(comm);
        let cgroup = Some(self.builder.string("/system.slice/job.service"));
        let stack = self.builder.stack(Stack {
            locations: stack.to_vec(),
            complete: true,
            driver: 0,
        });
        self.builder.sample(Sample {
            process,
            tid: pid,
            thread,
            cgroup,
            stack,
            count,
            time_ns,
            bytes: 0,
            device: None,
        });
    }
}

impl Fixture {
    pub(crate) fn device(&mut self, name: &str, replayed: bool) -> DeviceId {
        self.builder.device(Device {
            name: name.to_owned(),
            replayed,
        })
    }

    /// Samples of a device: the frames of the host, `-`, and those of the device, as
    /// the design has them. Half of an estimate is certain.
    pub(crate) fn device_samples(
        &mut self,
        pid: u32,
        comm: &str,
        host: &[LocationId],
        at: &At,
        count: u64,
        time_ns: u64,
    ) {
        use FrameKind::{DeviceHardware, DeviceSoftware, Native};
        let (file, line) = at.line;
        let source = format!("{file}:{line}");
        let offset = format!("{:#x}", at.offset);
        let mut stack = host.to_vec();
        stack.push(self.frame("-", Native));
        let mut software = vec![("src", None), (file, None), (at.kernel, None)];
        software.extend(at.inlined.iter().map(|name| (*name, None)));
        software.push((&source, Some((file, line))));
        for (name, source) in software {
            stack.push(self.location(None, 0, &[(name, DeviceSoftware, source)]));
        }
        for name in [at.mnemonic, at.reason.name(), &offset] {
            stack.push(self.location(None, at.offset, &[(name, DeviceHardware, None)]));
        }
        let process = self.builder.process(pid, comm);
        let thread = self.builder.string(comm);
        let kernel = self.builder.string(at.kernel);
        let stack = self.builder.stack(Stack {
            locations: stack,
            complete: true,
            driver: 0,
        });
        let half = if at.method.is_estimate() {
            count / 2
        } else {
            0
        };
        self.builder.sample(Sample {
            process,
            tid: pid,
            thread,
            cgroup: None,
            stack,
            count,
            time_ns,
            bytes: 0,
            device: Some(DeviceSample {
                device: at.device,
                reason: Some(at.reason),
                code: Some(DeviceCode {
                    kernel,
                    offset: at.offset,
                }),
                method: at.method,
                certain: count - half,
                possible: count + half,
            }),
        });
    }
}

/// One of everything: inlined frames, kernel only, interpreter, JIT, device
/// kinds, unknown code, losses. 100 samples in all.
pub(crate) fn typical() -> Profile {
    use FrameKind::{
        DeviceHardware, DeviceSoftware, Inlined, Interpreter, Jit, Kernel, Native, Unknown,
    };
    let mut f = Fixture::new();
    let train: Option<(&str, &[u8])> = Some(("/usr/bin/train", &[0xab, 0xcd, 0x01]));
    let libc: Option<(&str, &[u8])> = Some(("/usr/lib/libc.so.6", &[0x11; 20]));
    let kernel: Option<(&str, &[u8])> = Some(("[kernel]", &[0x22; 20]));

    let start = f.location(train, 0x1000, &[("_start", Native, None)]);
    let main = f.location(train, 0x1100, &[("main", Native, Some(("main.cc", 10)))]);
    let dot = f.location(
        train,
        0x1200,
        &[
            ("Matrix::multiply", Native, Some(("matrix.cc", 40))),
            ("Row::dot", Inlined, Some(("row.h", 7))),
            ("fma<float, [4; 4]>", Inlined, Some(("simd.h", 3))),
        ],
    );
    let read = f.location(libc, 0x2000, &[("read", Native, None)]);
    let syscall = f.location(
        kernel,
        0xffff_ffff_8100_0000,
        &[("do_syscall_64", Kernel, None)],
    );
    let vfs = f.location(kernel, 0xffff_ffff_8100_1000, &[("vfs_read", Kernel, None)]);
    let python = f.frame("step (train.py)", Interpreter);
    let jit = f.frame("LazyCompile:*render app.js:12", Jit);
    let unknown = f.frame("[no symbols libfoo.so]", Unknown);
    let device_kernel = f.frame("gemm_kernel", DeviceSoftware);
    let stall = f.frame("sbid", DeviceHardware);
    let idle = f.location(kernel, 0xffff_ffff_8100_2000, &[("kthread", Kernel, None)]);

    f.samples(4242, "train", &[start, main, dot], 40);
    f.samples(4242, "train", &[start, main, read, syscall, vfs], 20);
    f.samples(4242, "train", &[start, main, device_kernel, stall], 10);
    f.samples(77, "python3", &[start, python, unknown], 15);
    f.samples(88, "node", &[jit], 10);
    f.samples(12, "kworker/0:1", &[idle], 5);

    f.builder.losses().add(LossKind::RingDrops, 2);
    f.builder.losses().add(LossKind::StackTableAbsent, 3);
    f.builder.finish()
}

/// A profile that holds one stack per name: under `main`, by itself.
pub(crate) fn with_names(names: &[&str], kind: FrameKind) -> Profile {
    let mut f = Fixture::new();
    let main = f.frame("main", FrameKind::Native);
    for name in names {
        let leaf = f.frame(name, kind);
        f.samples(1, name, &[main, leaf], 1);
    }
    f.builder.finish()
}

/// No samples.
pub(crate) fn empty() -> Profile {
    Fixture::new().builder.finish()
}

/// A small generator of pseudo-random numbers (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    /// From 0 to `limit - 1`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// A random profile: `stacks` samples of up to `depth` frames out of `functions`.
pub(crate) fn random(seed: u64, stacks: u64, depth: u64, functions: u64) -> Profile {
    let mut random = Random::new(seed);
    let mut f = Fixture::new();
    let locations: Vec<LocationId> = (0..functions)
        .map(|i| {
            let name = format!("library::module_{}::function_{i}", i % 7);
            let kind = match i % 10 {
                0 => FrameKind::Kernel,
                1 => FrameKind::Inlined,
                2 => FrameKind::Unknown,
                _ => FrameKind::Native,
            };
            f.frame(&name, kind)
        })
        .collect();
    for _ in 0..stacks {
        let length = random.below(depth + 1);
        // Callers repeat more than leaves do, as in real programs.
        let stack: Vec<LocationId> = (0..length)
            .map(|level| locations[random.below((level + 1).pow(2).min(functions)) as usize])
            .collect();
        let pid = random.below(20) as u32;
        let time = random.below(20_000_000);
        f.weighed(
            pid,
            &format!("process {pid}"),
            &stack,
            1 + random.below(3),
            time,
        );
    }
    f.builder.finish()
}

/// The frames of all samples, for tests that count by themselves.
pub(crate) fn frames(profile: &Profile, sample: &Sample) -> Vec<Frame> {
    profile.stack_frames(sample.stack).cloned().collect()
}

/// A random profile of CPU and device samples, whose device kernels share names,
/// offsets, mnemonics and stacks.
pub(crate) fn random_devices(seed: u64) -> Profile {
    let mut random = Random::new(seed);
    let mut f = Fixture::new();
    let devices = [f.device("GT0", false), f.device("GT1", true)];
    let host: Vec<LocationId> = (0..5)
        .map(|i| f.frame(&format!("host_{i}"), FrameKind::Native))
        .collect();
    for _ in 0..200 {
        let mut pick = |limit: u64| random.below(limit);
        let stack = host[..pick(6) as usize].to_vec();
        let pid = pick(3) as u32;
        let (count, time) = (1 + pick(9), pick(20_000_000));
        if pick(3) == 0 {
            f.weighed(pid, "p", &stack, count, time);
            continue;
        }
        let at = At {
            device: devices[pick(2) as usize],
            kernel: ["a", "b<int, 2>", "send"][pick(3) as usize],
            inlined: [&[][..], &["send"]][pick(2) as usize],
            line: ("k.cl", pick(5) as u32),
            mnemonic: ["send", "sync", "mul"][pick(3) as usize],
            reason: StallReason::ALL[pick(10) as usize],
            offset: 8 * pick(20),
            method: Method::ALL[pick(6) as usize],
        };
        f.device_samples(pid, "p", &stack, &at, count, time);
    }
    f.builder.finish()
}
