//! What somebody on the network can read of a job: everything without protection, no tensor with encryption.
//!
//! The listener is a packet socket in the network namespace of the second host. It sees every frame of every device
//! there, as `tcpdump` would.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::thread::LinkNameSpaceType;

use crate::host::Host;
use crate::jobs::{all_gone, program};
use crate::lab::{Family, Lab};

/// What the ranks send, a thousand times over: 26 bytes that no protocol says by itself.
const TEXT: &str = "farandole-tensor-plaintext";

/// Holds far more than a test sends, so that nothing is lost while the listener does not get a core.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// Largest frame that a device hands over: segmentation offload joins packets up to 64 KiB.
const FRAME_BYTES: usize = 128 << 10;

/// Keeps all frames that pass the devices of a host.
struct Listener {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Vec<u8>>>,
}

impl Listener {
    fn on(host: &Host) -> Listener {
        let namespace = File::open(format!("/proc/{}/ns/net", host.keeper().first.as_raw_nonzero())).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let socket = socket_in(&namespace);
                ready.send(()).unwrap();
                listen(&socket, &stop)
            }
        });
        is_ready.recv().expect("a packet socket can be opened, by root");
        Listener { stop, thread }
    }

    /// Every frame up to now.
    fn frames(self) -> Vec<Vec<u8>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A packet socket for all devices of a network namespace, which this thread enters for good.
fn socket_in(namespace: &File) -> OwnedFd {
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    let all = Some(rustix::net::eth::ALL);
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK, all).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).unwrap();
    socket
}

/// Collects frames until it is told to stop and nothing is left to read.
fn listen(socket: &OwnedFd, stop: &AtomicBool) -> Vec<Vec<u8>> {
    let (mut frames, mut buffer) = (Vec::new(), vec![0; FRAME_BYTES]);
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        while let Ok((count, _)) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
            frames.push(buffer[..count].to_vec());
        }
        if stopping {
            return frames;
        }
        let moment = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&moment)).unwrap();
    }
}

fn contains(frame: &[u8], text: &str) -> bool {
    frame.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Runs a job on two hosts that sends the text, and gives back what was on the wire meanwhile.
fn overheard(protection: &str) -> Vec<Vec<u8>> {
    let lab = Lab::new(2, Family::V4);
    let listener = Listener::on(lab.host(1));
    let flags = ["run", "-np", "2", "-H", "h0:1,h1:1", "--wire-protection", protection];
    let ended = lab.host(0).farandole(&[&flags[..], &[&program(), "send", TEXT]].concat()).wait();
    assert_eq!(ended.code(), 0, "{protection}: {}", ended.said());
    assert_eq!(ended.stdout.iter().filter(|line| line.ends_with("sent")).count(), 2, "{}", ended.said());
    all_gone(&lab, Duration::from_secs(5));
    let frames = listener.frames();
    let bytes: usize = frames.iter().map(Vec::len).sum();
    assert!(bytes > TEXT.len() * 1000, "{protection}: the listener has heard {bytes} bytes, less than was sent");
    frames
}

#[test]
fn encrypted_tensors_cannot_be_read_on_the_network_and_others_can() {
    let readable = |protection: &str| overheard(protection).iter().filter(|frame| contains(frame, TEXT)).count();
    // What is looked for can be found.
    assert!(readable("off") > 0, "the text is not on the wire without protection: this test proves nothing");
    assert!(readable("checksum") > 0, "a checksum hides nothing");
    assert_eq!(readable("encrypt"), 0, "frames with plaintext in them");
}

#[test]
fn hosts_that_protect_data_differently_do_not_start() {
    let lab = Lab::new(2, Family::V4);
    let script = format!("[ $FARANDOLE_RANK = 1 ] && export FARANDOLE_WIRE_PROTECTION=off; exec {} once", program());
    let flags = ["run", "-np", "2", "-H", "h0:1,h1:1", "--wire-protection", "encrypt"];
    let ended = lab.host(0).farandole(&[&flags[..], &["sh", "-c", &script]].concat()).wait();
    assert_ne!(ended.code(), 0, "{}", ended.said());
    let words = "the ranks differ in FARANDOLE_WIRE_PROTECTION: encrypt on rank 0, off on rank 1";
    assert!(ended.said().contains(words), "{}", ended.said());
    all_gone(&lab, Duration::from_secs(5));
}
