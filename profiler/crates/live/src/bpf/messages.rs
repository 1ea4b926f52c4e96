//! Messages of libbpf, for the log and for error messages.

use libbpf_rs::{PrintLevel, set_print};
use std::cell::RefCell;

/// Most bytes of one message that are kept. The verifier's log can have megabytes, and
/// shows at its end what is wrong. The log gets the whole message.
const ONE: usize = 4 << 10;
/// How many of these bytes are from the beginning of the message.
const HEAD: usize = 512;
/// Most bytes kept of all messages.
const ALL: usize = 16 << 10;

thread_local! {
    static KEPT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `action` and gives its result and the warnings that libbpf had
/// meanwhile, the verifier's log among them.
pub(super) fn with_warnings<T>(action: impl FnOnce() -> T) -> (T, String) {
    let level = if tracing::enabled!(tracing::Level::DEBUG) {
        PrintLevel::Debug
    } else {
        PrintLevel::Warn
    };
    // libbpf's default is to write to stderr.
    set_print(Some((level, on_message)));
    KEPT.take();
    let result = action();
    (result, KEPT.take())
}

fn on_message(level: PrintLevel, text: String) {
    let text = text.trim_end();
    tracing::debug!(target: "libbpf", "{text}");
    if level == PrintLevel::Warn {
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < ALL {
                kept.push('\n');
                kept.push_str(&shortened(text));
            }
        });
    }
}

/// At most about [`ONE`] bytes of a text, its middle left out.
fn shortened(text: &str) -> String {
    if text.len() <= ONE {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(HEAD);
    let tail = text.ceil_char_boundary(text.len() - (ONE - HEAD));
    let (begin, end) = (&text[..head], &text[tail..]);
    format!("{begin}\n[... {} bytes ...]\n{end}", tail - head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_the_action_are_kept_and_no_others() {
        let (value, text) = with_warnings(|| {
            on_message(PrintLevel::Warn, "first\n".into());
            on_message(PrintLevel::Debug, "chatter\n".into());
            on_message(PrintLevel::Warn, "second\n".into());
            7
        });
        assert_eq!((value, text.as_str()), (7, "\nfirst\nsecond"));
        assert_eq!(with_warnings(|| ()).1, "");
    }

    #[test]
    fn long_logs_keep_both_ends_and_stay_bounded() {
        let log = format!("begin{}end", "ä".repeat(1 << 20));
        let short = shortened(&log);
        assert!(short.len() < ONE + 100, "{}", short.len());
        assert!(short.starts_with("begin") && short.ends_with("end"));
        let (_, text) = with_warnings(|| {
            for _ in 0..100 {
                on_message(PrintLevel::Warn, log.clone());
            }
        });
        assert!(text.len() < ALL + ONE + 200, "{}", text.len());
    }
}
