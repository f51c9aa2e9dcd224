//! Keeps the process alive when a mapped file loses bytes: reads give zeros, and a mark says that the map is damaged.
//!
//! The kernel answers a read of a page behind a file's end, or of one that the disk does not give, with SIGBUS. The
//! The handler here looks whether the address lies in a guarded map. If so, the handler marks the map as damaged, puts
//! zeros in place of the whole map, and lets the reader go on. The reader must look at the mark before it answers. The
//! handler sets the mark before it puts the zeros there, so no reader reads a zero without the mark. Any other bus
//! error goes on to the handler that was installed before.
//!
//! The handler replaces the whole map and not one page alone: each page would be a mapping of its own, and a process
//! may have some 65,000 mappings.
//!
//! The handler uses nothing but system calls, atomics and static memory, so it may run in any thread at any place.
//!
//! Source: signal-safety(7), sigaction(2) and mmap(2).

use std::io;
use std::mem::MaybeUninit;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Most maps that can be guarded at a time. A further map is not guarded.
pub const MAX_MAPS: usize = 1 << 14;

/// One guarded map. The version is odd while the row is changed; a row whose end is 0 is free.
struct Row {
    version: AtomicU64,
    begin: AtomicUsize,
    end: AtomicUsize,
    mark_at: AtomicUsize,
}

/// A row that nobody writes takes no memory.
static ROWS: [Row; MAX_MAPS] = [const {
    Row {
        version: AtomicU64::new(0),
        begin: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        mark_at: AtomicUsize::new(0),
    }
}; MAX_MAPS];

/// Number of rows of `ROWS` that were ever in use.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The handler of bus errors before this module's handler; None where this handler could not be installed.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Guards a map against the loss of its file's bytes, and returns the map's place, which [`remove`] takes. Returns
/// None where there are too many maps. The first call installs the handler.
///
/// # Errors
/// The system does not take the handler.
///
/// # Safety
/// Until `remove`, the map of whole pages from `begin` on is readable and nobody else's, and `mark_at` is the address
/// of an aligned word of 64 bits that may be written: the handler stores 1 there once the map is damaged.
pub unsafe fn add(begin: usize, num_bytes: usize, mark_at: usize) -> io::Result<Option<usize>> {
    install()?;
    for (place, row) in ROWS.iter().enumerate() {
        let version = row.version.load(Ordering::Acquire);
        if version % 2 == 1 || row.end.load(Ordering::Acquire) != 0 {
            continue;
        }
        let claimed = row.version.compare_exchange(version, version + 1, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_err() {
            continue;
        }
        row.mark_at.store(mark_at, Ordering::Release);
        row.begin.store(begin, Ordering::Release);
        row.end.store(begin + num_bytes, Ordering::Release);
        row.version.store(version + 2, Ordering::Release);
        COUNT.fetch_max(place + 1, Ordering::AcqRel);
        return Ok(Some(place));
    }
    Ok(None)
}

/// Forgets a map. Call this before you unmap the map, because its addresses may then become another map's.
///
/// # Panics
/// No map has this place.
pub fn remove(place: usize) {
    ROWS[place].end.store(0, Ordering::Release);
}

/// Returns begin, end and mark address of the map that holds an address.
fn find(address: usize) -> Option<(usize, usize, usize)> {
    ROWS[..COUNT.load(Ordering::Acquire)].iter().find_map(|row| {
        // A row that another thread changes meanwhile is not the map that this thread reads.
        let version = row.version.load(Ordering::Acquire);
        let (begin, end) = (row.begin.load(Ordering::Acquire), row.end.load(Ordering::Acquire));
        let mark_at = row.mark_at.load(Ordering::Acquire);
        let is_whole = version % 2 == 0 && row.version.load(Ordering::Acquire) == version;
        (is_whole && begin <= address && address < end).then_some((begin, end, mark_at))
    })
}

fn install() -> io::Result<()> {
    let before = BEFORE.get_or_init(|| {
        // SAFETY: zeros are a sigaction; the handler is a function of the type that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            let mut before = MaybeUninit::uninit();
            (libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr()) == 0).then(|| before.assume_init())
        }
    });
    match before {
        Some(_) => Ok(()),
        None => Err(io::Error::other("the system does not take a handler of bus errors")),
    }
}

extern "C" fn on_bus_error(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let error = errno();
    // SAFETY: the system gives a handler with SA_SIGINFO a valid `siginfo_t`.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A bus error that a process sends has a code of 0 or less, and no address of a map.
    if code <= 0 || !replaced(address) {
        pass_on(number, info, context, code <= 0);
    }
    set_errno(error);
}

/// Marks the map that holds the address, and puts zeros in the map's place; says whether there was such a map.
fn replaced(address: usize) -> bool {
    let Some((begin, end, mark_at)) = find(address) else {
        return false;
    };
    // SAFETY: the caller of `add` promised that the word stays there until `remove`.
    unsafe { (*(mark_at as *const AtomicU64)).store(1, Ordering::SeqCst) };
    // The zeros can be written too, because maps of changed rows are written.
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS;
    // SAFETY: the caller of `add` promised that the map's pages are nobody else's.
    let mapped = unsafe { libc::mmap(begin as *mut libc::c_void, end - begin, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// Calls the handler from before; where there was none, has the system end the process.
fn pass_on(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, is_sent: bool) {
    // A signal may come before `BEFORE` is filled; the default is right then.
    let before = BEFORE.get().copied().flatten();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if handler == libc::SIG_IGN && is_sent {
        return;
    }
    // SAFETY: the address is that of the function that sigaction returned, of the type that its flags say.
    unsafe {
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            // The thread repeats the read and meets the default handler; a signal that a process sent is sent again.
            libc::signal(number, libc::SIG_DFL);
            if is_sent {
                libc::raise(number);
            }
        } else if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) {
            type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<usize, WithInfo>(handler)(number, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(number);
        }
    }
}

#[cfg(target_os = "linux")]
fn errno_at() -> *mut libc::c_int {
    // SAFETY: the function `__errno_location` has no conditions.
    unsafe { libc::__errno_location() }
}

#[cfg(not(target_os = "linux"))]
fn errno_at() -> *mut libc::c_int {
    // SAFETY: the function `__error` has no conditions.
    unsafe { libc::__error() }
}

fn errno() -> libc::c_int {
    // SAFETY: the address is of this thread's word.
    unsafe { *errno_at() }
}

fn set_errno(error: libc::c_int) {
    // SAFETY: the address is of this thread's word.
    unsafe { *errno_at() = error };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::ptr::null_mut;

    use super::*;

    const PAGE: usize = 4096;

    /// A file of ones, mapped and removed from its folder.
    struct Mapped {
        file: File,
        at: *mut u8,
        size: usize,
    }

    impl Mapped {
        fn new(name: &str, pages: usize) -> Self {
            let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            std::fs::write(&path, vec![1; pages * PAGE]).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let size = pages * PAGE;
            // SAFETY: the system chooses the place.
            let at = unsafe { libc::mmap(null_mut(), size, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
            assert_ne!(at, libc::MAP_FAILED);
            Mapped { file, at: at.cast(), size }
        }

        fn read(&self, at: usize) -> u8 {
            assert!(at < self.size);
            // SAFETY: the byte lies in the map.
            unsafe { self.at.add(at).read_volatile() }
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: nobody reads the map any more.
            unsafe { libc::munmap(self.at.cast(), self.size) };
        }
    }

    fn guard(map: &Mapped, mark: &AtomicU64) -> usize {
        // SAFETY: the map and the mark outlive the guard in every test.
        unsafe { add(map.at as usize, map.size, std::ptr::from_ref(mark) as usize) }.unwrap().unwrap()
    }

    #[test]
    fn a_file_that_was_cut_short_reads_as_zeros_and_is_marked() {
        let (map, other) = (Mapped::new("guard-cut", 3), Mapped::new("guard-whole", 3));
        let (mark, other_mark) = (AtomicU64::new(0), AtomicU64::new(0));
        let (place, other_place) = (guard(&map, &mark), guard(&other, &other_mark));
        assert_eq!((map.read(0), map.read(2 * PAGE)), (1, 1));
        map.file.set_len(PAGE as u64).unwrap();
        assert_eq!((map.read(0), mark.load(Ordering::SeqCst)), (1, 0));
        assert_eq!((map.read(2 * PAGE + 5), mark.load(Ordering::SeqCst)), (0, 1));
        // All of it: what was read before and what comes next belong together.
        assert_eq!(map.read(0), 0);
        assert_eq!((other.read(2 * PAGE), other_mark.load(Ordering::SeqCst)), (1, 0));
        remove(place);
        remove(other_place);
    }

    #[test]
    fn a_place_is_used_again() {
        let map = Mapped::new("guard-again", 1);
        let mark = AtomicU64::new(0);
        for _ in 0..2 * MAX_MAPS {
            remove(guard(&map, &mark));
        }
    }

    #[test]
    fn any_other_bus_error_ends_the_process() {
        let guarded = Mapped::new("guard-mine", 2);
        let foreign = Mapped::new("guard-foreign", 2);
        let mark = AtomicU64::new(0);
        let place = guard(&guarded, &mark);
        foreign.file.set_len(0).unwrap();
        // SAFETY: the child only reads, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            foreign.read(0);
            // SAFETY: `_exit` only ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child is one of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS);
        assert_eq!(mark.load(Ordering::SeqCst), 0);
        remove(place);
    }
}
