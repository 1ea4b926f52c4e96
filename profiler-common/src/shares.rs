//! How the owners of recorded processes share the work that one CPU does for calls.
//!
//! A limit is a clock, which is never ahead of the present. Work that costs some nanoseconds
//! advances the clock by as many. Unused time is saved up: the first [`Ask::burst`] nanoseconds
//! are the reserve, and as many more can be saved beyond it. Each owner of processes has such
//! clocks, too:
//!
//! * While the reserve is full, every owner gets what it asks for, because no other owner needs
//!   it. A single owner thus has the whole limit.
//! * The reserve is divided by share. Half of the limit belongs to root and aiprof's caller.
//!   The others have equal parts of the other half; one more such part belongs to no owner and
//!   refills the reserve.
//! * Only root and aiprof's caller may use the second half of the reserve.

/// Owner of root's processes outside of containers, and of those of aiprof's caller.
pub const OWNER_TRUSTED: u64 = 0;
/// Places for other owners. If more of them ask at the same time, some share a place.
pub const OWNERS: usize = 64;
/// Places that are tried for an owner.
const TRIES: u64 = 4;
/// log2 of the nanoseconds of a turn. An owner that asked neither in this turn nor in the one
/// before has no part.
const TURN_SHIFT: u32 = 28;
/// Added to all times, so that saved time may begin before the boot.
const BEFORE_BOOT: u64 = 1 << 40;

/// [`Ask::limit`]: walks of stacks.
pub const LIMIT_STACKS: u32 = 0;
/// Stacks sent with their memory.
pub const LIMIT_PAGES: u32 = 1;
/// Hashes of that memory.
pub const LIMIT_MEMORY: u32 = 2;
/// Stacks of waits that are taken without a random draw.
pub const LIMIT_DRAWS: u32 = 3;
/// Number of limits.
pub const LIMITS: usize = 4;

/// What an owner asks for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Which limit it is under, `LIMIT_*`.
    pub limit: u32,
    /// CLOCK_MONOTONIC nanoseconds.
    pub now: u64,
    /// Cost of one, in nanoseconds of the limit.
    pub cost: u64,
    /// Nanoseconds of the reserve; as many more can be saved beyond it.
    pub burst: u64,
}

/// The time up to which each limit is used up.
type LimitClocks = [u64; LIMITS];

/// The work of one CPU for calls, by owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Use by all owners together.
    all: LimitClocks,
    /// Use of the reserve by root and aiprof's caller.
    trusted: LimitClocks,
    /// The turn: CLOCK_MONOTONIC nanoseconds >> TURN_SHIFT.
    turn: u64,
    /// Number of other owners that have asked in this turn.
    asking: u64,
    /// Number of those that asked in the turn before.
    asked: u64,
    /// The other owners.
    others: [OwnerPlace; OWNERS],
}
const _: () = assert!(size_of::<Shares>() == 88 + 48 * OWNERS);

/// A place for an owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct OwnerPlace {
    /// The owner.
    owner: u64,
    /// The turn of the last request.
    turn: u64,
    /// What it has taken from the reserve.
    used: LimitClocks,
}

impl Shares {
    /// Whether an owner gets what it asks for; if so, its clock is advanced. `hash` is a hash
    /// of the owner with a secret, so that no user can choose whose place it shares.
    #[inline(always)]
    pub fn take(&mut self, owner: u64, hash: u64, ask: Ask) -> bool {
        let now = ask.now + BEFORE_BOOT;
        let limit = ask.limit as usize % LIMITS;
        self.begin(now >> TURN_SHIFT);
        let (own, parts, kept) = if owner == OWNER_TRUSTED {
            (&mut self.trusted[limit], 2, 0)
        } else {
            let place = self.place(owner, hash);
            let parts = 2 * (self.asking.max(self.asked) + 1);
            (&mut self.others[place].used[limit], parts, ask.burst / 2)
        };
        let all = &mut self.all[limit];
        let next = after(*all, now - ask.burst, ask.cost, ask.burst);
        if next > now - ask.burst {
            let mine = after(*own, now, ask.cost * parts, ask.burst / 2);
            if mine > now || next > now - kept {
                return false;
            }
            *own = mine;
        }
        *all = next;
        true
    }

    /// Begins a new turn, if `turn` is one.
    #[inline(always)]
    fn begin(&mut self, turn: u64) {
        // A program that was preempted may be late.
        if turn <= self.turn {
            return;
        }
        self.asked = if turn - self.turn == 1 {
            self.asking
        } else {
            0
        };
        self.asking = 0;
        self.turn = turn;
    }

    /// Finds an owner's place, or gives it one that is free again, and counts the owner in
    /// this turn. Returns the index of the place.
    #[inline(always)]
    fn place(&mut self, owner: u64, hash: u64) -> usize {
        let mut at = hash as usize % OWNERS;
        for step in 0..TRIES {
            let one = (hash + step) as usize % OWNERS;
            let place = &mut self.others[one];
            if place.owner == owner {
                at = one;
                break;
            }
            if self.turn - place.turn > 1 {
                place.owner = owner;
                place.used = [0; LIMITS];
                at = one;
                break;
            }
        }
        let place = &mut self.others[at];
        if place.turn != self.turn {
            place.turn = self.turn;
            self.asking += 1;
        }
        at
    }
}

/// Where a clock is after `cost`. Time that was saved before the last `burst` nanoseconds is
/// lost.
#[inline(always)]
fn after(used: u64, now: u64, cost: u64, burst: u64) -> u64 {
    used.max(now - burst.max(cost)) + cost
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const LIMIT: u64 = 20_000;
    /// Nanoseconds between two calls of an owner that calls all the time.
    const STEP: u64 = SECOND / 100_000;

    fn unused() -> Shares {
        let place = OwnerPlace {
            owner: 0,
            turn: 0,
            used: [0; LIMITS],
        };
        Shares {
            all: [0; LIMITS],
            trusted: [0; LIMITS],
            turn: 0,
            asking: 0,
            asked: 0,
            others: [place; OWNERS],
        }
    }

    fn take(shares: &mut Shares, owner: u64, now: u64, limit: u64) -> bool {
        let ask = Ask {
            limit: LIMIT_STACKS,
            now,
            cost: SECOND / limit,
            burst: SECOND,
        };
        let hash = owner.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        shares.take(owner, hash, ask)
    }

    /// What an owner got, and what it did not get. It calls `rate` times in each of the last
    /// `seconds`, after a second without calls. The others call all the time.
    fn beside(others: &[u64], owner: u64, rate: u64, seconds: u64) -> (u64, u64) {
        let mut shares = unused();
        let (mut got, mut lost, mut next) = (0, 0, 60 * SECOND);
        let end = next + seconds * SECOND;
        for now in (next - SECOND..end).step_by(STEP as usize) {
            for other in others {
                take(&mut shares, *other, now, LIMIT);
            }
            if now >= next {
                next += SECOND / rate;
                match take(&mut shares, owner, now, LIMIT) {
                    true => got += 1,
                    false => lost += 1,
                }
            }
        }
        (got, lost)
    }

    #[test]
    fn one_owner_alone_has_all_of_a_limit() {
        for owner in [OWNER_TRUSTED, 1000] {
            for limit in [1, 200, LIMIT, 50_000] {
                let mut shares = unused();
                // Soon after the boot.
                let times = (SECOND / 10..).step_by(STEP as usize).take(1_000_000);
                let got = times.filter(|now| take(&mut shares, owner, *now, limit));
                let got = got.count() as u64;
                // In ten seconds, with the saved time and the reserve.
                let most = (limit * 12).min(1_000_000);
                assert!((limit * 10..=most).contains(&got), "{got} of {limit}");
            }
        }
    }

    #[test]
    fn others_have_theirs_beside_one_who_calls_all_the_time() {
        // The first half, for root and aiprof's caller; half of the second half less the part
        // without an owner.
        for (owner, rate) in [(OWNER_TRUSTED, LIMIT / 2), (1000, LIMIT / 6)] {
            for rate in [1, 10, 1000, rate - 100] {
                let (got, lost) = beside(&[65534], owner, rate, 5);
                assert!(got >= rate * 5 && lost == 0, "{owner}, {rate}: {lost} lost");
            }
        }
    }

    #[test]
    fn many_who_call_all_the_time_leave_others_theirs() {
        let many: [u64; 20] = core::array::from_fn(|n| 2000 + n as u64);
        let part = LIMIT / 2 / (many.len() as u64 + 2);
        for (owner, rate) in [(OWNER_TRUSTED, LIMIT / 2 - 100), (1000, part - 20)] {
            let (got, lost) = beside(&many, owner, rate, 4);
            assert!(got >= rate * 4 && lost == 0, "{owner}, {rate}: {lost} lost");
        }
    }

    #[test]
    fn more_owners_than_places_leave_root_its_half() {
        let mut shares = unused();
        let (mut next, mut user, mut all) = (60 * SECOND, 0, 0);
        for now in (60 * SECOND..70 * SECOND).step_by(STEP as usize) {
            // Each request is another owner's, with an unused share.
            user += 1;
            all += u64::from(take(&mut shares, 100_000 + user % 65_536, now, LIMIT));
            if now >= next {
                next += SECOND * 2 / LIMIT + 1000;
                assert!(take(&mut shares, OWNER_TRUSTED, now, LIMIT));
                all += 1;
            }
        }
        assert!(all <= 12 * LIMIT, "{all} in ten seconds");
    }

    #[test]
    fn what_is_left_is_everybodys() {
        let mut shares = unused();
        let mut got = [0; 3];
        for now in (60 * SECOND..70 * SECOND).step_by(STEP as usize) {
            for (owner, got) in [OWNER_TRUSTED, 1000, 1001].into_iter().zip(&mut got) {
                *got += u64::from(take(&mut shares, owner, now, LIMIT));
            }
        }
        let all: u64 = got.iter().sum();
        assert!((10 * LIMIT..=12 * LIMIT).contains(&all), "{got:?}");
        assert!(got[0] >= 5 * LIMIT, "{got:?}");
        assert!(
            got[1] >= 10 * LIMIT / 6 && got[2] >= 10 * LIMIT / 6,
            "{got:?}"
        );
    }

    #[test]
    fn an_owner_keeps_its_place_and_places_are_found_again() {
        let mut shares = unused();
        shares.begin(10);
        // All hash to the same first place.
        let places = [1, 2, 3, 4].map(|owner| shares.place(owner, 63));
        assert_eq!(places, [63, 0, 1, 2]);
        assert_eq!(shares.asking, 4);
        // There is no place for a fifth.
        assert_eq!(shares.place(5, 63), 63);
        assert_eq!(shares.place(2, 63), 0);
        assert_eq!((shares.asking, shares.others[63].owner), (4, 1));
        shares.begin(11);
        assert_eq!(
            (shares.place(3, 63), shares.asking, shares.asked),
            (1, 1, 4)
        );
        shares.begin(12);
        assert_eq!((shares.place(5, 63), shares.others[63].owner), (63, 5));
        assert_eq!((shares.asking, shares.asked), (1, 1));
        // A program that was preempted is late.
        shares.begin(11);
        assert_eq!((shares.turn, shares.asking), (12, 1));
        shares.begin(20);
        assert_eq!((shares.asking, shares.asked), (0, 0));
    }
}
