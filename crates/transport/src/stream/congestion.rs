//! Who decides how fast a TCP connection may send, where the machine's default is wrong for bursts.
//!
//! Collectives come in bursts: nothing while a network computes, then megabytes at once, over a path of microseconds.
//! BBR, the default of some machines, spaces packets by a rate that it estimates from the past. Between bursts there is
//! little to estimate from, and on a path this short the timers that release the packets may take longer than the
//! packets. Between two namespaces of one machine 4 MB took 1.9 ms with it and 0.8 ms with Reno, 1 MB 0.33 ms and 0.23
//! ms.
//!
//! So where the default is BBR, our sockets ask for Reno instead, which every kernel has and every process may choose.
//! Any other default stays: whoever set DCTCP, say, knows the network better than we do.
//!
//! Invariant: a socket is asked before it is connected, or inherits the answer from the listener. BBR leaves its
//! spacing of packets switched on when it is replaced later.
//!
//! Deliberately not there: a setting. Between distant sites, where BBR has its merits, a job is bound by the line
//! anyway.

use std::os::fd::AsFd;

use rustix::net::sockopt;

/// The default that does not suit, and its later versions (`bbr2`, `bbr3`).
const UNSUITED: &str = "bbr";

/// What is asked for instead.
const SUITED: &str = "reno";

/// Lets a socket that is not yet connected send bursts at once, and those that a listener will accept.
pub(crate) fn suit_bursts(socket: impl AsFd) {
    // Whether or not the kernel agrees, the connection works; a refusal costs time only.
    if sockopt::tcp_congestion(&socket).is_ok_and(|default| default.starts_with(UNSUITED)) {
        let _ = sockopt::set_tcp_congestion(&socket, SUITED);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn accepted_connections_inherit_what_suits_bursts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // On a machine with another default there would be nothing to replace.
        let has_bbr = sockopt::set_tcp_congestion(&listener, UNSUITED).is_ok();
        let before = sockopt::tcp_congestion(&listener).unwrap();
        suit_bursts(&listener);
        let _one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let expected = if has_bbr { SUITED } else { before.as_str() };
        assert_eq!(sockopt::tcp_congestion(&accepted).unwrap(), expected);
    }
}
