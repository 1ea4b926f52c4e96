//! Searching the tables in the pool: mapping, page, rule.

use aiprof_common::*;

use super::{NO_STOP, Walk};
use crate::{
    maps::Scratch,
    pool::{Block, le_bit},
};

/// The address to look rules up for. A return address may be the first byte after a call that
/// does not return, and then belongs to the next function.
#[inline(always)]
fn lookup_address(w: &Walk) -> u64 {
    if w.exact != 0 {
        w.rip
    } else {
        w.rip.wrapping_sub(1)
    }
}

/// The address of the first byte of the table page that has the rule for the current address.
#[inline(always)]
pub(super) fn page_address(w: &Walk) -> u64 {
    let rel = lookup_address(w).wrapping_sub(w.map.bias);
    w.map.bias.wrapping_add(rel & !(PAGE_SIZE - 1))
}

/// Sets `map_*` to the mapping that holds the current address.
#[inline(never)]
pub(super) fn find_mapping(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let w = unsafe { &mut (*scratch).walk };
    u32::from(search_mappings(w))
}

#[inline(always)]
fn search_mappings(w: &mut Walk) -> bool {
    let pc = lookup_address(w);
    if pc >= w.map.start && pc < w.map.end {
        return true;
    }
    if pc >> 63 != 0 {
        // Only the vsyscall page has such an address.
        w.map.start = 0xffff_ffff_ff60_0000;
        w.map.end = w.map.start + 0x1000;
        w.map.kind = MAP_VSYSCALL;
        return pc >= w.map.start && pc < w.map.end;
    }
    let Some(list) = Block::get(w.process.list) else {
        return false;
    };
    let n = u64::from(list.u32(4));
    if n == 0 || n > MAX_MAPPINGS as u64 {
        return false;
    }
    let mut at = 0u64;
    let mut stride = MAX_MAPPINGS as u64 / 2;
    while stride > 0 {
        let probe = at + stride;
        let start = list.u64(8 + probe * 8);
        at += stride * (le_bit(start, pc) & le_bit(probe + 1, n));
        stride /= 2;
    }
    let entry = 8 + n * 8 + at * 32;
    let start = list.u64(8 + at * 8);
    let end = list.u64(entry);
    if pc < start || pc >= end {
        return false;
    }
    w.map.bias = list.u64(entry + 8);
    w.map.dir = list.u32(entry + 16);
    w.map.dir_owner = list.u32(entry + 20);
    w.map.kind = list.u32(entry + 24);
    w.map.start = start;
    w.map.end = end;
    if list.u32(0) != w.process.list_owner || w.process.list_owner == 0 {
        // Replaced while it was read.
        w.map.end = 0;
        return false;
    }
    true
}

/// Sets `rule` to the rule for the current address, which is in a mapping with tables.
#[inline(never)]
pub(super) fn find_rule(scratch: *mut Scratch) -> u32 {
    // SAFETY: a checked map value.
    let s = unsafe { &mut *scratch };
    s.walk.rule = Rule::default();
    let rel = lookup_address(&s.walk).wrapping_sub(s.walk.map.bias);
    let index = rel >> PAGE_SHIFT;
    if s.walk.map.dir < REF_FIRST {
        return NO_STOP;
    }
    let Some(dir) = Block::get(s.walk.map.dir) else {
        return STOP_TORN.into();
    };
    if index >= u64::from(dir.u32(4)) {
        return NO_STOP;
    }
    let page = dir.u32(8 + index * 4);
    if dir.u32(0) != s.walk.map.dir_owner {
        return STOP_TORN.into();
    }
    if page == REF_ABSENT {
        s.header.miss_dir = s.walk.map.dir;
        s.header.miss_page = index as u32;
        return STOP_PAGE_ABSENT.into();
    }
    if page < REF_FIRST {
        return NO_STOP;
    }
    let Some(page) = Block::get(page) else {
        return STOP_TORN.into();
    };
    let now = (s.header.time_ns >> 30) as u32;
    match search_page(&page, rel & (PAGE_SIZE - 1), now) {
        Some(rule) if rule.kind == CFA_LATER => {
            s.header.miss_dir = s.walk.map.dir;
            s.header.miss_page = index as u32;
            STOP_PAGE_ABSENT.into()
        }
        Some(rule) => {
            s.walk.rule = rule;
            NO_STOP
        }
        None => STOP_TORN.into(),
    }
}

/// The rule for byte `pc` of a table page; `None` if the page changed meanwhile.
#[inline(always)]
fn search_page(page: &Block, pc: u64, now: u32) -> Option<Rule> {
    let owner = page.u32(0);
    let sizes = page.u32(8);
    let n_groups = u64::from(sizes & 0xffff);
    let rules_off = u64::from(page.u32(12));
    let groups_off = u64::from(page.u32(16));

    // The last group whose anchor is at or below pc.
    let mut group = 0u64;
    let mut stride = MAX_GROUPS as u64 / 2;
    while stride > 0 {
        let probe = group + stride;
        let anchor = u64::from(page.u16(24 + probe * 2));
        group += stride * (le_bit(anchor, pc) & le_bit(probe + 1, n_groups));
        stride /= 2;
    }
    let rel = pc - u64::from(page.u16(24 + group * 2));
    let at = groups_off + group * GROUP_BYTES as u64;

    // The last row of the group at or below pc: count the rows that start there.
    let (low, high) = (page.u64(at), page.u64(at + 8));
    let mut row = 0u64;
    let mut start = 0u64;
    let mut deltas = low >> 8;
    let mut i = 1;
    while i < GROUP_ROWS {
        if i == 8 {
            deltas = high;
        }
        start += deltas & 0xff;
        deltas >>= 8;
        row += le_bit(start, rel);
        i += 1;
    }
    let rule = page.u8(at + GROUP_ROWS as u64 + row);
    let raw = page.u64(rules_off + u64::from(rule) * 8);
    if page.u32(0) != owner || owner == 0 {
        return None;
    }
    if page.u32(4) != now {
        page.set_u32(4, now);
    }
    Some(Rule {
        cfa_off: raw as u32 as i32,
        rbp_off: (raw >> 32) as u16 as i16,
        kind: (raw >> 48) as u8,
        rbp: (raw >> 56) as u8,
    })
}
