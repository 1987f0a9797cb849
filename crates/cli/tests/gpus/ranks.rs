//! How many ranks a host with GPUs gets, and which GPU each of them sees.

use crate::job::Host;

/// What a rank says about its GPU.
const SAY: &str = "echo $FARANDOLE_RANKS_PER_GPU ${CUDA_VISIBLE_DEVICES-all}";

fn said(ranks: &[&str]) -> Vec<String> {
    ranks.iter().enumerate().map(|(rank, words)| format!("[{rank}]<stdout>:{words}")).collect()
}

#[test]
fn every_gpu_gets_a_rank_and_nothing_is_hidden() {
    let host = Host::with_gpus("GPU-a,GPU-b");
    let ended = host.run(&[], &[], SAY);
    assert_eq!((ended.code, ended.stdout), (Some(0), said(&["1 all", "1 all"])), "{}", ended.stderr);
    let ended = host.run(&[], &[("CUDA_VISIBLE_DEVICES", "1,0")], SAY);
    assert_eq!(ended.stdout, said(&["1 1,0", "1 1,0"]), "what the user has set stays: {}", ended.stderr);
    let ended = host.run(&["-np", "3"], &[], SAY);
    assert_eq!(ended.stdout, said(&["2 all", "2 all", "2 all"]), "{}", ended.stderr);
}

#[test]
fn ranks_that_share_a_gpu_see_only_that_one() {
    let host = Host::with_gpus("GPU-a,GPU-b");
    let ended = host.run(&["--ranks-per-gpu", "2"], &[], SAY);
    let expected = said(&["2 GPU-a", "2 GPU-a", "2 GPU-b", "2 GPU-b"]);
    assert_eq!((ended.code, ended.stdout), (Some(0), expected), "{}", ended.stderr);
    let ended = host.run(&["-np", "2", "--ranks-per-gpu", "2", "-x", "CUDA_VISIBLE_DEVICES=1"], &[], SAY);
    assert_eq!(ended.stdout, said(&["2 1", "2 1"]), "{}", ended.stderr);
}

#[test]
fn a_host_without_room_starts_no_rank_and_says_why() {
    let host = Host::with_gpus("GPU-a");
    for (flags, gpus, why) in [
        (&["-np", "3", "--ranks-per-gpu", "2"][..], "GPU-a", "--ranks-per-gpu 2: 3 ranks, and room for 2 on 1 GPU"),
        (&["-np", "1", "--ranks-per-gpu", "1"], "", "--ranks-per-gpu 1: there is no NVIDIA GPU"),
        (&["-np", "1", "--mps"], "", "--mps: there is no NVIDIA GPU"),
    ] {
        let ended = host.run(flags, &[("FARANDOLE_TEST_GPUS", gpus)], SAY);
        assert_eq!((ended.code, ended.stdout.len()), (Some(1), 0), "{flags:?}: {}", ended.stderr);
        let expected = format!("no rank could be started on localhost: {why}");
        assert!(ended.last_line().ends_with(&expected), "{flags:?}: {}", ended.stderr);
    }
}

#[test]
fn without_gpus_the_number_of_ranks_has_to_be_said() {
    let ended = Host::with_gpus("").run(&[], &[], SAY);
    assert!(ended.code.is_some_and(|code| code != 0) && ended.stdout.is_empty());
    assert!(ended.last_line().contains("how many ranks? Give -np 4"), "{}", ended.stderr);
}
