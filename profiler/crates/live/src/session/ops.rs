//! The session's part in PyTorch's operators: what programs report becomes events.

use super::{CollectError, Session};
use crate::{
    bpf::perf,
    torch::{TorchNews, TorchReports},
};
use aiprof_model::wire::{Event, Ops, OpsNews};

impl Session {
    /// Takes in the reports of operators from now on.
    pub fn with_torch(&mut self, reports: TorchReports) {
        self.torch = Some(reports);
    }

    /// Records what programs have reported.
    pub(super) fn take_ops(&mut self) -> Result<(), CollectError> {
        let Some(torch) = &self.torch else {
            return Ok(());
        };
        let news: Vec<TorchNews> = torch.take().collect();
        news.into_iter().try_for_each(|news| self.record_ops(news))
    }

    /// Waits for the windows that are under way, and records them.
    pub(super) fn finish_ops(&mut self) -> Result<(), CollectError> {
        let Some(torch) = self.torch.take() else {
            return Ok(());
        };
        let news = torch.finish();
        news.into_iter().try_for_each(|news| self.record_ops(news))
    }

    fn record_ops(&mut self, news: TorchNews) -> Result<(), CollectError> {
        let (pid, news) = match news {
            TorchNews::Asked(pid) => (pid, vec![OpsNews::Asked]),
            TorchNews::Unanswered(pid) => (pid, vec![OpsNews::Unanswered]),
            TorchNews::Unreadable(pid) => (pid, vec![OpsNews::Unreadable]),
            TorchNews::Answered(pid, read) => {
                tracing::debug!("process {pid} reported {} operators", read.spans);
                let parts = read.parts.into_iter().map(OpsNews::Recorded);
                (pid, parts.collect())
            }
        };
        if !self
            .filter
            .wants_process(pid, &self.events.recording.processes)
        {
            return Ok(());
        }
        for news in news {
            self.record(&Event::Ops(Ops {
                time_ns: perf::monotonic_ns(),
                pid,
                news,
            }))?;
        }
        Ok(())
    }
}
