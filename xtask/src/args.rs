//! The little argument parsing that tasks need, without a dependency.

use anyhow::{Context, Result, bail};

/// The arguments of one task, taken out as they are understood; [`Args::end`]
/// refuses what is left.
pub(crate) struct Args {
    rest: Vec<String>,
}

impl Args {
    pub(crate) fn new(args: Vec<String>) -> Self {
        Self { rest: args }
    }

    /// Takes `name` out; whether it was there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.rest.len();
        self.rest.retain(|arg| arg != name);
        self.rest.len() != before
    }

    /// Takes `name VALUE` or `name=VALUE` out.
    pub(crate) fn option(&mut self, name: &str) -> Result<Option<String>> {
        let prefix = format!("{name}=");
        let Some(at) = self
            .rest
            .iter()
            .position(|arg| arg == name || arg.starts_with(&prefix))
        else {
            return Ok(None);
        };
        let arg = self.rest.remove(at);
        if let Some(value) = arg.strip_prefix(&prefix) {
            return Ok(Some(value.to_string()));
        }
        if at == self.rest.len() {
            bail!("{name} needs a value");
        }
        Ok(Some(self.rest.remove(at)))
    }

    /// As [`Args::option`], for a whole number.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<u64>> {
        let Some(text) = self.option(name)? else {
            return Ok(None);
        };
        let number = text
            .parse()
            .with_context(|| format!("{name} {text:?} is no number"))?;
        Ok(Some(number))
    }

    /// Takes the first argument that is no option.
    pub(crate) fn positional(&mut self) -> Option<String> {
        let at = self.rest.iter().position(|arg| !arg.starts_with('-'))?;
        Some(self.rest.remove(at))
    }

    /// Everything after `--`, taken out with it.
    pub(crate) fn after_dashes(&mut self) -> Vec<String> {
        match self.rest.iter().position(|arg| arg == "--") {
            Some(at) => self.rest.split_off(at).split_off(1),
            None => Vec::new(),
        }
    }

    /// Refuses arguments that nothing took.
    pub(crate) fn end(self) -> Result<()> {
        match self.rest.first() {
            Some(arg) => bail!("unexpected argument {arg:?}; see `cargo xtask help`"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Args {
        Args::new(words.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn takes_flags_options_and_the_rest() {
        let mut a = args(&["--check", "--seconds", "7", "wire", "--", "-o", "x"]);
        assert_eq!(a.after_dashes(), ["-o", "x"]);
        assert!(a.flag("--check"));
        assert!(!a.flag("--check"));
        assert_eq!(a.number("--seconds").unwrap(), Some(7));
        assert_eq!(a.positional().as_deref(), Some("wire"));
        assert_eq!(a.positional(), None);
        a.end().unwrap();
    }

    #[test]
    fn takes_values_after_an_equals_sign() {
        let mut a = args(&["--kernel=6.1"]);
        assert_eq!(a.option("--kernel").unwrap().as_deref(), Some("6.1"));
        a.end().unwrap();
    }

    #[test]
    fn refuses_missing_wrong_and_unknown() {
        assert!(args(&["--seconds"]).option("--seconds").is_err());
        assert!(args(&["--seconds", "soon"]).number("--seconds").is_err());
        assert!(args(&["--chek"]).end().is_err());
    }
}
