//! Asks the system whether it starts threads, before a library asks that ends the process where there are none.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const NAME: &str = "thread-check";
/// Size of the stack of a thread that does nothing.
const STACK_BYTES: usize = 64 << 10;
/// Longest wait until the system has taken ended threads out of its counts.
const END: Duration = Duration::from_millis(100);

/// Starts `num` threads and ends them again.
///
/// # Errors
/// The system does not start so many further threads: the process or its container has as many as it may have, or there
/// is no memory for their stacks.
pub fn check(num: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = || {
        drop(gate.lock());
        // SAFETY: the call takes and returns numbers only.
        unsafe { libc::gettid() }
    };
    let (is_started, ended) = thread::scope(|scope| {
        let mut started = Vec::with_capacity(num);
        let is_started = (0..num).try_for_each(|_| {
            let thread = thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES);
            started.push(thread.spawn_scoped(scope, wait)?);
            Ok(())
        });
        drop(closed);
        let ended: Vec<_> = started.into_iter().filter_map(|thread| thread.join().ok()).collect();
        (is_started, ended)
    });
    // A control group counts a thread for a moment after its join.
    let until = Instant::now() + END;
    while ended.iter().any(|id| Path::new(&format!("/proc/self/task/{id}")).exists()) && Instant::now() < until {
        thread::yield_now();
    }
    is_started.map_err(|error: io::Error| {
        let told = format!(
            "the system starts no {num} further threads ({error}): raise the limit on processes of the container (pids) \
             or of the user (ulimit -u)"
        );
        io::Error::new(error.kind(), told)
    })
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn threads_that_were_started_are_gone() {
        check(20).unwrap();
        let names = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path().join("comm"));
        assert!(!names.flat_map(std::fs::read_to_string).any(|name| name.trim() == NAME));
    }
}
