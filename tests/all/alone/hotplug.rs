//! CPUs that are switched off and on again while they are sampled.

use aiprof_tests::aiprof::{Aiprof, lost};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

const SWITCH: &str = "/sys/devices/system/cpu/cpu1/online";
const NEEDS: [Need; 4] = [
    Need::Root,
    Need::Tool("cc"),
    Need::Tool("taskset"),
    Need::Path(SWITCH),
];
const HERTZ: f64 = 499.0;
const CPU_SECONDS: f64 = 3.0;

/// Switches the CPU on again, whatever happens.
struct On;

impl Drop for On {
    fn drop(&mut self) {
        let _ = std::fs::write(SWITCH, "1");
    }
}

#[test]
fn a_cpu_that_was_away_is_sampled_again_within_a_second() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "busy", &[])?;
    let _on = On;
    for away in ["0", "0.7"] {
        // COMMAND runs when samples are taken, and the program begins on the CPU as soon as that
        // is back.
        let script = format!(
            "echo 0 > {SWITCH}; sleep {away}; echo 1 > {SWITCH}; \
             exec taskset -c 1 {} {CPU_SECONDS} 10",
            program.display()
        );
        let run = Aiprof::counting()
            .command("sh", &["-c", &script])
            .record_one()?;
        let kept = run.folded.of_comm("busy").total() as f64;
        let lost = lost(&run.stderr, "samples missed on CPUs that came online") as f64;
        println!("away for {away} s: {kept} kept, {lost} lost");
        let all = HERTZ * CPU_SECONDS;
        anyhow::ensure!(kept > all - HERTZ, "{kept}: {}", run.stderr);
        anyhow::ensure!(kept + lost > 0.97 * all, "{kept}, {lost}: {}", run.stderr);
        anyhow::ensure!(lost <= HERTZ, "{lost}: {}", run.stderr);
    }
    Ok(())
}
