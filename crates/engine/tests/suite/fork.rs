//! A forked child has its parent's memory and sockets, but is not its parent: whatever it asks for is refused, and the
//! parent does not notice that it was there.

#![allow(unsafe_code, clippy::unwrap_used, missing_docs)]

use std::time::Duration;

use crate::harness::{Transport, ranks, sum};
use farandole_engine::connector::{Medium, ThreadWorld};
use farandole_engine::{Communicator, DirectSettings, Error};
use farandole_plan::{Rank, ReduceOp};
use farandole_transport::{Contact, Key, Listener, Mesh, Options, Waiter, memory};

/// Runs the closure in a forked child and returns the code that it exits with; a child that hangs is killed.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child is a copy of this thread alone. It calls the closure, which must not wait for other threads,
    // and leaves by `_exit`, so that nothing of the parent's runs twice.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let code = body();
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process that nobody else waits for, and `status` is valid for writing.
    let mut ended = || unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child;
    // A child that hangs ends with this process: the runner kills its group.
    farandole_testing::wait_until("the end of a child", Duration::from_secs(60), &mut ended);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

#[test]
fn a_child_cannot_use_its_parents_engine() {
    for transport in Transport::ALL {
        let results = ranks(2, transport, |engine| {
            let ones = || vec![1.0_f32; 100];
            engine.run(sum("before", ones())).unwrap();
            let mut pending = (engine.rank() == Rank(0)).then(|| engine.submit(sum("pending", ones())).unwrap());
            let code = in_child(|| {
                let refused = matches!(engine.submit(sum("child", ones())), Err(Error::Forked));
                let waited = pending.take().is_none_or(|ticket| matches!(ticket.wait(), Err(Error::Forked)));
                let added = matches!(engine.add_group(&[Rank(0)]), Err(Error::Forked));
                i32::from(!refused) + 2 * i32::from(!waited) + 4 * i32::from(!added)
            });
            // What the child has taken was its copy; the request is still the parent's.
            match pending {
                Some(ticket) => ticket.wait().unwrap(),
                None => engine.run(sum("pending", ones())).unwrap(),
            };
            engine.run(sum("after", ones())).unwrap();
            code
        });
        assert_eq!(results, [0, 0], "{transport:?}: 1 submitting, 2 waiting, 4 adding a group");
    }
}

#[test]
fn a_child_cannot_use_its_parents_communicator() {
    let thread_world = ThreadWorld::new(2, Medium::Pipes(memory::MemoryOptions::default()));
    let rank = |rank: u32| {
        let mut connector = thread_world.enter(Rank(rank));
        move || {
            let patience = Duration::from_secs(20);
            let mut communicator = Communicator::join(&mut connector, DirectSettings::default(), patience).unwrap();
            let mut data = [1.0_f32; 4];
            communicator.allreduce(&mut data, ReduceOp::Sum).unwrap();
            let code = in_child(|| {
                let refused = communicator.allreduce(&mut [1.0_f32; 4], ReduceOp::Sum);
                i32::from(!matches!(refused, Err(Error::Forked)))
            });
            communicator.allreduce(&mut data, ReduceOp::Sum).unwrap();
            (code, data)
        }
    };
    let other = std::thread::spawn(rank(1));
    assert_eq!(rank(0)(), (0, [4.0; 4]));
    assert_eq!(other.join().unwrap(), (0, [4.0; 4]));
}

/// How many sockets this process has open.
fn sockets() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|at| at.to_string_lossy().starts_with("socket:"))
        .count()
}

#[test]
fn a_child_can_drop_its_parents_listener_and_closes_its_sockets() {
    let key = Key::random().unwrap();
    let bind = || Listener::bind(Some("127.0.0.1:0".parse().unwrap()), &key).unwrap();
    let (mut zero, one) = (Some(bind()), bind());
    // In a child that was forked while the listening thread accepts, the sockets stay open; that is seldom.
    let closed = (0..20).any(|_| {
        farandole_testing::lapse("the listening thread", Duration::from_millis(20));
        let code = in_child(|| {
            let before = sockets();
            drop(zero.take());
            i32::try_from(before - sockets()).unwrap()
        });
        assert!(code >= 0, "the child was killed by signal {}", -code);
        code == 2
    });
    assert!(closed, "no child has closed the listening sockets");
    // The parent's listener does its work as before.
    let zero = zero.unwrap();
    let contacts: Vec<Contact> =
        [&zero, &one].iter().zip(["here", "there"]).map(|(one, host)| one.contact(host)).collect();
    let join = |rank: u32, listener: &Listener| {
        let (options, waiter, patience) = (Options::default(), Waiter::new().unwrap(), Duration::from_secs(20));
        Mesh::connect(1, Rank(rank), &contacts, listener, &options, &waiter, patience).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| join(0, &zero));
        join(1, &one);
    });
}
