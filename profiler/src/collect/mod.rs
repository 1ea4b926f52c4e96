//! The live side: everything that talks to the running kernel.
//!
//! * [`config`]: what to record;
//! * [`privileges`]: what the process may do, and giving up what it need not;
//! * [`launch`]: the profiled command, held until recording runs;
//! * [`signals`]: signals as data, with their origin;
//! * [`readable`]: descriptors that the runtime waits for;
//! * [`session`]: owns the recording;
//! * [`doctor`]: what of all this works on this machine.

pub mod config;
pub mod doctor;
pub mod launch;
pub mod privileges;
pub mod readable;
pub mod session;
pub mod signals;
