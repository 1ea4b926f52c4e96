//! Events of the helper's own: for commands of which the program awaits none.

use super::abi::{EventDesc, Handle, PoolDesc, SCOPE_HOST, SUCCESS, pool_flag, stype};
use super::real;
use super::state::Map;

/// Events of a pool.
const OF_A_POOL: u32 = 1024;
/// Most pools of a process: beyond them commands go without.
const MOST_POOLS: usize = 128;

/// The helper's own in a context of the program's.
#[derive(Debug, Default)]
pub(super) struct TimedContext {
    /// Number of the context.
    pub(super) number: u32,
    /// Unused events, not signalled.
    pub(super) free: Vec<usize>,
    pools: Vec<usize>,
    events: Vec<usize>,
    /// Events of the last pool.
    made: u32,
}

/// How many more pools there may be.
pub(super) fn room(contexts: &Map<TimedContext>) -> usize {
    let pools: usize = contexts.values().map(|context| context.pools.len()).sum();
    MOST_POOLS.saturating_sub(pools)
}

impl TimedContext {
    /// A new event; `room`: how many more pools may be made.
    pub(super) fn grow(&mut self, context: usize, room: usize) -> Option<usize> {
        if self.pools.is_empty() || self.made >= OF_A_POOL {
            if room == 0 {
                return None;
            }
            let desc = PoolDesc {
                stype: stype::EVENT_POOL_DESC,
                next: std::ptr::null(),
                flags: pool_flag::HOST_VISIBLE | pool_flag::KERNEL_TIMESTAMP,
                count: OF_A_POOL,
            };
            let mut pool = std::ptr::null_mut();
            // SAFETY: a context that the program uses for a list right now, and structures
            // of the specification.
            let result = unsafe {
                real::pool_create(
                    context as Handle,
                    &raw const desc,
                    0,
                    std::ptr::null(),
                    &raw mut pool,
                )
            };
            if result != SUCCESS {
                return None;
            }
            self.pools.push(pool as usize);
            self.made = 0;
        }
        let pool = *self.pools.last()?;
        let desc = EventDesc {
            stype: stype::EVENT_DESC,
            next: std::ptr::null(),
            index: self.made,
            signal: SCOPE_HOST,
            wait: 0,
        };
        let mut event = std::ptr::null_mut();
        // SAFETY: the pool from above, and a structure of the specification.
        if unsafe { real::event_create(pool as Handle, &raw const desc, &raw mut event) } != SUCCESS
        {
            return None;
        }
        self.made += 1;
        self.events.push(event as usize);
        Some(event as usize)
    }

    /// The context goes: all that is in it goes before.
    pub(super) fn destroy(&mut self) {
        for event in self.events.drain(..) {
            // SAFETY: the helper's own, and unused: the program destroys a context only when
            // all that it submitted has ended.
            unsafe { real::event_destroy(event as Handle) };
        }
        for pool in self.pools.drain(..) {
            // SAFETY: the helper's own, without events now.
            unsafe { real::pool_destroy(pool as Handle) };
        }
        self.free.clear();
    }
}
