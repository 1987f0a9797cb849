//! A job whose members record what they are told, and the same decisions once more.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farandole_cluster::membership::{Endpoint, EndpointOptions, Generation, Limits, MemberId, replay};
use farandole_testing::Folder;
use farandole_transport::{JobId, Key};

const PATIENCE: Duration = Duration::from_secs(30);

fn bind(key: &Key, id: u64, folder: &Path) -> Endpoint {
    let limits = Limits { min_members: 1, max_members: 4, silence: Some(PATIENCE) };
    let options = EndpointOptions::new(key.clone(), JobId::named("membership replay"), limits);
    let (host, listen_at) = (format!("host-{id}"), vec!["127.0.0.1:0".parse().unwrap()]);
    Endpoint::bind(EndpointOptions { host, listen_at, record_in: Some(folder.to_owned()), ..options }).unwrap()
}

/// All come to the boundary at once; the generation that they get.
fn next(members: &[&Endpoint]) -> Arc<Generation> {
    let until = Instant::now() + PATIENCE;
    let come = |endpoint: &Endpoint| endpoint.next_generation(vec![7; 3], until).unwrap();
    let generations: Vec<_> = thread::scope(|scope| {
        let waiting: Vec<_> = members.iter().map(|member| scope.spawn(move || come(member))).collect();
        waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(generations.iter().all(|generation| generation == &generations[0]));
    Arc::clone(&generations[0])
}

/// Members 0, 1 and 2 work together, 1 leaves, 3 joins, and all end.
fn record_a_job(folder: &Path) {
    let key = Key::random().unwrap();
    let members: Vec<Endpoint> = (0..3).map(|id| bind(&key, id, folder)).collect();
    let list: Vec<_> =
        members.iter().enumerate().map(|(id, one)| (MemberId(id as u64), vec![], one.contact())).collect();
    for (id, member) in members.iter().enumerate() {
        member.found(MemberId(id as u64), list.clone());
    }
    let [zero, one, two] = &members[..] else { unreachable!("three were made") };
    assert_eq!(next(&[zero, one, two]).number, 2);
    one.leave();
    assert_eq!(next(&[zero, two]).members.len(), 2);
    let three = bind(&key, 3, folder);
    three.join(MemberId(3), vec![two.contact()]);
    thread::scope(|scope| {
        let joining = scope.spawn(|| three.next_generation(vec![1], Instant::now() + PATIENCE));
        farandole_testing::wait_until("the candidate", PATIENCE, || zero.candidates() > 0);
        assert_eq!(next(&[zero, two]).members.len(), 3);
        assert_eq!(joining.join().unwrap().unwrap().number, 4);
    });
    [zero, two, &three].into_iter().for_each(Endpoint::leave);
}

#[test]
fn a_recorded_job_makes_the_same_decisions_again() {
    let folder = Folder::new();
    record_a_job(&folder);
    let replayed = replay(&folder).unwrap();
    assert_eq!((replayed.members, replayed.over), (4, 4));
    let numbers: Vec<u64> = replayed.history.generations().keys().copied().collect();
    assert_eq!(numbers[..4], [1, 2, 3, 4]);
    assert!(replayed.inputs > 20, "{} inputs", replayed.inputs);
}

#[test]
fn records_that_were_changed_or_cut_short_are_noticed() {
    let folder = Folder::new();
    record_a_job(&folder);
    let path = folder.join("2.membership");
    let whole = std::fs::read(&path).unwrap();
    // A record that is not whole is that of a killed member.
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    replay(&folder).unwrap();
    // The last bytes of a file are of an effect: a farewell to somebody.
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&path, changed).unwrap();
    let error = replay(&folder).unwrap_err().to_string();
    assert!(error.contains("the decisions of member 2 cannot be repeated"), "{error}");
    // Somebody else's file under this name is another member's history.
    std::fs::write(&path, &whole[8..]).unwrap();
    assert!(replay(&folder).is_err());
}
