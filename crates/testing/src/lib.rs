//! What tests of several crates need: temporary folders, commands with a deadline, waiting for a condition, namespaces,
//! an NFS server, and a wire that fails.
//!
//! A dev-dependency only; no program and no library has it. It depends on nothing but the standard library, so that no
//! test waits for it to be compiled. What one crate's tests need alone is in that crate.
//!
//! Everything panics where it fails: the caller is a test.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod command;
mod folder;
mod namespaces;
mod nfs_server;
mod tcp_proxy;

use std::time::{Duration, Instant};

pub use command::{finish, finish_child};
pub use folder::Folder;
pub use namespaces::in_namespaces;
pub use nfs_server::{NfsExport, NfsServer};
pub use tcp_proxy::{TcpProxy, WireFaults};

/// How often conditions are looked at. Short against everything that tests wait for.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` gives something, and returns it. Panics after `limit`, with `what` was waited for.
pub fn wait_for<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(began.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(INTERVAL);
    }
}

/// Waits until `condition` holds. Panics after `limit`, with `what` was waited for.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, limit, || condition().then_some(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_holds_later_is_waited_for() {
        let mut looks = 0;
        wait_until("the third look", Duration::from_secs(10), || {
            looks += 1;
            looks == 3
        });
        assert_eq!(wait_for("a value", Duration::from_secs(10), || Some(7)), 7);
    }

    #[test]
    #[should_panic(expected = "something that never comes: not within 20ms")]
    fn a_condition_that_never_holds_is_named() {
        wait_until("something that never comes", Duration::from_millis(20), || false);
    }
}
