//! Which table a job was compiled with: the one that is most like it.

use super::ideal::IdealTable;
use super::{CompilerInfo, JobKey, KernelCall, Utilization};
use crate::analyze::messages::{Level, Messages};
use rustc_hash::FxHashMap;

/// Calls of a job that make its sequence.
const MAX_SEQUENCE: usize = 30;
/// Share of each of the three criteria: sequence, length, time.
const WEIGHT: f64 = 0.5;
/// Below this a match is uncertain.
const CERTAIN: f64 = 0.8;
/// The next best table must be further away than this.
const TOLERANCE: f64 = 0.2;
/// Uncertain jobs that are named.
const MAX_NAMED: usize = 20;

/// What is remembered of a job.
#[derive(Clone, Debug, Default)]
struct KnownJob {
    /// The number by which messages name it.
    label: i128,
    /// The first kernels, by the number of their name; see [`Fingerprints::names`].
    sequence: Vec<u32>,
    calls: usize,
    time_us: f64,
}

/// The first pass: what jobs look like.
pub(crate) struct Fingerprints<'t> {
    info: &'t CompilerInfo,
    core_mhz: f64,
    /// Jobs in the order of their first call.
    jobs: Vec<(JobKey, KnownJob)>,
    places: FxHashMap<JobKey, usize>,
    /// Numbers of the names at the start of jobs that tables have, by log and table.
    names: FxHashMap<String, u32>,
}

impl<'t> Fingerprints<'t> {
    /// Starts with the compiler's tables; the frequency of the cores in MHz is what
    /// ideal cycles refer to.
    pub(crate) fn new(info: &'t CompilerInfo, core_mhz: f64) -> Self {
        Self {
            info,
            core_mhz,
            jobs: Vec::new(),
            places: FxHashMap::default(),
            names: FxHashMap::default(),
        }
    }

    /// Adds a call.
    pub(crate) fn add(&mut self, call: &KernelCall<'_>) {
        let place = *self.places.entry(call.key()).or_insert_with(|| {
            let label = i128::from(call.label) + i128::from(call.correlation.unwrap_or(0));
            let job = KnownJob {
                label,
                ..KnownJob::default()
            };
            self.jobs.push((call.key(), job));
            self.jobs.len() - 1
        });
        let Some((_, job)) = self.jobs.get_mut(place) else {
            return;
        };
        job.calls += 1;
        job.time_us += call.dur_us;
        if job.sequence.len() < MAX_SEQUENCE {
            let name = call.table_name();
            let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
            let known = self.names.get(&*name).copied();
            job.sequence.push(known.unwrap_or_else(|| {
                self.names.insert(name.into_owned(), next);
                next
            }));
        }
    }

    /// Finds the table of each job. Reports jobs whose table is uncertain.
    pub(crate) fn matched(self, messages: &mut Messages) -> Utilization<'t> {
        let mut tables = FxHashMap::default();
        let mut uncertain = Vec::new();
        let mut count = 0_u64;
        let translated = self.translated();
        for (key, job) in &self.jobs {
            let Some(found) = self.best(*key, job, &translated) else {
                continue;
            };
            tables.insert(*key, found.table);
            let label = found.doubt(job.label);
            messages.debug(
                "UTL",
                format_args!(
                    "UTL: (New) table-fprint for job {} to {} ({})",
                    job.label, found.table, found.similarity
                ),
            );
            if let Some(label) = label {
                count += 1;
                if uncertain.len() < MAX_NAMED {
                    uncertain.push(format!("'{label}'"));
                }
            }
        }
        if count > 0 && messages.wants(Level::Warn) {
            let more = if count > MAX_NAMED as u64 {
                ", …"
            } else {
                ""
            };
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: Detected uncertain Ideal Cycles table match for {count} jobs: \
                     {{{}{more}}}",
                    uncertain.join(", ")
                ),
            );
        }
        Utilization::new(self.info, self.core_mhz, tables)
    }

    /// For each log and table, its sequence in the numbers of the jobs.
    fn translated(&self) -> Vec<Vec<Vec<u32>>> {
        let of_table = |table: &IdealTable| {
            let mut by_id = FxHashMap::default();
            for (name, number) in &self.names {
                if let Some(kernel) = table.kernel(name) {
                    by_id.insert(kernel.id, *number);
                }
            }
            let number = |id: &u32| by_id.get(id).copied().unwrap_or(u32::MAX);
            table.sequence().iter().map(number).collect()
        };
        let logs = self.info.logs.iter();
        logs.map(|log| log.tables().iter().map(of_table).collect())
            .collect()
    }

    fn best(&self, key: JobKey, job: &KnownJob, translated: &[Vec<Vec<u32>>]) -> Option<BestMatch> {
        let log = self.info.of_rank(key.rank)?;
        let place = self.info.logs.iter().position(|l| std::ptr::eq(l, log))?;
        let sequences = translated.get(place)?;
        let mut found: Option<BestMatch> = None;
        for (number, (table, sequence)) in log.tables().iter().zip(sequences).enumerate() {
            let similarity = if log.autopilot {
                self.similarity_of_sums(job, table)
            } else {
                self.similarity(job, table, sequence)
            };
            match &mut found {
                Some(best) if similarity <= best.similarity => {
                    best.next = best.next.max(similarity);
                    best.tables += 1;
                }
                best => {
                    let (next, tables) = match best {
                        Some(old) => (old.similarity, old.tables + 1),
                        None => (f64::NEG_INFINITY, 1),
                    };
                    *best = Some(BestMatch {
                        table: number,
                        similarity,
                        next,
                        tables,
                    });
                }
            }
        }
        found
    }

    /// 0 to 1.5: how much of the table's sequence, length and time is in the job. 0
    /// where it cannot be: more calls than rows, or less time than ideal.
    fn similarity(&self, job: &KnownJob, table: &IdealTable, sequence: &[u32]) -> f64 {
        let table_us = table.cycles() as f64 / self.core_mhz;
        if job.calls > table.rows() || table_us > job.time_us || job.sequence.is_empty() {
            return 0.0;
        }
        let mut windows = sequence.windows(job.sequence.len());
        let is_part = windows.any(|window| window == job.sequence);
        let order = if is_part { 1.0 } else { 0.5 };
        let length = job.calls as f64 / table.rows() as f64;
        WEIGHT * order + WEIGHT * length + WEIGHT * share(table_us, job.time_us)
    }

    /// The same where the compiler chose for itself: kernels are not those of the
    /// table, so only times are compared.
    fn similarity_of_sums(&self, job: &KnownJob, table: &IdealTable) -> f64 {
        let table_us = table.total_cycles() as f64 / self.core_mhz;
        if table_us > job.time_us {
            return 0.0;
        }
        2.0 * WEIGHT + WEIGHT * share(table_us, job.time_us)
    }
}

/// Part of the whole; all of nothing is nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole.abs() <= 1e-9 {
        1.0
    } else {
        part / whole
    }
}

/// The best table of a job.
struct BestMatch {
    table: usize,
    similarity: f64,
    /// Similarity of the next best table.
    next: f64,
    /// Tables that were compared.
    tables: usize,
}

impl BestMatch {
    /// Why the match is uncertain, as acelyzer writes it.
    fn doubt(&self, label: i128) -> Option<String> {
        if self.similarity < CERTAIN {
            let short = format!("{:.2}", self.similarity);
            let short = short.strip_suffix('0').unwrap_or(&short);
            return Some(format!("{label}:{short}"));
        }
        let is_close = self.similarity - self.next <= TOLERANCE;
        is_close.then(|| format!("{label}:mm={}", self.tables))
    }
}
