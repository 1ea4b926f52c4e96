//! Programs that work at fixed times, with a sampler that is asked for a round frequency.

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

#[test]
fn programs_that_share_a_tick_are_told_apart_by_what_they_use() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Tool("cc")]);
    let shop = Workshop::new()?;
    let program = shop.build("ticks.c", "ticks", &["-pthread"])?;
    // Each tenth of a second all samples would fall into one of the five places: one had all
    // of the time, the others none.
    let run = Aiprof::with(["-F", "10"])
        .command(&program, &["25"])
        .record()?;
    for place in 0..5 {
        let function = format!("place{place}");
        let truth = run.truth(&function)? / 1e3;
        let seen = run.folded.filter(|line| line.has(&function)).total() as f64;
        println!("{function}: {seen:.0} of {truth:.0} us");
        // 40 samples each; by chance 68 % of them would be within 6.
        anyhow::ensure!((seen / truth - 1.0).abs() < 0.4, "{function}: {seen}");
    }
    Ok(())
}
