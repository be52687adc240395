//! Who waits to be authenticated: a bounded number, and of one address not all of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use crate::edge::locked;

/// Counts the connections that have not proved the secret yet.
#[derive(Debug)]
pub(super) struct Door {
    places: usize,
    places_each: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    of: HashMap<IpAddr, usize>,
}

/// A place at the door; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    door: Arc<Door>,
    peer: Option<IpAddr>,
}

impl Door {
    /// A door with so many places, and so many for each address.
    pub(super) fn new(places: usize, places_each: usize) -> Arc<Self> {
        Arc::new(Self { places, places_each, waiting: Mutex::default() })
    }

    /// A place, if there is one for this peer; those without an address share all there are.
    pub(super) fn enter(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<Place> {
        let mut waiting = locked(&self.waiting);
        if waiting.all >= self.places {
            return None;
        }
        if let Some(peer) = peer {
            let of_peer = waiting.of.entry(peer).or_default();
            if *of_peer >= self.places_each {
                return None;
            }
            *of_peer += 1;
        }
        waiting.all += 1;
        Some(Place { door: Arc::clone(self), peer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = locked(&self.door.waiting);
        waiting.all = waiting.all.saturating_sub(1);
        let Some(peer) = self.peer else { return };
        if let Some(of_peer) = waiting.of.get_mut(&peer) {
            *of_peer = of_peer.saturating_sub(1);
            if *of_peer == 0 {
                waiting.of.remove(&peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_all_places() {
        let door = Door::new(5, 3);
        let (one, two) = (Some(IpAddr::from([10, 0, 0, 1])), Some(IpAddr::from([10, 0, 0, 2])));
        let mut places: Vec<_> = (0..3).map(|_| door.enter(one).unwrap()).collect();
        assert!(door.enter(one).is_none(), "it has its share");
        places.extend([door.enter(two).unwrap(), door.enter(two).unwrap()]);
        assert!(door.enter(two).is_none() && door.enter(None).is_none(), "all are taken");
        places.remove(0);
        drop(door.enter(one).unwrap());
        places.push(door.enter(two).unwrap());
        assert!(door.enter(one).is_none(), "another was faster");
        drop(places);
        let waiting = locked(&door.waiting);
        assert_eq!((waiting.all, waiting.of.len()), (0, 0));
    }
}
