//! Queues requests fairly between models and clients, and refuses a request at once if its wait would be too long.
//!
//! Models take turns. Within a model, client addresses take turns; within an address, its connections do. Turns are
//! weighted by the expected run time. The rules are those of `service/search/searches.py`.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fair_tree::{Node, Path, SHARE, Waiting};

/// The weight of the newest run in the mean run time is 1 / `NEWEST`. A run counts as at most twice the mean plus
/// `MOST_NANOS`, because a single run may wait for a graph to load.
const NEWEST: u64 = 4;
const MOST_NANOS: u64 = 1_000_000;
/// A request that other requests wait behind is refused once it has waited this many times the limit on expected waits.
const PATIENCE: u32 = 4;
/// The share of the earlier waits in the sums that correct estimates, after each further wait.
const EARLIER_WAITS: f64 = 15.0 / 16.0;
/// The sums that correct estimates begin with a wait of this length, in seconds, which was as long as expected.
/// Otherwise the time in which a thread wakes up, some tens of microseconds, would correct estimates of long waits.
const PRIOR_S: f64 = 0.05;
/// The largest factor by which the estimate of a wait is corrected.
const MOST_CORRECTION: f64 = 16.0;
/// The bits of an IPv6 address that name its /64.
const HOST_NETWORK: u128 = u128::MAX << 64;
/// Number of size classes of requests; each class holds requests of up to twice the bytes of the class before it.
const CLASSES: usize = 33;

/// Returns the address part of "address:port".
#[must_use]
pub fn address_of(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(address, _)| address).trim_matches(['[', ']'])
}

/// Returns the client that the limits of a client address count: the address part of "address:port", of an IPv6 address
/// its /64, because one host usually has all addresses of a /64.
#[must_use]
pub fn client_of(peer: &str) -> Cow<'_, str> {
    let address = address_of(peer);
    let network = |address: Ipv6Addr| Ipv6Addr::from_bits(address.to_bits() & HOST_NETWORK);
    address.parse().map_or(Cow::Borrowed(address), |address| format!("{}/64", network(address)).into())
}

/// The properties of a request by which the queue decides whether the request may wait, and where.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The model, address and connection of the request; the model is a configured model, or "".
    pub path: Path,
    /// Number of bytes of the request's message or body.
    pub bytes: usize,
    /// The time at which the request's client stops waiting.
    pub deadline: Option<Instant>,
}

impl Ask {
    /// Describes a request of a connection to the queue. `peer` is the client's "address:port".
    #[must_use]
    pub fn new(model: &str, peer: &str, bytes: usize, deadline: Option<Instant>) -> Self {
        Ask { path: [model.into(), client_of(peer).into(), peer.into()], bytes, deadline }
    }
}

/// The reason why the queue refuses a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refusal {
    /// The queue is full, or the model or the client has used up its share of the places. Holds the number of waiting
    /// requests.
    Queue(usize),
    /// The request would wait in the queue longer than the limit. Holds the number of waiting requests.
    Wait(usize),
    /// The request would wait in the queue past its deadline.
    Deadline,
    /// The request waited in the queue longer than the queue allows. Holds how long it waited.
    Waited(Duration),
    /// The request's deadline passed while it waited in the queue for a slot.
    Late,
}

impl Refusal {
    /// Returns the name that the metrics use for the reason of a refusal.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::Queue(_) => "queue",
            Refusal::Wait(_) | Refusal::Waited(_) => "wait",
            Refusal::Deadline | Refusal::Late => "deadline",
        }
    }
}

/// The numbers of running and of waiting requests that one queue allows, and the longest wait.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximal number of requests that have left the queue and run at the same time.
    pub slots: usize,
    /// Maximal number of requests that wait in the queue for a slot.
    pub queued: usize,
    /// Maximal expected wait of a request: when a request arrives that would probably wait longer, the queue refuses
    /// it.
    pub wait: Duration,
}

/// A request that has left the `FairQueue` to run.
#[derive(Debug)]
pub struct Taken<T> {
    /// The value that the caller passed to [`FairQueue::push`] with this request.
    pub value: T,
    /// The reason why the request must not run, such as a passed deadline; None if it may run.
    pub refusal: Option<Refusal>,
    /// Time for which the request waited in the `FairQueue` before it ran.
    pub waited: Duration,
    /// The request's run, which the caller hands to [`FairQueue::done`] when the run has ended.
    pub run: Run,
}

/// The run of one request. The queue learns from its duration how long such requests of the model take.
#[derive(Debug)]
pub struct Run {
    model: Arc<str>,
    class: usize,
}

/// The mean run time of a model's requests in each size class, in nanoseconds; 0 if no request of that size ran.
#[derive(Debug)]
struct Means([u64; CLASSES]);

impl Means {
    fn of(&self, class: usize) -> u64 {
        let smaller = self.0[..=class].iter().rev();
        let larger = self.0[class + 1..].iter();
        smaller.chain(larger).copied().find(|mean| *mean > 0).unwrap_or(0)
    }

    fn learn(&mut self, class: usize, nanos: u64) {
        let mean = self.of(class);
        let counted = nanos.min(2 * mean + MOST_NANOS);
        self.0[class] = (mean - mean / NEWEST + counted / NEWEST).max(1);
    }
}

/// The sum of the real waits of the last requests that left the queue, and the sum of how long the runs that ended during
/// each wait would have taken without pauses between and during runs; in seconds. These are sums, and not a mean of
/// ratios, so that long waits count for more than short ones, which tell little.
#[derive(Debug, Default)]
struct Waits {
    real: f64,
    expected: f64,
}

impl Waits {
    fn learn(&mut self, expected: Duration, real: Duration) {
        self.expected = self.expected * EARLIER_WAITS + expected.as_secs_f64();
        self.real = self.real * EARLIER_WAITS + real.as_secs_f64();
    }

    /// Returns the factor by which estimates are multiplied, because real waits were longer than expected: machines are
    /// shared, and runs wait for locks. It falls as fast as it rises.
    fn correction(&self) -> f64 {
        ((self.real + PRIOR_S) / (self.expected + PRIOR_S)).clamp(1.0, MOST_CORRECTION)
    }
}

fn class_of(bytes: usize) -> usize {
    (usize::BITS as usize - bytes.leading_zeros() as usize).min(CLASSES - 1)
}

/// A queue with a limited number of places, and the number of running requests. It has no lock of its own.
#[derive(Debug)]
pub struct FairQueue<T> {
    limits: Limits,
    root: Node<T>,
    // The announced requests, whose bodies the server still reads, and the time of each announcement; an announcement
    // counts for a limited time.
    coming: Node<()>,
    came: VecDeque<(Instant, Path, u64)>,
    running: usize,
    // The sum of the times of all ended runs, in nanoseconds.
    worked: u64,
    next_id: u64,
    // Mean run times of each model's requests. Requests to models that are not configured are counted under the name
    // "", so the map stays small.
    means: HashMap<Arc<str>, Means>,
    waits: Waits,
}

impl<T> FairQueue<T> {
    /// Returns an empty queue with these limits and no running request.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        FairQueue {
            limits,
            root: Node::default(),
            coming: Node::default(),
            came: VecDeque::new(),
            running: 0,
            worked: 0,
            next_id: 0,
            means: HashMap::new(),
            waits: Waits::default(),
        }
    }

    /// Queues a request; returns its number, with which [`Self::remove`] finds the request.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn push(&mut self, ask: &Ask, now: Instant, value: T) -> Result<u64, Refusal> {
        let (waiting, before) = (self.root.waiting, self.root.before(&ask.path, self.cost(ask)));
        self.admit(ask, now, waiting, before, self.root.held(&ask.path))?;
        let request = self.waiting(ask, now, value);
        let id = request.id;
        self.root.push(&ask.path, request);
        Ok(id)
    }

    /// Announces a large request to the queue before the server reads the request's body. Until [`Self::withdraw`], and
    /// for the longest wait at most, the queue judges further announcements as if this request waited already.
    /// Otherwise the server would read the bodies of many requests, and refuse most of these requests afterwards.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn announce(&mut self, ask: &Ask, now: Instant) -> Result<u64, Refusal> {
        while let Some((came, _, _)) = self.came.front()
            && now.saturating_duration_since(*came) > self.limits.wait
            && let Some((_, path, id)) = self.came.pop_front()
        {
            self.coming.remove(&path, id);
        }
        let cost = self.cost(ask);
        let before = self.root.before(&ask.path, cost).saturating_add(self.coming.before(&ask.path, cost));
        let held = self.root.held(&ask.path).zip(self.coming.held(&ask.path)).map(|(queued, coming)| queued + coming);
        self.admit(ask, now, self.root.waiting + self.coming.waiting, before, held)?;
        let request = self.waiting(ask, now, ());
        let id = request.id;
        self.coming.push(&ask.path, request);
        self.came.push_back((now, ask.path.clone(), id));
        Ok(id)
    }

    /// Removes the announcement of a request from the queue, because the request is queued now or was given up.
    pub fn withdraw(&mut self, ask: &Ask, id: u64) {
        self.coming.remove(&ask.path, id);
    }

    fn waiting<V>(&mut self, ask: &Ask, now: Instant, value: V) -> Waiting<V> {
        let cost = self.cost(ask);
        let id = self.next_id;
        self.next_id += 1;
        Waiting { id, value, class: class_of(ask.bytes), cost, worked: self.worked, since: now, deadline: ask.deadline }
    }

    /// Returns how long a request waits if the runs before it take `nanos` together and the slots share these runs.
    fn scaled(&self, nanos: u64) -> Duration {
        Duration::from_nanos(nanos / self.limits.slots.max(1) as u64)
    }

    /// Compares the wait of a request with the runs that ended meanwhile. Run times are not estimated here: a wrong
    /// estimate of them is corrected by further runs, and must not be corrected twice.
    fn learn_wait<V>(&mut self, request: &Waiting<V>, waited: Duration) {
        let expected = self.scaled(self.worked.saturating_sub(request.worked));
        self.waits.learn(expected, waited);
    }

    /// Returns the expected run time of a request: the mean of earlier requests to its model of similar size, in
    /// nanoseconds.
    fn cost(&self, ask: &Ask) -> u64 {
        self.means.get(&ask.path[0]).map_or(0, |means| means.of(class_of(ask.bytes)))
    }

    /// Decides whether a new request may join the queue. `waiting` requests are in the queue, and runs of `before`
    /// nanoseconds come before the new one. `held` counts the waiting requests of the same model, of the same address,
    /// and of the same connection.
    fn admit(
        &self,
        ask: &Ask,
        now: Instant,
        waiting: usize,
        before: u64,
        mut held: impl Iterator<Item = usize>,
    ) -> Result<(), Refusal> {
        let Limits { slots, queued, wait } = self.limits;
        if waiting + self.running < slots {
            return Ok(());
        }
        let free = queued.saturating_sub(waiting);
        if free == 0 || held.any(|held| held > SHARE.saturating_mul(free)) {
            return Err(Refusal::Queue(waiting));
        }
        let expected = self.scaled(before).mul_f64(self.waits.correction());
        // If fewer requests wait than there are slots, the queue accepts even a long wait: otherwise slots would be
        // idle between runs.
        if expected > wait && waiting >= slots {
            return Err(Refusal::Wait(waiting));
        }
        if ask.deadline.is_some_and(|deadline| now + expected > deadline) {
            return Err(Refusal::Deadline);
        }
        Ok(())
    }

    /// Removes the next request from the queue, if a slot is free. The request holds the slot until [`Self::done`] is
    /// called.
    pub fn take(&mut self, now: Instant) -> Option<Taken<T>> {
        if self.running >= self.limits.slots.max(1) {
            return None;
        }
        let (request, model) = self.root.take()?;
        self.running += 1;
        let waited = now.saturating_duration_since(request.since);
        self.learn_wait(&request, waited);
        let refusal = if request.deadline.is_some_and(|deadline| now >= deadline) {
            Some(Refusal::Late)
        } else if waited > self.limits.wait.saturating_mul(PATIENCE) && self.root.waiting > 0 {
            Some(Refusal::Waited(waited))
        } else {
            None
        };
        let run = Run { model: model.unwrap_or_else(|| "".into()), class: request.class };
        Some(Taken { value: request.value, refusal, waited, run })
    }

    /// Frees the queue's slot in which a request ran. `took` is how long the request ran; None if it did not run.
    pub fn done(&mut self, run: Run, took: Option<Duration>) {
        self.running -= 1;
        let Some(took) = took else { return };
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / 4);
        self.worked = self.worked.saturating_add(nanos);
        self.means.entry(run.model).or_insert(Means([0; CLASSES])).learn(run.class, nanos);
    }

    /// Removes a waiting request, because its client disconnected or its wait was too long. Returns its value; None if
    /// the request has left the queue already.
    pub fn remove(&mut self, ask: &Ask, id: u64) -> Option<T> {
        let request = self.root.remove(&ask.path, id)?;
        self.learn_wait(&request, request.since.elapsed());
        Some(request.value)
    }

    /// Returns the number of requests that wait in the queue, without running and announced requests.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.root.waiting
    }

    /// Returns true if more requests wait than there are slots.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.root.waiting > self.limits.slots
    }

    /// Returns the maximal time that a request may wait before the queue refuses it, if other requests wait behind.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.limits.wait.saturating_mul(PATIENCE)
    }

    pub fn clear(&mut self) -> Vec<T> {
        std::iter::from_fn(|| self.root.take()).map(|(request, _)| request.value).collect()
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { slots: 1, queued: 100, wait: Duration::from_millis(100) };

    fn ask(model: &str, peer: &str) -> Ask {
        Ask::new(model, peer, 1000, None)
    }

    /// Makes a queue in which one request runs and holds a slot. `means` has, for each model, the milliseconds that its
    /// requests take.
    fn busy(limits: Limits, means: &[(&str, u64)]) -> (FairQueue<usize>, Instant) {
        let (mut queue, now) = (FairQueue::new(limits), Instant::now());
        for (model, millis) in means {
            for _ in 0..50 {
                queue.push(&ask(model, "a:1"), now, 0).unwrap();
                let run = queue.take(now).unwrap().run;
                queue.done(run, Some(Duration::from_millis(*millis)));
            }
        }
        queue.push(&ask("busy", "a:1"), now, 0).unwrap();
        let _ = queue.take(now).unwrap();
        (queue, now)
    }

    /// Removes all waiting requests, and returns them in the order in which the only slot would run them.
    fn order(queue: &mut FairQueue<usize>) -> Vec<usize> {
        queue.clear()
    }

    #[test]
    fn all_addresses_of_an_ipv6_host_are_one_client() {
        let hosts = ["[2001:db8:1:2::5]:443", "[2001:db8:1:2:aaaa:bbbb:cccc:dddd]:9", "[2001:db8:1:3::5]:443"];
        assert_eq!(hosts.map(client_of), ["2001:db8:1:2::/64", "2001:db8:1:2::/64", "2001:db8:1:3::/64"]);
        let others = ["[::1]:80", "10.0.0.5:443", "unix/0/12:7"];
        assert_eq!(others.map(client_of), ["::/64", "10.0.0.5", "unix/0/12"]);
        assert_eq!(others.map(address_of), ["::1", "10.0.0.5", "unix/0/12"]);
    }

    #[test]
    fn models_addresses_and_connections_take_turns() {
        let (mut queue, now) = busy(LIMITS, &[]);
        let asked = ["m a:1", "m a:1", "m a:2", "m b:1", "n a:1", "m a:1"];
        for (number, text) in asked.iter().enumerate() {
            let (model, peer) = text.split_once(' ').unwrap();
            queue.push(&ask(model, peer), now, number).unwrap();
        }
        assert_eq!(order(&mut queue), [0, 4, 3, 2, 1, 5]);
        assert_eq!(queue.num_waiting(), 0);
    }

    #[test]
    fn clients_with_one_request_at_a_time_take_turns_with_each_other_and_with_a_busy_one() {
        // One of the two slots stays in use, so the five clients share the other slot.
        let (mut queue, mut now) = busy(Limits { slots: 2, wait: Duration::MAX, ..LIMITS }, &[("m", 10)]);
        let peers = ["c:1", "a:1", "d:1", "b:1"];
        for (number, peer) in peers.iter().enumerate() {
            queue.push(&ask("m", peer), now, number).unwrap();
        }
        for _ in 0..20 {
            queue.push(&ask("m", "e:1"), now, 4).unwrap();
        }
        let mut served = [0; 5];
        for _ in 0..50 {
            now += Duration::from_millis(10);
            let taken = queue.take(now).unwrap();
            served[taken.value] += 1;
            queue.done(taken.run, Some(Duration::from_millis(10)));
            let peer = peers.get(taken.value).unwrap_or(&"e:1");
            queue.push(&ask("m", peer), now, taken.value).unwrap();
        }
        assert!(served.iter().all(|count| (8..=12).contains(count)), "{served:?}");
    }

    #[test]
    fn turns_are_weighted_by_the_time_of_runs() {
        let (mut queue, now) = busy(Limits { wait: Duration::MAX, ..LIMITS }, &[("slow", 40), ("fast", 10)]);
        for number in 0..3 {
            queue.push(&ask("slow", "a:1"), now, number).unwrap();
        }
        for number in 10..20 {
            queue.push(&ask("fast", "a:1"), now, number).unwrap();
        }
        let order = order(&mut queue);
        let first: Vec<_> = order.iter().take(7).filter(|number| **number < 10).collect();
        assert_eq!(first.len(), 2, "{order:?}");
    }

    #[test]
    fn a_flood_has_four_fifths_of_the_queue_and_leaves_room_for_others() {
        let (mut queue, now) = busy(Limits { wait: Duration::MAX, ..LIMITS }, &[]);
        let flood = |queue: &mut FairQueue<usize>, model: &str, peer: &str| {
            (0..200).filter(|_| queue.push(&ask(model, peer), now, 0).is_ok()).count()
        };
        assert_eq!(flood(&mut queue, "m", "a:1"), 81);
        assert_eq!(flood(&mut queue, "n", "a:1"), 16);
        assert!(queue.push(&ask("quiet", "b:1"), now, 0).is_ok());
        let (mut queue, _) = busy(Limits { wait: Duration::MAX, ..LIMITS }, &[]);
        let one = flood(&mut queue, "m", "a:1");
        // The first connection has filled all the places of the queue that requests of the model "m" may use.
        assert_eq!((one, flood(&mut queue, "m", "b:1")), (81, 0));
    }

    #[test]
    fn what_would_wait_too_long_is_refused_at_once() {
        let (mut queue, now) = busy(LIMITS, &[("m", 20)]);
        let taken = (0..50).filter(|_| queue.push(&ask("m", "a:1"), now, 0).is_ok()).count();
        assert!((5..=7).contains(&taken), "{taken}");
        assert!(matches!(queue.push(&ask("m", "a:1"), now, 0), Err(Refusal::Wait(_))));
        // Clients and models take turns, so a new client or a new model waits for only one of the requests that came
        // before.
        assert!(queue.push(&ask("m", "b:1"), now, 0).is_ok());
        assert!(queue.push(&ask("n", "a:1"), now, 0).is_ok());
    }

    #[test]
    fn queued_and_announced_requests_of_a_model_share_its_places() {
        let (mut queue, now) = busy(Limits { queued: 8, wait: Duration::from_secs(60), ..LIMITS }, &[("m", 10)]);
        for _ in 0..4 {
            queue.push(&ask("m", "a:1"), now, 0).unwrap();
        }
        let announced = std::iter::from_fn(|| queue.announce(&ask("m", "a:1"), now).ok()).count();
        assert_eq!(announced, 3);
        assert!(queue.announce(&ask("other", "a:1"), now).is_ok());
    }

    #[test]
    fn announced_requests_count_for_further_announcements_until_they_are_withdrawn_or_old() {
        let (mut queue, now) = busy(LIMITS, &[("m", 20)]);
        let flood = |queue: &mut FairQueue<usize>, now| {
            std::iter::from_fn(|| queue.announce(&ask("m", "a:1"), now).ok()).take(50).collect::<Vec<_>>()
        };
        let announced = flood(&mut queue, now);
        assert!((5..=7).contains(&announced.len()), "{announced:?}");
        assert!(matches!(queue.announce(&ask("m", "a:1"), now), Err(Refusal::Wait(_))));
        // An announced request waits for its body, so it delays neither another client's request nor a request whose
        // body has arrived.
        assert!(queue.announce(&ask("m", "b:1"), now).is_ok());
        assert!(queue.push(&ask("m", "a:1"), now, 0).is_ok());
        for id in &announced[1..] {
            queue.withdraw(&ask("m", "a:1"), *id);
        }
        assert!(queue.announce(&ask("m", "a:1"), now).is_ok());
        // An announcement whose body never arrives is counted for the queue's longest wait, 100 ms, and then no longer.
        let (mut queue, now) = busy(LIMITS, &[("m", 20)]);
        let first = flood(&mut queue, now).len();
        assert!(flood(&mut queue, now + Duration::from_millis(99)).is_empty());
        assert_eq!(flood(&mut queue, now + Duration::from_millis(101)).len(), first);
    }

    #[test]
    fn a_deadline_that_can_not_be_met_is_refused_at_once() {
        let (mut queue, now) = busy(LIMITS, &[("m", 20)]);
        let by = |millis| Ask { deadline: Some(now + Duration::from_millis(millis)), ..ask("m", "a:1") };
        queue.push(&by(30), now, 1).unwrap();
        queue.push(&by(30), now, 2).unwrap();
        assert_eq!(queue.push(&by(30), now, 3), Err(Refusal::Deadline));
        assert!(queue.push(&by(60), now, 3).is_ok());
    }

    #[test]
    fn waits_that_are_longer_than_expected_are_expected_then() {
        let (mut queue, mut now) = busy(LIMITS, &[("m", 20)]);
        let mut most = Vec::new();
        for _ in 0..400 {
            while queue.push(&ask("m", "a:1"), now, 0).is_ok() {}
            most.push(queue.num_waiting());
            // In each step 40 ms pass, but the request's run takes only 20 ms, as on a thread that gets half of a
            // processor.
            now += Duration::from_millis(40);
            queue.running = 0;
            let run = queue.take(now).unwrap().run;
            queue.done(run, Some(Duration::from_millis(20)));
            queue.running = 1;
        }
        assert!(most[0] >= 6 && most[399] <= 4, "{most:?}");
    }

    #[test]
    fn an_estimate_that_was_raised_falls_as_fast_and_while_waits_are_short() {
        let mut waits = Waits::default();
        let wait = Duration::from_millis(20);
        let steps = |waits: &mut Waits, real, is_far: &dyn Fn(f64) -> bool| {
            (1..1000).find(|_| {
                waits.learn(wait, real);
                !is_far(waits.correction())
            })
        };
        let rise = steps(&mut waits, wait * 3, &|factor| factor < 2.0).unwrap();
        (0..100).for_each(|_| waits.learn(wait, wait * 3));
        let fall = steps(&mut waits, wait, &|factor| factor > 2.0).unwrap();
        assert!(fall <= 2 * rise + 8, "{rise} {fall}");
        // Short waits, which tell little, let it fall too: otherwise a queue that admits few requests would never learn.
        (0..100).for_each(|_| waits.learn(wait, wait * 3));
        (0..60).for_each(|_| waits.learn(Duration::from_micros(100), Duration::from_micros(200)));
        assert!(waits.correction() < 1.5, "{}", waits.correction());
    }

    /// Runs a closed loop: each of the clients sends its next request when its last one was answered or refused. A run
    /// takes `length(number)`. Returns how many requests were refused, and the longest wait.
    fn closed_loop(limits: Limits, clients: usize, length: impl Fn(u64) -> Duration) -> (usize, Duration) {
        let (mut queue, mut now) = (FairQueue::new(limits), Instant::now());
        let peers: Vec<String> = (0..clients).map(|client| format!("a:{client}")).collect();
        let (mut idle, mut runs) = ((0..clients).collect::<Vec<_>>(), Vec::new());
        let (mut refused, mut longest) = (0, Duration::ZERO);
        for number in 0..4000 {
            for client in std::mem::take(&mut idle) {
                if queue.push(&ask("m", &peers[client]), now, client).is_err() {
                    refused += 1;
                    idle.push(client);
                }
            }
            while let Some(taken) = queue.take(now) {
                longest = longest.max(taken.waited);
                let took = length(number * 2 + runs.len() as u64);
                runs.push((now + took, took, taken.run, taken.value));
            }
            let next = runs.iter().enumerate().min_by_key(|(_, (end, ..))| *end).map(|(place, _)| place);
            let (end, took, run, client) = runs.swap_remove(next.unwrap());
            now = end;
            queue.done(run, Some(took));
            idle.push(client);
        }
        (refused, longest)
    }

    #[test]
    fn a_closed_loop_whose_wait_is_below_the_limit_is_never_refused() {
        // Runs of 0.5 to 1.5 times 4 ms, and one in 50 takes 20 ms, because the machine is shared.
        let length = |number: u64| {
            let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            if random.is_multiple_of(50) {
                Duration::from_millis(20)
            } else {
                Duration::from_micros(2000 + random % 4000)
            }
        };
        for (slots, clients) in [(1, 8), (1, 32), (2, 64)] {
            let limits = Limits { slots, queued: 1024, wait: Duration::from_millis(200) };
            let (refused, longest) = closed_loop(limits, clients, length);
            assert!(longest < limits.wait, "{clients} clients wait for {longest:?}");
            assert_eq!(refused, 0, "{clients} clients with {slots} slots wait for at most {longest:?}");
        }
        let limits = Limits { slots: 1, queued: 1024, wait: Duration::from_millis(200) };
        assert!(closed_loop(limits, 80, length).0 > 0, "80 clients would wait for longer than the limit");
    }

    #[test]
    fn what_is_late_is_taken_with_its_reason() {
        let (mut queue, now) = busy(LIMITS, &[]);
        let late = Ask { deadline: Some(now + Duration::from_millis(10)), ..ask("m", "a:1") };
        queue.push(&late, now, 1).unwrap();
        queue.push(&ask("m", "a:1"), now, 2).unwrap();
        queue.push(&ask("m", "a:1"), now, 3).unwrap();
        let mut next = |millis| {
            queue.running = 0;
            queue.take(now + Duration::from_millis(millis)).unwrap().refusal
        };
        assert_eq!(next(20), Some(Refusal::Late));
        assert_eq!(next(500), Some(Refusal::Waited(Duration::from_millis(500))));
        // The last request, too, has waited for 500 ms, but it may still run, because no other request waits in the
        // queue.
        assert_eq!(next(500), None);
    }

    #[test]
    fn a_client_that_left_frees_its_place() {
        let (mut queue, now) = busy(Limits { queued: 1, ..LIMITS }, &[]);
        let id = queue.push(&ask("m", "a:1"), now, 7).unwrap();
        assert_eq!(queue.push(&ask("n", "b:1"), now, 8), Err(Refusal::Queue(1)));
        assert_eq!((queue.remove(&ask("m", "a:1"), id), queue.remove(&ask("m", "a:1"), id)), (Some(7), None));
        assert!(queue.push(&ask("n", "b:1"), now, 8).is_ok());
    }

    #[test]
    fn runs_are_expected_by_model_and_size() {
        let mut means = Means([0; CLASSES]);
        for _ in 0..40 {
            means.learn(class_of(100), 1_000);
            means.learn(class_of(1 << 20), 1_000_000);
        }
        assert!((900..=1_100).contains(&means.of(class_of(200))), "{}", means.of(class_of(200)));
        assert!(means.of(class_of(1 << 24)) > 900_000);
        assert_eq!(class_of(usize::MAX), CLASSES - 1);
    }
}
