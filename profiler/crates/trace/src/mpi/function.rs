//! Functions of MPI by what they mean for messages.

/// What a function does for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MpiFunction {
    /// Begin of a process's part in the run.
    Init,
    /// The process's rank in a communicator.
    CommRank,
    /// How many ranks a communicator has.
    CommSize,
    /// Makes a communicator of another; with the name of the function.
    NewComm(Maker),
    /// Sends, and returns when the buffer is free.
    Send(Mode),
    /// Begins to send.
    Isend(Mode),
    /// Receives.
    Recv,
    /// Begins to receive.
    Irecv,
    /// Prepares a send that is started later, any number of times.
    SendInit(Mode),
    /// The same for a receive.
    RecvInit,
    /// Takes a message out of the order, to receive it later.
    Mprobe,
    /// Receives what was taken.
    Mrecv,
    /// Begins to receive it.
    Imrecv,
    /// Sends and receives.
    Sendrecv,
    /// Begins what was prepared: of one request or of an array of them.
    Start,
    /// Waits for one request, or asks about it.
    WaitOne,
    /// Waits for all of an array, or asks about them.
    WaitAll,
    /// Waits for any of an array, or asks about them.
    WaitAny,
    /// Takes a request back.
    Cancel,
    /// A collective.
    Collective(Flow),
}

/// How a communicator comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Maker {
    /// One with the same ranks.
    Dup,
    /// Ranks with the same color, ordered by key.
    Split,
    /// What the ranks of it are only they know.
    Other(&'static str),
}

/// When a send may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// When the buffer is free.
    Standard,
    /// When the receive has begun.
    Synchronous,
}

/// Whose end depends on whose begin in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// All on all.
    All,
    /// All on the root.
    FromRoot,
    /// The root on all.
    ToRoot,
    /// Neighbours only, or ranks before this one: nothing that holds for all.
    Some,
}

/// The function of that name, with or without the `P` of the profiling interface.
pub(super) fn of(name: &str) -> Option<MpiFunction> {
    let name = name.strip_prefix('P').unwrap_or(name);
    let name = name.strip_prefix("MPI_")?;
    Some(match name {
        "Init" | "Init_thread" => MpiFunction::Init,
        "Comm_rank" => MpiFunction::CommRank,
        "Comm_size" => MpiFunction::CommSize,
        "Send" | "Bsend" | "Rsend" => MpiFunction::Send(Mode::Standard),
        "Ssend" => MpiFunction::Send(Mode::Synchronous),
        "Isend" | "Ibsend" | "Irsend" => MpiFunction::Isend(Mode::Standard),
        "Issend" => MpiFunction::Isend(Mode::Synchronous),
        "Send_init" | "Bsend_init" | "Rsend_init" => MpiFunction::SendInit(Mode::Standard),
        "Ssend_init" => MpiFunction::SendInit(Mode::Synchronous),
        "Recv" => MpiFunction::Recv,
        "Irecv" => MpiFunction::Irecv,
        "Recv_init" => MpiFunction::RecvInit,
        "Mprobe" | "Improbe" => MpiFunction::Mprobe,
        "Mrecv" => MpiFunction::Mrecv,
        "Imrecv" => MpiFunction::Imrecv,
        "Sendrecv" | "Sendrecv_replace" => MpiFunction::Sendrecv,
        "Start" | "Startall" => MpiFunction::Start,
        "Wait" | "Test" => MpiFunction::WaitOne,
        "Waitall" | "Testall" => MpiFunction::WaitAll,
        "Waitany" | "Testany" => MpiFunction::WaitAny,
        "Cancel" => MpiFunction::Cancel,
        _ => return maker(name).or_else(|| collective(name)),
    })
}

fn maker(name: &str) -> Option<MpiFunction> {
    Some(MpiFunction::NewComm(match name {
        "Comm_dup" | "Comm_idup" | "Comm_dup_with_info" => Maker::Dup,
        "Comm_split" => Maker::Split,
        "Comm_create" => Maker::Other("Comm_create"),
        "Comm_create_group" => Maker::Other("Comm_create_group"),
        "Comm_split_type" => Maker::Other("Comm_split_type"),
        "Cart_create" => Maker::Other("Cart_create"),
        "Cart_sub" => Maker::Other("Cart_sub"),
        "Graph_create" => Maker::Other("Graph_create"),
        "Intercomm_create" => Maker::Other("Intercomm_create"),
        "Intercomm_merge" => Maker::Other("Intercomm_merge"),
        "Comm_spawn" => Maker::Other("Comm_spawn"),
        "Comm_get_parent" => Maker::Other("Comm_get_parent"),
        _ => return None,
    }))
}

fn collective(name: &str) -> Option<MpiFunction> {
    let blocking = name.strip_prefix('I').map(|rest| {
        let mut chars = rest.chars();
        let first = chars.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(chars).collect::<String>()
    });
    let name = blocking.as_deref().unwrap_or(name);
    Some(MpiFunction::Collective(match name {
        "Barrier"
        | "Allreduce"
        | "Allgather"
        | "Allgatherv"
        | "Alltoall"
        | "Alltoallv"
        | "Alltoallw"
        | "Reduce_scatter"
        | "Reduce_scatter_block" => Flow::All,
        "Bcast" | "Scatter" | "Scatterv" => Flow::FromRoot,
        "Reduce" | "Gather" | "Gatherv" => Flow::ToRoot,
        "Scan" | "Exscan" => Flow::Some,
        _ => return None,
    }))
}

/// Whether a collective's call returns before the collective is over.
pub(super) fn is_begun_only(name: &str) -> bool {
    let name = name.strip_prefix('P').unwrap_or(name);
    let rest = name.strip_prefix("MPI_I").unwrap_or_default();
    rest.starts_with(|c: char| c.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_functions() {
        for (name, function) in [
            ("MPI_Init", MpiFunction::Init),
            ("PMPI_Ssend", MpiFunction::Send(Mode::Synchronous)),
            ("MPI_Ibcast", MpiFunction::Collective(Flow::FromRoot)),
            ("PMPI_Iallreduce", MpiFunction::Collective(Flow::All)),
            ("MPI_Gatherv", MpiFunction::Collective(Flow::ToRoot)),
            ("MPI_Improbe", MpiFunction::Mprobe),
            ("MPI_Comm_split", MpiFunction::NewComm(Maker::Split)),
        ] {
            assert_eq!(of(name), Some(function), "{name}");
        }
        for name in ["PMPI_", "MPI_Wtime", "Send", "ncclSend", "", "MPI_I"] {
            assert_eq!(of(name), None, "{name}");
        }
        assert!(is_begun_only("PMPI_Ibarrier") && !is_begun_only("MPI_Allreduce"));
    }
}
