//! The report as JSON: all that is in it.

use super::StallView;
use super::names::{offset, role_name, syntax};
use crate::export::ExportError;
use aiprof_model::profile::StallReason;
use aiprof_trace::analyze::device_stalls::{
    InstructionStalls, KernelStalls, LineStalls, Producer, SourcePlace, StallReport, Tally, Why,
};
use serde_json::{Map, Value, json};
use std::io::Write;

/// Writes the report.
///
/// # Errors
/// [`ExportError::Io`] when `out` fails.
pub fn write(
    report: &StallReport,
    view: &StallView<'_>,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let whole = report.samples.total();
    let (kernels, _) = view.shown(&report.kernels, whole, |k| k.samples.total());
    let kernels: Vec<Value> = kernels
        .into_iter()
        .map(|k| kernel(k, view, whole))
        .collect();
    let all = json!({
        "version": 1,
        "title": report.title,
        "notes": report.notes,
        "samples": samples(&report.samples),
        "kernels": kernels,
    });
    serde_json::to_writer_pretty(&mut *out, &all).map_err(std::io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

fn samples(tally: &Tally) -> Value {
    let mut counts = Map::new();
    counts.insert("total".to_owned(), tally.total().into());
    for (reason, count) in StallReason::ALL.into_iter().zip(tally.counts) {
        counts.insert(reason.name().to_owned(), count.into());
    }
    counts.into()
}

fn kernel(kernel: &KernelStalls, view: &StallView<'_>, whole: u64) -> Value {
    let (lines, _) = view.shown(&kernel.lines, whole, |l| l.samples.total());
    let (stalled, _) = view.shown(&kernel.instructions, whole, |i| i.samples.total());
    let code = match &kernel.code {
        Ok(code) => {
            let attributes = &code.kernel.attributes;
            json!({
                "platform": format!("{:?}", code.platform),
                "origin": code.origin,
                "note": code.note,
                "mangled": code.kernel.name,
                "bytes": code.kernel.code.len(),
                "instructions": code.decoded.instructions.len(),
                "unknown_instructions": code.decoded.bad,
                "simd": attributes.simd_size,
                "registers": attributes.grf_count,
                "spill_bytes": attributes.spill_bytes,
                "private_bytes": attributes.private_bytes,
                "slm_bytes": attributes.slm_bytes,
                "eu_threads": attributes.eu_thread_count,
            })
        }
        Err(_) => Value::Null,
    };
    json!({
        "device": kernel.device,
        "name": kernel.name,
        "samples": samples(&kernel.samples),
        "code": code,
        "code_missing": kernel.code.as_ref().err(),
        "samples_astray": kernel.astray,
        "hints": kernel.hints,
        "lines": lines.into_iter().map(line).collect::<Vec<_>>(),
        "instructions": stalled.into_iter().map(|i| instruction(kernel, i)).collect::<Vec<_>>(),
    })
}

fn place(place: &SourcePlace) -> Value {
    let frames = place.iter().map(|frame| {
        json!({
            "function": frame.function,
            "file": frame.file,
            "line": frame.line,
            "column": frame.column,
            "inlined": frame.inlined,
        })
    });
    frames.collect::<Vec<_>>().into()
}

fn line(line: &LineStalls) -> Value {
    json!({
        "place": place(&line.place),
        "samples": samples(&line.samples),
        "instructions": line.instructions,
    })
}

fn instruction(kernel: &KernelStalls, stalled: &InstructionStalls) -> Value {
    let found = stalled.index.and_then(|index| kernel.instruction(index));
    let why = stalled
        .why
        .iter()
        .map(|(reason, count, why)| explained(kernel, *reason, *count, why));
    json!({
        "offset": stalled.offset,
        "offset_hex": offset(stalled),
        "mnemonic": found.map(|i| i.mnemonic.as_ref()),
        "swsb": found.map(|i| i.swsb.to_string()),
        "text": syntax(kernel, stalled),
        "samples": samples(&stalled.samples),
        "place": place(&stalled.place),
        "why": why.collect::<Vec<_>>(),
    })
}

fn explained(kernel: &KernelStalls, reason: StallReason, count: u64, why: &Why) -> Value {
    let producers = why.producers.iter().map(|p| producer(kernel, p));
    json!({
        "reason": reason.name(),
        "count": count,
        "text": why.text,
        "not_known": why.open,
        "producers": producers.collect::<Vec<_>>(),
        "more_producers": why.more,
    })
}

fn producer(kernel: &KernelStalls, producer: &Producer) -> Value {
    let found = kernel.instruction(producer.instruction);
    json!({
        "offset": found.map(|i| i.offset),
        "mnemonic": found.map(|i| i.mnemonic.as_ref()),
        "is": role_name(producer.role),
        "directly": producer.direct,
        "around_a_loop": producer.looped,
        "instructions_back": producer.apart,
        "place": place(&kernel.place(producer.instruction)),
    })
}
