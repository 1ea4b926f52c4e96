//! `aiprof-query`: asks a lake of profiles.
//!
//! ```text
//! aiprof-query top --lake s3://profiles --service shop --from -1h
//! aiprof-query flame --lake /var/lib/lake --service shop -o shop.svg
//! aiprof-query diff --lake /var/lib/lake --before yesterday --after today
//! aiprof-query regressions --lake s3://profiles --from -7d
//! aiprof-query sql --lake /var/lib/lake "SELECT host, sum(value) FROM profiles GROUP BY host"
//! ```
//!
//! Data goes to stdout or to files, all else to stderr. Exit codes: 0 it is done, 1 it is not,
//! 2 the command line is wrong.

mod diff;
mod flame;
mod open;
mod output;
mod regressions;
mod select;
mod shares;
mod sql;
mod statistics;
mod top;

use clap::{Args, Parser, Subcommand};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

/// Query and compact a lake of profiles
#[derive(Debug, Parser)]
#[command(name = "aiprof-query", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: QueryCommand,
}

#[derive(Debug, Subcommand)]
enum QueryCommand {
    /// List the functions, services, hosts or labels with the largest values
    Top(top::TopArgs),
    /// Write a flame graph, folded stacks or a pprof file
    Flame(flame::FlameArgs),
    /// Compare two times, versions or hosts, with 95 % confidence intervals
    Diff(diff::DiffArgs),
    /// Find regressions: compare each version of each service with the one before
    Regressions(regressions::RegressionsArgs),
    /// Run an SQL query on the table `profiles`
    Sql(sql::SqlArgs),
    /// List the valid Parquet files of the lake, for other programs
    Files(sql::FilesArgs),
    /// Merge the small files of a lake, and optionally delete old days
    Compact(sql::CompactArgs),
}

/// Where a lake is.
#[derive(Clone, Debug, Args)]
struct LakeArgs {
    /// The lake: a path, file:///PATH or s3://BUCKET[/PREFIX]
    ///
    /// A directory with pprof files that the agent's output `files` wrote works too, and so does
    /// a single pprof file.
    #[arg(long, value_name = "URL", env = "AIPROF_LAKE")]
    lake: String,

    /// URL of the S3 server, if it is not AWS
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,

    /// Region of the S3 bucket
    #[arg(long)]
    region: Option<String>,

    /// File with S3 keys, like ~/.aws/credentials [default: the environment]
    #[arg(long, value_name = "FILE")]
    credentials_file: Option<PathBuf>,

    /// File with trusted certificates, in PEM [default: the system's certificates]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,

    /// Memory limit of a query, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = memory)]
    memory: usize,
}

/// MiB of a query.
fn memory(text: &str) -> Result<usize, String> {
    let mib: usize = text
        .parse()
        .map_err(|_| "must be a whole number".to_owned())?;
    match (64..=1 << 24).contains(&mib) {
        true => Ok(mib),
        false => Err("must be 64 to 16777216".to_owned()),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Err(error) => Err(anyhow::Error::from(error)),
        // Files of others are read: what a reader did not expect is no reason to look broken.
        Ok(runtime) => {
            let work = || runtime.block_on(run(cli.command));
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                Err(anyhow::anyhow!(
                    "reading failed (see above): a file of the lake may be damaged; \
                     `aiprof-query compact` names it"
                ))
            })
        }
    };
    let Err(error) = done else {
        return ExitCode::SUCCESS;
    };
    let is_closed = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    };
    // Who reads has seen enough.
    if error.chain().any(is_closed) {
        return ExitCode::SUCCESS;
    }
    let is_usage = error.is::<select::UsageError>();
    // Nothing can be done where stderr is closed.
    let _ = writeln!(std::io::stderr(), "aiprof-query: {error:#}");
    match is_usage {
        true => ExitCode::from(2),
        false => ExitCode::FAILURE,
    }
}

async fn run(command: QueryCommand) -> anyhow::Result<()> {
    match command {
        QueryCommand::Top(args) => top::run(args).await,
        QueryCommand::Flame(args) => flame::run(args).await,
        QueryCommand::Diff(args) => diff::run(args).await,
        QueryCommand::Regressions(args) => regressions::run(args).await,
        QueryCommand::Sql(args) => sql::run(args).await,
        QueryCommand::Files(args) => sql::files(args).await,
        QueryCommand::Compact(args) => sql::compact(args).await,
    }
}
