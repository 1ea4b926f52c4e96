//! What if something took another time: `NAME=FACTOR`.

use super::build::sym;
use super::graph::{EdgeKind, PathEdge, PathGraph, PathRole};
use aiprof_model::timeline::{Length, Sym, Timeline};
use rustc_hash::FxHashMap;

/// Everything whose name contains a text takes a multiple of its time.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// Part of the names.
    pub name: String,
    /// What their time is multiplied with: 0.5 is half of it.
    pub factor: f64,
}

impl std::str::FromStr for WhatIf {
    /// What it must look like.
    type Err = String;

    /// Reads `NAME=FACTOR`; the last `=` counts, names of kernels have some.
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "`{text}` is not NAME=FACTOR; for example, gemm=0.5 halves the time of kernels \
                 with gemm in their name"
            )
        };
        let (name, factor) = text.rsplit_once('=').ok_or_else(refused)?;
        let factor: f64 = factor.trim().parse().map_err(|_| refused())?;
        if name.is_empty() || !(0.0..=1e6).contains(&factor) {
            return Err(refused());
        }
        Ok(Self {
            name: name.to_owned(),
            factor,
        })
    }
}

/// Factors by name: of work of devices where its name contains what is looked for, else
/// of calls and operators.
pub(super) struct Factors {
    device: FxHashMap<Sym, f64>,
    host: FxHashMap<Sym, f64>,
}

impl Factors {
    pub(super) fn new(timeline: &Timeline, graph: &PathGraph, changes: &[WhatIf]) -> Self {
        let mut names: [rustc_hash::FxHashSet<Sym>; 2] = Default::default();
        for event in &graph.events {
            let [host, device] = &mut names;
            match event.role {
                PathRole::Host | PathRole::Code => host.insert(sym(timeline, event.event)),
                PathRole::Device(_) => device.insert(sym(timeline, event.event)),
                PathRole::Arrival => false,
            };
        }
        let [host, device] = names;
        let mut factors = Self {
            device: FxHashMap::default(),
            host: FxHashMap::default(),
        };
        for change in changes {
            let is_one = |name: &&Sym| timeline.name(**name).contains(&change.name);
            let on_device = device.iter().any(|name| is_one(&name));
            let (names, into) = match on_device {
                true => (&device, &mut factors.device),
                false => (&host, &mut factors.host),
            };
            for name in names.iter().filter(is_one) {
                *into.entry(*name).or_insert(1.0) *= change.factor;
            }
        }
        factors
    }

    /// How many names have another time.
    pub(super) fn names(&self) -> usize {
        self.device.len() + self.host.len()
    }

    /// An edge's time.
    pub(super) fn weight(&self, timeline: &Timeline, graph: &PathGraph, edge: &PathEdge) -> Length {
        if edge.kind != EdgeKind::Own {
            return edge.weight;
        }
        let Some(owner) = graph.events.get(edge.owner as usize) else {
            return edge.weight;
        };
        let factors = match owner.role {
            PathRole::Device(_) => &self.device,
            PathRole::Host | PathRole::Code | PathRole::Arrival => &self.host,
        };
        if factors.is_empty() {
            return edge.weight;
        }
        match factors.get(&sym(timeline, owner.event)) {
            Some(factor) if edge.weight > Length::ZERO => {
                Length((edge.weight.0 as f64 * factor).round() as i64)
            }
            _ => edge.weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_factors_are_read() {
        let read = |text: &str| text.parse::<WhatIf>();
        let one = read("void f<N=4>(x)=0.5").unwrap();
        assert_eq!((&*one.name, one.factor), ("void f<N=4>(x)", 0.5));
        for text in ["gemm", "=2", "gemm=", "gemm=-1", "gemm=nan", "gemm=inf"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
