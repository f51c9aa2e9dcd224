//! A connection to one node: the commands of a read are sent together, and each row is copied from its answer straight
//! to the reader's buffer.
//!
//! A row's answer has a fixed size and a fixed head, so two comparisons check it. Any other answer is decoded by
//! redis-protocol.
//!
//! Source: the RESP protocol specification of Redis and Valkey, version 2.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::description::Address;
use super::network::{NodeSocket, connect, late, left, sleep};

/// Number of bytes that one system call reads from a node at most, unless a single answer is larger.
const BUFFER_BYTES: usize = 256 << 10;
/// Maximal size of a node's answer in bytes. No command that this module sends has a larger answer.
const MOST_BYTES: usize = 64 << 20;

/// Most arrays within each other in a node's answer: redis-protocol decodes them by recursion, so that an answer of some
/// hundred KB would overflow the thread's stack and end the process. CLUSTER SHARDS, the deepest answer, has four.
const MOST_DEPTH: usize = 32;

/// How many times an empty password file is read, and the pause between two of these reads. Source:
/// `service/remote/address.py`.
const PASSWORD_READS: usize = 10;
const PASSWORD_PAUSE: Duration = Duration::from_millis(10);

/// Host and port of one node of a Valkey or Redis cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl Node {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Node { host: host.into(), port }
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

enum Stream {
    Plain(NodeSocket),
    Tls(Box<StreamOwned<ClientConnection, NodeSocket>>),
}

impl Stream {
    fn socket(&self) -> &NodeSocket {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => &stream.sock,
        }
    }
}

#[derive(Debug)]
pub(super) enum Reply {
    /// The answer has a row, which was copied to the caller's buffer.
    Row,
    /// Any other answer.
    Other(OwnedFrame),
}

/// A connection to one node. Dropping it closes it, so that no later read can get the answers to an earlier read's
/// commands.
pub(super) struct Connection {
    stream: Stream,
    /// Bytes that the node sent; the bytes from `start` to `end` are not parsed yet.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether the connection has sent READONLY. Otherwise a node that is a replica answers no reads, because it may lack
    /// changes.
    is_for_replica: bool,
    /// Whether an earlier read used the connection. Since then, the node's process may have ended.
    pub(super) is_reused: bool,
    /// Number of answers that the next read must skip first: they belong to an earlier read, which another node
    /// answered sooner.
    pub(super) owed: usize,
}

impl Connection {
    /// Opens a connection to a node of the cluster, and logs in. `is_for_replica`: the node answers reads as a replica,
    /// too.
    ///
    /// # Errors
    /// The node does not answer before `until`, or refuses the user.
    pub(super) fn open(node: &Node, is_for_replica: bool, address: &Address, until: Instant) -> io::Result<Self> {
        let socket = connect(&node.host, node.port, until)?;
        let stream = if address.has_tls {
            let name = ServerName::try_from(node.host.to_string()).map_err(other)?;
            let session = ClientConnection::new(Arc::new(tls_config(address)?), name).map_err(other)?;
            Stream::Tls(Box::new(StreamOwned::new(session, socket)))
        } else {
            Stream::Plain(socket)
        };
        let buffer = vec![0; BUFFER_BYTES];
        let mut opened = Connection { stream, buffer, start: 0, end: 0, is_for_replica, is_reused: false, owed: 0 };
        opened.greet(address, until)?;
        Ok(opened)
    }

    fn greet(&mut self, address: &Address, until: Instant) -> io::Result<()> {
        let mut greetings = Vec::new();
        let password = password(address)?;
        if !password.is_empty() {
            let words = ["AUTH", &address.user, &password];
            greetings.push(words.into_iter().filter(|word| !word.is_empty()).collect());
        }
        // A replica answers reads only after the command READONLY; without it, the replica sends its readers to the
        // primary. PING shows whether a node needs a password.
        greetings.push(vec![if self.is_for_replica { "READONLY" } else { "PING" }]);
        let bytes: Vec<u8> = greetings.iter().flat_map(|words| command(words)).collect();
        self.send(&bytes, until)?;
        for _ in greetings {
            if let OwnedFrame::Error(text) = self.answer(until)? {
                // The refusal of READONLY by a server without cluster mode is ignored, because such a server needs no
                // READONLY.
                if !is_single(&text) && !is_passing(&text) {
                    return Err(io::Error::new(ErrorKind::ConnectionRefused, text));
                }
            }
        }
        Ok(())
    }

    /// Sends the bytes of one or more commands to the node.
    ///
    /// # Errors
    /// The node did not receive all bytes before `until`. After an error of this method, or of a method that reads, the
    /// connection must be dropped.
    pub(super) fn send(&mut self, commands: &[u8], until: Instant) -> io::Result<()> {
        self.stream.socket().set_write_timeout(Some(left(until)?))?;
        let sent = match &mut self.stream {
            Stream::Plain(socket) => socket.write_all(commands),
            Stream::Tls(stream) => {
                // The first write also runs the TLS handshake, which reads from the socket, so the socket's reads need
                // a time limit, too.
                stream.sock.set_read_timeout(Some(left(until)?))?;
                stream.write_all(commands).and_then(|()| stream.flush())
            }
        };
        sent.map_err(told)
    }

    /// Reads the node's answer to one command. An answer that begins with `head` has a row, which is copied to `to`.
    ///
    /// # Errors
    /// The connection broke, the answer did not come before `until`, or the received bytes are no valid answer.
    pub(super) fn row(&mut self, head: &[u8], to: &mut [u8], until: Instant) -> io::Result<Reply> {
        let frame = head.len() + to.len() + 2;
        loop {
            let received = &self.buffer[self.start..self.end];
            let begun = received.len().min(head.len());
            if received[..begun] != head[..begun] {
                return self.answer(until).map(Reply::Other);
            }
            if received.len() >= frame {
                if received[frame - 2..frame] != *b"\r\n" {
                    return Err(io::Error::new(ErrorKind::InvalidData, "the node sent a value that does not end"));
                }
                to.copy_from_slice(&received[head.len()..frame - 2]);
                self.start += frame;
                return Ok(Reply::Row);
            }
            self.fill(frame, until)?;
        }
    }

    /// Reads and decodes one answer of the node, which may be any value of the RESP protocol.
    ///
    /// # Errors
    /// The connection broke, an answer did not come before `until`, or the received bytes are no valid answer.
    pub(super) fn answer(&mut self, until: Instant) -> io::Result<OwnedFrame> {
        loop {
            let received = &self.buffer[self.start..self.end];
            if is_too_deep(received) {
                return Err(io::Error::new(ErrorKind::InvalidData, "the node sent arrays within too many arrays"));
            }
            let decoded =
                decode(received).map_err(|error| io::Error::new(ErrorKind::InvalidData, error.to_string()))?;
            if let Some((frame, size)) = decoded {
                self.start += size;
                return Ok(frame);
            }
            let size = received.len();
            if size > MOST_BYTES {
                return Err(io::Error::new(ErrorKind::InvalidData, "the node sent an answer without an end"));
            }
            self.fill(size + 1, until)?;
        }
    }

    pub(super) fn socket(&self) -> &NodeSocket {
        self.stream.socket()
    }

    /// Reads and drops the answers that the node still owes to earlier reads on this connection.
    ///
    /// # Errors
    /// The connection broke, an answer did not come before `until`, or the received bytes are no valid answer.
    pub(super) fn skip_owed(&mut self, until: Instant) -> io::Result<()> {
        while self.owed > 0 {
            self.answer(until)?;
            self.owed -= 1;
        }
        Ok(())
    }

    pub(super) fn is_for_replica(&self) -> bool {
        self.is_for_replica
    }

    pub(super) fn is_idle(&self) -> bool {
        self.start == self.end
    }

    /// Receives more bytes into the buffer, which first gets space for `size` bytes that are not parsed yet.
    fn fill(&mut self, size: usize, until: Instant) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start + size > self.buffer.len() || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if size > self.buffer.len() {
            self.buffer.resize(size.next_power_of_two(), 0);
        }
        loop {
            self.stream.socket().set_read_timeout(Some(left(until)?))?;
            let space = &mut self.buffer[self.end..];
            let received = match &mut self.stream {
                Stream::Plain(socket) => socket.read(space),
                Stream::Tls(stream) => stream.read(space),
            };
            match received.map_err(told) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the node closed the connection")),
                Ok(received) => {
                    self.end += received;
                    return Ok(());
                }
                // A signal, also SIGCONT after SIGSTOP, interrupts a read that has a time limit.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Says whether the node closed the connection.
pub(super) fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Says whether an answer, of which perhaps only a part has come, has arrays within more than [`MOST_DEPTH`] arrays.
pub(super) fn is_too_deep(answer: &[u8]) -> bool {
    // The number of items that each open array still lacks.
    let mut open: Vec<i64> = Vec::new();
    let mut rest = answer;
    while let Some(at) = rest.windows(2).position(|bytes| bytes == b"\r\n") {
        let number = std::str::from_utf8(&rest[1.min(at)..at]).ok().and_then(|digits| digits.parse::<i64>().ok());
        let (kind, number) = (rest[0], number.unwrap_or(0));
        // A string of bytes ends with a line break of its own; only a null, of length -1, has none.
        let string = if kind == b'$' { usize::try_from(number).map_or(0, |size| size.saturating_add(2)) } else { 0 };
        rest = rest.get((at + 2).saturating_add(string)..).unwrap_or_default();
        if kind == b'*' && number > 0 {
            open.push(number);
            if open.len() > MOST_DEPTH {
                return true;
            }
            continue;
        }
        while let Some(items) = open.last_mut() {
            *items -= 1;
            if *items > 0 {
                break;
            }
            open.pop();
        }
        if open.is_empty() {
            return false;
        }
    }
    false
}

/// Kinds of error answers after which another try may succeed: the slot map is outdated, a node is not ready yet, or it
/// runs a long script.
const PASSING: [&str; 7] = ["MOVED", "ASK", "CLUSTERDOWN", "LOADING", "TRYAGAIN", "MASTERDOWN", "BUSY"];

/// Says whether a command may succeed later, or on another node, that a node answered with this error.
pub(super) fn is_passing(error: &str) -> bool {
    PASSING.contains(&error.split(' ').next().unwrap_or_default())
}

/// Says whether a node's error tells that it is a single server without cluster mode.
pub(super) fn is_single(error: &str) -> bool {
    error.starts_with("ERR This instance has cluster support disabled")
}

pub(super) fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

fn password(address: &Address) -> io::Result<String> {
    if address.password_file.is_empty() {
        return Ok(address.own_password.clone());
    }
    // The password file is read for each new connection, so that a changed password holds from the next connection on.
    for _ in 0..PASSWORD_READS {
        // A pipe would be read until somebody writes to it.
        if !fs::metadata(&address.password_file)?.is_file() {
            let text = format!("password_file {} is no plain file", address.password_file);
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let text = fs::read_to_string(&address.password_file)?;
        let password = text.split('\n').next().unwrap_or_default();
        if !password.is_empty() {
            return Ok(password.to_owned());
        }
        // The password file may be empty for a moment, because a program that rewrites it empties it first. So the code
        // waits and reads the file again.
        sleep(PASSWORD_PAUSE);
    }
    Err(io::Error::new(ErrorKind::InvalidData, format!("password_file {} is empty", address.password_file)))
}

fn tls_config(address: &Address) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if address.ca_file.is_empty() {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    } else {
        for certificate in CertificateDer::pem_file_iter(&address.ca_file).map_err(other)? {
            roots.add(certificate.map_err(other)?).map_err(other)?;
        }
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

/// Replaces a time-out error of the system by the error of [`late`], whose text is also that of the reader in Python;
/// returns any other error unchanged.
fn told(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => late(),
        _ => error,
    }
}

/// Why rows, or a slot map, could not be read: the newest reason, but a time limit replaces no refusal. The end of a read
/// cuts its last attempts short, whatever nodes said before.
#[derive(Default)]
pub(super) struct Reason {
    pub(super) text: String,
    is_refusal: bool,
}

impl Reason {
    pub(super) fn refusal(text: String) -> Self {
        Reason { text, is_refusal: true }
    }

    /// A reason that may pass, so that a time limit replaces it.
    pub(super) fn passing(text: String) -> Self {
        Reason { text, is_refusal: false }
    }

    pub(super) fn note(&mut self, newer: Reason) {
        if newer.is_refusal || !self.is_refusal {
            *self = newer;
        }
    }

    pub(super) fn failed(&mut self, node: &Node, error: &io::Error) {
        let is_refusal = error.kind() != ErrorKind::TimedOut;
        self.note(Reason { text: format!("{node}: {error}"), is_refusal });
    }
}
