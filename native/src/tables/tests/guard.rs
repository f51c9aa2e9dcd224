//! Checks that a damaged file of a table reads as zeros and sets its flag, and that any other bus error ends the process.

use std::fs::File;
use std::sync::Arc;

use super::super::guard::{MAX_MAPS, entry_at, remove};
use super::super::map::{Map, Mark};

const PAGE: usize = 4096;

/// Maps a file whose bytes are all 1; the file is already unlinked. Returns it, too, to be cut short.
fn mapped(name: &str, pages: usize, mark: &Arc<Mark>) -> (Map, File) {
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    std::fs::write(&path, vec![1; pages * PAGE]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    (Map::open(file.try_clone().unwrap(), false, Arc::clone(mark)).unwrap(), file)
}

#[test]
fn a_truncated_file_reads_as_zeros_and_sets_its_flag() {
    let (mark, other_mark) = (Arc::default(), Arc::default());
    let ((map, file), (other, _)) = (mapped("guard-cut", 3, &mark), mapped("guard-whole", 3, &other_mark));
    assert_eq!((map.touch(0), map.touch(2 * PAGE)), (1, 1));
    file.set_len(PAGE as u64).unwrap();
    assert_eq!((map.touch(0), mark.is_set()), (1, false));
    assert_eq!((map.touch(2 * PAGE + 5), mark.is_set()), (0, true));
    // The SIGBUS handler has mapped zeros over the whole memory map, also over the page that the truncated file
    // still has.
    assert_eq!(map.touch(0), 0);
    assert_eq!((other.touch(2 * PAGE), other_mark.is_set()), (1, false));
}

#[test]
fn a_file_larger_than_memory_is_mapped_and_reads_as_zeros_once_it_is_cut_short() {
    const BYTES: usize = 1 << 42;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit(2) writes only to `limit`, and setrlimit(2) reads it.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_DATA, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(BYTES as u64 / 2);
        assert_eq!(libc::setrlimit(libc::RLIMIT_DATA, &raw const limit), 0);
    }
    for is_private in [false, true] {
        let (_, file) = mapped("guard-large", 1, &Arc::default());
        file.set_len(BYTES as u64).unwrap();
        let mark = Arc::default();
        let map = Map::open(file.try_clone().unwrap(), is_private, Arc::clone(&mark)).unwrap();
        file.set_len(0).unwrap();
        assert_eq!((map.touch(0), map.touch(BYTES - 1), mark.is_set()), (0, 0, true));
        if is_private {
            // SAFETY: the byte lies in a private map, to which nothing else writes.
            unsafe { *map.as_ptr() = 1 };
            assert_eq!(map.touch(0), 1);
        }
    }
}

#[test]
fn a_free_entry_is_used_again() {
    let (_, file) = mapped("guard-again", 1, &Arc::default());
    for _ in 0..2 * MAX_MAPS {
        assert!(Map::open(file.try_clone().unwrap(), false, Arc::default()).unwrap().is_guarded());
    }
}

#[test]
fn any_other_bus_error_ends_the_process() {
    let mark = Arc::default();
    let (_guarded, _) = mapped("guard-mine", 2, &mark);
    let (foreign, file) = mapped("guard-foreign", 2, &Arc::default());
    // Without its guard, the map is as one of any other code.
    let entry = entry_at(foreign.as_ptr().addr()).unwrap();
    remove(entry);
    file.set_len(0).unwrap();
    // SAFETY: after the fork, the child process only reads a byte of the map and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _ = foreign.touch(0);
        // SAFETY: `_exit` ends the child process and accesses no memory.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waitpid(2) gets the id of a child process of this test, and writes only to `status`.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS);
    assert!(!mark.is_set());
}
