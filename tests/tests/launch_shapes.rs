//! Programs that launch from all sorts of places, as written by people who have not
//! read how calls are followed: `aiprof trace` shows each launch, with the kernel's name
//! and its end, on Intel's real driver, which has hardly a function that returns by
//! itself, and on the virtual one.

use std::collections::BTreeMap;
use std::process::Command;

use aiprof_tests::aiprof::binary;
use aiprof_tests::level_zero::driver::{self, Driver, Exports, Machine};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, build_shapes};
use aiprof_tests::level_zero::real::{self, Product, Recording};
use aiprof_tests::need::turn;
use aiprof_tests::workload::{Workshop, checked};
use anyhow::Context as _;
use serde_json::Value;

const SHAPES: [&str; 9] = [
    "value",
    "many",
    "site",
    "frames",
    "objects",
    "callbacks",
    "threads",
    "jumps",
    "fibers",
];

/// Runs a shape below `aiprof trace`, and checks what is shown. `command`: aiprof in the
/// driver's environment.
fn check(shop: &Workshop, mut command: Command, shape: &str, module: &str) -> anyhow::Result<()> {
    let output = shop.path("trace.json");
    command.args(["trace", "--json", "-o"]).arg(&output);
    command.arg("--").arg(build_shapes()?).arg(shape);
    command.arg(format!("module={module}")).arg("launches=400");
    let accounts = Account::read(&checked(&mut command)?)?;
    let account = accounts.first().context("no account")?;
    let text = std::fs::read_to_string(&output)?;
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    let launches: Vec<_> = lines.iter().filter(|l| l["kind"] == "launch").collect();
    let mut shown: BTreeMap<String, u64> = BTreeMap::new();
    for launch in &launches {
        let work = launch["work"].as_str().unwrap_or("[no name]");
        *shown.entry(work.to_owned()).or_default() += 1;
    }
    assert_eq!(shown, account.launches, "{shape}");
    let ended = |line: &&&Value| line["duration_ns"].is_u64();
    let ends = launches.iter().filter(ended).count();
    println!("{shape}: {ends} of {} launches have an end", launches.len());
    anyhow::ensure!(ends * 100 >= launches.len() * 99, "{shape}: {ends}");
    // None is inside of another.
    let deepest = launches.iter().map(|l| l["depth"].as_u64()).max();
    assert_eq!(deepest, Some(Some(0)), "{shape}");
    Ok(())
}

#[test]
fn every_shape_on_intels_driver() -> anyhow::Result<()> {
    let Some(_turn) = turn("every_shape_on_intels_driver", &real::NEEDS)? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let module = real::compile(&shop, Product::Skl)?;
    for shape in SHAPES {
        let command = real::command(&binary()?, Product::Skl, Recording::Off, &shop.path(""));
        check(&shop, command, shape, &module.display().to_string())?;
    }
    Ok(())
}

#[test]
fn every_shape_on_the_virtual_driver() -> anyhow::Result<()> {
    let Some(_turn) = turn("every_shape_on_the_virtual_driver", &driver::NEEDS)? else {
        return Ok(());
    };
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    for shape in SHAPES {
        let command = machine.command(&binary()?);
        check(&shop, command, shape, &module.display().to_string())?;
    }
    Ok(())
}
