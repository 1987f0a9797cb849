//! Whether the host at the other end of a TCP connection still answers.
//!
//! A silent launcher may be stopped (Ctrl-Z at the user's terminal), or its host may be down or cut off. The kernel
//! knows which: the host of a stopped process still acknowledges what is sent to it, even when its buffers are full. A
//! host that is gone does not, and the kernel here retransmits. Heartbeats make sure that there is always something to
//! acknowledge.
//!
//! `/proc/net/tcp` has the number of retransmissions. A connection that is not found there counts as unanswered.

use std::os::fd::{AsFd, AsRawFd};

/// A single retransmission may be chance.
const IN_VAIN: u32 = 2;

/// Whether what was sent over this connection lately has been acknowledged, or may still be.
pub(super) fn is_answered(socket: impl AsFd) -> bool {
    let Ok(name) = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_fd().as_raw_fd())) else { return false };
    let name = name.to_string_lossy();
    let Some(inode) = name.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) else { return false };
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        repetitions(&table, inode).is_some_and(|repetitions| repetitions < IN_VAIN)
    })
}

/// How often the oldest unacknowledged bytes of a connection were sent again. Columns: number, own and other address,
/// state, queues, timer, repetitions, user, probes, inode.
fn repetitions(table: &str, inode: &str) -> Option<u32> {
    let line = table.lines().skip(1).find(|line| line.split_whitespace().nth(9) == Some(inode))?;
    u32::from_str_radix(line.split_whitespace().nth(6)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    const TABLE: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:A0B1 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 16601 1 0000000000000000 100
   1: 0100007F:A0B1 0100007F:C001 01 00000120:00000000 01:00000014 0000000A     0        0 16602 2 0000000000000000 20
   2: 0100007F:A0B2 0100007F:C002 01 00010000:00000000 04:00000014 00000000     0        1 16603 2 0000000000000000 20
";

    #[test]
    fn repetitions_are_those_of_this_connection() {
        assert_eq!(repetitions(TABLE, "16602"), Some(10));
        assert_eq!(repetitions(TABLE, "16603"), Some(0), "a full buffer at the other end is an answer");
        assert_eq!(repetitions(TABLE, "166"), None);
        assert_eq!(repetitions("", "16602"), None);
    }

    #[test]
    fn a_host_answers_for_a_process_that_reads_nothing() {
        use std::io::Write;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65536]).is_ok() {}
        // Probes of a full buffer are answered; they begin some 200 ms later.
        farandole_testing::lapse("the connection", std::time::Duration::from_millis(600));
        assert!(is_answered(&near));
        drop(far);
        assert!(!is_answered(std::fs::File::open("/dev/null").unwrap()), "what is no connection does not answer");
    }
}
