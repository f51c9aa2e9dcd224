//! The priority of threads: those that serve connections run before all others, for short times.
//!
//! Source: `sched(7)`, `sched_setattr(2)`; `do_preempt_short` of kernel/sched/fair.c (Linux 6.12 to 6.18).

/// The slice of a thread that serves connections, in nanoseconds: the shortest that Linux gives.
const SHORT_SLICE_NS: u64 = 100_000;

/// Adds to the nice value of the calling thread, so that the system prefers other threads; on Linux each thread has its
/// own. If the system refuses, the thread keeps its priority.
pub fn lower(by: i32) {
    // SAFETY: both calls take numbers only; 0 stands for the calling thread.
    unsafe {
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0) + by;
        libc::setpriority(libc::PRIO_PROCESS, 0, nice);
    }
}

/// Lets the calling thread run for short times, so that it begins to run as soon as it has work: Linux (since 6.12) lets a
/// thread with a shorter slice interrupt one with a longer slice. Its share of the processors stays the same. If the
/// system refuses, the thread keeps its slice.
pub fn shorten_slice() {
    if let Some(mut attributes) = attributes() {
        attributes.sched_runtime = SHORT_SLICE_NS;
        // SAFETY: the system reads a struct that lives until the call ends; 0 stands for the calling thread.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Returns the attributes of the calling thread; None if its policy has no slice, or the system does not tell.
fn attributes() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the struct has numbers only, for which all zeros are values; the system writes at most `size` bytes.
    let (attributes, result) = unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        let result = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0);
        (attributes, result)
    };
    let has_slice = attributes.sched_policy == libc::SCHED_OTHER.unsigned_abs();
    (result == 0 && has_slice).then_some(attributes)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    /// The nice value that is as high as the system lets it be.
    const MOST: i32 = 19;

    fn nice() -> i32 {
        // SAFETY: the call takes numbers only.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn each_thread_has_its_own_priority() {
        let before = nice();
        let lowered = std::thread::spawn(|| {
            lower(3);
            let inherited = std::thread::spawn(nice).join().unwrap();
            (nice(), inherited)
        });
        let wanted = (before + 3).min(MOST);
        assert_eq!(lowered.join().unwrap(), (wanted, wanted));
        assert_eq!(nice(), before);
    }

    #[test]
    fn a_short_slice_keeps_the_nice_value() {
        let shortened = std::thread::spawn(|| {
            lower(2);
            let before = attributes();
            shorten_slice();
            (before, attributes(), nice())
        });
        let (before, after, now) = shortened.join().unwrap();
        assert_eq!(now, (nice() + 2).min(MOST));
        let (Some(before), Some(after)) = (before, after) else {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "the system does not tell: NO SLICE WAS TESTED");
            return;
        };
        assert_eq!(after.sched_nice, before.sched_nice);
        // Before Linux 6.12 a slice can not be set, and reads as 0.
        assert!(after.sched_runtime == SHORT_SLICE_NS || after.sched_runtime == before.sched_runtime);
        if before.sched_runtime > SHORT_SLICE_NS {
            assert_eq!(after.sched_runtime, SHORT_SLICE_NS);
        }
    }
}
