//! The locks, atomics and threads of code whose races are searched: those of std, or those of loom in a test build with
//! the feature `model`.
//!
//! A test in a module `model` runs in each order of its threads' steps with at most three preemptions, also in those that
//! weak memory orders allow: `cargo test --features model --lib model::`. Other tests could not run in such a build, and
//! their modules are not part of it, so that it compiles in a quarter of the time. loom's `wait_timeout` never times out.

#[cfg(all(test, feature = "model"))]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};
#[cfg(not(all(test, feature = "model")))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

/// Runs a test in each order of its threads' steps with at most three preemptions.
#[cfg(all(test, feature = "model"))]
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}
