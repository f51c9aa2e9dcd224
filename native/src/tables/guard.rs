//! Keeps the process alive when a mapped file is truncated or unreadable: reads then give zeros, and a damage flag is
//! set.
//!
//! Linux sends SIGBUS to a thread that reads a mapped page behind the file's end, or a page that the disk can not read.
//! The handler here looks for a guarded map that holds the address. If there is one, the handler sets the map's damage
//! flag, maps zeros over the whole map, and lets the thread go on. The thread must check the flag before it sends an
//! answer. The handler sets the flag before it maps the zeros, so a thread that reads such a zero also sees the flag.
//! Any other SIGBUS goes on to the handler that was installed before.
//!
//! The handler replaces the whole map, not one page: each replaced page would become a mapping of its own, and Linux
//! allows a process some 65,000 mappings.
//!
//! The handler uses only system calls, atomics and static memory, so a signal may interrupt any code of any thread.
//!
//! Source: signal-safety(7), sigaction(2) and mmap(2).

use std::io;
use std::mem::MaybeUninit;

use std::sync::OnceLock;

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximal number of memory maps of files that are guarded against bus errors at a time. A further map stays unguarded.
pub(super) const MAX_MAPS: usize = 1 << 14;

/// One guarded memory map. `version` is odd while a thread changes the entry; an entry whose `end` is 0 is free.
/// `is_writable` is 0 or 1.
struct Entry {
    version: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    flag_at: AtomicUsize,
    is_writable: AtomicUsize,
}

/// A guarded map's start, its end, the address of its damage flag, and 1 if the map is writable.
type Guarded = (usize, usize, usize, usize);

/// The guarded memory maps. num_used: number of entries, from the first on, that were ever in use.
struct Registry<const N: usize> {
    entries: [Entry; N],
    num_used: AtomicUsize,
}

/// The guarded memory maps of the process. Entries never written take no memory, because the system stores no pages of
/// zeros.
#[cfg(not(all(test, feature = "model")))]
static REGISTRY: Registry<MAX_MAPS> = Registry {
    entries: [const {
        Entry {
            version: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            flag_at: AtomicUsize::new(0),
            is_writable: AtomicUsize::new(0),
        }
    }; MAX_MAPS],
    num_used: AtomicUsize::new(0),
};
#[cfg(all(test, feature = "model"))]
loom::lazy_static! { static ref REGISTRY: Registry<MAX_MAPS> = unreachable!("a model has a registry of its own"); }

/// The SIGBUS handler that this module replaced; None if the system refused this module's handler.
static PREVIOUS: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Guards a mapped file against SIGBUS, and returns the index of its entry, which [`remove`] needs. Returns None if
/// [`MAX_MAPS`] maps are guarded already. The first call installs the handler.
///
/// # Errors
/// The system refuses the handler.
///
/// # Safety
/// Until `remove`, the `num_bytes` from `start` on are whole mapped pages that no other code replaces, and `flag_at` is
/// the address of an aligned, writable 64-bit word: the handler stores 1 there once the map is damaged.
pub(super) unsafe fn add(
    start: usize,
    num_bytes: usize,
    flag_at: usize,
    is_writable: bool,
) -> io::Result<Option<usize>> {
    install()?;
    Ok(REGISTRY.add((start, start + num_bytes, flag_at, is_writable.into())))
}

/// Ends the guard of a mapped file. Call this before you unmap the file, because its addresses may belong to another
/// map later.
///
/// # Panics
/// `index` is not below [`MAX_MAPS`].
pub(super) fn remove(index: usize) {
    REGISTRY.remove(index);
}

impl<const N: usize> Registry<N> {
    fn add(&self, (start, end, flag_at, is_writable): Guarded) -> Option<usize> {
        for (index, entry) in self.entries.iter().enumerate() {
            let version = entry.version.load(Ordering::Acquire);
            if version % 2 == 1 || entry.end.load(Ordering::Acquire) != 0 {
                continue;
            }
            let claimed = entry.version.compare_exchange(version, version + 1, Ordering::AcqRel, Ordering::Relaxed);
            if claimed.is_err() {
                continue;
            }
            entry.flag_at.store(flag_at, Ordering::Release);
            entry.is_writable.store(is_writable, Ordering::Release);
            entry.start.store(start, Ordering::Release);
            entry.end.store(end, Ordering::Release);
            entry.version.store(version + 2, Ordering::Release);
            self.num_used.fetch_max(index + 1, Ordering::AcqRel);
            return Some(index);
        }
        None
    }

    fn remove(&self, index: usize) {
        self.entries[index].end.store(0, Ordering::Release);
    }

    fn find(&self, address: usize) -> Option<Guarded> {
        self.entries[..self.num_used.load(Ordering::Acquire)].iter().find_map(|entry| {
            // The handler skips an entry that another thread is changing: it can not be the map that the interrupted
            // thread reads.
            let version = entry.version.load(Ordering::Acquire);
            let (start, end) = (entry.start.load(Ordering::Acquire), entry.end.load(Ordering::Acquire));
            let flag_at = entry.flag_at.load(Ordering::Acquire);
            let is_writable = entry.is_writable.load(Ordering::Acquire);
            let is_whole = version % 2 == 0 && entry.version.load(Ordering::Acquire) == version;
            (is_whole && start <= address && address < end).then_some((start, end, flag_at, is_writable))
        })
    }
}

fn install() -> io::Result<()> {
    let previous = PREVIOUS.get_or_init(|| {
        // SAFETY: a `sigaction` struct of zeros is valid, and `on_bus_error` has the type of a handler with SA_SIGINFO.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            let mut previous = MaybeUninit::uninit();
            (libc::sigaction(libc::SIGBUS, &raw const action, previous.as_mut_ptr()) == 0)
                .then(|| previous.assume_init())
        }
    });
    match previous {
        Some(_) => Ok(()),
        None => Err(io::Error::other("the system does not take a handler of bus errors")),
    }
}

extern "C" fn on_bus_error(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let error = errno();
    // SAFETY: the kernel passes a pointer to a valid `siginfo_t` to a signal handler that was installed with
    // SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A SIGBUS that a process sent with kill() has a code of 0 or less, and no address.
    if code <= 0 || !replace_with_zeros(address) {
        call_previous(number, info, context, code <= 0);
    }
    set_errno(error);
}

/// Sets the damage flag of the guarded map that contains the address, and maps zeros over that map. Returns false if no
/// guarded map contains the address.
fn replace_with_zeros(address: usize) -> bool {
    let Some((start, end, flag_at, is_writable)) = REGISTRY.find(address) else {
        return false;
    };
    // SAFETY: the damage flag at this address may be written: the caller of `add` promised that it stays in memory
    // until `remove`.
    unsafe { (*(flag_at as *const AtomicU64)).store(1, Ordering::SeqCst) };
    // The server writes changed rows into some maps. Writable pages count as the process's own memory, of which it may
    // have less than the file is large (RLIMIT_DATA; without MAP_NORESERVE, the machine's memory).
    let protection = libc::PROT_READ | if is_writable == 1 { libc::PROT_WRITE } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: mmap replaces only pages of the guarded file: the caller of `add` promised that no other map uses these
    // addresses.
    let mapped = unsafe { libc::mmap(start as *mut libc::c_void, end - start, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// Calls the SIGBUS handler that this module replaced; without one, lets the signal end the process.
fn call_previous(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, is_from_process: bool) {
    // If a SIGBUS comes before `PREVIOUS` is set, this function takes the system's default action in place of the
    // earlier handler.
    let previous = PREVIOUS.get().copied().flatten();
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    if handler == libc::SIG_IGN && is_from_process {
        return;
    }
    // SAFETY: sigaction returned this address as that of the earlier SIGBUS handler, with flags that say which function
    // type the handler has.
    unsafe {
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            // After a failed read of a mapped file, the thread repeats the read when this handler returns, and the
            // default action of SIGBUS ends the process. If another process sent the signal, the handler must raise it
            // again.
            libc::signal(number, libc::SIG_DFL);
            if is_from_process {
                libc::raise(number);
            }
        } else if previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0) {
            type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<usize, WithInfo>(handler)(number, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(number);
        }
    }
}

#[cfg(target_os = "linux")]
fn errno_at() -> *mut libc::c_int {
    // SAFETY: the C function `__errno_location` has no preconditions and may be called by any thread.
    unsafe { libc::__errno_location() }
}

#[cfg(not(target_os = "linux"))]
fn errno_at() -> *mut libc::c_int {
    // SAFETY: the C function `__error` has no preconditions and may be called by any thread.
    unsafe { libc::__error() }
}

fn errno() -> libc::c_int {
    // SAFETY: the pointer is the address of `errno` of this thread, which no other thread accesses.
    unsafe { *errno_at() }
}

fn set_errno(error: libc::c_int) {
    // SAFETY: the pointer is the address of `errno` of this thread, which no other thread accesses.
    unsafe { *errno_at() = error };
}

/// Returns the index of the entry of a map that begins at an address.
#[cfg(all(test, not(feature = "model")))]
pub(super) fn entry_at(start: usize) -> Option<usize> {
    REGISTRY.entries.iter().position(|one| one.start.load(Ordering::Acquire) == start)
}

#[cfg(all(test, feature = "model"))]
mod model {
    use std::array;
    use std::sync::Arc;

    use super::*;
    use crate::sync::{check, thread};

    /// Map 1 is at 10 to 20 with its flag at 1, map 2 at 30 to 40 with its flag at 2, and so on.
    const fn map(number: usize) -> Guarded {
        (20 * number - 10, 20 * number, number, number % 2)
    }

    fn add(registry: &Registry<2>, number: usize) -> Option<usize> {
        registry.add(map(number))
    }

    #[test]
    fn a_handler_finds_its_own_map_whatever_other_threads_do() {
        check(|| {
            let entry = |_| Entry {
                version: AtomicU64::new(0),
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                flag_at: AtomicUsize::new(0),
                is_writable: AtomicUsize::new(0),
            };
            let registry = Arc::new(Registry::<2> { entries: array::from_fn(entry), num_used: AtomicUsize::new(0) });
            let first = add(&registry, 1).unwrap();
            let other = Arc::clone(&registry);
            let changing = thread::spawn(move || {
                other.remove(first);
                add(&other, 2).unwrap();
            });
            // This thread opens a map and reads it; a stranger's address belongs to a whole map or to none.
            add(&registry, 3).unwrap();
            assert_eq!(registry.find(55), Some(map(3)));
            assert!([None, Some(map(2))].contains(&registry.find(35)));
            assert!([None, Some(map(1))].contains(&registry.find(15)));
            changing.join().unwrap();
            assert_eq!([15, 35, 55].map(|at| registry.find(at)), [None, Some(map(2)), Some(map(3))]);
        });
    }
}
