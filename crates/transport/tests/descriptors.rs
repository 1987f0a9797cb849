//! Meshes that need more descriptors than a process may open. Each test changes the limits of its process.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use farandole_plan::Rank;
use farandole_transport::descriptors::{set_soft_limit, soft_limit};
use farandole_transport::{Contact, Error, Key, Listener, Mesh, Options, Result, Waiter};
use rustix::process::{Resource, Rlimit, setrlimit};

const RANKS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(30);

/// The ranks of one host, as threads, build so many meshes one after the other; how that ended for each.
fn build(meshes: u64) -> Vec<Result<()>> {
    let key = Key::random().unwrap();
    let listeners: Vec<Listener> = (0..RANKS).map(|_| Listener::bind(None, &key).unwrap()).collect();
    let contacts: Vec<Contact> = listeners.iter().map(|listener| listener.contact("here")).collect();
    let rank = |rank: usize| -> Result<()> {
        let waiter = Waiter::new()?;
        let join = |id| {
            Mesh::connect(id, Rank::from(rank), &contacts, &listeners[rank], &Options::default(), &waiter, PATIENCE)
        };
        (0..meshes).map(join).collect::<Result<Vec<_>>>().map(drop)
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..RANKS).map(|index| scope.spawn(move || rank(index))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn open() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

#[test]
fn many_meshes_raise_a_soft_limit_that_is_too_low() {
    set_soft_limit(open() + 80).unwrap();
    let low = soft_limit().unwrap();
    for built in build(16) {
        built.unwrap();
    }
    assert!(soft_limit().unwrap() > low, "16 meshes of four ranks do not fit into {low} descriptors");
}

#[test]
fn a_hard_limit_that_is_too_low_is_named_with_the_need() {
    let listener = Listener::bind(None, &Key::random().unwrap()).unwrap();
    let contacts = vec![listener.contact("here"); 100];
    let waiter = Waiter::new().unwrap();
    let limit = open() + 50;
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
    let error = Mesh::connect(1, Rank(0), &contacts, &listener, &Options::default(), &waiter, PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Descriptors { needed: 300, .. }), "{error}");
    let says = error.to_string();
    assert!(says.contains("a mesh of 100 ranks needs 300 descriptors beside the"), "{says}");
    assert!(says.contains(&format!("may open {limit}: raise the hard limit")), "{says}");
}
