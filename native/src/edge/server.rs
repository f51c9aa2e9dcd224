//! Starts and stops the core's network server: its async runtime, its listeners, and the list of its connections.

use std::collections::{BTreeMap, HashMap};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::access::Access;
use super::config::{Config, Listen, Wire};
use super::connection::{Connection, Order};
use super::connection_watch::Watch;
use super::dispatch::Dispatch;
use super::encoding::Compressors;
use super::encrypted::Encrypted;
use super::events::Event;
use super::health::{FRESH, Health};
use super::local_authority::LocalAuthority;
use super::records::Records;
use super::refusal_log::LogPace;
use super::refusal_pause::Pauses;
use super::shared::Shared;
use super::snapshot::{RetiredSnapshot, Snapshot};
use super::statistics::Statistics;
use super::turns::{GLOBAL_QUEUE_INTERVAL, Turns};
use super::{http, http2, preface};
use crate::admission::account::Account;
use crate::admission::gate::Gates;
use crate::admission::large::{LazyPool, Pool};
use crate::admission::limits::{ALL_HEAD_BYTES, HANDSHAKES_A_TURN};
use crate::admission::long_calls::LongCalls;
use crate::admission::pace::LATE;
use crate::forward::{GrpcUpstream, HttpUpstream};
use crate::plan::{GraphLimit, ModelRoutes, Routes};

/// Number of tasks that the async runtime runs before it looks for new bytes on sockets. The number is low, so that a
/// flood on one connection delays other connections by 8 ms and not by 607 ms.
const EVENT_INTERVAL: u32 = 4;
/// Maximal number of new connections that the system holds for a listener until the server accepts them.
const BACKLOG: i32 = 4096;
/// Pause after a connection could not be accepted, for example because the system had no free file descriptor.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// Time between two questions to the control servers whether they answer.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Part of all connections, one in so many, that is closed at once if connections run short and some are idle.
const IDLE_CLOSED_AT_ONCE: usize = 16;

/// A running network server. Dropping it closes all connections.
pub struct Server {
    runtime: Option<Runtime>,
    hub: Arc<Hub>,
    grpc: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
    linger: Duration,
}

/// The list of all connections of the server, with the state that they share.
struct Hub {
    shared: Arc<Shared>,
    grpc_tls: ArcSwapOption<ServerConfig>,
    http_tls: ArcSwapOption<ServerConfig>,
    connections: Mutex<HashMap<u64, Entry>>,
    // TLS handshakes in progress, the oldest first.
    handshakes: Mutex<BTreeMap<u64, Arc<Connection>>>,
    // Semaphore with a permit for each TLS handshake that may go on before other connections get the threads.
    handshake_turns: Arc<Semaphore>,
    next: AtomicU64,
    turns: Turns,
    // The numbers of open gRPC connections and of open HTTP connections.
    open: [AtomicUsize; 2],
    is_draining: AtomicBool,
    // Channel whose value becomes true when the server must accept no more connections.
    stop: watch::Sender<bool>,
    // Channel whose value becomes true with the first routes. Until then no connection is accepted: each model would be
    // unknown, which clients take for an answer.
    has_routes: watch::Sender<bool>,
    closed: Notify,
    room: [Mutex<Room>; 2],
}

/// Room for new connections of one wire beyond the limit: places of idle connections that were told to close.
#[derive(Default)]
struct Room {
    places: usize,
    // No idle connection was found before this time, so none is looked for until then.
    again: Option<Instant>,
}

struct Entry {
    connection: Arc<Connection>,
    watch: Watch,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Server {
    /// Starts a server that listens on the configured addresses and serves requests.
    ///
    /// # Errors
    /// The server can not listen on an address, or the system can not start a thread.
    pub fn start(config: Config, dispatch: Arc<dyn Dispatch>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads.max(1))
            .thread_name("edge")
            .on_thread_start(crate::priority::shorten_slice)
            .event_interval(EVENT_INTERVAL)
            .global_queue_interval(GLOBAL_QUEUE_INTERVAL)
            .enable_all()
            .build()?;
        let shared = Arc::new(Shared {
            access: ArcSwapOption::from_pointee(config.access),
            tracing: config.tracing,
            records: Arc::default(),
            seal: config.seal,
            as_content: config.as_content,
            strict_json: config.strict_json,
            cors: config.cors,
            routes: ArcSwap::from_pointee(Routes::default()),
            dispatch,
            statistics: Statistics::new(
                config.bucket_limits_s,
                config.wait_limits_s,
                config.example_limits,
                config.slow_from,
            ),
            account: Account::new(config.limits.max_bytes_in_flight),
            compressors: Compressors::default(),
            large: Pool::start("large", config.limits.queue(config.large_threads))?,
            waiting: LazyPool::default(),
            graph_limit: Arc::new(GraphLimit::new(config.threads)),
            pauses: Pauses::new(config.threads),
            refusal_log: LogPace::default(),
            ids: super::request_id::RequestIds::default(),
            health: ArcSwapOption::empty(),
            has_upstreams: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            grpc_upstream: GrpcUpstream::new(config.grpc_upstream),
            http_upstream: HttpUpstream::new(config.http_upstream),
            heads: Arc::new(Semaphore::new(ALL_HEAD_BYTES)),
            parts: Account::new(config.limits.max_part_bytes),
            long_calls: LongCalls::new(config.limits.max_long_calls),
            grpc_gates: Gates::new(config.limits.queue(config.limits.max_forwarded)),
            http_gates: Gates::new(config.limits.queue(config.limits.max_forwarded)),
            limits: config.limits,
        });
        let hub = Arc::new(Hub {
            shared,
            grpc_tls: ArcSwapOption::new(config.grpc_tls),
            http_tls: ArcSwapOption::new(config.http_tls),
            connections: Mutex::default(),
            handshakes: Mutex::default(),
            handshake_turns: Arc::new(Semaphore::new(HANDSHAKES_A_TURN * config.threads.max(1))),
            next: AtomicU64::new(0),
            turns: Turns::new(config.threads),
            open: [AtomicUsize::new(0), AtomicUsize::new(0)],
            is_draining: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            has_routes: watch::Sender::new(false),
            closed: Notify::new(),
            room: Default::default(),
        });
        let mut acceptors = Vec::new();
        let mut addresses = [Vec::new(), Vec::new()];
        {
            let _entered = runtime.enter();
            // The server binds all addresses before it serves requests on any of them.
            let mut listeners = Vec::new();
            for (wire, all) in [(Wire::Grpc, config.grpc), (Wire::Http, config.http)] {
                for one in all {
                    let listener = listen(one)?;
                    if let Listener::Tcp(tcp) = &listener {
                        addresses[wire as usize].push(tcp.local_addr()?);
                    }
                    listeners.push((wire, listener));
                }
            }
            for (wire, listener) in listeners {
                acceptors.push(runtime.spawn(accept(Arc::clone(&hub), wire, listener)));
            }
            runtime.spawn(sweep(Arc::clone(&hub)));
            runtime.spawn(begin_turns(Arc::clone(&hub)));
            runtime.spawn(watch_upstreams(Arc::clone(&hub)));
        }
        let [grpc, http] = addresses;
        Ok(Server { runtime: Some(runtime), hub, grpc, http, acceptors: Mutex::new(acceptors), linger: config.linger })
    }

    /// Returns the TCP addresses on which a wire is served.
    #[must_use]
    pub fn addresses(&self, wire: Wire) -> &[SocketAddr] {
        match wire {
            Wire::Grpc => &self.grpc,
            Wire::Http => &self.http,
        }
    }

    /// Changes the published servables of some models, and removes other models; running requests keep the servables
    /// with which they started. Tells each version that comes or goes whether requests can reach it. The first call lets
    /// the server accept connections. One caller at a time.
    pub fn change_routes(&self, changed: HashMap<String, ModelRoutes>, removed: &[String]) {
        let names: Vec<String> = changed.keys().chain(removed).cloned().collect();
        let before = self.hub.shared.routes.load_full();
        let now = Arc::new(before.with(changed, removed));
        self.hub.shared.routes.store(Arc::clone(&now));
        self.hub.has_routes.send_if_modified(|has_routes| !std::mem::replace(has_routes, true));
        for name in &names {
            now.not_in(&before, name).for_each(|servable| servable.set_published(true));
            before.not_in(&now, name).for_each(|servable| servable.set_published(false));
        }
    }

    pub fn set_access(&self, access: Access) {
        self.hub.shared.access.store(Some(Arc::new(access)));
    }

    /// Stores the health state from which the core answers health checks until the state expires; with None, the
    /// control server answers all checks.
    pub fn set_health(&self, health: Option<Health>) {
        self.hub.shared.has_upstreams.store(true, Relaxed);
        self.hub.shared.health.store(health.map(Arc::new));
    }

    /// Returns whether a control server has not answered the core's questions for 10 seconds.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.hub.shared.is_silent.load(Relaxed)
    }

    /// Replaces the TLS configuration of a wire, for connections that are accepted later; with None these are
    /// plaintext.
    pub fn set_tls(&self, wire: Wire, config: Option<Arc<ServerConfig>>) {
        self.hub.tls(wire).store(config);
    }

    /// Returns the queue of the records of sampled requests.
    #[must_use]
    pub fn records(&self) -> Arc<Records> {
        Arc::clone(&self.hub.shared.records)
    }

    /// Returns the current values of all counters of the server, with gauges such as the bytes in flight.
    #[must_use]
    pub fn statistics(&self) -> Snapshot {
        let shared = &self.hub.shared;
        Snapshot {
            bytes_in_flight: shared.account.held(),
            bytes_held_total: shared.account.total(),
            held: shared.account.by_model(),
            queued: shared.num_queued(),
            queued_to_forward: vec![
                ("grpc", shared.grpc_gates.num_waiting() as u64),
                ("http", shared.http_gates.num_waiting() as u64),
            ],
            ..shared.statistics.snapshot()
        }
    }

    /// Removes the counts of a model version's answered requests, and returns them.
    #[must_use]
    pub fn retire(&self, model: &str, version: i64) -> RetiredSnapshot {
        self.hub.shared.statistics.retire(model, version)
    }

    pub fn forget(&self, model: &str) {
        self.hub.shared.statistics.forget(model);
    }

    /// Closes all connections of the server now, so that a waiting drain ends.
    pub fn cut(&self) {
        self.hub.tell_all(Order::Cut);
    }

    /// Stops accepting connections, waits up to `timeout` for open requests to end, then closes the connections that
    /// are left. Blocks; returns true if all connections had ended by then. The server's own threads must not call
    /// this.
    pub fn drain(&self, timeout: Duration) -> bool {
        let Some(runtime) = &self.runtime else {
            return true;
        };
        let end = Instant::now() + timeout;
        let hub = &self.hub;
        hub.is_draining.store(true, Relaxed);
        // Requests that wait in batch queues no longer wait for others, because no client can send more.
        hub.shared.routes.load().servables().for_each(|servable| servable.set_published(false));
        hub.stop.send_replace(true);
        let acceptors = std::mem::take(&mut *self.acceptors.lock().unwrap_or_else(PoisonError::into_inner));
        runtime.block_on(async {
            for acceptor in acceptors {
                let _ = acceptor.await;
            }
            hub.tell_all(Order::Drain);
            if !hub.empty_by(end.min(Instant::now() + self.linger)).await {
                hub.tell_all(Order::Close);
            }
            let is_empty = hub.empty_by(end).await;
            if !is_empty {
                hub.tell_all(Order::Cut);
                hub.empty_by(Instant::now() + Duration::from_secs(1)).await;
            }
            is_empty
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Hub {
    fn tls(&self, wire: Wire) -> &ArcSwapOption<ServerConfig> {
        match wire {
            Wire::Grpc => &self.grpc_tls,
            Wire::Http => &self.http_tls,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handshakes(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Connection>>> {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a handshake to end. Returns an error if the handshake is cut because too many newer handshakes have
    /// started.
    async fn unless_cut<T>(
        &self,
        number: u64,
        connection: &Arc<Connection>,
        handshake: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let oldest = {
            let mut all = self.handshakes();
            all.insert(number, Arc::clone(connection));
            if all.len() > self.shared.limits.max_handshakes { all.pop_first() } else { None }
        };
        let _listed = Handshake(self, number);
        if let Some((_, oldest)) = oldest {
            oldest.tell(Order::Cut);
        }
        let mut handshake = pin!(handshake);
        let mut turn = Box::pin(Arc::clone(&self.handshake_turns).acquire_owned());
        poll_fn(|cx| {
            connection.wake_by(cx.waker());
            if connection.order() == Order::Cut {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let permit = ready!(turn.as_mut().poll(cx));
            turn.set(Arc::clone(&self.handshake_turns).acquire_owned());
            let state = handshake.as_mut().poll(cx);
            // The permit is dropped in a separate task, which runs only after the thread has looked for new bytes and
            // has run the tasks that these bytes wake. One step of a handshake takes up to a millisecond, so many steps
            // in a row would delay other connections.
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                drop(permit);
            });
            state
        })
        .await
    }

    /// Serves a connection until it is closed, in turns with the other connections.
    async fn serve<S>(&self, wire: Wire, stream: S, connection: Arc<Connection>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let num_open = || self.open.iter().map(|count| count.load(Relaxed)).sum();
        // Boxed, because a future that is handed on takes its memory twice.
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = match wire {
            Wire::Grpc => Box::pin(http2::serve(wire, stream, connection, shared)),
            Wire::Http => Box::pin(serve_http(stream, connection, shared)),
        };
        self.turns.take(num_open, task).await;
    }

    fn tell_all(&self, order: Order) {
        for entry in self.lock().values() {
            entry.connection.tell(order);
        }
    }

    async fn empty_by(&self, end: Instant) -> bool {
        loop {
            let mut closed = std::pin::pin!(self.closed.notified());
            closed.as_mut().enable();
            if self.lock().is_empty() {
                return true;
            }
            if tokio::time::timeout_at(end.into(), closed).await.is_err() {
                return self.lock().is_empty();
            }
        }
    }

    /// Says whether a new connection beyond the limit may take the place of an idle one. If no place is left, this
    /// function closes the connections of the wire that have been idle for longest: several at once, because it looks
    /// at all connections.
    fn make_room(&self, wire: Wire) -> bool {
        let mut room = self.room[wire as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if room.places == 0 && room.again.is_none_or(|again| now >= again) {
            let connections = self.lock();
            let mut idle: Vec<_> = connections
                .iter()
                .filter(|(_, entry)| entry.watch.is_http() == (wire == Wire::Http))
                .filter_map(|(number, entry)| Some((entry.watch.idle_since(&entry.connection)?, *number, entry)))
                .collect();
            idle.sort_unstable_by_key(|(since, number, _)| (*since, *number));
            for (_, _, entry) in idle.iter().take((self.shared.limits.max_connections / IDLE_CLOSED_AT_ONCE).max(1)) {
                entry.connection.tell(entry.watch.ending(&entry.connection));
                self.shared.statistics.count(Event::ClosedIdle);
                room.places += 1;
            }
            room.again = (room.places == 0).then(|| now + EXHAUSTED);
        }
        let has_place = room.places > 0;
        room.places = room.places.saturating_sub(1);
        has_place
    }

    /// Serves a new connection in its own task, or closes it if there are too many connections.
    fn admit<S>(self: &Arc<Self>, wire: Wire, stream: S, peer: String, tls: Option<Arc<ServerConfig>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = &self.shared.limits;
        if self.open[wire as usize].fetch_add(1, Relaxed) >= limits.max_connections && !self.make_room(wire) {
            self.open[wire as usize].fetch_sub(1, Relaxed);
            self.shared.statistics.count(Event::RefusedConnections);
            return;
        }
        let connection = Connection::new(peer, limits);
        connection.count_parts(&self.shared.parts);
        let number = self.next.fetch_add(1, Relaxed);
        let watch = Watch::new(wire == Wire::Http, limits, Instant::now());
        let entry = Entry { connection: Arc::clone(&connection), watch };
        self.lock().insert(number, entry);
        let registration = Registration { hub: Arc::clone(self), number, wire };
        self.shared.statistics.count(Event::CONNECTED[wire as usize]);
        if self.is_draining.load(Relaxed) {
            connection.tell(Order::Drain);
        }
        // Each kind has a task of its own, because a task takes as much memory as the largest future that it may run.
        let Some(config) = tls else {
            tokio::spawn(async move { registration.hub.serve(wire, stream, connection).await });
            return;
        };
        tokio::spawn(async move {
            let hub = &registration.hub;
            let stream = Encrypted::new(stream, Arc::clone(&connection));
            let handshake = Box::pin(hub.unless_cut(number, &connection, TlsAcceptor::from(config).accept(stream)));
            match tokio::time::timeout(hub.shared.limits.handshake_timeout, handshake).await {
                // The server drops a gRPC connection with TLS unless client and server both chose HTTP/2 by ALPN in the
                // handshake (RFC 9113, section 3.2).
                Ok(Ok(stream)) if wire == Wire::Grpc && stream.get_ref().1.alpn_protocol() != Some(b"h2") => {
                    hub.shared.statistics.count(Event::HandshakeFailedGrpc);
                }
                Ok(Ok(mut stream)) => {
                    stream.get_mut().0.end_handshake();
                    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                    if let Some(certificate) = certificate {
                        connection.set_certificate(certificate);
                    }
                    hub.serve(wire, stream, connection).await;
                }
                failed => {
                    if let Ok(Err(error)) = failed {
                        tracing::debug!(%error, "a TLS handshake failed");
                    }
                    hub.shared.statistics.count(Event::HANDSHAKE_FAILED[wire as usize]);
                }
            }
        });
    }
}

/// An entry in the list of TLS handshakes; dropping it removes the handshake from the list.
struct Handshake<'h>(&'h Hub, u64);

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.0.handshakes().remove(&self.1);
    }
}

/// Serves one HTTP connection until it is closed: HTTP/1.1, or HTTP/2 if its client begins with the preface of HTTP/2.
async fn serve_http<S: AsyncRead + AsyncWrite + Unpin>(stream: S, connection: Arc<Connection>, shared: Arc<Shared>) {
    let Some((stream, is_http2)) = preface::read(stream, &connection).await else {
        if connection.order() == Order::Cut {
            shared.statistics.count(Event::CutHttp);
        }
        return;
    };
    if is_http2 {
        connection.set_http2();
        return Box::pin(http2::serve(Wire::Http, stream, connection, shared)).await;
    }
    Box::pin(http::serve(stream, connection, shared)).await;
}

/// An entry in the list of connections; dropping it removes the connection from the list.
struct Registration {
    hub: Arc<Hub>,
    number: u64,
    wire: Wire,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let entry = self.hub.lock().remove(&self.number);
        drop(entry);
        self.hub.open[self.wire as usize].fetch_sub(1, Relaxed);
        self.hub.shared.statistics.count(Event::DISCONNECTED[self.wire as usize]);
        self.hub.closed.notify_waiters();
    }
}

fn listen(listen: Listen) -> io::Result<Listener> {
    let socket = match listen {
        Listen::Path(path) => {
            // An earlier run of the server may have left its socket file at this path, which would make the bind fail.
            let _ = std::fs::remove_file(&path);
            return Ok(Listener::Unix(UnixListener::bind(&path)?, path));
        }
        Listen::Bound(listener) => listener,
        Listen::Address(address) => {
            let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            if address.is_ipv6() {
                socket.set_only_v6(false)?;
            }
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            socket.into()
        }
    };
    socket.set_nonblocking(true)?;
    Ok(Listener::Tcp(TcpListener::from_std(socket)?))
}

/// Accepts connections until the server drains; then accepts only the connections that already wait in the system's
/// queue.
async fn accept(hub: Arc<Hub>, wire: Wire, listener: Listener) {
    let mut stop = hub.stop.subscribe();
    let mut has_routes = hub.has_routes.subscribe();
    tokio::select! {
        _ = has_routes.wait_for(|has_routes| *has_routes) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    let mut left = BACKLOG;
    while left > 0 {
        let is_stopping = *stop.borrow();
        let accepted = tokio::select! {
            biased;
            accepted = accept_one(&hub, wire, &listener) => accepted,
            () = std::future::ready(()), if is_stopping => break,
            _ = stop.wait_for(|stop| *stop) => continue,
        };
        left -= i32::from(is_stopping);
        // Open connections have priority: after each accepted connection, this task lets the runtime's other tasks run.
        tokio::task::yield_now().await;
        if let Err(error) = accepted {
            tracing::warn!(%error, "no connection can be accepted");
            tokio::time::sleep(EXHAUSTED).await;
        }
    }
    if let Listener::Unix(_, path) = &listener {
        let _ = std::fs::remove_file(path);
    }
}

async fn accept_one(hub: &Arc<Hub>, wire: Wire, listener: &Listener) -> io::Result<()> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            let _ = stream.set_nodelay(true);
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            hub.admit(wire, stream, peer.to_string(), hub.tls(wire).load_full());
        }
        Listener::Unix(listener, _) => {
            let (stream, _) = listener.accept().await?;
            let peer = local_peer(&stream, hub.next.fetch_add(1, Relaxed));
            // A Unix socket is plaintext, as in grpcio: the permissions of its file say which users may connect.
            hub.admit(wire, LocalAuthority::new(stream), peer, None);
        }
    }
    Ok(())
}

/// Returns the peer of a connection to a Unix socket. In it, the process takes the place of the address: limits of a
/// client's address treat all connections of a process as one client's.
fn local_peer(stream: &UnixStream, number: u64) -> String {
    // A process of another container has no number here, so all such processes of a user count as one.
    let (user, process) = stream.peer_cred().map_or((0, 0), |peer| (peer.uid(), peer.pid().unwrap_or_default()));
    format!("unix/{user}/{process}:{number}")
}

/// Checks all connections at regular times for idle and stalled clients, because a timer for each connection would make
/// every request slower.
async fn sweep(hub: Arc<Hub>) {
    let interval = hub.shared.limits.sweep_interval();
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut last, mut is_skipped) = (Instant::now(), false);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let is_late = now.duration_since(std::mem::replace(&mut last, now)) > interval + LATE;
        is_skipped = is_late && !is_skipped;
        if is_skipped {
            // Until the next check, the server reads what clients sent meanwhile.
            continue;
        }
        for entry in hub.lock().values_mut() {
            let order = entry.watch.look(&entry.connection, &hub.shared.limits, now);
            if order != Order::Serve {
                entry.connection.tell(order);
            }
        }
    }
}

async fn begin_turns(hub: Arc<Hub>) {
    hub.turns.begin_next().await;
}

/// Asks the control servers each second whether they answer, until the server stops. What counts is the time that
/// passed until a question without an answer: a server that was stopped by a signal has asked nothing meanwhile.
async fn watch_upstreams(hub: Arc<Hub>) {
    let mut answered = Instant::now();
    let mut ticks = tokio::time::interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !hub.is_draining.load(Relaxed) {
        ticks.tick().await;
        let begun = Instant::now();
        if hub.shared.do_upstreams_answer().await {
            answered = Instant::now();
            hub.shared.is_silent.store(false, Relaxed);
        } else if begun.elapsed() < FRESH / 2 + LATE {
            hub.shared.is_silent.store(answered.elapsed() >= FRESH, Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use crate::admission::fair_queue::address_of;

    #[tokio::test]
    async fn a_process_is_one_client_of_a_unix_socket() {
        let (_kept, stream) = UnixStream::pair().unwrap();
        let [one, two] = [1, 2].map(|number| local_peer(&stream, number));
        assert!(one != two && address_of(&one) == address_of(&two));
        assert!(address_of(&one).ends_with(&format!("/{}", std::process::id())), "{one}");
    }
}
