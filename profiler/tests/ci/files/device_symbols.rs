//! Device code of Intel's compiler, built here, against the compiler's own listings
//! and readelf.
//!
//! The compiler is Debian 12's: ocloc 22.43 with IGC 1.0.12504. If a module has several kernels, it
//! keeps debug information only with `IGC_UseMTInLLD=1`, and then aborts after it has written a
//! complete file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use aiprof::symbolize::device::isa::Platform;
use aiprof::symbolize::device::{DeviceFunction, Listed, Module, Problems, read_dump_folder};
use aiprof_tests::level_zero::real::{self, Product, Recording};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked, source_path};
use anyhow::Context as _;

const NEEDS: [Need; 1] = [Need::Tool("ocloc")];

/// A module and the folder into which the compiler dumped.
struct Built {
    file: PathBuf,
    module: Module,
    dump: PathBuf,
}

fn build(shop: &Workshop, device: &str, options: &str, env: &[&str]) -> anyhow::Result<Built> {
    let name = format!("{device}{}{}", options.replace(' ', ""), env.join(""));
    let dump = shop.path(&format!("{name}.dump"));
    std::fs::create_dir_all(&dump)?;
    let mut command = Command::new("ocloc");
    command.args(["compile", "--format", "zebin", "-output_no_suffix"]);
    command.args(["-device", device, "-file"]);
    command.arg(source_path("device/field.cl"));
    command
        .arg("-options")
        .arg(format!("-I{} {options}", source_path("device").display()));
    command.arg("-out_dir").arg(shop.path(""));
    command.args(["-output", &name]);
    command.env("IGC_ShaderDumpEnable", "1");
    command.env("IGC_DumpToCustomDir", &dump);
    command.envs(env.iter().filter_map(|e| e.split_once('=')));
    // What counts is the file: see above.
    let output = command.output()?;
    let file = shop.path(&name);
    let bytes = std::fs::read(&file)
        .with_context(|| format!("{command:?}: {}", String::from_utf8_lossy(&output.stdout)))?;
    let module = Module::parse(&bytes)?;
    assert_eq!(module.problems, Problems::default(), "{name}");
    Ok(Built { file, module, dump })
}

/// The text of a line of the source.
fn source_line(path: &str, line: u32) -> String {
    // `-gline-tables-only` calls the source `1`.
    let name = match path.rsplit('/').next() {
        Some("1") | None => "field.cl",
        Some(name) => name,
    };
    let text = std::fs::read_to_string(source_path("device").join(name)).unwrap_or_default();
    let line = text.lines().nth(line.saturating_sub(1) as usize);
    line.unwrap_or_default().trim().to_owned()
}

/// How an instruction's source compares with the listing's.
fn compared(kernel: &DeviceFunction, listed: &Listed) -> &'static str {
    let source = kernel.source(listed.offset);
    let Some(frame) = source.last() else {
        return "not told";
    };
    let text = source_line(&frame.file, frame.line);
    if listed.file.as_deref() == Some(&frame.file) && listed.line == frame.line {
        "same"
    } else if frame.line == 0 {
        // The listing does not show that there is no line.
        "no line"
    } else if frame.column == 0 && text.contains(frame.function.rsplit(':').next().unwrap_or("?")) {
        // Code that loads the arguments is of the line where the function opens; the listing has
        // nothing, or the previous line.
        "opening"
    } else if text.starts_with("return ") || text == "}" {
        // Instructions made late are of the end of the function by DWARF.
        "end"
    } else {
        "different"
    }
}

fn counts(built: &Built) -> anyhow::Result<BTreeMap<&'static str, usize>> {
    let dump = read_dump_folder(&built.dump)?;
    assert_eq!(dump.problems, Problems::default());
    let mut counts = BTreeMap::new();
    for kernel in &built.module.kernels {
        let listing = dump.listing(kernel).context("no listing")?;
        assert_eq!(
            dump.kernel(&kernel.name).map(|k| &k.code),
            Some(&kernel.code)
        );
        assert_eq!(listing.platform, built.module.platform);
        for listed in &listing.instructions {
            let how = compared(kernel, listed);
            if how == "different" {
                println!(
                    "{} {listed:?} {:?}",
                    kernel.name,
                    kernel.source(listed.offset)
                );
            }
            if how == "not told" {
                // This compiler leaves out the lines of kernels that call functions.
                assert_eq!(kernel.name, "waves", "{listed:?}");
            }
            *counts.entry(how).or_insert(0) += 1;
        }
    }
    Ok(counts)
}

#[test]
fn lines_are_those_of_the_compilers_listings() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    for (device, platform) in [
        ("pvc", Platform::XeHpc),
        ("acm-g10", Platform::XeHpg),
        ("tgllp", Platform::XeLp),
    ] {
        for options in ["-g", "-gline-tables-only"] {
            let built = build(&shop, device, options, &["IGC_UseMTInLLD=1"])?;
            assert_eq!(built.module.platform, Some(platform));
            let counts = counts(&built)?;
            println!("{device} {options}: {counts:?}");
            let count = |how| counts.get(how).copied().unwrap_or(0);
            assert!(count("same") > 250, "{counts:?}");
            assert!(
                count("opening") <= 35 && count("no line") <= 10,
                "{counts:?}"
            );
            // On Xe-LP, which cannot sample stalls, this compiler's two outputs differ for
            // instructions made late. DWARF gives the end of the function to those that stand for a
            // division. Without full debug information, it gives the line before to three that
            // moved.
            let (late, moved) = match (platform, options) {
                (Platform::XeLp, "-g") => (10, 0),
                (Platform::XeLp, _) => (10, 3),
                _ => (0, 0),
            };
            assert!(count("end") <= late, "{counts:?}");
            assert!(count("different") <= moved, "{counts:?}");
            assert!(count("not told") <= 45, "{counts:?}");
        }
    }
    Ok(())
}

#[test]
fn kernels_are_the_sections_that_readelf_lists() -> anyhow::Result<()> {
    let needs = [NEEDS[0], Need::Tool("readelf")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    for env in [&[][..], &["IGC_FunctionControl=3"]] {
        let built = build(&shop, "pvc", "-g", env)?;
        let sections = checked(Command::new("readelf").arg("-SW").arg(&built.file))?;
        let listed: BTreeMap<&str, usize> = sections
            .lines()
            .filter_map(|line| line.split_once("] .text.")?.1.split_once(' '))
            .filter_map(|(name, rest)| {
                let size = rest.split_whitespace().nth(3)?;
                Some((name, usize::from_str_radix(size, 16).ok()?))
            })
            .collect();
        let module = &built.module;
        let all = module.kernels.iter().chain(&module.functions);
        let ours: BTreeMap<&str, usize> = all.map(|k| (k.name.as_str(), k.code.len())).collect();
        assert_eq!(ours, listed);
        let kernels: BTreeSet<&str> = module.kernels.iter().map(|k| k.name.as_str()).collect();
        let names = ["_ZTSN4demo4CopyE", "scale", "smooth", "total", "waves"];
        assert_eq!(kernels, names.into());
    }
    Ok(())
}

/// A function that several kernels call lies in a section of its own, which is no
/// kernel.
#[test]
fn functions_that_kernels_call_are_named() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let env = ["IGC_FunctionControl=3", "IGC_UseMTInLLD=1"];
    let built = build(&shop, "pvc", "-g", &env)?;
    let [shared] = built.module.functions.as_slice() else {
        panic!("{:?}", built.module.functions);
    };
    assert_eq!(shared.name, "Intel_Symbol_Table_Void_Program");
    assert_eq!(shared.function(0x40), "weight");
    let waves = built.module.kernel("waves").context("no waves")?;
    let last = waves.code.len() as u32 - 256;
    assert_eq!((waves.function(0), waves.function(last)), ("waves", "slow"));
    Ok(())
}

/// Without debug information there are names, code and attributes.
#[test]
fn modules_without_lines() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let built = build(&shop, "tgllp", "", &[])?;
    for kernel in &built.module.kernels {
        assert!(!kernel.has_lines() && kernel.source(0).is_empty());
        assert!(!kernel.code.is_empty() && kernel.attributes.simd_size.is_some());
        assert_eq!(kernel.function(8), kernel.display);
    }
    // The same program on its way to the device.
    let spirv = built.file.with_extension("spv");
    let spirv = if spirv.exists() {
        spirv
    } else {
        with_ending(&built.file, ".spv")
    };
    let module = Module::parse(&std::fs::read(&spirv)?)?;
    let names =
        |m: &Module| -> BTreeSet<String> { m.kernels.iter().map(|k| k.name.clone()).collect() };
    assert_eq!(names(&module), names(&built.module));
    Ok(())
}

/// What the real driver gives debuggers: the module with the addresses that it has on
/// the device.
#[test]
fn modules_placed_on_the_device_have_the_same_lines() -> anyhow::Result<()> {
    skip_unless!(&real::NEEDS);
    let shop = Workshop::new()?;
    let built = build(&shop, "pvc", "-g", &["IGC_UseMTInLLD=1"])?;
    let program = shop.build("ze_debug_info.c", "ze_debug_info", &["-lze_loader"])?;
    let out = shop.path("placed.elf");
    let mut command = real::command(&program, Product::Pvc, Recording::Off, &shop.path(""));
    checked(command.arg(&built.file).arg(&out))?;
    let placed = Module::parse(&std::fs::read(&out)?)?;
    assert_eq!(placed.problems, Problems::default());
    assert_eq!(placed.kernels.len(), 5);
    for kernel in &built.module.kernels {
        let other = placed.kernel(&kernel.name).context("kernel is gone")?;
        assert_ne!(other.address, 0);
        assert_eq!(kernel.payload_entry, other.payload_entry);
        assert!(kernel.has_lines() && kernel.code.len() == other.code.len());
        for offset in (0..kernel.code.len() as u32).step_by(8) {
            assert_eq!(kernel.source(offset), other.source(offset));
            assert_eq!(kernel.function(offset), other.function(offset));
        }
    }
    Ok(())
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
