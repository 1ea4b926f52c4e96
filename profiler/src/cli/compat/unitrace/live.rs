//! `-t`: lines of what devices did, as soon as it is known.

use super::settings::UnitraceSettings;
use super::written::backends;
use aiprof_model::json::Object;
use aiprof_model::process::ProcessTable;
use aiprof_model::profile::{Losses, Meta};
use aiprof_model::timeline::recorded::{EventSink, Recorded};
use aiprof_model::timeline::{Event, Id, Members, Timeline, Track};
use aiprof_model::visible;
use aiprof_model::wire;
use aiprof_record::aggregate::NoNames;
use aiprof_record::correlate::Tracked;
use aiprof_record::recording::{Recording, RecordingSink};
use aiprof_record::timeline::{Builder, CommandDetail};
use aiprof_tables::unitrace::{Scope, lines};
use std::cell::RefCell;
use std::io::{self, Write as _};
use std::rc::Rc;

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
    builder: Builder<HeldCommands>,
    scope: Scope,
    /// Nothing can be written any more.
    has_failed: bool,
}

impl LiveLines {
    pub(super) fn new(settings: &UnitraceSettings) -> Self {
        let detail = CommandDetail {
            barriers: true,
            each: true,
        };
        Self {
            builder: Builder::new(0, HeldCommands::default()).with_commands(detail),
            scope: Scope {
                backends: backends(settings),
                commands: settings.commands.clone(),
                ..Scope::default()
            },
            has_failed: false,
        }
    }

    /// Prints what has become known.
    fn print(&mut self) -> io::Result<()> {
        let base_ns = self.builder.origin_ns();
        let (recorded, held) = self.builder.so_far()?;
        match held.0.is_empty() {
            true => Ok(()),
            false => print(recorded, std::mem::take(held), &self.scope, base_ns),
        }
    }

    /// Prints what is left, after the recording has ended.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(self) -> io::Result<()> {
        let base_ns = self.builder.origin_ns();
        let (about, losses) = (Meta::default(), Losses::default());
        let processes = ProcessTable::default();
        let (recorded, held) = self.builder.finish(about, &losses, &NoNames, &processes)?;
        print(&recorded, held, &self.scope, base_ns)
    }
}

/// What the recording gives to the lines.
pub(super) struct Watcher(pub(super) Rc<RefCell<LiveLines>>);

impl RecordingSink for Watcher {
    fn event(&mut self, before: &Recording, event: &wire::Event) -> io::Result<()> {
        let mut lines = self.0.borrow_mut();
        // They are many, and show nothing of devices.
        if !matches!(event, wire::Event::Sample(_)) && !lines.has_failed {
            lines.has_failed = lines.builder.event(before, event).is_err();
        }
        Ok(())
    }

    fn found(&mut self, processes: &ProcessTable, found: &Tracked<'_>) {
        let mut lines = self.0.borrow_mut();
        if !lines.has_failed {
            lines.builder.found(processes, found);
        }
    }

    fn taken(&mut self, event: &wire::Event) {
        let mut lines = self.0.borrow_mut();
        // Samples reveal nothing, and are many.
        if !matches!(event, wire::Event::Sample(_)) && !lines.has_failed {
            lines.has_failed = lines.print().is_err();
        }
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
