//! Errors with their causes, in one line.

use std::error::Error;

/// An error with its causes, each printed once: some errors have their cause, or the path that it
/// names, in their own text.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        add(&mut text, &cause.to_string());
        next = cause.source();
    }
    text
}

fn add(text: &mut String, cause: &str) {
    if text.contains(cause) {
        return;
    }
    // A path that the text ends with, and the cause begins with.
    let rest = cause.split_once(": ");
    let rest = rest.filter(|(path, _)| text.ends_with(&format!(" {path}")) || text == path);
    text.push_str(": ");
    text.push_str(rest.map_or(cause, |(_, rest)| rest));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;
    use std::io;

    #[derive(Debug)]
    struct Outer(&'static str, Box<dyn Error>);

    impl fmt::Display for Outer {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str(self.0)
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&*self.1)
        }
    }

    #[test]
    fn what_was_said_is_not_said_again() {
        let denied = || Box::new(io::Error::from_raw_os_error(libc::EACCES));
        let way = || Outer("/h/.cache: Permission denied (os error 13)", denied());
        let expected = "/h/.cache: Permission denied (os error 13)";
        assert_eq!(chain(&way()), expected);
        let outer = Outer("cannot write /h/.cache", Box::new(way()));
        assert_eq!(chain(&outer), format!("cannot write {expected}"));
        let outer = Outer("cannot write x", Box::new(way()));
        assert_eq!(chain(&outer), format!("cannot write x: {expected}"));
        // The end of another path is none.
        let outer = Outer("cannot write /a/h/.cache", Box::new(way()));
        assert_eq!(
            chain(&outer),
            format!("cannot write /a/h/.cache: {expected}")
        );
    }
}
