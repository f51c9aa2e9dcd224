//! The tree in which requests wait: models, their client addresses, their connections. Children take turns.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// The waiting requests of one model or one client may fill at most this many times the places that are still free. So
/// one flooding client can fill four fifths of the queue, and two can fill four ninths each.
pub const SHARE: usize = 4;
/// In the queue's virtual time a run counts as at least this many nanoseconds, so that models with unknown run times
/// take turns too.
const LEAST_NANOS: u64 = 1_000;

/// The model, the client's address and the connection of a request. The queue limits how many requests of each of the
/// three may wait.
pub type Path = [Arc<str>; 3];

/// A request that waits in a `FairQueue`, or is announced to it.
#[derive(Debug)]
pub struct Waiting<T> {
    pub id: u64,
    pub value: T,
    pub class: usize,
    pub cost: u64,
    // The sum of the times of all runs that had ended when the request joined the queue, in nanoseconds.
    pub worked: u64,
    pub since: Instant,
    pub deadline: Option<Instant>,
}

/// A child node's key in the order of turns: the virtual time of its next request, and a number that decides between
/// equal times.
type Turn = (u64, u64);

/// A node in the tree of waiting requests: the root's children are models, their children client addresses, and their
/// children connections, which hold the requests.
#[derive(Debug)]
pub struct Node<T> {
    /// Number of requests that wait in this node of the queue's tree and in its children.
    pub waiting: usize,
    // The sum of the expected run times of all requests that wait in this node of the tree and in its children, in
    // nanoseconds.
    cost: u64,
    // The node's virtual time, in nanoseconds. When a request leaves the queue to run, this time grows by the request's
    // expected run time, divided by the number of children with waiting requests. A new child starts at this time, so
    // that a client with one request at a time neither overtakes a client with many waiting requests for ever, nor
    // waits for all of them.
    clock: u64,
    // The number that the next turn gets, which counts up: of two children whose turns have the same virtual time, the
    // child whose turn has the smaller number runs first.
    given: u64,
    turns: BTreeSet<(Turn, Arc<str>)>,
    children: HashMap<Arc<str>, (Turn, Node<T>)>,
    requests: VecDeque<Waiting<T>>,
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Node {
            waiting: 0,
            cost: 0,
            clock: 0,
            given: 0,
            turns: BTreeSet::new(),
            children: HashMap::new(),
            requests: VecDeque::new(),
        }
    }
}

impl<T> Node<T> {
    /// Adds a request to the queue of its connection; creates the nodes of `path` (model, address, connection) that do
    /// not exist.
    pub fn push(&mut self, path: &[Arc<str>], request: Waiting<T>) {
        self.waiting += 1;
        self.cost += request.cost;
        let Some((name, rest)) = path.split_first() else {
            return self.requests.push_back(request);
        };
        let turn = (self.clock, self.given);
        let (turns, given) = (&mut self.turns, &mut self.given);
        let child = self.children.entry(Arc::clone(name)).or_insert_with(|| {
            *given += 1;
            turns.insert((turn, Arc::clone(name)));
            (turn, Node::default())
        });
        child.1.push(rest, request);
    }

    /// Removes the node's request that must run next; returns it with the name of the child node in which it waited.
    pub fn take(&mut self) -> Option<(Waiting<T>, Option<Arc<str>>)> {
        let (request, name) = match self.turns.pop_first() {
            None => (self.requests.pop_front()?, None),
            Some(((time, _), name)) => {
                let busy = self.children.len() as u64;
                let child = self.children.get_mut(&name)?;
                let (request, _) = child.1.take()?;
                let cost = request.cost.max(LEAST_NANOS);
                self.clock = self.clock.max(time) + cost / busy;
                child.0 = (time + cost, self.given);
                self.given += 1;
                if child.1.waiting == 0 {
                    self.children.remove(&name);
                } else {
                    self.turns.insert((child.0, Arc::clone(&name)));
                }
                (request, Some(name))
            }
        };
        self.waiting -= 1;
        self.cost -= request.cost;
        Some((request, name))
    }

    /// Removes the request with this number from the queue of its connection, which `path` names.
    pub fn remove(&mut self, path: &[Arc<str>], id: u64) -> Option<Waiting<T>> {
        let removed = match path.split_first() {
            None => {
                let place = self.requests.iter().position(|request| request.id == id)?;
                self.requests.remove(place)?
            }
            Some((name, rest)) => {
                let child = self.children.get_mut(name)?;
                let removed = child.1.remove(rest, id)?;
                if child.1.waiting == 0 {
                    self.turns.remove(&(child.0, Arc::clone(name)));
                    self.children.remove(name);
                }
                removed
            }
        };
        self.waiting -= 1;
        self.cost -= removed.cost;
        Some(removed)
    }

    fn child(&self, name: &str) -> Option<&Node<T>> {
        self.children.get(name).map(|(_, node)| node)
    }

    /// Counts the waiting requests of the path's model, of its client address, and of its connection; returns the three
    /// counts.
    pub fn held(&self, path: &Path) -> impl Iterator<Item = usize> {
        let mut node = Some(self);
        path.iter().map(move |name| {
            node = node.and_then(|node| node.child(name));
            node.map_or(0, |node| node.waiting)
        })
    }

    /// Returns the expected run time of all waiting requests that would run before a new request, in nanoseconds.
    /// Because children take turns, each other child runs at most as long as the request's own child and the request
    /// together.
    pub fn before(&self, path: &[Arc<str>], cost: u64) -> u64 {
        let Some((name, rest)) = path.split_first() else {
            return self.cost;
        };
        let Some(child) = self.child(name) else {
            return self.cost.min(cost.saturating_mul(self.children.len() as u64));
        };
        let own = child.before(rest, cost);
        let others = (self.children.len() as u64 - 1).saturating_mul(own + cost);
        own + others.min(self.cost - child.cost)
    }
}
