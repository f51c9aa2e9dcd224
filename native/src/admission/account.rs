//! Counts the bytes of memory that requests and answers hold, in total and for each model, client address and
//! connection.
//!
//! A body that comes slowly holds its bytes until it is whole. So a model, an address and a connection may each hold
//! only so many times the bytes that are still free. The smaller the group is, the earlier its requests are refused: a
//! flood from one connection leaves room for other connections, and a flood on one model leaves room for other models.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fair_tree;

/// While F bytes of the limit are free, one connection may hold at most F bytes, one address `ADDRESS_TIMES` times F,
/// and one model `MODEL_TIMES` times F. So a single flooding connection gets a half of all bytes, a single address two
/// thirds, and a single model four fifths.
const CONNECTION_TIMES: usize = 1;
const ADDRESS_TIMES: usize = 2;
const MODEL_TIMES: usize = fair_tree::SHARE;

/// A model's name with a client's address; the address "" stands for all clients of the model.
type Group = (Box<str>, Box<str>);

/// Counters of the bytes that requests and answers hold now, against one limit.
#[derive(Debug)]
pub struct Account {
    limit: usize,
    held: AtomicUsize,
    total: AtomicU64,
    // Number of held bytes by model and client address. An entry is removed with the last connection that uses it, so
    // the map stays small.
    groups: Mutex<HashMap<Group, Arc<AtomicUsize>>>,
}

impl Account {
    /// Creates the counters of the bytes that requests and answers hold, at 0; together they may hold `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Account { limit, held: AtomicUsize::new(0), total: AtomicU64::new(0), groups: Mutex::default() })
    }

    /// Returns the number of bytes that requests and answers hold in memory now, all models together.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Returns the number of bytes that all requests and answers together have held since the server's start.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Returns the limit on the number of bytes that requests and answers may hold in memory together.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns true if requests and answers hold as many bytes as the limit allows, so that no request may hold more.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.held() >= self.limit
    }

    /// Returns the number of bytes that the requests and answers of each model hold now; omits models that hold none.
    #[must_use]
    pub fn by_model(&self) -> Vec<(String, usize)> {
        let groups = self.lock();
        let models = groups.iter().filter(|((_, address), _)| address.is_empty());
        models.map(|((model, _), held)| (model.to_string(), held.load(Relaxed))).filter(|(_, held)| *held > 0).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Group, Arc<AtomicUsize>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes that one connection's requests to one model hold, with the counters of the groups that include them.
#[derive(Debug)]
pub struct Shares {
    account: Arc<Account>,
    model: Box<str>,
    address: Box<str>,
    of_model: Arc<AtomicUsize>,
    of_address: Arc<AtomicUsize>,
    of_connection: AtomicUsize,
}

impl Shares {
    /// Opens the byte counters for one connection's requests to one model. `model` is a configured model, or "".
    #[must_use]
    pub fn open(account: &Arc<Account>, model: &str, address: &str) -> Arc<Self> {
        let mut groups = account.lock();
        let mut group = |address: &str| Arc::clone(groups.entry((model.into(), address.into())).or_default());
        let (of_model, of_address) = (group(""), group(address));
        drop(groups);
        Arc::new(Shares {
            account: Arc::clone(account),
            model: model.into(),
            address: address.into(),
            of_model,
            of_address,
            of_connection: AtomicUsize::new(0),
        })
    }

    /// Returns the name of the model whose requests these counters count; "" for requests to no configured model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    fn levels(&self) -> [(&AtomicUsize, usize); 3] {
        [(&self.of_connection, CONNECTION_TIMES), (&self.of_address, ADDRESS_TIMES), (&self.of_model, MODEL_TIMES)]
    }

    /// Returns true if the limits on held bytes leave enough for a request of this size now.
    #[must_use]
    pub fn has_room(&self, size: usize) -> bool {
        let held = self.account.held();
        let Some(free) = self.account.limit.checked_sub(held.saturating_add(size)) else { return false };
        let is_share = |(group, times): (&AtomicUsize, usize)| group.load(Relaxed) + size <= times.saturating_mul(free);
        held == 0 || self.levels().into_iter().all(is_share)
    }

    /// Counts `size` more bytes of a request that already holds `own` bytes; returns false if the sum exceeds a limit.
    /// A request may hold all bytes if no other request holds any; otherwise the largest allowed request could never be
    /// answered.
    fn grow(&self, size: usize, own: usize) -> bool {
        self.account.total.fetch_add(size as u64, Relaxed);
        let before = self.account.held.fetch_add(size, Relaxed);
        let groups = self.levels().map(|(group, times)| (group.fetch_add(size, Relaxed) + size, times));
        let Some(free) = self.account.limit.checked_sub(before.saturating_add(size)) else { return false };
        before == own || groups.into_iter().all(|(held, times)| held <= times.saturating_mul(free))
    }

    fn shrink(&self, size: usize) {
        self.account.held.fetch_sub(size, Relaxed);
        for (held, _) in self.levels() {
            held.fetch_sub(size, Relaxed);
        }
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        let mut groups = self.account.lock();
        let (model, address) = (std::mem::take(&mut self.model), std::mem::take(&mut self.address));
        // Other threads clone and drop references to the counters of held bytes only under the lock of `groups`. This
        // code holds the lock, too, so that the counts of references below do not change meanwhile.
        let (of_model, of_address) = (std::mem::take(&mut self.of_model), std::mem::take(&mut self.of_address));
        // One reference is this connection's, one is in the map, so a count of 2 means that no other connection uses
        // the counter.
        if Arc::strong_count(&of_address) == 2 {
            groups.remove(&(model.clone(), address));
        }
        if Arc::strong_count(&of_model) == 2 {
            groups.remove(&(model, "".into()));
        }
    }
}

/// The bytes that one request or answer holds; dropping this value frees the bytes in the account.
#[derive(Debug, Default)]
pub struct Hold {
    shares: Option<Arc<Shares>>,
    size: usize,
}

impl Hold {
    /// Raises the bytes that the request holds to `size`, if it holds fewer; returns false if they exceed a limit. The
    /// first call gets the counters from `shares`.
    pub fn reach(&mut self, size: usize, shares: impl FnOnce() -> Arc<Shares>) -> bool {
        let (own, more) = (self.size, size.saturating_sub(self.size));
        self.size += more;
        self.shares.get_or_insert_with(shares).grow(more, own)
    }

    /// Returns the name of the model for which the bytes count; "" if no bytes count yet, or the request names no
    /// configured model.
    #[must_use]
    pub fn model(&self) -> &str {
        self.shares.as_ref().map_or("", |shares| shares.model())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(shares) = &self.shares {
            shares.shrink(self.size);
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    /// Adds requests that hold one byte each until the limits allow no more; returns the `Hold` of each.
    fn flood(shares: &Arc<Shares>) -> Vec<Hold> {
        let mut holds = Vec::new();
        while shares.has_room(1) {
            let mut hold = Hold::default();
            assert!(hold.reach(1, || Arc::clone(shares)));
            holds.push(hold);
        }
        holds
    }

    #[test]
    fn an_account_gives_back_what_was_held() {
        let account = Account::new(10);
        let [one, two] = ["a", "b"].map(|model| Shares::open(&account, model, "x"));
        let (mut first, mut second) = (Hold::default(), Hold::default());
        assert!(first.reach(4, || Arc::clone(&one)) && second.reach(2, || Arc::clone(&two)));
        assert!(!account.is_full() && !second.reach(7, || Arc::clone(&two)) && account.is_full());
        assert_eq!((first.model(), second.model(), account.held()), ("a", "b", 11));
        let mut by_model = account.by_model();
        by_model.sort();
        assert_eq!(by_model, [("a".into(), 4), ("b".into(), 7)]);
        drop(second);
        assert!(first.reach(3, || Arc::clone(&two)));
        assert_eq!((account.held(), account.by_model()), (4, vec![("a".into(), 4)]));
        drop(first);
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn a_flood_leaves_room_for_other_connections_addresses_and_models() {
        let account = Account::new(1200);
        let open = |model, address| Shares::open(&account, model, address);
        let one = open("m", "x");
        let mut flooded = flood(&one);
        assert_eq!(flooded.len(), 600);
        // Here `other` is a second connection from the same client address, for the same model.
        let other = open("m", "x");
        assert!(other.has_room(200) && !other.has_room(201));
        flooded.extend(flood(&other));
        assert_eq!(flooded.len(), 800);
        // Here `other` is a third connection for the same model, from another client address.
        let other = open("m", "y");
        assert!(other.has_room(160) && !other.has_room(161));
        flooded.extend(flood(&other));
        assert_eq!(flooded.len(), 960);
        // A third client address of the model "m" gets no bytes, but a connection of the model "n" does.
        assert!(!one.has_room(1) && !open("m", "z").has_room(1));
        assert!(open("n", "x").has_room(120) && !open("n", "x").has_room(121));
        drop(flooded);
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn a_request_that_is_alone_may_have_all_bytes() {
        let account = Account::new(1000);
        let [one, two] = ["x", "y"].map(|address| Shares::open(&account, "m", address));
        let (mut first, mut second) = (Hold::default(), Hold::default());
        assert!(one.has_room(1000) && !one.has_room(1001));
        assert!(first.reach(400, || Arc::clone(&one)) && first.reach(700, || Arc::clone(&one)));
        assert!(second.reach(1, || Arc::clone(&two)) && !first.reach(701, || Arc::clone(&one)));
        drop(second);
        assert!(first.reach(1000, || Arc::clone(&one)) && !first.reach(1001, || Arc::clone(&one)));
    }

    #[test]
    fn groups_without_connections_are_forgotten() {
        let account = Account::new(10);
        let (one, two) = (Shares::open(&account, "m", "x"), Shares::open(&account, "m", "y"));
        let mut hold = Hold::default();
        assert!(hold.reach(1, || Arc::clone(&one)));
        assert_eq!(account.lock().len(), 3);
        drop((one, two));
        assert_eq!(account.lock().len(), 2);
        drop(hold);
        assert_eq!((account.lock().len(), account.held()), (0, 0));
    }
}
