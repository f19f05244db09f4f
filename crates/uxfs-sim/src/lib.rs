//! Power cuts: workloads with a model, on a device that records; images that a cut could leave; what recovery makes of them.
//!
//! A workload's workers each own a directory and a [`Model`] of it. Every operation is marked in the record when it begins and
//! when it ends, so for a cut at any place it is known which operations had begun and which syncs had returned. What
//! recovery shows must be the namespace after *one* of the operations between the last sync and the last begun, and in each
//! file every byte must be one that was written there since its last sync, or the one that was synced.

mod age;
mod explore;
pub mod fuzz;
pub mod hostile;
pub mod kernel;
mod model;
mod ops;
mod shrink;
mod subject;
mod workload;

pub use explore::{Findings, Plan, explore};
pub use model::{Data, Model};
pub use ops::{Made, Op};
pub use shrink::shrink;
pub use subject::Subject;
pub use workload::{Form, Journey, Mix, Shape, replay, run};
