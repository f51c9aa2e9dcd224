//! Counts the bytes of requests and answers that are held, of all clients together and of each model and client.
//!
//! A body that comes slowly holds its bytes until it is whole. So a model, an address and a connection may each hold only
//! so many times the bytes that are still free. The smaller the group is, the earlier its requests are refused: a flood
//! from one connection leaves room for other connections, and a flood on one model leaves room for other models.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fair_tree;

/// A connection may hold as many bytes as it leaves free, an address twice as many, and a model as many times as in the
/// queue: one that floods alone comes to a half, two thirds, or four fifths of all bytes.
const CONNECTION_TIMES: usize = 1;
const ADDRESS_TIMES: usize = 2;
const MODEL_TIMES: usize = fair_tree::SHARE;

/// A model's name, and the address of a client or "", which no client has.
type Group = (Box<str>, Box<str>);

/// Bytes of requests and answers that are held now.
#[derive(Debug)]
pub struct Account {
    limit: usize,
    held: AtomicUsize,
    // Bounded: a group is removed with the last connection that has used it.
    groups: Mutex<HashMap<Group, Arc<AtomicUsize>>>,
}

impl Account {
    /// Opens an account.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Account { limit, held: AtomicUsize::new(0), groups: Mutex::default() })
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Bytes that may be held.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Says whether no more bytes may be taken on.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.held() >= self.limit
    }

    /// Bytes that are held now, by model; models that hold none are left out.
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

/// The bytes that requests of one connection to one model hold, and the groups that these bytes belong to.
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
    /// Opens the shares of one connection. `model` is a configured one, or "".
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

    /// The name of the model, or "".
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    fn levels(&self) -> [(&AtomicUsize, usize); 3] {
        [(&self.of_connection, CONNECTION_TIMES), (&self.of_address, ADDRESS_TIMES), (&self.of_model, MODEL_TIMES)]
    }

    /// Says whether a request of this size would find room now.
    #[must_use]
    pub fn has_room(&self, size: usize) -> bool {
        let held = self.account.held();
        let Some(free) = self.account.limit.checked_sub(held.saturating_add(size)) else { return false };
        let is_share = |(group, times): (&AtomicUsize, usize)| group.load(Relaxed) + size <= times.saturating_mul(free);
        held == 0 || self.levels().into_iter().all(is_share)
    }

    /// Counts more bytes of a request that holds `own` bytes; says whether there was room. A request that is alone may
    /// have all bytes: otherwise the largest one would never be answered where the limits are close to each other.
    fn grow(&self, size: usize, own: usize) -> bool {
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
        // Other owners of the counts come and go under the lock, so these are dropped under it, too.
        let (of_model, of_address) = (std::mem::take(&mut self.of_model), std::mem::take(&mut self.of_address));
        // The map holds the second one.
        if Arc::strong_count(&of_address) == 2 {
            groups.remove(&(model.clone(), address));
        }
        if Arc::strong_count(&of_model) == 2 {
            groups.remove(&(model, "".into()));
        }
    }
}

/// Bytes that one request or answer holds; dropping it gives them back.
#[derive(Debug, Default)]
pub struct Hold {
    shares: Option<Arc<Shares>>,
    size: usize,
}

impl Hold {
    /// Takes as many bytes as `size` is more than what is held; says whether there was room. The first call asks `shares`
    /// where to count them.
    pub fn reach(&mut self, size: usize, shares: impl FnOnce() -> Arc<Shares>) -> bool {
        let (own, more) = (self.size, size.saturating_sub(self.size));
        self.size += more;
        self.shares.get_or_insert_with(shares).grow(more, own)
    }

    /// The name of the model whose share it is, or "".
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes 1 byte after another until there is no room.
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
        // Another connection of the same address.
        let other = open("m", "x");
        assert!(other.has_room(200) && !other.has_room(201));
        flooded.extend(flood(&other));
        assert_eq!(flooded.len(), 800);
        // Another address.
        let other = open("m", "y");
        assert!(other.has_room(160) && !other.has_room(161));
        flooded.extend(flood(&other));
        assert_eq!(flooded.len(), 960);
        // A further client of the model finds no room, and a client of another model does.
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
