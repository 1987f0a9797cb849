//! Every interleaving of the hand-over protocol of shared memory (`shm::flags`), checked by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p farandole-transport --release --test loom_flags`.
#![cfg(loom)]

use farandole_transport::shm::flags::{Flag, Flags, Mark, announced};
use loom::cell::Cell;
use loom::sync::{Arc, Notify};
use loom::thread;

/// What two ranks share: a flags each, the bytes behind them, and the sleeper's bell.
struct Shared {
    owner: Flags,
    reader: Flags,
    bytes: Cell<u64>,
    bell: Notify,
    owners_bell: Notify,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        owner: Flags::default(),
        reader: Flags::default(),
        bytes: Cell::new(0),
        bell: Notify::new(),
        owners_bell: Notify::new(),
    })
}

/// Waits as a driver does: look, raise the flag, look again, block. A lost wake-up is a deadlock, which loom reports.
fn wait(own: &Flags, bell: &Notify, reached: impl Fn() -> bool) {
    while !reached() {
        own.raise_asleep();
        if reached() {
            own.lower_asleep();
            return;
        }
        bell.wait();
        own.lower_asleep();
    }
}

fn announce(own: &Flags, peer: &Flags, bell: &Notify, flag: Flag, mark: Mark) {
    own.reach(flag, mark);
    announced();
    if peer.is_asleep() {
        bell.notify();
    }
}

#[test]
fn a_sleeper_is_always_woken_and_sees_the_bytes() {
    loom::model(|| {
        let shared = shared();
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mark = Mark::tile(1, 0);
                wait(&shared.reader, &shared.bell, || shared.owner.has_reached(Flag::Filled, mark));
                // Loom fails here if the bytes were not handed over in order.
                assert_eq!(shared.bytes.get(), 42);
            })
        };
        shared.bytes.set(42);
        announce(&shared.owner, &shared.reader, &shared.bell, Flag::Filled, Mark::tile(1, 0));
        reader.join().unwrap();
    });
}

#[test]
fn a_slot_is_written_by_its_owner_and_its_folder_in_turn() {
    let mut model = loom::model::Builder::new();
    // Two hand-overs in both directions have too many interleavings to try all; every known lost wake-up of this kind
    // needs two preemptions at most.
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = shared();
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for tile in 0..2 {
                    wait(&shared.reader, &shared.bell, || shared.owner.has_reached(Flag::Filled, Mark::tile(1, tile)));
                    assert_eq!(shared.bytes.get(), tile + 1);
                    // The result takes the place of the contribution.
                    shared.bytes.set(10 * (tile + 1));
                    announce(&shared.reader, &shared.owner, &shared.owners_bell, Flag::Released, Mark::tile(1, tile));
                }
            })
        };
        for tile in 0..2u64 {
            if let Some(before) = tile.checked_sub(1) {
                wait(&shared.owner, &shared.owners_bell, || {
                    shared.reader.has_reached(Flag::Released, Mark::tile(1, before))
                });
                assert_eq!(shared.bytes.get(), 10 * tile);
            }
            shared.bytes.set(tile + 1);
            announce(&shared.owner, &shared.reader, &shared.bell, Flag::Filled, Mark::tile(1, tile));
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_posting_shows_its_descriptor_and_contribution() {
    loom::model(|| {
        let shared = shared();
        let poster = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.owner.begin(3, 77, &[1, 2, 3]))
        };
        if let Some(descriptor) = shared.owner.begun(3) {
            let mut contribution = [0; 3];
            shared.owner.contribution(3, &mut contribution);
            assert_eq!((descriptor, contribution), (77, [1, 2, 3]));
        }
        poster.join().unwrap();
    });
}
