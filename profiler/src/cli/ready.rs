//! How far a recording is, for those who wait for that: as lines on a descriptor of the
//! caller, and by `aiprof ctl status --wait`.

use super::usage_error;
use aiprof_live::control::{Asked, RecordState};
use aiprof_system::files::lines::CallerLines;
use anyhow::Result;

/// Most requests that wait for a state: others must find a connection.
const MAX_WAITING: usize = 16;

/// What a recording has reached, and who waits for what it has not.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    lines: Option<CallerLines>,
    /// States that are not about processes, in the order of the lines.
    reached: Vec<RecordState>,
    waiting: Vec<(Asked, RecordState)>,
}

impl Readiness {
    /// Nothing reached. `descriptor`: where lines go, from `--ready-fd`.
    ///
    /// # Errors
    /// A usage error: the descriptor cannot be used.
    pub(super) fn new(descriptor: Option<i32>) -> Result<Self> {
        let open = |number| {
            let wrong = |error| usage_error(format!("--ready-fd {number}: {error}"));
            CallerLines::take_over(number).map_err(wrong)
        };
        Ok(Self {
            lines: descriptor.map(open).transpose()?,
            ..Self::default()
        })
    }

    /// Whether each state is printed.
    pub(super) fn prints(&self) -> bool {
        self.lines.is_some()
    }

    /// A state is reached: prints it. Gives who waits for it.
    pub(super) fn reach(&mut self, state: RecordState) -> Vec<Asked> {
        if self.has(state) {
            return Vec::new();
        }
        if !matches!(state, RecordState::Known(_)) {
            self.reached.push(state);
        }
        if let Some(lines) = &mut self.lines {
            lines.write(&state.to_string());
        }
        self.take(|wanted| wanted == state)
    }

    /// Whether a state that is not about a process was reached.
    pub(super) fn has(&self, state: RecordState) -> bool {
        self.reached.contains(&state)
    }

    /// Somebody waits for a state; `is_there`: still. `false`: too many do.
    pub(super) fn wait(
        &mut self,
        asked: Asked,
        state: RecordState,
        is_there: impl Fn(Asked) -> bool,
    ) -> bool {
        self.waiting.retain(|(asked, _)| is_there(*asked));
        let has_room = self.waiting.len() < MAX_WAITING;
        if has_room {
            self.waiting.push((asked, state));
        }
        has_room
    }

    /// Who waits for such a state, and waits no longer.
    pub(super) fn take(&mut self, which: impl Fn(RecordState) -> bool) -> Vec<Asked> {
        let of = |(_, state): &mut (Asked, RecordState)| which(*state);
        let taken = self.waiting.extract_if(.., of);
        taken.map(|(asked, _)| asked).collect()
    }

    /// Prints lines that a slow reader has not taken yet, as many as it takes now.
    pub(super) fn flush(&mut self) {
        if let Some(lines) = &mut self.lines {
            lines.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn each_state_is_printed_once_in_the_order_in_which_it_is_reached() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut ready = Readiness::new(Some(write.as_raw_fd())).unwrap();
        assert!(ready.prints());
        for state in [
            RecordState::Attached,
            RecordState::Sampling,
            RecordState::Known(7),
            RecordState::Sampling,
            RecordState::Known(8),
        ] {
            assert_eq!(ready.reach(state), []);
        }
        assert!(ready.has(RecordState::Attached) && ready.has(RecordState::Sampling));
        drop((ready, write));
        let mut text = String::new();
        std::fs::File::from(read).read_to_string(&mut text).unwrap();
        assert_eq!(text, "attached\nsampling\nknown=7\nknown=8\n");
    }

    #[test]
    fn a_descriptor_that_cannot_be_used_is_wrong_usage() {
        let error = Readiness::new(Some(987_654)).unwrap_err();
        assert_eq!(super::super::exit_code(&error), 2);
        let said = format!("{error:#}");
        assert!(
            said.contains("--ready-fd 987654: descriptor 987654 is not open"),
            "{said}"
        );
        assert!(!Readiness::new(None).unwrap().prints());
    }
}
