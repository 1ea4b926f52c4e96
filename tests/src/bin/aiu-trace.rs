//! Writes AIU traces: large ones for measurements, and those of a seed with their
//! truth, to look at; several ranks are a chain.
//!
//!     aiu-trace flex EVENTS FILE
//!     aiu-trace torch EVENTS FILE
//!     aiu-trace story SEED RANKS JOBS FOLDER

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};

use aiprof_tests::aiu_trace::scenario::Collectives;
use aiprof_tests::aiu_trace::{Flex, Latency, Scenario, Shape, Torch, bulk, compiler};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["flex", events, file] => {
            let (events, mut file) = (events.parse()?, create(file)?);
            bulk::flex(&mut file, events)?;
            Ok(file.flush()?)
        }
        ["torch", events, file] => {
            let (events, mut file) = (events.parse()?, create(file)?);
            bulk::torch(&mut file, events)?;
            Ok(file.flush()?)
        }
        ["story", seed, ranks, jobs, folder] => {
            let ranks = ranks.parse()?;
            let chain = Collectives {
                shape: Shape::Chain,
                groups: 2,
                latency: Latency::Equal(1.0),
            };
            let scenario = Scenario {
                seed: seed.parse()?,
                ranks,
                offset_us: 2000.0,
                collectives: (ranks > 1).then_some(chain),
                jobs: jobs.parse()?,
                ..Scenario::default()
            };
            let folder = Path::new(folder);
            std::fs::create_dir_all(folder)?;
            let story = scenario.make();
            Flex::default().write(&story, folder)?;
            Torch::default().write(&story, folder)?;
            let log = compiler::log(&compiler::ideals(&scenario, 1100.0));
            std::fs::write(folder.join("compiler.log"), log)?;
            story.save(&folder.join("truth.json"))
        }
        _ => bail!("flex EVENTS FILE | torch EVENTS FILE | story SEED RANKS JOBS FOLDER"),
    }
}

fn create(file: &str) -> anyhow::Result<BufWriter<File>> {
    let created = File::create(file).with_context(|| file.to_owned())?;
    Ok(BufWriter::with_capacity(1 << 20, created))
}
