//! `-t`: lines of what devices did, as soon as it is known.

use super::settings::Settings;
use super::written::backends;
use aiprof_model::json::Object;
use aiprof_model::profile::{Losses, Meta};
use aiprof_model::timeline::recorded::{EventSink, Recorded};
use aiprof_model::timeline::{Event, Id, Members, Timeline, Track};
use aiprof_model::visible;
use aiprof_model::wire;
use aiprof_record::aggregate::NoNames;
use aiprof_record::timeline::{CommandDetail, Replay};
use aiprof_tables::unitrace::{Scope, lines};
use std::io::{self, Write as _};

/// Keeps the commands of devices until they are printed.
#[derive(Debug, Default)]
struct HeldCommands(Vec<(Event, Vec<u8>)>);

impl EventSink for HeldCommands {
    fn event(&mut self, event: &Event, _: u32, args: Members<'_>) -> io::Result<()> {
        if event.is_slice() && args.find("append_us").is_some() {
            self.0.push((*event, args.bytes().to_vec()));
        }
        Ok(())
    }
}

/// Prints lines while COMMAND runs.
pub(super) struct LiveLines {
    replay: Replay<HeldCommands>,
    scope: Scope,
    /// Nothing can be written any more.
    has_failed: bool,
}

impl LiveLines {
    pub(super) fn new(settings: &Settings) -> Self {
        let detail = CommandDetail {
            barriers: true,
            each: true,
        };
        Self {
            replay: Replay::new(0, false, HeldCommands::default()).with_commands(detail),
            scope: Scope {
                backends: backends(settings),
                commands: settings.commands.clone(),
                ..Scope::default()
            },
            has_failed: false,
        }
    }

    /// Takes an event in; prints what it reveals.
    pub(super) fn event(&mut self, event: &wire::Event) {
        // Samples reveal nothing, and are many.
        if matches!(event, wire::Event::Sample(_)) || self.has_failed {
            return;
        }
        self.has_failed = self.try_event(event).is_err();
    }

    fn try_event(&mut self, event: &wire::Event) -> io::Result<()> {
        self.replay.event(event)?;
        let base_ns = self.replay.origin_ns();
        let (recorded, held) = self.replay.so_far()?;
        match held.0.is_empty() {
            true => Ok(()),
            false => print(recorded, std::mem::take(held), &self.scope, base_ns),
        }
    }

    /// Prints what is left.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(self) -> io::Result<()> {
        let base_ns = self.replay.origin_ns();
        let (recorded, held) = self
            .replay
            .finish(Meta::default(), &Losses::default(), &NoNames)?;
        print(&recorded, held, &self.scope, base_ns)
    }
}

fn print(recorded: &Recorded, held: HeldCommands, scope: &Scope, base_ns: u64) -> io::Result<()> {
    let mut timeline = Timeline::default();
    let track = timeline.tracks.intern(Track::row(Id::NONE, Id::NONE));
    for (event, args) in held.0 {
        let name = timeline.names.intern(recorded.name(event.name));
        let mut new = Event::new(event.ph, name, track, event.start);
        new.length = event.length;
        new.cat = timeline.names.intern(recorded.name(event.cat));
        new.quality = event.quality;
        let args = Object::of(Members::of(&args));
        // Without the brace that it begins with.
        new.args = timeline.texts.add(args.members());
        timeline.events.push(new);
    }
    let mut stderr = io::stderr().lock();
    for line in lines::lines(&timeline, scope, base_ns) {
        writeln!(stderr, "{}", visible::one_line(&line))?;
    }
    Ok(())
}
