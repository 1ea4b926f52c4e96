//! Labels of samples.

use super::{Profile, Sample, StrId};
use crate::labels::{self, CgroupLabels, pod_name};
use std::borrow::Cow;

impl Profile {
    /// The value of a label of a sample: of its device, of its control group's path, of its
    /// process, or of the whole recording.
    pub fn label(&self, sample: &Sample, key: &str) -> Option<Cow<'_, str>> {
        let device = sample.device.filter(|_| key == labels::DEVICE);
        if let Some(device) = device {
            let device = self.devices.get(device.device.0 as usize);
            return device.map(|device| Cow::Borrowed(device.whole()));
        }
        let cgroup = sample.cgroup.map_or("", |id| self.str(id));
        let found = CgroupLabels::of(cgroup);
        let of_path = match key {
            labels::CONTAINER => found.container.map(Cow::Borrowed),
            labels::POD => found.pod.map(pod_name),
            labels::UNIT => found.unit.map(Cow::Borrowed),
            _ => None,
        };
        let process = self.processes.get(sample.process.0 as usize);
        let of_process = || self.find(process.map_or(&[], |process| &process.labels), key);
        let all = || self.find(&self.labels, key);
        of_path.or_else(|| of_process().or_else(all).map(Cow::Borrowed))
    }

    /// All labels of a sample that are shown, in the order of their keys; not the device of
    /// a device's sample, which is part of it.
    pub fn shown_labels(&self, sample: &Sample) -> Vec<(&str, Cow<'_, str>)> {
        let process = self.processes.get(sample.process.0 as usize);
        let recorded = process.map_or(&[][..], |process| &process.labels);
        let recorded = recorded.iter().chain(&self.labels);
        let keys = recorded.map(|(key, _)| self.str(*key));
        let mut keys: Vec<&str> = keys
            .chain([labels::CONTAINER, labels::POD, labels::UNIT])
            .filter(|key| *key != labels::UID)
            .filter(|key| sample.device.is_none() || *key != labels::DEVICE)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let value = |key| Some((key, self.label(sample, key)?));
        keys.into_iter().filter_map(value).collect()
    }

    fn find(&self, labels: &[(StrId, StrId)], key: &str) -> Option<&str> {
        let found = labels.iter().find(|(known, _)| self.str(*known) == key);
        found.map(|(_, value)| self.str(*value))
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::{
        Device, DeviceId, DeviceSample, Meta, Method, ProfileBuilder, Sample, Stack,
    };
    use std::borrow::Cow;

    #[test]
    fn labels_come_from_the_control_group_the_process_and_the_recording() {
        let mut builder = ProfileBuilder::new(Meta::default());
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let own = [
            label("device", "several"),
            label("rank", "3"),
            label("uid", "0"),
            label("unit", "old.service"),
        ];
        let process = builder.labelled_process(7, "python3", &own);
        builder.labels(&[label("job", "llm")]);
        builder.device(Device {
            name: "xe 0000:03:00.0 GT1".to_owned(),
            replayed: false,
        });
        let uid = "2f0a7dd4_6a7e_4dd1_9c3c_6f3b1c1a2d3e";
        let path = format!(
            "/kubepods.slice/kubepods-pod{uid}.slice/crio-{}.scope",
            "a".repeat(64)
        );
        let sample = Sample {
            process,
            tid: 7,
            thread: builder.string("python3"),
            cgroup: Some(builder.string(&path)),
            stack: builder.stack(Stack::default()),
            count: 1,
            time_ns: 1,
            bytes: 0,
            device: None,
        };
        builder.sample(sample.clone());
        let profile = builder.finish();
        let shown = profile.shown_labels(&sample);
        let shown: Vec<_> = shown.iter().map(|(key, value)| (*key, &**value)).collect();
        let scope = format!("crio-{}.scope", "a".repeat(64));
        let container = "a".repeat(64);
        let pod = uid.replace('_', "-");
        let expected = [
            ("container", container.as_str()),
            ("device", "several"),
            ("job", "llm"),
            ("pod", &pod),
            ("rank", "3"),
            ("unit", &scope),
        ];
        assert_eq!(shown, expected);
        let of_device = Sample {
            device: Some(DeviceSample {
                device: DeviceId(0),
                reason: None,
                code: None,
                method: Method::Sole,
                certain: 1,
                possible: 1,
            }),
            ..sample.clone()
        };
        let device = |sample: &Sample| profile.label(sample, "device").map(Cow::into_owned);
        assert_eq!(device(&of_device).as_deref(), Some("xe 0000:03:00.0"));
        assert_eq!(device(&sample).as_deref(), Some("several"));
        // For a device's sample it is no label of the process.
        let of_device = profile.shown_labels(&of_device);
        assert!(of_device.iter().all(|(key, _)| *key != "device"));
        let elsewhere = Sample {
            cgroup: None,
            ..sample
        };
        assert_eq!(
            profile.label(&elsewhere, "unit").as_deref(),
            Some("old.service")
        );
        assert_eq!(profile.label(&elsewhere, "container"), None);
    }
}
