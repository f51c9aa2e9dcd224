//! Runs the reader of this folder against a simulated cluster, by a simulated clock and network: a run of seconds takes
//! milliseconds, and depends on its seed alone.
//!
//! The thread that waits, for a socket or for time, runs all that happens meanwhile: messages arrive, nodes fail, a
//! server hears of changes, and a second read runs within the first.

mod by_hand;
mod history;
mod nodes;
mod search;
mod server;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::network::late;
use nodes::Cluster;

type Job = Box<dyn FnOnce()>;

type Time = Duration;

const fn ms(millis: u64) -> Time {
    Duration::from_millis(millis)
}

/// All that is simulated for one thread.
struct World {
    begun: Instant,
    now: Time,
    rng: fastrand::Rng,
    /// The next events, by time and order of their making.
    jobs: BTreeMap<(Time, u64), Job>,
    num_jobs: u64,
    links: Vec<Link>,
    cluster: Cluster,
    /// How long the reads and slot maps took that ran within other waits.
    nested: Time,
    /// One line for each event, for the history of a seed that fails.
    lines: Vec<String>,
}

/// A connection of the reader to a node: bytes on their way, and those that have arrived.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each side of a connection ends on its own")]
struct Link {
    node: usize,
    to_node: VecDeque<Vec<u8>>,
    to_reader: VecDeque<Vec<u8>>,
    /// Bytes that the node has got and not handled, and bytes that the reader can read.
    at_node: Vec<u8>,
    at_reader: VecDeque<u8>,
    /// Whether the node's process has ended, and whether the reader can see it.
    is_cut: bool,
    is_ended: bool,
    is_closed: bool,
    is_asking: bool,
    is_readonly: bool,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Calls a function with the world; the function must not wait.
fn world<R>(call: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| call(world.as_mut().expect("this thread simulates")))
}

fn is_on() -> bool {
    WORLD.try_with(|world| world.try_borrow().is_ok_and(|world| world.is_some())).unwrap_or(false)
}

pub(super) fn now() -> Option<Instant> {
    is_on().then(|| world(|world| world.begun + world.now))
}

pub(super) fn sleep(time: Duration) -> bool {
    is_on().then(|| pass(world(|world| world.now) + time, |_| false)).is_some()
}

pub(super) fn connect(host: &str, port: u16, until: Instant) -> Option<io::Result<Socket>> {
    is_on().then(|| {
        let (until, node, delay) = world(|world| {
            let node = world.cluster.number(host, port);
            (until - world.begun, node, world.delay(node))
        });
        let Some(node) = node else {
            return Err(io::Error::new(ErrorKind::NotFound, "no node has this name"));
        };
        let begun = world(|world| world.now);
        // A frozen node's kernel accepts connections; a node that is cut off from readers is silent.
        pass(until, |world| world.now >= begun + delay && world.cluster.nodes[node].has_readers);
        world(|world| {
            if world.now >= until {
                return Err(late());
            }
            if !world.cluster.nodes[node].is_up {
                return Err(ErrorKind::ConnectionRefused.into());
            }
            world.links.push(Link { node, ..Link::default() });
            Ok(Socket::Simulated { link: world.links.len() - 1, limit: Cell::default() })
        })
    })
}

pub(super) fn wait(sockets: &[&Socket], until: Instant) -> Option<Vec<bool>> {
    is_on().then(|| {
        let links: Vec<usize> = sockets.iter().map(|socket| socket.link()).collect();
        let is_ready = |world: &World, link: &usize| {
            let link = &world.links[*link];
            !link.at_reader.is_empty() || link.is_ended
        };
        let until = world(|world| until.saturating_duration_since(world.begun));
        pass(until, |world| links.iter().any(|link| is_ready(world, link)));
        world(|world| links.iter().map(|link| is_ready(world, link)).collect())
    })
}

/// Does what itself waits, within the wait of a read perhaps, which may end later by this.
fn nest(work: impl FnOnce()) {
    let begun = world(|world| world.now);
    work();
    world(|world| world.nested += world.now.saturating_sub(begun));
}

/// Runs what happens until a time, or until `is_done`.
fn pass(until: Time, is_done: impl Fn(&World) -> bool) {
    loop {
        let job = world(|world| {
            if is_done(world) {
                return None;
            }
            let next = world.jobs.first_entry().filter(|next| next.key().0 <= until);
            if let Some(next) = next {
                let ((at, _), job) = next.remove_entry();
                world.now = world.now.max(at);
                return Some(job);
            }
            world.now = world.now.max(until);
            None
        });
        match job {
            Some(job) => job(),
            None => return,
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cluster = Cluster::new(&mut rng);
        World {
            begun: Instant::now(),
            now: Time::ZERO,
            rng,
            jobs: BTreeMap::new(),
            num_jobs: 0,
            links: Vec::new(),
            cluster,
            nested: Time::ZERO,
            lines: Vec::new(),
        }
    }

    fn later(&mut self, delay: Time, job: impl FnOnce() + 'static) {
        self.num_jobs += 1;
        self.jobs.insert((self.now + delay, self.num_jobs), Box::new(job));
    }

    fn tell(&mut self, line: &str) {
        self.lines.push(format!("{:9.3} {line}", self.now.as_secs_f64()));
    }

    /// Draws how long a message takes to a node or back.
    fn delay(&mut self, node: Option<usize>) -> Time {
        let slow = node.map_or(0, |node| self.cluster.nodes[node].slow_us);
        let rare = if self.rng.u8(..) < 4 { self.rng.u64(..60_000) } else { 0 };
        Duration::from_micros(self.rng.u64(100..400) + rare + slow)
    }

    /// Puts bytes on a link's way to one side, where they arrive in order, whole or in two parts.
    fn post(&mut self, link: usize, bytes: &[u8], is_to_node: bool) {
        let cut = if self.rng.u8(..) < 32 { self.rng.usize(..bytes.len()) } else { 0 };
        for part in [&bytes[..cut], &bytes[cut..]].into_iter().filter(|part| !part.is_empty()) {
            let of_link = &mut self.links[link];
            let way = if is_to_node { &mut of_link.to_node } else { &mut of_link.to_reader };
            way.push_back(part.to_vec());
            let delay = self.delay(Some(self.links[link].node));
            self.later(delay, move || world(|world| world.arrive(link, is_to_node)));
        }
    }

    fn arrive(&mut self, link: usize, is_to_node: bool) {
        let node = &self.cluster.nodes[self.links[link].node];
        if !node.has_readers {
            // The sender's kernel sends the bytes again until they arrive.
            return self.later(ms(50), move || world(|world| world.arrive(link, is_to_node)));
        }
        let is_awake = node.is_awake();
        let of_link = &mut self.links[link];
        if is_to_node {
            of_link.at_node.extend(of_link.to_node.pop_front().into_iter().flatten());
            if of_link.is_cut {
                of_link.is_ended = true;
            } else if is_awake {
                self.handle(link);
            }
        } else {
            of_link.at_reader.extend(of_link.to_reader.pop_front().into_iter().flatten());
        }
    }

    /// Ends the connections of a node's process; the reader sees it unless the node's host is silent.
    fn cut_links(&mut self, node: usize) {
        for link in 0..self.links.len() {
            if self.links[link].node == node && !self.links[link].is_cut {
                self.links[link].is_cut = true;
                if self.cluster.nodes[node].has_readers {
                    let delay = self.delay(None);
                    self.later(delay, move || world(|world| world.links[link].is_ended = true));
                }
            }
        }
    }
}

/// A socket of the reader: one of the system, or one end of a [`Link`] with the time limit of its reads.
#[derive(Debug)]
pub(super) enum Socket {
    System(TcpStream),
    Simulated { link: usize, limit: Cell<Option<Duration>> },
}

impl Socket {
    fn link(&self) -> usize {
        match self {
            Socket::Simulated { link, .. } => *link,
            Socket::System(_) => unreachable!("a thread that simulates opens no other sockets"),
        }
    }

    pub(super) fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::System(socket) => socket.set_read_timeout(time)?,
            Socket::Simulated { limit, .. } => limit.set(time),
        }
        Ok(())
    }

    pub(super) fn set_write_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::System(socket) => socket.set_write_timeout(time),
            Socket::Simulated { .. } => Ok(()),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Socket::System(socket) => socket.as_raw_fd(),
            Socket::Simulated { .. } => -1,
        }
    }
}

impl Read for Socket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Socket::Simulated { link, limit } = self else {
            let Socket::System(socket) = self else { unreachable!() };
            return socket.read(to);
        };
        let until = world(|world| world.now) + limit.get().expect("each read has a time limit");
        pass(until, |world| !world.links[*link].at_reader.is_empty() || world.links[*link].is_ended);
        world(|world| {
            let of_link = &mut world.links[*link];
            if of_link.at_reader.is_empty() && !of_link.is_ended {
                return Err(ErrorKind::WouldBlock.into());
            }
            of_link.at_reader.read(to)
        })
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::System(socket) => socket.write(bytes),
            Socket::Simulated { link, .. } => world(|world| {
                if world.links[*link].is_ended {
                    return Err(ErrorKind::ConnectionReset.into());
                }
                world.post(*link, bytes, true);
                Ok(bytes.len())
            }),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Socket::Simulated { link, .. } = self
            && is_on()
        {
            world(|world| world.links[*link].is_closed = true);
        }
    }
}
