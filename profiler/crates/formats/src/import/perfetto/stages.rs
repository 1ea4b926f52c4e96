//! Typed events of GPUs, `GpuRenderStageEvent`: each is work of a device, and no track event.

use super::proto::{Dim3, GpuStage, Packet, TrackDescriptor};
use super::reader::{EventPlace, PacketReader};
use super::sequence::Sequence;
use crate::import::json::Trouble;
use crate::import::json::event::{FieldReader, member};
use aiprof_model::timeline::{Length, Ph, Sym};

/// Numbers of tracks of devices and queues: apart from those of other tracks, which are random.
const TRACKS: u64 = 0x6770_7573_7461_6765;

/// Queues and stages by their place in the list of them, in the older form.
#[derive(Debug, Default)]
pub(super) struct Listed {
    queues: Vec<String>,
    stages: Vec<Sym>,
}

impl PacketReader<'_> {
    /// Adds what a device did, on a row of its queue.
    pub(super) fn stage(
        &mut self,
        packet: &Packet,
        stage: &GpuStage,
        sequence: &Sequence,
        offset: u64,
    ) {
        if let Some(listed) = &stage.specifications {
            let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
            self.listed.queues = listed.queues.iter().map(|one| text(&one.name)).collect();
            let names = &mut self.parsed.names;
            let stages = listed.stages.iter();
            self.listed.stages = stages.map(|one| names.intern(&text(&one.name))).collect();
        }
        if stage.specifications.is_some() && stage.event_id == 0 && stage.duration.is_none() {
            // Nothing but the lists.
            return;
        }
        let Some(ns) = self.packet_time(packet, sequence) else {
            return self.trouble(Trouble::UnknownClock, offset);
        };
        if self.is_full() {
            return;
        }
        let track = self.queue(stage, sequence);
        let place = EventPlace {
            offset,
            row: self.row(track),
            track,
            ns,
        };
        let name = self.stage_name(stage, sequence).unwrap_or_else(|| {
            self.trouble(Trouble::Unresolved, offset);
            Sym::EMPTY
        });
        let ph = match stage.duration {
            Some(_) => Ph::Complete,
            None => Ph::Instant,
        };
        let mut event = self.new_event(ph, name, place);
        let length = stage.duration.unwrap_or(0);
        event.length = Length::from_nanos(i64::try_from(length).unwrap_or(i64::MAX));
        let small = self.parsed.names.get(name).to_ascii_lowercase();
        let is_copy = ["memcpy", "memset"].iter().any(|part| small.contains(part));
        let cat = if is_copy { "gpu_memcpy" } else { "kernel" };
        event.cat = self.parsed.names.intern(cat);
        let start = self.parsed.text.len();
        if let Some(launch) = &stage.launch {
            for (key, size) in [("grid", launch.grid), ("block", launch.workgroup)] {
                if let Some(Dim3 { x, y, z }) = size {
                    member(&mut self.parsed.text, key, &format!("[{x},{y},{z}]"));
                }
            }
        }
        if let Some(submission) = stage.submission_id {
            member(
                &mut self.parsed.text,
                "submission_id",
                &submission.to_string(),
            );
        }
        let mut common = FieldReader {
            origin: 0,
            offset,
            parsed: &mut self.parsed,
        };
        event.args = common.argument_text(start);
        self.parsed.events.push(event);
    }

    /// The track of an event's queue, which its device's is around.
    fn queue(&mut self, stage: &GpuStage, sequence: &Sequence) -> u64 {
        let device = TRACKS ^ u64::from(stage.gpu_id.cast_unsigned()) << 32;
        let number = stage
            .hw_queue_iid
            .unwrap_or_else(|| u64::from(stage.hw_queue_id.cast_unsigned()));
        let spec = stage.hw_queue_iid.and_then(|iid| sequence.stages.get(&iid));
        let listed = || {
            self.listed
                .queues
                .get(usize::try_from(stage.hw_queue_id).ok()?)
        };
        let name = match spec {
            Some(name) => self.parsed.names.get(*name).to_owned(),
            None => listed()
                .cloned()
                .unwrap_or_else(|| format!("queue {number}")),
        };
        let queue = (device ^ number.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let tracks = [
            (device, 0, format!("GPU {}", stage.gpu_id)),
            (queue, device, name),
        ];
        for (uuid, parent_uuid, name) in tracks {
            self.tracks.describe(TrackDescriptor {
                uuid,
                parent_uuid,
                name: name.into_bytes(),
                ..TrackDescriptor::default()
            });
        }
        queue
    }

    /// The event's own name, or that of its stage.
    fn stage_name(&mut self, stage: &GpuStage, sequence: &Sequence) -> Option<Sym> {
        if let Some(name) = &stage.name {
            return Some(self.parsed.names.intern(&String::from_utf8_lossy(name)));
        }
        let own = stage.name_iid.and_then(|iid| sequence.names.get(&iid));
        let spec = || stage.stage_iid.and_then(|iid| sequence.stages.get(&iid));
        let listed = || {
            self.listed
                .stages
                .get(usize::try_from(stage.stage_id).ok()?)
        };
        own.or_else(spec).or_else(listed).copied()
    }
}
