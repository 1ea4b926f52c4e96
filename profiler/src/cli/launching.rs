//! How COMMAND is started: with which variables, and which helpers in it.

use super::record::RecordingPlan;
use super::screen;
use aiprof_live::launch::{Held, Helpers, LaunchError, LaunchOptions, RefusedHelper};
use aiprof_live::signals::BlockedSignals;
use aiprof_live::timing as device_timing;
use aiprof_record::aiu::timing;
use anyhow::Result;
use std::ffi::OsString;
use std::path::Path;

/// How COMMAND is started.
///
/// # Errors
/// The helper for device times has no place.
pub(super) fn options(plan: &RecordingPlan, signals: &BlockedSignals) -> Result<LaunchOptions> {
    Ok(LaunchOptions {
        as_user: plan.as_user.clone(),
        stdout_to_stderr: plan.destination.uses_stdout(),
        mask: Some(signals.original_mask()),
        environment: match plan.aiu_timing {
            true => timing::environment(),
            false => Vec::new(),
        },
        helpers: helpers(plan)?,
    })
}

fn helpers(plan: &RecordingPlan) -> Result<Helpers> {
    let mut helpers = Helpers::default();
    if plan.device_timing {
        if let Some(name) = device_timing::in_the_way() {
            screen::say(&format!(
                "aiprof: {name} is already set, so COMMAND does not load the helper: CUDA devices \
                 are not timed"
            ));
        }
        for driver in device_timing::drivers_left_out() {
            screen::say(&format!(
                "aiprof: the driver {} is not timed: ZE_ENABLE_ALT_DRIVERS does not contain its \
                 absolute path, or another driver with the same name is found first",
                driver.display()
            ));
        }
        helpers = device_timing::helpers()?;
    }
    if plan.ranges {
        for (name, whose) in device_timing::in_the_way_of_ranges() {
            screen::say(&format!(
                "aiprof: {name} is already set, so COMMAND does not load the helper: ranges of \
                 {whose} are not recorded"
            ));
        }
        let more = device_timing::range_helpers()?;
        helpers.files.extend(more.files);
        helpers.added.extend(more.added);
    }
    Ok(helpers)
}

/// Forks COMMAND and holds it; prints why it runs without helpers, if it does.
///
/// # Errors
/// As [`Held::fork`].
pub(super) fn hold(command: &[OsString], options: &LaunchOptions) -> Result<Held, LaunchError> {
    let held = Held::fork(command, options)?;
    if let Some(refused) = held.refused() {
        screen::say(&without(refused));
    }
    Ok(held)
}

fn without(refused: &RefusedHelper) -> String {
    let path = refused.path.display();
    let folder = refused.path.parent().unwrap_or(Path::new("/")).display();
    let advice = match refused.source.raw_os_error() {
        Some(libc::EACCES) => {
            format!(
                ": allow COMMAND's user to read the file, and to enter {folder} and the \
                 directories above it"
            )
        }
        Some(libc::EPERM) => {
            format!(": {folder} must be on a file system that is not mounted noexec")
        }
        _ => String::new(),
    };
    format!(
        "aiprof: COMMAND runs without the helper {path}, which it cannot load ({}): device \
         times and ranges are missing{advice}",
        refused.source
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_named_with_what_to_do() {
        let line = |errno| {
            without(&RefusedHelper {
                path: "/var/cache/aiprof/x.so".into(),
                source: std::io::Error::from_raw_os_error(errno),
            })
        };
        assert!(line(libc::EACCES).ends_with(
            "device times and ranges are missing: allow COMMAND's user to read the file, and to \
             enter /var/cache/aiprof and the directories above it"
        ));
        assert!(line(libc::EPERM).ends_with("is not mounted noexec"));
        assert!(line(libc::ENOENT).ends_with("ranges are missing"));
    }
}
