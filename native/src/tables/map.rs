//! Maps files, so that a file which is cut short or unreadable damages one version and not the process (see guard.rs).
//!
//! The system calls are made here and not by a crate: the guard replaces pages of a map, and the pager advises the
//! kernel about single pages, for which a crate's map would have to hand out its address, too.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::guard;

/// The mark of a version's files: set once the bytes of a map may differ from those of the opened file.
#[derive(Debug, Default)]
pub struct Mark(AtomicU64);

impl Mark {
    pub fn set(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Says whether the mark is set. Call this after the last read of a map.
    #[must_use]
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

/// A map of a whole file. Concurrency: any thread.
#[derive(Debug)]
pub struct Map {
    start: *mut u8,
    num_bytes: usize,
    is_private: bool,
    file: File,
    /// The index of the map's guard; None if [`guard::MAX_MAPS`] other maps are guarded.
    guard: Option<usize>,
    /// The word that the guard sets, which must not be freed before the map.
    _mark: Arc<Mark>,
}

// SAFETY: any thread may own, read and unmap a map.
unsafe impl Send for Map {}
// SAFETY: shared use by several threads only reads the fields of the map, and hands out its address.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file: read-only, and shared with all processes, or privately, so that a write changes this map alone.
    ///
    /// # Errors
    /// The file is empty, or the system refuses the map or the handler of bus errors.
    pub fn open(file: File, is_private: bool, mark: Arc<Mark>) -> io::Result<Self> {
        let num_bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let (protection, flags) = if is_private {
            // Without MAP_NORESERVE, the kernel reserves memory for a copy of each page, and refuses maps larger than
            // memory.
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
        } else {
            (libc::PROT_READ, libc::MAP_SHARED)
        };
        // SAFETY: the new map replaces no other map, because the kernel chooses its address.
        let map = || unsafe { libc::mmap(std::ptr::null_mut(), num_bytes, protection, flags, file.as_raw_fd(), 0) };
        let mut start = map();
        if start == libc::MAP_FAILED && is_private {
            allow_data(num_bytes);
            start = map();
        }
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let flag_at = std::ptr::from_ref(&mark.0).addr();
        let mut map = Map { start: start.cast(), num_bytes, is_private, file, guard: None, _mark: mark };
        // SAFETY: the map is this object's own until it is dropped, which first removes the guard; the mark is dropped
        // after that.
        map.guard = unsafe { guard::add(map.start.addr(), num_bytes, flag_at, is_private) }?;
        Ok(map)
    }

    /// Returns the address of the map, which is readable as long as this object lives, and writable if it is private.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no map is empty")]
    pub fn len(&self) -> usize {
        self.num_bytes
    }

    /// Says whether writes change this map alone, and are allowed.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.is_private
    }

    /// Says whether the map is guarded: if not, a read of it ends the process once the file is cut short.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns where in the map some bytes lie; None if they do not lie in it.
    #[must_use]
    pub fn place(&self, bytes: &[u8]) -> Option<usize> {
        let place = bytes.as_ptr().addr().checked_sub(self.start.addr())?;
        (place.checked_add(bytes.len())? <= self.num_bytes).then_some(place)
    }

    /// Reads a byte from the map, from the disk if need be.
    ///
    /// # Panics
    /// The map has no such byte.
    #[must_use]
    pub fn touch(&self, at: usize) -> u8 {
        assert!(at < self.num_bytes);
        // SAFETY: the byte lies in the map; if the file is damaged there, the guard lets the read go on.
        unsafe { self.start.add(at).read_volatile() }
    }
}

/// Raises the limit on private memory (RLIMIT_DATA), which counts the whole of a private map of a file.
///
/// The server keeps that limit near the size of memory. The map may be larger, since few of its pages are copied.
fn allow_data(num_bytes: usize) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only read or write this limit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_DATA, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_cur.saturating_add(num_bytes as u64).min(limit.rlim_max);
            libc::setrlimit(libc::RLIMIT_DATA, &raw const limit);
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // The guard goes first, because other memory may get the same addresses afterwards.
        if let Some(index) = self.guard {
            guard::remove(index);
        }
        // SAFETY: this object owns the map, and nothing reads it after its owner.
        unsafe { libc::munmap(self.start.cast(), self.num_bytes) };
    }
}
