//! Device memory after a failure: a program that has an error may write to its tensors, and no late peer stores there.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use farandole_device::pretend::{DeviceFaults, Pretend};
use farandole_engine::connector::Connector;
use farandole_engine::{Engine, Outcome};
use farandole_plan::{ErrorClass, GroupId, Rank};
use farandole_transport::link::{Control, Progress};
use farandole_transport::{Mesh, Peer, Result, Waiter};

use crate::devices::NeverWritten;
use crate::harness::pretend_device::{hooks, moved, program};
use crate::harness::{Boxed, Transport, config, meetings, run_hooked, sum};

/// The peers of one rank as a test controls them.
#[derive(Clone, Debug, Default)]
struct Hearing {
    /// Nothing is heard of any peer, as if the driver of this rank got no processor.
    is_late: Arc<AtomicBool>,
    /// How often this rank has looked whether a peer has closed.
    polls: Arc<AtomicUsize>,
}

struct Heard {
    inner: Box<dyn Control>,
    hearing: Hearing,
}

impl Control for Heard {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.inner.send(message)
    }
    fn send_abort(&mut self, blamed: Option<Rank>, class: ErrorClass, cause: &str) -> Result<()> {
        self.inner.send_abort(blamed, class, cause)
    }
    fn flush(&mut self) -> Result<Progress> {
        self.inner.flush()
    }
    fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        if self.hearing.is_late.load(Ordering::Acquire) { Ok(None) } else { self.inner.recv() }
    }
    fn has_closed(&mut self) -> bool {
        self.hearing.polls.fetch_add(1, Ordering::Relaxed);
        self.inner.has_closed()
    }
}

struct Hears {
    inner: Boxed,
    hearing: Hearing,
}

impl Connector for Hears {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }
    fn hosts(&self) -> Vec<String> {
        self.inner.hosts()
    }
    fn mesh(&mut self, group: GroupId, ranks: &[Rank], waiter: &Waiter, at_most: Duration) -> Result<Mesh> {
        let mesh = self.inner.mesh(group, ranks, waiter, at_most)?;
        let hearing = &self.hearing;
        Ok(mesh.map_peers(|peer| {
            let control = Box::new(Heard { inner: peer.control, hearing: hearing.clone() });
            Peer { control, ..peer }
        }))
    }
}

/// Looks of the waiting rank after which it certainly does not give its memory back by itself.
const MANY_POLLS: usize = 200;

const LIMIT: Duration = Duration::from_secs(60);

fn wait_until(what: &str, is_there: impl FnMut() -> bool) {
    farandole_testing::wait_until(what, LIMIT, is_there);
}

/// Rank 0 works for the device of ranks 0 and 1, and is late: its fold, which stores to memory of rank 1, waits for
/// data of rank 2, which is killed. Rank 1 gets its error meanwhile.
#[test]
fn a_late_peer_does_not_store_to_memory_of_a_program_that_has_its_error() {
    let hearings: Vec<Hearing> = (0..3).map(|_| Hearing::default()).collect();
    let has_written = Arc::new(AtomicBool::new(false));
    let (all_queued, all_checked) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(3)));
    let meetings = meetings(3, Transport::Device).into_iter().zip(&hearings);
    let meetings = meetings.map(|(inner, hearing)| {
        Box::new(Hears { inner: Boxed(inner), hearing: hearing.clone() }) as Box<dyn Connector>
    });
    run_hooked(meetings.collect(), config(), hooks, move |engine| {
        let stuck = Pretend::with(u32::MAX, DeviceFaults::default()).device();
        let (stream, never) = (stuck.stream().unwrap(), stuck.words(Box::new(NeverWritten::default())).unwrap());
        stream.wait_word(&never, 0, 1).unwrap();
        let mut tensor = moved(&engine, sum("gradient", vec![1f32; 1000])).running_ahead();
        if engine.rank() == Rank(2) {
            tensor.ready = Some(stream.record().unwrap());
        }
        let address = tensor.input.as_ref().and_then(farandole_tensor::Region::device).unwrap().address;
        let outcome = engine.run(tensor).unwrap();
        assert!(outcome.after.is_some(), "it is queued, not done");
        hearings[0].is_late.store(true, Ordering::Release);
        all_queued.wait();
        match engine.rank() {
            Rank(0) => {
                let is_time = || has_written.load(Ordering::Acquire) || polls(&hearings[1]) > MANY_POLLS;
                wait_until("rank 1 has its memory, or waits for it", is_time);
                hearings[0].is_late.store(false, Ordering::Release);
                lose_rank_2(&engine);
                wait_until("its stream goes on", || has_come(&outcome));
            }
            Rank(1) => {
                lose_rank_2(&engine);
                wait_until("its stream goes on", || has_come(&outcome));
                assert!(engine.failure().is_some(), "the error is there before the memory is");
                program().write_and_wait(address, &[7; 4000]).unwrap();
                has_written.store(true, Ordering::Release);
            }
            _ => {}
        }
        all_checked.wait();
        if engine.rank() == Rank(1) {
            let mut bytes = [0; 4000];
            program().read_and_wait(address, &mut bytes).unwrap();
            assert!(bytes == [7; 4000], "a peer has stored to memory that its program has got back");
        }
        // What is queued for the killed rank runs now, and memory lives until then.
        all_checked.wait();
        if engine.rank() == Rank(2) {
            never.set(0, 1);
            lose_rank_2(&engine);
            wait_until("its stream goes on", || has_come(&outcome));
        }
        all_checked.wait();
        drop(outcome);
    });
}

fn lose_rank_2(engine: &Engine) {
    engine.abort_handle().abort(Some(Rank(2)), ErrorClass::RankLost, "rank 2 was killed".to_owned());
}

fn polls(hearing: &Hearing) -> usize {
    hearing.polls.load(Ordering::Relaxed)
}

fn has_come(outcome: &Outcome) -> bool {
    outcome.after.as_ref().unwrap().has_happened().unwrap()
}
