//! The same workloads on Intel's real driver, in its capture mode, and OpenCL on
//! PoCL: that they work there is what the tests of aiprof build on.

use std::process::Command;

use aiprof_tests::level_zero::program::{Account, build_work};
use aiprof_tests::level_zero::real::{self, Product, Recording};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked, source_path};

#[test]
fn workloads_run_on_intels_driver() -> anyhow::Result<()> {
    skip_unless!(&real::NEEDS);
    let program = build_work()?;
    for product in [Product::Skl, Product::Pvc] {
        for recording in [Recording::Full, Recording::Off] {
            let shop = Workshop::new()?;
            let module = real::compile(&shop, product)?;
            for (mode, total) in [
                (&["basic", "real=1", "rounds=2"][..], 22),
                (&["threads", "threads=4", "launches=5"], 20),
                (&["paths"], 528),
                (&["late", "launches=9"], 9),
            ] {
                if mode[0] == "threads" && recording == Recording::Off {
                    continue;
                }
                let mut command = real::command(&program, product, recording, &shop.path(""));
                command.args(mode);
                let output = checked(command.arg(format!("module={}", module.display())))?;
                let account = &Account::read(&output)?[0];
                assert_eq!(account.total(), total, "{product:?} {recording:?} {mode:?}");
            }
            // Nothing of the capture is left.
            let aub = std::fs::read_dir(shop.path(""))?
                .filter_map(Result::ok)
                .filter(|e| e.path().extension().is_some_and(|e| e == "aub"));
            assert_eq!(aub.count(), 0);
        }
    }
    Ok(())
}

#[test]
fn intels_compiler_makes_spirv_that_its_driver_compiles() -> anyhow::Result<()> {
    skip_unless!(&real::NEEDS);
    let shop = Workshop::new()?;
    let module = real::spirv(&shop, "kernels.cl")?;
    let program = build_work()?;
    let mut command = real::command(&program, Product::Skl, Recording::Off, &shop.path(""));
    command.args(["late", "launches=3", "spirv=1"]);
    let output = checked(command.arg(format!("module={}", module.display())))?;
    assert_eq!(Account::read(&output)?[0].total(), 3);
    Ok(())
}

#[test]
fn opencl_runs_on_pocl_and_on_intels_driver() -> anyhow::Result<()> {
    let mut needs = real::NEEDS.to_vec();
    needs.extend([
        Need::Path("/usr/include/CL/cl.h"),
        Need::Path("/etc/OpenCL/vendors/pocl.icd"),
        Need::Path("/etc/OpenCL/vendors/intel.icd"),
    ]);
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("cl_work.c", "cl_work", &["-lOpenCL"])?;
    let mut pocl = Command::new(&program);
    pocl.current_dir(shop.path("")).arg("Portable Computing");
    let dir = shop.path("");
    let mut intel = real::command(&program, Product::Skl, Recording::Off, &dir);
    intel.arg("Intel");
    for (mut command, check) in [(pocl, &[][..]), (intel, &["no-check"])] {
        command.arg(source_path("kernels.cl")).arg("30").args(check);
        let account = &Account::read(&checked(&mut command)?)?[0];
        assert_eq!(account.total(), 31);
        assert_eq!(account.more["right"], true);
    }
    Ok(())
}
