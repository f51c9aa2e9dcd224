//! Writes the last lines of the log to standard error when the process crashes.
//!
//! Two Python threads do so otherwise, which do not run any more after a crash: `service/observe/logs.py` reads
//! the lines of native libraries from a socket, and `service/observe/logs.py` writes lines from a ring buffer.
//! TensorFlow writes the reason of an abort just before it, so the reason may still be in the socket.
//!
//! Source: signal-safety(7), abort(3).

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

static LINES: AtomicI32 = AtomicI32::new(-1);
static STANDARD_ERROR: AtomicI32 = AtomicI32::new(-1);
/// The ring buffer of the log, and its size in bytes; null: there is none.
static BUFFER: AtomicPtr<u64> = AtomicPtr::new(ptr::null_mut());
static BUFFER_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Size of the ring buffer's head: two numbers of 64 bits, how many bytes were ever written to the log and how many were
/// ever put into the buffer.
const HEAD_BYTES: usize = 16;
/// Maximal number of bytes of one write: a pipe that is writable takes so many without a wait.
const WRITE_BYTES: usize = 4096;
/// Maximal wait for the reader of standard error before each write, in milliseconds.
const PATIENCE_MS: libc::c_int = 1000;
const CRASHES: [libc::c_int; 5] = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// Installs a handler that writes the ring buffer's bytes, and then the bytes in the socket `lines`, to
/// `standard_error` when the process crashes. The caller keeps both file descriptors open until the process ends.
///
/// # Safety
/// The buffer is aligned for a `u64` and stays in memory until the process ends; only its owner writes to it.
///
/// # Errors
/// The system refuses a handler for a signal.
pub unsafe fn keep(lines: i32, standard_error: i32, buffer: *mut libc::c_void, buffer_bytes: usize) -> io::Result<()> {
    LINES.store(lines, Ordering::SeqCst);
    STANDARD_ERROR.store(standard_error, Ordering::SeqCst);
    BUFFER_BYTES.store(buffer_bytes, Ordering::SeqCst);
    BUFFER.store(buffer.cast(), Ordering::SeqCst);
    for number in CRASHES {
        if number == libc::SIGBUS && is_bus_error_handled()? {
            continue;
        }
        // SAFETY: `on_crash` has the type of a handler without SA_SIGINFO, and a `sigaction` struct of zeros is valid.
        // A thread whose stack is full has another one for the handler, if Python's faulthandler is enabled.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_crash as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(number, &raw const action, ptr::null_mut())
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Says whether a handler with `SA_SIGINFO` stands for SIGBUS already. It is that of the guard of mapped files, without
/// which a file that is cut short would end the process; installed later than this module's handler, it calls this one.
fn is_bus_error_handled() -> io::Result<bool> {
    // SAFETY: sigaction(2) without a new action only writes the current one, and a struct of zeros is valid.
    let (result, found) = unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut found), found)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.sa_flags & libc::SA_SIGINFO != 0)
}

extern "C" fn on_crash(number: libc::c_int) {
    // SAFETY: the signal handler calls only functions that signal-safety(7) allows in a handler.
    unsafe {
        if write_buffer() {
            write_lines();
        }
        // The handler restores the default action and raises the signal again, so that the process ends after this
        // handler has returned. Without it, a SIGABRT that another process sent would not end this process.
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
}

/// Writes the lines of the ring buffer that the writer's thread has not written.
///
/// # Safety
/// As `keep` requires.
unsafe fn write_buffer() -> bool {
    let (buffer, size) = (BUFFER.load(Ordering::SeqCst), BUFFER_BYTES.load(Ordering::SeqCst));
    if buffer.is_null() || size <= HEAD_BYTES {
        return true;
    }
    let ring_bytes = size - HEAD_BYTES;
    // SAFETY: the head's two numbers are at the start of the buffer, which another thread may be changing.
    let [written, put] = unsafe { ptr::read_volatile(buffer.cast::<[u64; 2]>()) };
    let mut left = usize::try_from(put.saturating_sub(written)).unwrap_or(0).min(ring_bytes);
    let mut start = usize::try_from(written % ring_bytes as u64).unwrap_or(0);
    while left > 0 {
        let count = left.min(ring_bytes - start).min(WRITE_BYTES);
        // SAFETY: `start + count` is at most `ring_bytes`.
        if !unsafe { write(buffer.cast::<u8>().add(HEAD_BYTES + start), count) } {
            return false;
        }
        (left, start) = (left - count, (start + count) % ring_bytes);
    }
    true
}

/// Copies the lines of native libraries from the socket.
fn write_lines() {
    let lines = LINES.load(Ordering::SeqCst);
    let mut bytes = [0_u8; WRITE_BYTES];
    loop {
        // SAFETY: recv(2) writes at most `bytes.len()` bytes to `bytes`; MSG_DONTWAIT keeps it from waiting for more.
        let count = unsafe { libc::recv(lines, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        let Ok(count) = usize::try_from(count) else { break };
        // SAFETY: recv(2) has written `count` bytes.
        if count == 0 || !unsafe { write(bytes.as_ptr(), count) } {
            break;
        }
    }
}

/// Writes `count` bytes, at most `WRITE_BYTES`, to standard error; returns false if its reader does not take them.
///
/// # Safety
/// `start` points to `count` bytes.
unsafe fn write(start: *const u8, count: usize) -> bool {
    let mut ready = libc::pollfd { fd: STANDARD_ERROR.load(Ordering::SeqCst), events: libc::POLLOUT, revents: 0 };
    // SAFETY: poll(2) gets one `pollfd`, and write(2) reads `count` bytes from `start`.
    unsafe {
        libc::poll(&raw mut ready, 1, PATIENCE_MS) == 1
            && ready.revents & libc::POLLOUT != 0
            && libc::write(ready.fd, start.cast(), count) >= 0
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Runs `last` in a child process that keeps its last words: the ring buffer, and what can be read from `lines`. Returns
    /// the signal that ended it.
    fn killer(lines: i32, standard_error: &impl AsRawFd, mut buffer: Vec<u8>, last: fn()) -> libc::c_int {
        // SAFETY: after the fork, the child process only installs the handlers and crashes.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the buffer lives until the child process ends.
            unsafe { keep(lines, standard_error.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) }.unwrap();
            last();
        }
        let mut status = 0;
        // SAFETY: waitpid(2) gets the id of a child process of this test, and writes only to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status));
        libc::WTERMSIG(status)
    }

    /// Returns what a child process that keeps its last words writes to standard error, and the signal that ends it.
    fn last_words(ring: &[u8], lines: &[u8], last: fn()) -> (String, libc::c_int) {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        let (mut said, standard_error) = std::io::pipe().unwrap();
        writer.write_all(lines).unwrap();
        let signal = killer(reader.as_raw_fd(), &standard_error, ring.to_vec(), last);
        drop(standard_error);
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        (text, signal)
    }

    /// Returns a ring buffer of 8 bytes with these numbers of bytes ever written and ever put.
    fn ring(written: u64, put: u64, bytes: [u8; 8]) -> Vec<u8> {
        [&written.to_ne_bytes()[..], &put.to_ne_bytes(), &bytes].concat()
    }

    #[test]
    fn a_crash_writes_the_lines_that_are_left() {
        let abort = || std::process::abort();
        let said = last_words(&ring(6, 11, *b"cdeXXXab"), b"Check failed: 1 == 2", abort);
        assert_eq!(said, ("abcdeCheck failed: 1 == 2".into(), libc::SIGABRT));
        // SAFETY: raise(3) has no preconditions.
        let fault = || unsafe { _ = libc::raise(libc::SIGSEGV) };
        assert_eq!(last_words(&ring(8, 8, *b"XXXXXXXX"), b"last", fault), ("last".into(), libc::SIGSEGV));
        assert_eq!(last_words(&[], b"", fault), (String::new(), libc::SIGSEGV));
    }

    #[test]
    fn a_crash_does_not_wait_for_a_reader_that_takes_nothing() {
        fn fill_and_abort() {
            let full = STANDARD_ERROR.load(Ordering::SeqCst);
            // SAFETY: fcntl(2) and write(2) get an open descriptor and bytes of this function.
            unsafe {
                libc::fcntl(full, libc::F_SETFL, libc::O_NONBLOCK);
                while libc::write(full, [b'x'; 4096].as_ptr().cast(), 4096) > 0 {}
                libc::fcntl(full, libc::F_SETFL, 0);
            }
            std::process::abort();
        }
        let (reader, standard_error) = std::io::pipe().unwrap();
        assert_eq!(killer(-1, &standard_error, ring(0, 8, *b"unread  "), fill_and_abort), libc::SIGABRT);
        drop(reader);
    }
}
