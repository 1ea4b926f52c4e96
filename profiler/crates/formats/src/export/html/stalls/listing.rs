//! The disassembly of a kernel on the page of stalls, with links to what is waited for.

use super::super::escape;
use super::KernelSection;
use crate::export::html::table::cut;
use crate::export::stalls::{instruction, line_name, percent, place_note, targets};
use crate::export::text::{grouped, one_line};
use aiprof_trace::analyze::device_stalls::InstructionStalls;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Part of a kernel's samples, in percent, from which on an instruction is marked.
const HOT: f64 = 5.0;

impl KernelSection<'_> {
    /// The disassembly.
    pub(super) fn listing(&self, open: bool, most: usize, out: &mut String) {
        let kernel = self.kernel;
        let Ok(code) = &kernel.code else { return };
        let stalled: BTreeMap<usize, &InstructionStalls> = kernel
            .instructions
            .iter()
            .filter_map(|i| Some((i.index?, i)))
            .collect();
        let why = kernel.instructions.iter().flat_map(|i| &i.why);
        let held: BTreeSet<usize> = why
            .flat_map(|(_, _, why)| &why.producers)
            .map(|p| p.instruction)
            .collect();
        let entries = targets(kernel);
        let _ = writeln!(
            out,
            "<details{}><summary>Disassembly</summary>\n<div class=\"scroll\" role=\"region\" \
             aria-label=\"Disassembly\" tabindex=\"0\">\n<table class=\"listing\"><thead><tr>\
             <th scope=\"col\">offset</th><th scope=\"col\" class=\"n\">samples</th>\
             <th scope=\"col\" class=\"n\">share</th><th scope=\"col\">instruction</th>\
             <th scope=\"col\">reasons</th><th scope=\"col\">waits for</th></tr></thead>\n<tbody>",
            if open { " open" } else { "" }
        );
        let mut line = String::new();
        let all = code.decoded.instructions.iter().enumerate().take(most);
        for (index, found) in all {
            let own = self.source_line(index);
            if !own.is_empty() && own != line {
                let text = escape::text(&own);
                let _ = writeln!(
                    out,
                    "<tr class=\"source\"><td></td><td colspan=\"5\">{text}</td></tr>"
                );
                line = own;
            }
            let entry = if entries.contains(&found.offset) {
                "@"
            } else {
                ""
            };
            let class = if held.contains(&index) {
                " class=\"held\""
            } else {
                ""
            };
            self.listed(stalled.get(&index).copied(), found.offset, out);
            let _ = write!(
                out,
                "<td{class}>{}{entry}</td>",
                escape::text(&instruction(found))
            );
            self.listed_why(stalled.get(&index).copied(), out);
        }
        out.push_str("</tbody></table></div></details>\n");
        cut(
            code.decoded.instructions.len().saturating_sub(most),
            "instructions",
            out,
        );
    }

    fn source_line(&self, index: usize) -> String {
        let place = self.kernel.place(index);
        let name = line_name(&place);
        let text = place.last().filter(|_| !name.is_empty());
        let text = text.and_then(|frame| (self.view.source)(&frame.file, frame.line));
        let text = text
            .map(|text| format!("  {}", one_line(&text).trim()))
            .unwrap_or_default();
        format!("{name} {}{text}", place_note(&place))
            .trim()
            .to_owned()
    }

    /// The first columns of an instruction.
    fn listed(&self, stalled: Option<&InstructionStalls>, offset: u32, out: &mut String) {
        let count = stalled.map_or(0, |stalled| stalled.samples.total());
        let share = percent(count, self.kernel.samples.total());
        let hot = if share >= HOT { " class=\"hot\"" } else { "" };
        let _ = write!(
            out,
            "<tr id=\"k{}-{offset:x}\"{hot}><td>{offset:#x}</td>",
            self.number
        );
        if count == 0 {
            out.push_str("<td></td><td></td>");
            return;
        }
        let _ = write!(
            out,
            "<td class=\"n\">{}</td><td class=\"n bar\">{share:.1} %<svg viewBox=\"0 0 100 4\" \
             preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect width=\"{share:.1}\" \
             height=\"4\"/></svg></td>",
            grouped(count)
        );
    }

    /// The last columns.
    fn listed_why(&self, stalled: Option<&InstructionStalls>, out: &mut String) {
        let Some(stalled) = stalled else {
            out.push_str("<td></td><td></td></tr>\n");
            return;
        };
        let all = stalled.samples.reasons().into_iter();
        let all: Vec<String> = all
            .map(|(reason, count)| format!("{} {}", reason.name(), grouped(count)))
            .collect();
        let _ = write!(out, "<td>{}</td><td>", all.join(", "));
        let producers = stalled.why.iter().flat_map(|(_, _, why)| &why.producers);
        let producers: BTreeSet<usize> = producers.map(|p| p.instruction).collect();
        let links: Vec<String> = producers
            .into_iter()
            .filter_map(|index| {
                let offset = self.kernel.instruction(index)?.offset;
                Some(self.link(Some(index), &format!("{offset:#x}")))
            })
            .collect();
        let _ = writeln!(out, "{}</td></tr>", links.join(" "));
    }
}
