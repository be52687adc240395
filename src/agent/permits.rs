//! Rate limits of an application: a token bucket for each, in its form without a counter.
//!
//! A permit is a moment. The bucket knows when its next one falls due, and who asks for some is told how
//! long to wait for the first; the others follow at the limit's interval. So no window of any length sees
//! more calls than the limit allows, whoever makes them, and a permit that is not used is lost.

use std::collections::HashMap;

/// Limits remembered; beyond this, those with nothing reserved are forgotten, which changes nothing.
const LIMITS_MAX: usize = 1024;

/// The buckets of an application, by name.
#[derive(Debug, Default)]
pub struct RateLimits {
    /// When the next permit falls due, in nanoseconds of the caller's clock.
    due_ns: HashMap<String, u64>,
}

impl RateLimits {
    /// Reserves `count` permits, `interval_ns` apart. Returns the nanoseconds until the first.
    pub fn reserve(&mut self, name: &str, interval_ns: u64, count: u32, now_ns: u64) -> u64 {
        if self.due_ns.len() >= LIMITS_MAX {
            self.due_ns.retain(|_, due| *due > now_ns);
        }
        let due = self.due_ns.entry(name.to_owned()).or_default();
        let first = now_ns.max(*due);
        *due = first.saturating_add(interval_ns.saturating_mul(count.into()));
        first - now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn permits_of_all_askers_are_an_interval_apart() {
        let mut limits = RateLimits::default();
        let mut due: Vec<u64> = Vec::new();
        for (now, count) in [(0, 1), (0, 3), (MS, 2), (100 * MS, 1), (100 * MS, 1)] {
            let first = now + limits.reserve("model", 10 * MS, count, now);
            due.extend((0..u64::from(count)).map(|permit| first + permit * 10 * MS));
        }
        assert_eq!(due, [0, 10, 20, 30, 40, 50, 100, 110].map(|ms: u64| ms * MS));
    }

    #[test]
    fn limits_do_not_share_a_bucket() {
        let mut limits = RateLimits::default();
        assert_eq!(limits.reserve("a", MS, 1_000, 0), 0);
        assert_eq!(limits.reserve("b", MS, 1, 0), 0);
        assert_eq!(limits.reserve("a", MS, 1, 0), 1_000 * MS);
    }

    #[test]
    fn limits_that_nobody_waits_for_are_forgotten() {
        let mut limits = RateLimits::default();
        for number in 0..2 * LIMITS_MAX as u64 {
            limits.reserve(&number.to_string(), 1, 1, 10 * number);
        }
        assert!(limits.due_ns.len() <= LIMITS_MAX);
    }
}
