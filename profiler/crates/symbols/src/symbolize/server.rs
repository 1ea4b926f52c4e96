//! The process that reads other users' files for names.

use super::job::SymbolizeJob;
use super::jobs::Jobs;
use super::options::SymbolizeOptions;
use aiprof_system::{
    files::others,
    os::{privileges, scheduling::take_turns},
    remote::Line,
};

/// Names addresses until the line is closed. First come the options, then jobs, each
/// with the place of its file.
pub fn serve(line: &Line) {
    take_turns();
    if let Err(error) = privileges::drop_to(privileges::READING) {
        tracing::debug!("{error}");
    }
    let Ok((options, _)) = line.receive::<SymbolizeOptions>() else {
        return;
    };
    let mut jobs = Jobs::new(options);
    line.serve(|job: SymbolizeJob, places| {
        let place = places.into_iter().next();
        let file = place.and_then(|place| others::reopen(place).ok());
        let (answer, opened) = jobs.run(&job, file.as_ref());
        let opened = opened.and_then(|file| others::place_of(file).ok());
        (answer, opened.into_iter().collect())
    });
}
