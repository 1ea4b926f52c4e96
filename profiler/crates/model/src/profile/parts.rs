//! Profiles in parts: servers accept no message of any size.

use super::{Location, LocationId, Profile, ProfileBuilder, Sample, StrId};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// About how many bytes a sample takes in a message, besides its stack and the labels that users
/// choose: values and labels.
const PER_SAMPLE: usize = 160;
/// The same of such a label: where its name and its value are.
const PER_LABEL: usize = 10;
/// The same of a location with its function, besides names, and of a binary.
const PER_LOCATION: usize = 48;
const PER_BINARY: usize = 64;
/// The same of an entry of a list, and of a string besides its text.
const PER_ENTRY: usize = 4;

impl Profile {
    /// Calls `write` with the profile or, if that takes more than `most` bytes by an estimate,
    /// with parts of it. Each process is in one part. Several processes share a part if that takes
    /// at most `most` bytes. A process that takes more by itself is a part by itself: if a server
    /// refuses that part, no other process is lost. Losses, facts and submissions are in the first
    /// part.
    ///
    /// # Errors
    /// The first error of `write`; it is called for the other parts all the same.
    pub fn in_parts<E>(
        &self,
        most: usize,
        mut write: impl FnMut(&Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if most == usize::MAX {
            return write(self);
        }
        let mut samples: Vec<&Sample> = self.samples.iter().collect();
        if Meter::new(self).size(&samples) <= most {
            return write(self);
        }
        samples.sort_by_key(|sample| sample.process);
        let parts = self.parts(&samples, most);
        if parts.len() < 2 {
            return write(self);
        }
        let mut all = Ok(());
        for (number, range) in parts.into_iter().enumerate() {
            let mut part = self.part(samples.get(range).unwrap_or_default());
            if number == 0 {
                part.losses = self.losses.clone();
                part.facts = self.facts.clone();
                part.submissions = self.submissions;
            }
            all = all.and(write(&part));
        }
        all
    }

    /// A profile of some of its samples, with what they refer to.
    fn part(&self, samples: &[&Sample]) -> Self {
        let mut builder = ProfileBuilder::new(self.meta.clone());
        builder.of(self.values);
        builder.labels(&self.texts(&self.labels));
        for device in &self.devices {
            builder.device(device.clone());
        }
        let (mut locations, mut stacks) = (FxHashMap::default(), FxHashMap::default());
        for &sample in samples {
            let process = self.processes.get(sample.process.0 as usize);
            let process = process.map_or(sample.process, |process| {
                let labels = self.texts(&process.labels);
                builder.labelled_process(process.pid, self.str(process.comm), &labels)
            });
            let stack = *stacks.entry(sample.stack).or_insert_with(|| {
                let mut stack = self
                    .stacks
                    .get(sample.stack.0 as usize)
                    .cloned()
                    .unwrap_or_default();
                for location in &mut stack.locations {
                    let known = locations.entry(*location);
                    *location = *known.or_insert_with_key(|at| self.copy(*at, &mut builder));
                }
                builder.stack(stack)
            });
            let mut device = sample.device;
            if let Some(code) = device.as_mut().and_then(|device| device.code.as_mut()) {
                code.kernel = builder.string(self.str(code.kernel));
            }
            let sample = Sample {
                process,
                thread: builder.string(self.str(sample.thread)),
                cgroup: sample.cgroup.map(|cgroup| builder.string(self.str(cgroup))),
                stack,
                device,
                ..sample.clone()
            };
            builder.sample(sample);
        }
        builder.finish()
    }

    fn texts(&self, labels: &[(StrId, StrId)]) -> Vec<(String, String)> {
        let text = |id| self.str(id).to_owned();
        labels
            .iter()
            .map(|&(key, value)| (text(key), text(value)))
            .collect()
    }

    /// A location, in another profile.
    fn copy(&self, location: LocationId, builder: &mut ProfileBuilder) -> LocationId {
        let Some(location) = self.locations.get(location.0 as usize) else {
            return location;
        };
        let binary = location
            .binary
            .and_then(|id| self.binaries.get(id.0 as usize));
        let frames = location.frames.iter();
        let frames = frames.filter_map(|frame| self.frames.get(frame.0 as usize));
        let frames = frames.map(|frame| {
            let source = frame.file.map(|file| (self.str(file), frame.line));
            builder.frame(self.str(frame.name), frame.kind, source)
        });
        let frames = frames.collect();
        let binary = binary.map(|binary| builder.binary(binary.clone()));
        builder.location(Location {
            binary,
            frames,
            ..location.clone()
        })
    }

    /// The parts of samples that are sorted by process.
    fn parts(&self, samples: &[&Sample], most: usize) -> Vec<Range<usize>> {
        let mut meter = Meter::new(self);
        let mut parts = Vec::<Range<usize>>::new();
        let mut size = 0;
        for of_process in samples.chunk_by(|one, next| one.process == next.process) {
            let own = meter.size(of_process);
            match parts.last_mut().filter(|_| size + own <= most) {
                Some(part) => {
                    part.end += of_process.len();
                    size += own;
                }
                None => {
                    let begin = parts.last().map_or(0, |part| part.end);
                    parts.push(begin..begin + of_process.len());
                    size = own;
                }
            }
        }
        parts
    }
}

/// Estimates the sizes of parts. What several parts refer to counts for each of them.
struct Meter<'a> {
    profile: &'a Profile,
    /// The part that an entry was counted for last, from 1 on.
    strings: Vec<usize>,
    locations: Vec<usize>,
    binaries: Vec<usize>,
    part: usize,
}

impl<'a> Meter<'a> {
    fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            strings: vec![0; profile.strings.len()],
            locations: vec![0; profile.locations.len()],
            binaries: vec![0; profile.binaries.len()],
            part: 0,
        }
    }

    /// About how many bytes samples take, with what they refer to.
    fn size(&mut self, samples: &[&Sample]) -> usize {
        self.part += 1;
        let profile = self.profile;
        let mut size = 0;
        for (key, value) in &profile.labels {
            size += self.text(*key) + self.text(*value);
        }
        let mut last = None;
        let mut labels = 0;
        for sample in samples {
            if last.replace(sample.process) != Some(sample.process) {
                let process = profile.processes.get(sample.process.0 as usize);
                let own = process.map_or(&[][..], |process| &process.labels);
                labels = profile.labels.len() + own.len();
                size += process.map_or(0, |process| self.text(process.comm));
                for (key, value) in own {
                    size += self.text(*key) + self.text(*value);
                }
            }
            size += labels * PER_LABEL;
            size += PER_SAMPLE + self.text(sample.thread);
            size += sample.cgroup.map_or(0, |cgroup| self.text(cgroup));
            let code = sample
                .device
                .as_ref()
                .and_then(|device| device.code.as_ref());
            size += code.map_or(0, |code| self.text(code.kernel));
            let stack = profile.stacks.get(sample.stack.0 as usize);
            for location in stack.into_iter().flat_map(|stack| &stack.locations) {
                size += PER_ENTRY + self.location(location.0 as usize);
            }
        }
        size
    }

    fn is_counted(counted: &mut [usize], at: usize, part: usize) -> bool {
        let last = counted.get_mut(at);
        last.is_none_or(|last| std::mem::replace(last, part) == part)
    }

    fn text(&mut self, text: StrId) -> usize {
        match Self::is_counted(&mut self.strings, text.0 as usize, self.part) {
            true => 0,
            false => self.profile.str(text).len() + PER_ENTRY,
        }
    }

    fn location(&mut self, at: usize) -> usize {
        let profile = self.profile;
        if Self::is_counted(&mut self.locations, at, self.part) {
            return 0;
        }
        let mut size = PER_LOCATION;
        let Some(location) = profile.locations.get(at) else {
            return size;
        };
        let frames = location.frames.iter();
        for frame in frames.filter_map(|frame| profile.frames.get(frame.0 as usize)) {
            size += PER_ENTRY + self.text(frame.name);
            size += frame.file.map_or(0, |file| self.text(file));
        }
        if let Some(binary) = location.binary {
            let at = binary.0 as usize;
            if !Self::is_counted(&mut self.binaries, at, self.part) {
                let binary = profile.binaries.get(at);
                size += PER_BINARY + binary.map_or(0, |binary| binary.path.len());
            }
        }
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Frame, FrameKind, LossKind, Meta, Stack};
    use std::collections::BTreeMap;

    /// Processes with as many samples each, whose stacks have names of their own of this length.
    fn profile(processes: &[(u32, usize, usize)]) -> Profile {
        let mut builder = ProfileBuilder::new(Meta::default());
        for &(pid, samples, length) in processes {
            let process = builder.process(pid, "work");
            for number in 0..samples {
                let name = format!("{pid}_{number:0length$}");
                let frame = builder.frame(&name, FrameKind::Native, None);
                let location = builder.location(Location {
                    binary: None,
                    address: number as u64,
                    frames: vec![frame],
                });
                let sample = Sample {
                    process,
                    tid: pid,
                    thread: builder.string("work"),
                    cgroup: None,
                    stack: builder.stack(Stack {
                        locations: vec![location],
                        ..Stack::default()
                    }),
                    count: 1,
                    time_ns: 10,
                    bytes: 0,
                    device: None,
                };
                builder.sample(sample);
            }
        }
        builder.losses().add(LossKind::RingDrops, 3);
        let mut profile = builder.finish();
        profile.facts = vec![("own_cpu_ns".to_owned(), 5)];
        profile
    }

    /// The names of the leaves of a part's samples by process; losses; facts.
    type Part = (BTreeMap<u32, Vec<String>>, u64, usize);

    fn parts_of(profile: &Profile, most: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        let written = profile.in_parts(most, |part| {
            let mut by_process = BTreeMap::<_, Vec<String>>::new();
            for sample in &part.samples {
                let leaf: Option<&Frame> = part.stack_frames(sample.stack).last();
                let name = leaf.map_or("", |frame| part.str(frame.name));
                let pid = part
                    .processes
                    .get(sample.process.0 as usize)
                    .map_or(0, |p| p.pid);
                by_process.entry(pid).or_default().push(name.to_owned());
            }
            parts.push((
                by_process,
                part.losses.get(LossKind::RingDrops),
                part.facts.len(),
            ));
            Ok::<_, ()>(())
        });
        assert_eq!(written, Ok(()));
        parts
    }

    #[test]
    fn a_process_with_endless_names_takes_no_other_along() {
        let profile = profile(&[(1, 50, 20), (2, 40, 1000), (3, 60, 20), (4, 10, 20)]);
        let whole = parts_of(&profile, usize::MAX);
        let [(all, 3, 1)] = &whole[..] else {
            panic!("{whole:?}");
        };
        let parts = parts_of(&profile, 15_000);
        let pids = |(of, _, _): &Part| of.keys().copied().collect::<Vec<_>>();
        assert_eq!(
            parts.iter().map(pids).collect::<Vec<_>>(),
            [vec![1], vec![2], vec![3], vec![4]]
        );
        let parts = parts_of(&profile, 40_000);
        assert_eq!(
            parts.iter().map(pids).collect::<Vec<_>>(),
            [vec![1], vec![2], vec![3, 4]]
        );
        // Nothing is lost, and nothing counts twice.
        let mut together = BTreeMap::new();
        for (part, _, _) in &parts {
            together.extend(part.clone());
        }
        assert_eq!(&together, all);
        let counted: Vec<_> = parts
            .iter()
            .map(|(_, lost, facts)| (*lost, *facts))
            .collect();
        assert_eq!(counted, [(3, 1), (0, 0), (0, 0)]);
    }

    #[test]
    fn what_is_small_and_what_is_one_process_is_one_part() {
        assert_eq!(
            parts_of(&profile(&[(1, 5, 20), (2, 4, 20)]), 1 << 20).len(),
            1
        );
        assert_eq!(parts_of(&profile(&[(1, 50, 2000)]), 1000).len(), 1);
        assert_eq!(parts_of(&profile(&[]), 0).len(), 1);
    }

    #[test]
    fn an_error_keeps_no_other_part_back() {
        let profile = profile(&[(1, 5, 2000), (2, 5, 2000)]);
        let mut called = 0;
        let written = profile.in_parts(1000, |_| {
            called += 1;
            Err(called)
        });
        assert_eq!((written, called), (Err(1), 2));
    }
}
