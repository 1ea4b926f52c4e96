//! Which device kernels a profile is of, by their names: unitrace's rules.
//!
//! A name is wanted if it contains one of the texts to include, or if there are none, and if it
//! contains none of the texts to exclude. Upper and lower case differ. Copies and fills go by the
//! names that profiles have for them.

use aiprof_model::profile::{FrameKind, Profile, Sample, StrId, Values};
use rustc_hash::{FxHashMap, FxHashSet};

/// Texts in names of kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameTexts(Vec<String>);

impl NameTexts {
    /// Parses a list with commas. Double quotes are around texts with commas, `\"` is a
    /// quote that means itself.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut names = vec![String::new()];
        let mut is_quoted = false;
        let mut rest = list.chars().peekable();
        while let Some(c) = rest.next() {
            match (c, names.last_mut()) {
                ('\\', Some(name)) if rest.next_if_eq(&'"').is_some() => name.push('"'),
                ('"', _) => is_quoted = !is_quoted,
                (',', _) if !is_quoted => names.push(String::new()),
                (c, Some(name)) => name.push(c),
                (_, None) => {}
            }
        }
        if is_quoted {
            return Err("a double quote is not closed; write \\\" for a literal quote".to_owned());
        }
        let trimmed = names.iter().map(|name| name.trim().to_owned());
        let names: Vec<String> = trimmed.filter(|name| !name.is_empty()).collect();
        match names.is_empty() {
            true => Err("expected kernel names, such as gemm,softmax".to_owned()),
            false => Ok(Self(names)),
        }
    }

    fn are_in(&self, kernel: &str) -> bool {
        self.0.iter().any(|name| kernel.contains(name.as_str()))
    }
}

/// Which kernels are wanted; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelChoice {
    /// A name must contain one of these; empty: any.
    include: NameTexts,
    /// A name must contain none of these.
    exclude: NameTexts,
}

/// What a profile lost by a choice of kernels.
#[derive(Debug, Default)]
pub struct KernelsLeftOut {
    /// Launches, or samples of devices.
    pub count: u64,
    /// Names of the kernels.
    pub kernels: FxHashSet<String>,
    /// Whether nothing that devices did is left.
    pub none_left: bool,
}

impl KernelChoice {
    /// From lists of names.
    pub fn new(include: &[NameTexts], exclude: &[NameTexts]) -> Self {
        let all =
            |lists: &[NameTexts]| NameTexts(lists.iter().flat_map(|list| list.0.clone()).collect());
        Self {
            include: all(include),
            exclude: all(exclude),
        }
    }

    /// Whether all kernels are wanted.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a kernel is wanted; `None`: its name is not known.
    fn wants(&self, kernel: Option<&str>) -> bool {
        let is_included =
            self.include.0.is_empty() || kernel.is_some_and(|k| self.include.are_in(k));
        is_included && !kernel.is_some_and(|kernel| self.exclude.are_in(kernel))
    }

    /// What is wanted, in words.
    fn describe(&self) -> String {
        let quoted = |names: &NameTexts| {
            let quoted: Vec<String> = names.0.iter().map(|name| format!("{name:?}")).collect();
            quoted.join(" or ")
        };
        let mut parts = Vec::new();
        if !self.include.0.is_empty() {
            parts.push(format!("with {}", quoted(&self.include)));
        }
        if !self.exclude.0.is_empty() {
            parts.push(format!("without {}", quoted(&self.exclude)));
        }
        format!("kernels {} in their names", parts.join(" and "))
    }

    /// Leaves out of a profile the launches and device samples of other kernels, and notes it in
    /// its scope. Samples of CPUs, and calls that launch nothing, stay.
    pub fn keep(&self, profile: &mut Profile) -> KernelsLeftOut {
        let mut out = KernelsLeftOut::default();
        if self.is_all() {
            return out;
        }
        let samples = std::mem::take(&mut profile.samples);
        let mut launched = FxHashMap::default();
        let mut kept = Vec::with_capacity(samples.len());
        let mut has_work = false;
        for sample in samples {
            let Some(kernel) = kernel_of(profile, &sample, &mut launched) else {
                kept.push(sample);
                continue;
            };
            let name = kernel.map(|kernel| profile.str(kernel));
            if self.wants(name) {
                has_work = true;
                kept.push(sample);
            } else {
                out.count = out.count.saturating_add(sample.count);
                out.kernels.extend(name.map(str::to_owned));
            }
        }
        profile.samples = kept;
        out.none_left = !has_work;
        let what = self.describe();
        let scope = &mut profile.meta.scope;
        *scope = match scope.is_empty() {
            true => format!("whole machine, {what}"),
            false => format!("{scope}, {what}"),
        };
        out
    }
}

/// The kernel that a sample is of, if its name is known; the outer `None`: it is of no work
/// of a device. `launched`: what was found already, by stack.
fn kernel_of(
    profile: &Profile,
    sample: &Sample,
    launched: &mut FxHashMap<u32, Option<StrId>>,
) -> Option<Option<StrId>> {
    if let Some(device) = sample.device {
        return Some(device.code.map(|code| code.kernel));
    }
    if profile.values != Values::Launches {
        return None;
    }
    let stack = sample.stack;
    let found = launched.entry(stack.0).or_insert_with(|| {
        let last = profile.stack_frames(stack).last();
        last.filter(|frame| frame.kind == FrameKind::DeviceSoftware)
            .map(|frame| frame.name)
    });
    found.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::profile::{
        Device, DeviceCode, DeviceSample, Location, Meta, Method, ProfileBuilder, Stack,
    };

    fn choice(include: &[&str], exclude: &[&str]) -> KernelChoice {
        let lists = |lists: &[&str]| {
            let lists = lists.iter().map(|list| NameTexts::parse(list).unwrap());
            lists.collect::<Vec<_>>()
        };
        KernelChoice::new(&lists(include), &lists(exclude))
    }

    #[test]
    fn lists_have_commas_quotes_and_escapes() {
        for (list, names) in [
            ("gemm", &["gemm"][..]),
            ("gemm, softmax,,", &["gemm", "softmax"]),
            (r#""gemm<float, 4>",relu"#, &["gemm<float, 4>", "relu"]),
            (r#"a\"b,c\d"#, &["a\"b", r"c\d"]),
        ] {
            assert_eq!(NameTexts::parse(list).unwrap().0, names, "{list}");
        }
        for bad in ["", " , ", "\"a", "\"\""] {
            assert!(NameTexts::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn included_first_then_excluded_case_counts() {
        let both = choice(&["gemm,conv"], &["bf16"]);
        for (kernel, wanted) in [
            (Some("my_gemm_f32"), true),
            (Some("conv2d"), true),
            (Some("GEMM"), false),
            (Some("gemm_bf16"), false),
            (Some("copy"), false),
            (None, false),
        ] {
            assert_eq!(both.wants(kernel), wanted, "{kernel:?}");
        }
        let excluded = choice(&[], &["copy"]);
        assert!(excluded.wants(None) && excluded.wants(Some("gemm")));
        assert!(!excluded.wants(Some("memory copy")));
        assert_eq!(
            both.describe(),
            "kernels with \"gemm\" or \"conv\" and without \"bf16\" in their names"
        );
    }

    /// A profile of a kernel each, and of what is no work of a device.
    fn profile(values: Values) -> Profile {
        let mut builder = ProfileBuilder::new(Meta::default());
        builder.of(values);
        let process = builder.process(7, "train");
        let device = builder.device(Device::default());
        let is_launches = values == Values::Launches;
        for name in ["gemm", "relu", "main"] {
            let is_work = name != "main";
            let kernel = builder.string(name);
            let kind = match is_work && is_launches {
                true => FrameKind::DeviceSoftware,
                false => FrameKind::Native,
            };
            let frame = builder.frame(name, kind, None);
            let location = builder.location(Location {
                binary: None,
                address: 0,
                frames: vec![frame],
            });
            let stack = builder.stack(Stack {
                locations: vec![location],
                complete: true,
                driver: 0,
            });
            let of_device = DeviceSample {
                device,
                reason: None,
                code: Some(DeviceCode { kernel, offset: 0 }),
                method: Method::Sole,
                certain: 1,
                possible: 1,
            };
            builder.sample(Sample {
                process,
                tid: 7,
                thread: kernel,
                cgroup: None,
                stack,
                count: 3,
                time_ns: 1,
                bytes: 0,
                device: (is_work && !is_launches).then_some(of_device),
            });
        }
        builder.finish()
    }

    #[test]
    fn only_work_of_devices_is_left_out_and_counted() {
        for values in [Values::Launches, Values::CpuTime] {
            let mut kept = profile(values);
            let out = choice(&["gem"], &[]).keep(&mut kept);
            assert_eq!((out.count, out.none_left), (3, false), "{values:?}");
            assert!(out.kernels.contains("relu") && out.kernels.len() == 1);
            assert_eq!(kept.total_count(), 6);
            assert_eq!(
                kept.meta.scope,
                "whole machine, kernels with \"gem\" in their names"
            );
            let mut none = profile(values);
            none.meta.scope = "process 7".to_owned();
            assert!(choice(&["x"], &[]).keep(&mut none).none_left);
            assert_eq!(none.total_count(), 3);
            assert!(none.meta.scope.starts_with("process 7, kernels"));
            let mut all = profile(values);
            assert_eq!(KernelChoice::default().keep(&mut all).count, 0);
            assert_eq!(all, profile(values));
        }
    }
}
