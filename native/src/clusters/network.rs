//! The clock of this folder, and the sockets of its connections: those of the system. In a test, those of a thread that
//! runs a simulated cluster are the simulation's.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

#[cfg(all(test, not(feature = "model")))]
pub(super) use super::simulation::Socket as NodeSocket;
#[cfg(all(test, not(feature = "model")))]
use super::simulation::{self, Socket::System as connected};
#[cfg(any(not(test), feature = "model"))]
use std::convert::identity as connected;
#[cfg(any(not(test), feature = "model"))]
pub(super) use std::net::TcpStream as NodeSocket;

pub(super) fn now() -> Instant {
    #[cfg(all(test, not(feature = "model")))]
    if let Some(now) = simulation::now() {
        return now;
    }
    Instant::now()
}

pub(super) fn sleep(time: Duration) {
    #[cfg(all(test, not(feature = "model")))]
    if simulation::sleep(time) {
        return;
    }
    std::thread::sleep(time);
}

/// Connects to a node by its host and port.
///
/// # Errors
/// The node's host has no address, or no address accepts the connection before `until`.
pub(super) fn connect(host: &str, port: u16, until: Instant) -> io::Result<NodeSocket> {
    #[cfg(all(test, not(feature = "model")))]
    if let Some(socket) = simulation::connect(host, port, until) {
        return socket;
    }
    let mut problem = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for place in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&place, left(until)?) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(connected(socket));
            }
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

pub(super) fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "timed out")
}

/// Returns the time that is left until a time limit.
///
/// # Errors
/// No time is left.
pub(super) fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(now()) {
        Duration::ZERO => Err(late()),
        left => Ok(left),
    }
}

/// Waits until a socket has bytes to read or is broken, or until `until`; says which sockets these are. `until` is
/// rounded up to milliseconds.
pub(super) fn wait(sockets: &[&NodeSocket], until: Instant) -> Vec<bool> {
    #[cfg(all(test, not(feature = "model")))]
    if let Some(ready) = simulation::wait(sockets, until) {
        return ready;
    }
    let left = until.saturating_duration_since(now());
    let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    let asked = |socket: &&NodeSocket| libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = sockets.iter().map(asked).collect();
    // SAFETY: poll(2) gets the length of `polled`, and the sockets in the list stay open for the length of the call.
    let count = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
    // After an error, such as an interruption by a signal, poll(2) has filled in no element, so no connection counts as
    // ready.
    polled.iter().map(|socket| count > 0 && socket.revents != 0).collect()
}
