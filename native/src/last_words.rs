//! Copies the last messages of native libraries to standard error when the process aborts.
//!
//! `service/observe/native_lines.py` reads their lines from a socket, in a thread that does not run any more after an
//! abort. TensorFlow writes the reason of an abort just before it, so the reason may still be in the socket.
//!
//! Source: signal-safety(7), abort(3).

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

static LINES: AtomicI32 = AtomicI32::new(-1);
static STANDARD_ERROR: AtomicI32 = AtomicI32::new(-1);

/// Installs a handler that copies the bytes in `lines` to `standard_error` when the process aborts. The caller keeps
/// both file descriptors open until the process ends.
///
/// # Errors
/// The system refuses a handler for the signal SIGABRT.
pub fn keep(lines: i32, standard_error: i32) -> io::Result<()> {
    LINES.store(lines, Ordering::SeqCst);
    STANDARD_ERROR.store(standard_error, Ordering::SeqCst);
    // SAFETY: `on_abort`, which is installed as the handler of SIGABRT, has the type that `signal` requires.
    let before = unsafe { libc::signal(libc::SIGABRT, on_abort as *const () as libc::sighandler_t) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

extern "C" fn on_abort(number: libc::c_int) {
    let (lines, standard_error) = (LINES.load(Ordering::SeqCst), STANDARD_ERROR.load(Ordering::SeqCst));
    let mut bytes = [0_u8; 4096];
    // SAFETY: the signal handler calls only functions that signal-safety(7) allows in a handler, and they use only its
    // own buffer.
    unsafe {
        // The descriptor `lines` becomes non-blocking, because a read of the empty socket would otherwise wait for
        // ever.
        libc::fcntl(lines, libc::F_SETFL, libc::O_NONBLOCK);
        loop {
            let count = libc::read(lines, bytes.as_mut_ptr().cast(), bytes.len());
            let Ok(count) = usize::try_from(count) else { break };
            if count == 0 || libc::write(standard_error, bytes.as_ptr().cast(), count) < 0 {
                break;
            }
        }
        // The handler restores the default action and raises SIGABRT again, so that the process ends after this handler
        // has returned. Without it, a SIGABRT that another process sent would not end this process.
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::*;

    fn pipe() -> (File, File) {
        let mut ends = [0; 2];
        // SAFETY: pipe(2) writes two new file descriptors to `ends`, which no other code owns.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
        }
    }

    #[test]
    fn an_abort_writes_the_lines_that_are_left() {
        let (reader, mut writer) = pipe();
        let (mut said, standard_error) = pipe();
        writer.write_all(b"Check failed: 1 == 2").unwrap();
        // SAFETY: after the fork, the child process only installs the SIGABRT handler and aborts.
        let child = unsafe { libc::fork() };
        if child == 0 {
            keep(reader.as_raw_fd(), standard_error.as_raw_fd()).unwrap();
            std::process::abort();
        }
        drop(standard_error);
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        let mut status = 0;
        // SAFETY: waitpid(2) gets the id of a child process of this test, and writes only to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(text, "Check failed: 1 == 2");
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT);
    }
}
