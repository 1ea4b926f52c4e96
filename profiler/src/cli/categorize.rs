//! `aiprof categorize`: what unitrace's `categorize.py` does, with its options.

use super::output::OutputFile;
use aiprof_formats::import::categories;
use aiprof_tables::categories::Categories;
use anyhow::{Context as _, Result};
use clap::{Args, ValueHint};
use std::io::Write as _;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Example:
  aiprof categorize --ini LLaMA.ini --json LLaMA.json
  aiprof analyze rank*.json --table categories --categories LLaMA.json

`aiprof analyze` reads the INI file too. The file has sections, with names below them:
  [matmul if starts with]     or: if ends with, if equals to
  gemm
A rule that equals the name of a kernel comes first, then the longest rule that the name begins
with, then the longest that it ends with. # begins a comment; write \\# for a name that begins
with #.";

/// Options of `aiprof categorize`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CategorizeArgs {
    /// INI file of categories: sections with the names of kernels
    #[arg(long, visible_alias = "input", value_name = "FILE", value_hint = ValueHint::FilePath)]
    ini: PathBuf,

    /// JSON file to write, for unitrace's summary.py
    #[arg(long, visible_alias = "output", value_name = "FILE", value_hint = ValueHint::AnyPath)]
    json: PathBuf,

    /// Ignore spaces in names (the default)
    #[arg(long, hide = true, overrides_with = "no_remove_spaces")]
    remove_spaces: bool,

    /// Do not ignore spaces in names
    #[arg(long)]
    no_remove_spaces: bool,
}

/// Converts the file.
///
/// # Errors
/// It cannot be read, or the other not be written.
pub(crate) fn run(args: &CategorizeArgs) -> Result<()> {
    let shown = args.ini.display();
    let rules = categories::load_ini(&args.ini, !args.no_remove_spaces)
        .with_context(|| format!("cannot read {shown}"))?;
    if rules.lost > 0 {
        tracing::warn!(
            "{shown}: left out {} rules that are empty or exceed the limits (262,144 rules, 64 MiB of names)",
            rules.lost
        );
    }
    let json = rules.to_json().with_context(|| format!("{shown}"))?;
    let mut file = OutputFile::create(&args.json)?;
    serde_json::to_writer(&mut file, &json)?;
    writeln!(file)?;
    file.commit()
}

/// The user's categories.
///
/// # Errors
/// The file cannot be read.
pub(super) fn categories_of(path: Option<&Path>) -> Result<Option<Categories>> {
    let read = |path: &Path| {
        let shown = path.display();
        categories::load(path).with_context(|| format!("cannot read {shown}"))
    };
    path.map(read).transpose()
}
