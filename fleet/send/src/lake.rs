//! Where deliveries to a lake plug in.

use crate::answer::{Cause, Failure};
use crate::worker::{Context, End};
use aiprof_fleet::config::Lake;

/// Delivers to a lake until it is asked to stop; with `once` until nothing waits.
pub(crate) async fn run(mut context: Context, _lake: &Lake) -> End {
    let why = "this aiprof-send cannot deliver to a lake; what waits for it stays".to_owned();
    context.scan();
    context.failed(&Failure::soon(Cause::Storage, why));
    if !context.once {
        context.stopped().await;
    }
    End { all: false }
}
