//! How long answers may be waited for.

use aiprof_system::workers::Owner;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Most owners whose budgets are remembered.
const MAX_BUDGETS: usize = 65_536;

/// How long the main thread may wait: what is saved up, and gains a part of the time.
#[derive(Debug)]
struct WaitBudget {
    limits: BudgetLimits,
    left: Duration,
    at: Instant,
}

/// The bounds of a budget.
#[derive(Clone, Copy, Debug)]
struct BudgetLimits {
    /// Most that is saved up.
    most: Duration,
    /// One part in `share` of the time that goes by is added.
    share: u32,
}

/// For what root does here. A storm of short programs needs about a tenth.
const OF_ROOT: BudgetLimits = BudgetLimits {
    most: Duration::from_millis(400),
    share: 4,
};
/// For what another user does.
const OF_OWNER: BudgetLimits = BudgetLimits {
    most: Duration::from_millis(200),
    share: 8,
};
/// For all but root: who makes aiprof wait must not use up what others need.
const OF_ALL: BudgetLimits = BudgetLimits {
    most: Duration::from_millis(800),
    share: 2,
};
/// For all but root, and for root, from the moment that a recording is to end.
const AT_END: Duration = Duration::from_millis(250);
/// Least for one answer: what is left of a budget is saved until there is as much.
const LEAST: Duration = Duration::from_millis(1);
/// Most for one answer: an answer that takes longer is of a slow file, or of many.
const EACH: Duration = Duration::from_millis(150);

impl WaitBudget {
    fn new(limits: BudgetLimits) -> Self {
        Self {
            limits,
            left: limits.most,
            at: Instant::now(),
        }
    }

    /// What there is now.
    fn left(&mut self) -> Duration {
        let now = Instant::now();
        let gained = (now - self.at) / self.limits.share;
        self.left = (self.left + gained).min(self.limits.most);
        self.at = now;
        self.left
    }

    fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }

    /// The recording is to end: nothing more is added.
    fn end(&mut self) {
        *self = Self::new(BudgetLimits {
            most: AT_END.min(self.left()),
            share: u32::MAX,
        });
    }
}

/// The budgets of all.
#[derive(Debug)]
pub(crate) struct WaitBudgets {
    of_all: WaitBudget,
    of_owner: FxHashMap<Owner, WaitBudget>,
    /// What may be waited before budgets are spent.
    credit: Duration,
}

impl WaitBudgets {
    pub(super) fn new() -> Self {
        Self {
            of_all: WaitBudget::new(OF_ALL),
            of_owner: FxHashMap::default(),
            credit: Duration::ZERO,
        }
    }

    /// The budget of an owner.
    fn of(&mut self, owner: Owner) -> &mut WaitBudget {
        if self.of_owner.len() >= MAX_BUDGETS {
            // Root's may have ended.
            self.of_owner.retain(|&owner, _| owner == Owner::ROOT);
        }
        let limits = match owner == Owner::ROOT {
            true => OF_ROOT,
            false => OF_OWNER,
        };
        let own = self.of_owner.entry(owner);
        own.or_insert_with(|| WaitBudget::new(limits))
    }

    /// How long one answer may be waited for on an owner's account.
    pub(super) fn left(&mut self, owner: Owner) -> Duration {
        let own = self.of(owner).left();
        let of_all = self.of_all.left();
        // What others use up does not concern root.
        let left = match owner == Owner::ROOT {
            true => own,
            false => own.min(of_all),
        };
        let left = left.max(self.credit).min(EACH);
        if left < LEAST { Duration::ZERO } else { left }
    }

    /// An answer was waited for on an owner's account.
    pub(super) fn spend(&mut self, owner: Owner, waited: Duration) {
        let lent = waited.min(self.credit);
        self.credit -= lent;
        let waited = waited - lent;
        if owner != Owner::ROOT {
            self.of_all.spend(waited);
        }
        if let Some(own) = self.of_owner.get_mut(&owner) {
            own.spend(waited);
        }
    }

    /// The recording has just begun, and everything is met at once: so long may be
    /// waited before anybody's budget is spent.
    pub(crate) fn lend(&mut self, credit: Duration) {
        self.credit = credit;
    }

    /// The recording is to end: from now on little is waited for.
    pub(crate) fn end(&mut self) {
        self.credit = Duration::ZERO;
        self.of(Owner::ROOT).end();
        self.of_all.end();
    }
}
