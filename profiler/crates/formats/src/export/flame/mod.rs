//! Flame graphs as SVG: the root on top, and above it, always in sight, a title, a
//! legend, the details of a frame, and a field to search in.
//!
//! Without its script (as an image in a page, or where scripts are forbidden) the
//! picture is complete and still. With it the picture takes the width of the window,
//! its head stays where it is while the rest is scrolled, a click zooms, and a search
//! marks frames. Nothing outside of the file is used.

mod page;
mod table;

pub(super) use page::{FlamePage, Legend, LegendEntry};
pub(super) use table::{FlameFrame, FlameTable};
