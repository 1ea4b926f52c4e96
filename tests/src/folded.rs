//! Reader of folded stacks: `comm;pid;frame;...;frame VALUE` per line.

use anyhow::Context as _;

/// One line of a folded profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Name of the process or thread.
    pub comm: String,
    /// Process id.
    pub pid: u32,
    /// Frames after the pid, root first, suffixes kept; none for a kernel thread
    /// where kernel stacks were not wanted.
    pub frames: Vec<String>,
    /// Samples or microseconds, as recorded.
    pub value: u64,
}

impl Line {
    /// The frames before the first kernel frame.
    #[must_use]
    pub fn user(&self) -> Vec<&str> {
        self.frames
            .iter()
            .map(String::as_str)
            .take_while(|frame| !frame.ends_with("_[k]"))
            .collect()
    }

    /// Whether the sample was taken in the kernel.
    #[must_use]
    pub fn in_kernel(&self) -> bool {
        self.frames.last().is_some_and(|f| f.ends_with("_[k]"))
    }

    /// Whether any frame marks that the stack does not reach its root.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.frames.iter().any(|f| f.starts_with("[stack cut"))
    }

    /// Whether the frames name this function, by its base name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| base(frame) == name)
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (comm, pid, value) = (&self.comm, self.pid, self.value);
        write!(f, "{comm};{pid};{} {value}", self.frames.join(";"))
    }
}

/// A folded profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Its lines, in file order.
    pub lines: Vec<Line>,
}

impl Folded {
    /// Reads folded text.
    ///
    /// # Errors
    /// When a line has no value or no pid, or an empty frame; the line is quoted.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let lines = text
            .lines()
            .map(|line| parse_line(line).with_context(|| format!("folded line {line:?}")))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { lines })
    }

    /// The lines of one process.
    #[must_use]
    pub fn of_pid(&self, pid: u32) -> Self {
        self.filter(|line| line.pid == pid)
    }

    /// The lines of one comm.
    #[must_use]
    pub fn of_comm(&self, comm: &str) -> Self {
        self.filter(|line| line.comm == comm)
    }

    /// The lines that satisfy a condition.
    #[must_use]
    pub fn filter(&self, mut keep: impl FnMut(&Line) -> bool) -> Self {
        let lines = self.lines.iter().filter(|l| keep(l)).cloned().collect();
        Self { lines }
    }

    /// Sum of the values.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.lines.iter().map(|line| line.value).sum()
    }

    /// The heaviest lines, for a failure message. Long stacks are shortened in
    /// the middle, saying by how much.
    #[must_use]
    pub fn excerpt(&self, most: usize) -> String {
        let mut lines: Vec<_> = self.lines.iter().collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.value));
        let rest = lines.len().saturating_sub(most);
        let mut text: String = lines
            .iter()
            .take(most)
            .map(|line| format!("  {}\n", shorten(line)))
            .collect();
        if rest > 0 {
            text.push_str(&format!("  ... and {rest} more stacks\n"));
        }
        text
    }
}

fn shorten(line: &Line) -> String {
    let n = line.frames.len();
    if n <= 24 {
        return line.to_string();
    }
    let mut short = line.clone();
    let middle = format!("<{} frames>", n - 24);
    short.frames.splice(8..n - 16, [middle]);
    short.to_string()
}

fn parse_line(line: &str) -> anyhow::Result<Line> {
    let (stack, value) = line.rsplit_once(' ').context("no value")?;
    let mut fields = stack.split(';');
    let comm = fields.next().context("no comm")?;
    let pid = fields.next().context("no pid")?;
    let frames: Vec<String> = fields.map(str::to_owned).collect();
    anyhow::ensure!(frames.iter().all(|f| !f.is_empty()), "an empty frame");
    Ok(Line {
        comm: comm.to_owned(),
        pid: pid.parse().context("pid is no number")?,
        frames,
        value: value.parse().context("value is no number")?,
    })
}

/// A frame's function name without kind suffix (`_[i]`), parameter list and
/// symbol version: what a workload's source calls it.
#[must_use]
pub fn base(frame: &str) -> &str {
    let name = match frame.rfind("_[") {
        Some(at) if frame.ends_with(']') => &frame[..at],
        _ => frame,
    };
    let name = name.split('(').next().unwrap_or(name);
    match name.find("@GLIBC").or_else(|| name.find("@@")) {
        Some(at) => name[..at].trim_end_matches('@'),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line() {
        let text = "my prog;42;_start;main;f(int, char)_[i];do_syscall_64_[k] 1200\n";
        let folded = Folded::parse(text).unwrap();
        let line = &folded.lines[0];
        assert_eq!(line.comm, "my prog");
        assert_eq!(line.pid, 42);
        assert_eq!(line.user(), ["_start", "main", "f(int, char)_[i]"]);
        assert!(line.in_kernel());
        assert_eq!(line.value, 1200);
        assert_eq!(line.to_string() + "\n", text);
    }

    #[test]
    fn refuses_what_is_no_folded_line() {
        for bad in ["", "a;1;f", "a;1;f x", "a;f;g 1", "# 7 lost", "a;1;;f 1"] {
            assert!(Folded::parse(&format!("{bad}\n")).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn base_names() {
        for (frame, name) in [
            ("main", "main"),
            ("deep(int)", "deep"),
            ("inner_[i]", "inner"),
            ("f(int)_[i]", "f"),
            ("vfs_read_[k]", "vfs_read"),
            ("__libc_start_main@@GLIBC_2.34", "__libc_start_main"),
            ("plt_a@plt", "plt_a@plt"),
            ("memcpy@GLIBC_2.2.5", "memcpy"),
            ("[no symbols libfoo.so]", "[no symbols libfoo.so]"),
        ] {
            assert_eq!(base(frame), name, "{frame}");
        }
    }

    #[test]
    fn cut_stacks_are_seen() {
        let folded = Folded::parse("a;1;[stack cut: too deep];f;g 3\na;1;_start;g 4\n").unwrap();
        let cut: Vec<_> = folded.lines.iter().map(Line::is_cut).collect();
        assert_eq!(cut, [true, false]);
        assert_eq!(folded.total(), 7);
        assert!(folded.excerpt(1).contains("and 1 more"));
    }
}
