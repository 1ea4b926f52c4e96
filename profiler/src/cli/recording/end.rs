//! The end of a recording: its result is written, its totals are printed.

use super::RunningRecording;
use super::output::RecordingOutput;
use crate::cli::open_output::OpenOutput;
use crate::cli::profile_out;
use crate::cli::values::{grouped, human_duration, plural};
use crate::cli::{choice, is_broken_pipe};
use aiprof_formats::export::FormatSource;
use aiprof_live::runtime::Tally;
use aiprof_live::session::{AiuUse, Finished, Session};
use aiprof_model::profile::Profile;
use aiprof_model::timeline::recorded::Recorded;
use aiprof_record::aiu::timing;
use aiprof_record::store::Store;
use anyhow::{Context, Result};
use std::path::Path;

impl RunningRecording<'_> {
    /// Leaves out the kernels that are not wanted.
    pub(super) fn keep_kernels(&mut self, profile: &mut Profile) {
        let out = self.plan.kernels.keep(profile);
        self.left_out.count = self.left_out.count.saturating_add(out.count);
        self.left_out.kernels.extend(out.kernels);
        self.left_out.none_left &= out.none_left;
    }

    /// Writes the result and prints the summary; false if windows are missing.
    pub(super) fn conclude(&mut self, mut session: Session, other_ranks: usize) -> Result<bool> {
        let dumps = self.dumps().map(|files| {
            files.end(&mut session);
            (files.written(), files.failures())
        });
        let Finished {
            mut profile,
            usage,
            paused,
            probes,
            aiu,
            device_problems,
            timeline,
            ..
        } = session
            .finish()
            .map_err(|error| self.output.explain(error))?;
        self.keep_kernels(&mut profile);
        self.totals.add(&profile);
        let options = self.plan.export.clone();
        let mut failures = dumps.map_or(0, |(_, failures)| failures);
        let mut notes = Vec::new();
        let format = self.plan.destination.format;
        let shown = profile_out::note_of_processes(&profile, format, &options);
        match std::mem::take(&mut self.output) {
            RecordingOutput::One(out) => {
                notes = self.write(out, &profile, timeline)?;
                if self.plan.destination.is_shown_summary() {
                    self.say(&format!(
                        "for a flame graph: {}",
                        self.flame_graph_command()
                    ));
                }
            }
            RecordingOutput::Taken(taker) => {
                let (recorded, events) = timeline.context("the recording kept no events")?;
                (taker.take)(recorded, events, self.command)?;
            }
            RecordingOutput::Dumps(_) | RecordingOutput::Written => {}
            RecordingOutput::Windows(mut files) => {
                files.write(&profile);
                failures = files.failures();
            }
        }
        let is_shown = self.plan.destination.is_shown_summary();
        let mut lines = self.totals.lines(&usage, is_shown);
        if let (Some((written, _)), Some(first)) = (dumps, lines.first_mut()) {
            // What was added up is what names are wanted of.
            let files = plural(usize::try_from(written).unwrap_or(usize::MAX));
            *first = format!("aiprof: wrote {} window file{files}", grouped(written));
        }
        for line in lines {
            self.say(&line);
        }
        if !paused.is_zero() {
            let paused = human_duration(paused);
            self.say(&format!(
                "  paused for {paused}, excluded from all numbers above"
            ));
        }
        if !self.plan.kernels.is_all() {
            self.say(&format!("  {}", choice::kernels_left_out(&self.left_out)));
        }
        if other_ranks > 0 {
            let (n, s) = (grouped(other_ranks as u64), plural(other_ranks));
            self.say(&format!("  {n} more rank{s} joined this recording"));
        }
        if let Some(line) = probes.and_then(|tally| probe_line(&tally)) {
            self.say(&line);
        }
        if let Some(line) = aiu_line(aiu, !self.plan.command.is_empty(), self.plan.aiu_timing) {
            self.say(&line);
        }
        if let Some(shown) = shown {
            self.say(&format!("  {shown}"));
        }
        for problem in &device_problems {
            self.say(&format!("  device: {problem}"));
        }
        notes.iter().for_each(|note| self.say(note));
        Ok(failures == 0)
    }

    /// Writes the one result; gives a line for each file that was written.
    fn write(
        &mut self,
        out: OpenOutput,
        profile: &Profile,
        timeline: Option<(Recorded, Store)>,
    ) -> Result<Vec<String>> {
        let note = out.note();
        match &out.format.source {
            // The session wrote it.
            FormatSource::Capture => out.file.commit()?,
            FormatSource::Profile(_) => {
                let may_be_left = out.file.is_stdout();
                let written = out.write_profile(profile, &self.plan.export);
                match may_be_left {
                    true => written.or_else(unless_broken_pipe)?,
                    false => written?,
                }
            }
            FormatSource::Timeline(_) | FormatSource::Report(_) | FormatSource::Directory => {
                let (recorded, events) = timeline.context("the recording kept no events")?;
                self.totals.add_losses(&recorded.losses);
                let written = out.write_trace(&recorded, events, Path::new("the recording"));
                let noted = written.map(|(totals, lines)| {
                    self.totals.add_trace(&totals);
                    lines
                });
                return noted.or_else(|error| unless_broken_pipe(error).map(|()| Vec::new()));
            }
        }
        Ok(note.into_iter().collect())
    }

    fn flame_graph_command(&self) -> String {
        match self.plan.config.command.as_str() {
            "" => "sudo aiprof -o flame.svg -d 10".to_owned(),
            command => format!("sudo aiprof -o flame.svg {command}"),
        }
    }
}

/// A reader that has gone wants no more; the command's exit code still counts.
fn unless_broken_pipe(error: anyhow::Error) -> Result<()> {
    if is_broken_pipe(&error) {
        Ok(())
    } else {
        Err(error)
    }
}

/// What of the runtimes was probed; nothing where there are none.
fn probe_line(tally: &Tally) -> Option<String> {
    let Tally {
        files,
        functions,
        refused,
        ..
    } = *tally;
    (files > 0).then(|| {
        let refused = match refused {
            0 => String::new(),
            n => format!(", {} not possible", grouped(n)),
        };
        let (functions, files) = (grouped(functions), grouped(files));
        format!("  probes: {functions} functions in {files} libraries{refused}")
    })
}

/// What is known of AIU devices, if only because they were called.
fn aiu_line(aiu: AiuUse, has_command: bool, asked: bool) -> Option<String> {
    if aiu.launches == 0 || aiu.records > 0 {
        return None;
    }
    let remedy = match (asked, has_command) {
        (true, _) => "the program enabled none, despite --aiu-timing",
        (false, true) => timing::HINT_COMMAND,
        (false, false) => timing::HINT_RUNNING,
    };
    Some(format!(
        "  AIU: no activity records, so device times are only known to lie between launch and \
         wait calls: {remedy}"
    ))
}
