//! Every flag of horovodrun, and what comes of it; then how flags, file and environment overrule each other.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::FromArgMatches;
use farandole_cluster::launch::{Colour, ElasticSpec, Gpus, HostSource, JobSpec, Mps, Prefix, Timestamps, Verbose};

use super::*;

/// What a flag brings about.
enum Outcome {
    /// The order is as it should be.
    JobSpec(fn(&JobSpec) -> bool),
    /// A variable of every rank.
    Sets(&'static str, &'static str),
    /// One line that begins so, and the job runs.
    Noted(&'static str),
    /// One line that says so, and no job.
    Refused(&'static str),
}

use Outcome::{Noted, Refused, Sets};

fn parse(words: &[&str]) -> Result<RunArgs> {
    let words = prepare(words.iter().map(OsString::from))?;
    let matches = flags().no_binary_name(true).try_get_matches_from(words)?;
    Ok(RunArgs::from_arg_matches(&matches)?)
}

fn spec_with(environment: &[(&str, &str)], words: &[&str]) -> Result<(JobSpec, Vec<String>)> {
    let environment: HashMap<&str, &str> = environment.iter().copied().collect();
    let args = parse(words)?;
    let notes = args.launch.foreign.answers()?;
    Ok((job_spec::job_spec(&args, |name| environment.get(name).map(OsString::from), Path::new("/here"))?, notes))
}

fn spec_of(words: &[&str]) -> JobSpec {
    spec_with(&[], words).unwrap().0
}

fn error_of(words: &[&str]) -> String {
    format!("{:#}", spec_with(&[], words).unwrap_err())
}

fn value_of(spec: &JobSpec, name: &str) -> Option<OsString> {
    spec.set.iter().rev().find(|(set, _)| set == name).map(|(_, value)| value.clone())
}

/// Whether a job is elastic, and so.
fn elastic(spec: &JobSpec, holds: impl FnOnce(&ElasticSpec) -> bool) -> bool {
    spec.elastic.as_ref().is_some_and(holds)
}

/// Every flag of horovodrun that is no information about the program itself, with a value, as a user would write it.
const EVERY_FLAG: &[(&str, Outcome)] = &[
    ("-np 3", Outcome::JobSpec(|spec| spec.placement.size() == 3)),
    ("--num-proc 3", Outcome::JobSpec(|spec| spec.placement.size() == 3)),
    ("--disable-cache", Noted("--disable-cache has no effect: ")),
    ("--start-timeout 7", Outcome::JobSpec(|spec| spec.start_timeout == Duration::from_secs(7))),
    ("--start-timeout 7", Sets("FARANDOLE_START_TIMEOUT", "7")),
    ("--network-interfaces eth0,eth1", Outcome::JobSpec(|spec| spec.network == ["eth0", "eth1"])),
    ("--network-interface eth0 --network-interface eth1", Outcome::JobSpec(|spec| spec.network == ["eth0", "eth1"])),
    ("--output-filename logs", Outcome::JobSpec(|spec| spec.output.directory == Some(PathBuf::from("/here/logs")))),
    ("--verbose", Outcome::JobSpec(|spec| spec.verbose == Verbose::Yes)),
    ("-p 2222", Outcome::JobSpec(|spec| spec.ssh.port == Some(2222))),
    ("--ssh-port 2222", Outcome::JobSpec(|spec| spec.ssh.port == Some(2222))),
    ("-i id", Outcome::JobSpec(|spec| spec.ssh.identity == Some(PathBuf::from("/here/id")))),
    ("--ssh-identity-file /id", Outcome::JobSpec(|spec| spec.ssh.identity == Some(PathBuf::from("/id")))),
    ("--fusion-threshold-mb 32", Sets("FARANDOLE_FUSION_THRESHOLD", "33554432")),
    ("--fusion-threshold-mb 0", Sets("FARANDOLE_FUSION_THRESHOLD", "0")),
    ("--cycle-time-ms 3.5", Noted("--cycle-time-ms has no effect: ")),
    ("--cache-capacity 0", Sets("FARANDOLE_REPLAY", "0")),
    ("--hierarchical-allreduce", Sets("FARANDOLE_HIERARCHICAL_ALLREDUCE", "1")),
    ("--no-hierarchical-allreduce", Sets("FARANDOLE_HIERARCHICAL_ALLREDUCE", "0")),
    ("--hierarchical-allgather", Noted("--hierarchical-allgather has no effect: ")),
    ("--no-hierarchical-allgather", Noted("--no-hierarchical-allgather has no effect: ")),
    ("--torus-allreduce", Noted("--torus-allreduce has no effect: ")),
    ("--no-torus-allreduce", Noted("--no-torus-allreduce has no effect: ")),
    ("--autotune", Refused("--autotune: nothing is tuned while a job runs")),
    ("--no-autotune", Noted("--no-autotune has no effect: ")),
    ("--autotune-log-file log", Noted("--autotune-log-file has no effect: ")),
    ("--autotune-warmup-samples 3", Noted("--autotune-warmup-samples has no effect: ")),
    ("--autotune-steps-per-sample 10", Noted("--autotune-steps-per-sample has no effect: ")),
    ("--autotune-bayes-opt-max-samples 20", Noted("--autotune-bayes-opt-max-samples has no effect: ")),
    ("--autotune-gaussian-process-noise 0.8", Noted("--autotune-gaussian-process-noise has no effect: ")),
    ("--min-np 1", Outcome::JobSpec(|spec| elastic(spec, |elastic| elastic.min_np == 1))),
    ("--min-num-proc 1", Outcome::JobSpec(|spec| elastic(spec, |elastic| elastic.min_np == 1))),
    ("--max-np 4", Outcome::JobSpec(|spec| elastic(spec, |elastic| elastic.max_np == Some(4)))),
    ("--max-num-proc 4", Outcome::JobSpec(|spec| elastic(spec, |elastic| elastic.max_np == Some(4)))),
    ("--slots-per-host 2", Refused("--slots-per-host: is for hosts that --host-discovery-script names")),
    ("--host-discovery-script='echo' --slots 2", Refused("it names no host")),
    ("--elastic-timeout 60", Outcome::JobSpec(|spec| elastic(spec, |elastic| elastic.timeout.as_secs() == 60))),
    ("--elastic-timeout 60", Sets("FARANDOLE_ELASTIC_TIMEOUT", "60")),
    ("--reset-limit 3", Outcome::JobSpec(|spec| elastic(spec, |elastic| elastic.reset_limit == Some(3)))),
    ("--min-np 1 --replace-slow", Outcome::JobSpec(|spec| elastic(spec, |elastic| elastic.replace_slow == Some(200)))),
    (
        "--spares 1 --replace-slow=50",
        Outcome::JobSpec(|spec| elastic(spec, |elastic| elastic.replace_slow == Some(50))),
    ),
    (
        "--blacklist-cooldown-range 60 300",
        Outcome::JobSpec(|spec| {
            elastic(spec, |elastic| elastic.cool_down == Some((Duration::from_secs(60), Duration::from_secs(300))))
        }),
    ),
    ("--timeline-filename t.json", Sets("FARANDOLE_TIMELINE", "/here/t.json")),
    ("--timeline-filename DYNAMIC", Sets("FARANDOLE_TIMELINE", "DYNAMIC")),
    ("--timeline-mark-cycles", Sets("FARANDOLE_TIMELINE_MARK_CYCLES", "1")),
    ("--no-timeline-mark-cycles", Sets("FARANDOLE_TIMELINE_MARK_CYCLES", "0")),
    ("--trace traces", Sets("FARANDOLE_TRACE", "/here/traces")),
    ("--no-stall-check", Sets("FARANDOLE_STALL_CHECK_DISABLE", "1")),
    ("--stall-check", Sets("FARANDOLE_STALL_CHECK_DISABLE", "0")),
    ("--stall-check-warning-time-seconds 5", Sets("FARANDOLE_STALL_CHECK_TIME_SECONDS", "5")),
    ("--stall-check-shutdown-time-seconds 90", Sets("FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS", "90")),
    ("--stall-check-shutdown-time-seconds 30", Refused("has to be longer than the warning time, 60 s")),
    ("--mpi-threads-disable", Noted("--mpi-threads-disable has no effect: ")),
    ("--no-mpi-threads-disable", Noted("--no-mpi-threads-disable has no effect: ")),
    ("--mpi-args=--map-by", Refused("run mpirun -np N COMMAND without farandole run")),
    ("--mpi-args --map-by", Refused("run mpirun -np N COMMAND without farandole run")),
    ("--wire-protection encrypt", Sets("FARANDOLE_WIRE_PROTECTION", "encrypt")),
    ("--wire-protection Checksum", Sets("FARANDOLE_WIRE_PROTECTION", "checksum")),
    ("--tcp", Sets("NCCL_IB_DISABLE", "1")),
    ("--binding-args x", Refused("taskset or numactl")),
    ("--num-nccl-streams 2", Noted("--num-nccl-streams has no effect: ")),
    ("--thread-affinity 1,3", Sets("FARANDOLE_THREAD_AFFINITY", "1,3")),
    ("--gloo-timeout-seconds 30", Sets("FARANDOLE_TIMEOUT_SECONDS", "30")),
    ("--log-level INFO", Sets("HOROVOD_LOG_LEVEL", "INFO")),
    ("--log-level debug", Sets("FARANDOLE_LOG_LEVEL", "DEBUG")),
    ("--log-with-timestamp", Noted("--log-with-timestamp has no effect: lines of the log carry no time")),
    ("--log-without-timestamp", Noted("--log-without-timestamp has no effect: ")),
    ("--log-hide-timestamp", Noted("--log-without-timestamp has no effect: ")),
    ("--no-log-hide-timestamp", Noted("--log-with-timestamp has no effect: ")),
    ("-prefix-timestamp", Outcome::JobSpec(|spec| spec.output.timestamps == Timestamps::On)),
    ("--prefix-output-with-timestamp", Outcome::JobSpec(|spec| spec.output.timestamps == Timestamps::On)),
    ("-H h1:1,h2:1", Outcome::JobSpec(|spec| spec.placement.hosts().len() == 2)),
    ("--hosts h1:1,h2:1", Outcome::JobSpec(|spec| spec.placement.hosts().len() == 2)),
    ("-hostfile /nowhere", Refused("reading the host file /nowhere")),
    ("--hostfile /nowhere", Refused("reading the host file /nowhere")),
    (
        "--host-discovery-script /no/such/script",
        Refused("--host-discovery-script /no/such/script failed (exit status: 127)"),
    ),
    ("--gloo", Noted("--gloo has no effect: ")),
    ("--mpi", Refused("--mpi: farandole run starts ranks itself")),
    ("--jsrun", Refused("--jsrun: farandole run reaches hosts through ssh")),
    ("--config-file /nowhere", Refused("--config-file /nowhere: cannot be read")),
];

#[test]
fn every_flag_of_horovodrun_has_its_effect_or_its_answer() {
    let plain = spec_of(&["-np", "2", "train"]);
    for (line, outcome) in EVERY_FLAG {
        let words: Vec<&str> =
            ["-np", "2"].into_iter().chain(line.split_whitespace()).chain(["train", "--autotune"]).collect();
        let made = spec_with(&[], &words);
        match (outcome, made) {
            (Outcome::JobSpec(holds), Ok((spec, _))) => assert!(holds(&spec) && !holds(&plain), "{line}: {spec:?}"),
            (Sets(name, value), Ok((spec, _))) => {
                assert_eq!(value_of(&spec, name), Some(value.into()), "{line}");
                assert_eq!(value_of(&plain, name), None, "{line}");
            }
            (Noted(begin), Ok((_, notes))) => {
                assert!(matches!(&notes[..], [note] if note.starts_with(begin)), "{line}: {notes:?}")
            }
            (Refused(line_of_it), Err(error)) => {
                let error = format!("{error:#}");
                assert!(error.contains(line_of_it) && error.lines().count() == 1, "{line}: {error}");
            }
            (_, made) => panic!("{line}: {made:?}"),
        }
    }
}

#[test]
fn every_answer_to_a_foreign_flag_is_tested() {
    for flag in horovod::FLAGS {
        let tested =
            EVERY_FLAG.iter().any(|(line, _)| line.split([' ', '=']).next() == Some(&format!("--{}", flag.long)));
        assert!(tested, "--{}", flag.long);
    }
}

#[test]
fn words_of_the_command_are_left_alone() {
    let spec = spec_of(&["-np", "2", "python", "train.py", "-np", "7", "--mpi", "--", "-x", "A"]);
    assert_eq!(spec.command, ["python", "train.py", "-np", "7", "--mpi", "--", "-x", "A"]);
    assert_eq!(spec.placement.size(), 2);
    assert_eq!(spec_of(&["-np", "2", "--", "--odd-command"]).command, ["--odd-command"]);
}

#[test]
fn our_own_flags_have_their_effects() {
    let spec = spec_of(&[
        "-np",
        "2",
        "--no-prefix",
        "--color",
        "always",
        "--heartbeat-timeout",
        "0",
        "--grace",
        "0.5",
        "--wdir",
        "sub",
        "--ssh-option=-oConnectTimeout=5",
        "train",
    ]);
    assert_eq!((spec.output.prefix, spec.output.colour), (Prefix::None, Colour::Always));
    assert_eq!((spec.silence, spec.grace), (Duration::ZERO, Duration::from_millis(500)));
    assert_eq!(value_of(&spec, "FARANDOLE_HEARTBEAT_TIMEOUT"), Some("0".into()), "ranks watch, too");
    assert_eq!(spec.working_dir, Path::new("/here/sub"));
    assert_eq!(spec.ssh.words, ["-oConnectTimeout=5"]);
}

#[test]
fn defaults_are_those_of_the_order() {
    let spec = spec_of(&["-np", "2", "train"]);
    assert_eq!(
        (spec.start_timeout, spec.silence, spec.grace),
        (Duration::from_secs(30), Duration::from_secs(5), Duration::from_secs(5))
    );
    assert_eq!(spec.working_dir, Path::new("/here"));
    assert!(spec.set.is_empty() && spec.network.is_empty());
}

#[test]
fn a_flag_counts_before_our_variable_and_that_before_horovods() {
    let both = [("HOROVOD_START_TIMEOUT", "60"), ("FARANDOLE_START_TIMEOUT", "50")];
    let start =
        |environment: &[(&str, &str)], words: &[&str]| spec_with(environment, words).unwrap().0.start_timeout.as_secs();
    assert_eq!(start(&both[..1], &["-np", "1", "a"]), 60);
    assert_eq!(start(&both, &["-np", "1", "a"]), 50);
    assert_eq!(start(&both, &["-np", "1", "--start-timeout", "40", "a"]), 40);
    for (variable, read) in [
        ("FARANDOLE_HEARTBEAT_TIMEOUT", (|spec| spec.silence) as fn(&JobSpec) -> Duration),
        ("FARANDOLE_GRACE", |spec| spec.grace),
    ] {
        let (spec, _) = spec_with(&[(variable, "2.5")], &["-np", "1", "a"]).unwrap();
        assert_eq!(read(&spec), Duration::from_millis(2500), "{variable}");
        let (spec, _) = spec_with(&[(variable, "")], &["-np", "1", "a"]).unwrap();
        assert_eq!(read(&spec), Duration::from_secs(5), "{variable} set to nothing");
        let error = spec_with(&[(variable, "soon")], &["-np", "1", "a"]).unwrap_err().to_string();
        assert_eq!(error, format!("{variable}=soon is not a number of seconds"));
    }
}

#[test]
fn nonsense_for_the_engine_is_reported_before_anything_starts() {
    let error = spec_with(&[("HOROVOD_FUSION_THRESHOLD", "lots")], &["-np", "1", "a"]).unwrap_err().to_string();
    assert_eq!(error, "setting HOROVOD_FUSION_THRESHOLD=lots is not a number of bytes");
    assert!(error_of(&["-np", "1", "-x", "FARANDOLE_REPLAY=often", "a"]).contains("FARANDOLE_REPLAY=often"));
    // The flag overrules the variable, which then harms nobody.
    spec_with(&[("HOROVOD_FUSION_THRESHOLD", "lots")], &["-np", "1", "--fusion-threshold-mb", "1", "a"]).unwrap();
}

#[test]
fn variables_are_set_passed_or_refused() {
    let environment = [("TOKEN", "t"), ("EMPTY", "")];
    let words = ["-np", "1", "-x", "A=1", "-x", "A=b=c", "-x", "TOKEN", "-x", "EMPTY", "-x", "W_*", "-x", "N=", "a"];
    let (spec, _) = spec_with(&environment, &words).unwrap();
    assert_eq!(value_of(&spec, "A"), Some("b=c".into()));
    assert_eq!(value_of(&spec, "N"), Some("".into()));
    assert!(["TOKEN", "EMPTY", "W_*", "PATH"].iter().all(|name| spec.pass.iter().any(|pass| pass == name)));
    for (word, explanation) in [
        ("MISSING", "-x MISSING: is not set here; give it a value with -x MISSING=VALUE"),
        ("=1", "-x =1: expected NAME or NAME=VALUE"),
        ("FARANDOLE_RANK=1", "-x FARANDOLE_RANK: the launcher sets this itself"),
        ("FARANDOLE_KEY", "-x FARANDOLE_KEY: the launcher sets this itself"),
    ] {
        let error = error_of(&["-np", "1", "-x", word, "a"]);
        assert!(error.starts_with(explanation), "{word}: {error}");
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    for (words, explanation) in [
        (&["-np", "0", "a"][..], "-np 0: a job has 1 to"),
        (&["-np", "two", "a"], "invalid value 'two'"),
        (&["-np", "9", "-H", "h1:2,h2:4", "a"], "-np 9: the hosts have 6 slots (h1:2, h2:4), 3 too few"),
        (&["-H", "h1", "--hostfile", "f", "a"], "cannot be used with"),
        (&["-np", "2"], "COMMAND"),
        (&["-np", "2", "--no-such-flag", "a"], "unexpected argument '--no-such-flag'"),
        (&["-np", "2", "--start-timeout", "0", "a"], "--start-timeout 0"),
        (&["-np", "2", "--grace=-1", "a"], "expected a number of seconds"),
        (&["-np", "2", "--network-interface", "", "a"], "an empty name"),
        (&["-np", "2", "--thread-affinity", "x", "a"], "expected a list of cores"),
        (&["-np", "2", "--wire-protection", "on", "a"], "expected off, checksum or encrypt"),
        (
            &["-np", "2", "-x", "FARANDOLE_WIRE_PROTECTION=tls", "a"],
            "FARANDOLE_WIRE_PROTECTION=tls is not off, checksum or",
        ),
        (&["-np", "2", "--fusion-threshold-mb", "99999999999999999", "a"], "no memory is that large"),
    ] {
        let error = error_of(words);
        assert!(error.contains(explanation), "{words:?}: {error}");
    }
}

#[test]
fn slots_of_all_hosts_are_the_default_number_of_ranks() {
    assert_eq!(spec_of(&["-H", "h1:2,h2:4", "a"]).placement.size(), 6);
}

#[test]
fn gpus_of_this_host_are_the_default_number_of_ranks_where_nothing_else_is_said() {
    let gpus = ("FARANDOLE_TEST_GPUS", "GPU-a,GPU-b,GPU-c");
    let ranks = |words: &[&str], also: &[(&str, &str)]| {
        let environment: Vec<(&str, &str)> = also.iter().copied().chain([gpus]).collect();
        spec_with(&environment, words).unwrap().0.placement.size()
    };
    assert_eq!(ranks(&["a"], &[]), 3);
    assert_eq!(ranks(&["--ranks-per-gpu", "2", "a"], &[]), 6);
    assert_eq!(ranks(&["a"], &[("CUDA_VISIBLE_DEVICES", "2,0")]), 2);
    assert_eq!(ranks(&["-x", "CUDA_VISIBLE_DEVICES=1", "a"], &[("CUDA_VISIBLE_DEVICES", "2,0")]), 1);
    assert_eq!(ranks(&["-np", "1", "a"], &[]), 1);
    assert_eq!(ranks(&["-np", "5", "--ranks-per-gpu", "2", "a"], &[]), 5, "the hosts see whether they fit");
    assert_eq!(ranks(&["-H", "h1,h2", "a"], &[]), 2);
    for (environment, described) in [
        (vec![("FARANDOLE_TEST_GPUS", "")], "this host has no NVIDIA GPU"),
        (vec![gpus, ("CUDA_VISIBLE_DEVICES", "")], "this host has no NVIDIA GPU (CUDA_VISIBLE_DEVICES=)"),
        (vec![gpus, ("NVIDIA_VISIBLE_DEVICES", "none")], "this host has no NVIDIA GPU (NVIDIA_VISIBLE_DEVICES=none)"),
    ] {
        let error = spec_with(&environment, &["a"]).unwrap_err().to_string();
        assert!(error.starts_with("how many ranks? Give -np 4, or hosts") && error.ends_with(described), "{error}");
    }
}

#[test]
fn how_gpus_are_shared_goes_into_the_order() {
    let spec = spec_of(&["-np", "4", "--ranks-per-gpu", "2", "--mps", "a"]);
    assert_eq!(spec.gpus, Gpus { ranks_each: Some(2), mps: Mps::OfTheJob });
    assert!(value_of(&spec, "CUDA_VISIBLE_DEVICES").is_none(), "each host names its own");
    let shown = show::show(&spec, []);
    assert!(shown.contains("GPUs: 2 ranks on each") && shown.contains("an MPS daemon of the job's own"), "{shown}");
    assert_eq!(spec_of(&["-np", "4", "a"]).gpus, Gpus::default());
    assert!(error_of(&["--ranks-per-gpu", "0", "a"]).contains("0 is not in 1.."));
    let error = error_of(&["-H", "h1:4,h2", "--ranks-per-gpu", "2", "a"]);
    let expected = "--ranks-per-gpu 2: h2 has 1 slot; give each host as many slots as it is to have ranks, as in h2:4";
    assert_eq!(error, expected);
    assert_eq!(spec_of(&["-H", "h1:4,h2:2", "--ranks-per-gpu", "2", "a"]).placement.size(), 6);
}

#[test]
fn the_command_line_overrules_the_file() {
    let folder = farandole_testing::Folder::new();
    let file = folder.join("run.yaml");
    fs::write(&file, "params:\n  fusion_threshold_mb: 32\n  cache_capacity: 0\nautotune:\n  enabled: true\n").unwrap();
    let path = file.to_str().unwrap().to_owned();
    let refused = spec_with(&[], &["-np", "1", "--config-file", &path, "a"]);
    let made = spec_with(&[], &["-np", "1", "--fusion-threshold-mb", "8", "--no-autotune", "-config-file", &path, "a"]);
    assert!(refused.unwrap_err().to_string().starts_with("--autotune: "));
    let (spec, _) = made.unwrap();
    assert_eq!(value_of(&spec, "FARANDOLE_FUSION_THRESHOLD"), Some("8388608".into()));
    assert_eq!(value_of(&spec, "FARANDOLE_REPLAY"), Some("0".into()));
}

#[test]
fn a_dry_run_shows_places_and_variables_but_no_secrets() {
    let words = [
        "-H",
        "h1:2,h2:1",
        "-x",
        "A=1",
        "-x",
        "MY_TOKEN=hush",
        "--fusion-threshold-mb",
        "1",
        "python",
        "a b.py",
        "it's",
    ];
    let environment = ["PATH", "HOME", "NCCL_DEBUG"].map(|name| (OsString::from(name), OsString::from("value")));
    assert_eq!(
        show::show(&spec_of(&words), environment),
        "\
3 ranks on 2 hosts

rank  host  local     cross
   0  h1    0 of 2    0 of 2
   1  h1    1 of 2    0 of 1
   2  h2    0 of 1    1 of 2

variables for every rank:
  FARANDOLE_FUSION_THRESHOLD=1048576
  A=1
  MY_TOKEN=(not shown)
variables that go to other hosts:
  NCCL_DEBUG PATH

to start: 30 s; dead: after 5 s of silence; to end: 5 s
in /here:
  python 'a b.py' 'it'\\''s'
"
    );
    assert!(!show::show(&spec_of(&["-np", "1", "a"]), []).contains("other hosts"));
}

#[test]
fn the_table_of_settings_knows_the_flags_and_keys_and_they_know_it() {
    let command = flags();
    let longs: Vec<&str> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
    let keys: Vec<String> = config::keys().iter().map(|(section, key, _)| format!("{section}.{key}")).collect();
    for setting in settings::all() {
        assert!(setting.flag.is_none_or(|flag| longs.contains(&flag.long)), "{setting:?}");
        assert!(setting.key.is_none_or(|key| keys.iter().any(|known| known == key)), "{setting:?}");
    }
    // And the other way around: a flag that sets one of our variables is in its row.
    for (line, outcome) in EVERY_FLAG {
        let Sets(name, _) = outcome else { continue };
        let Some(setting) = settings::find(name) else {
            assert_eq!(*name, "NCCL_IB_DISABLE", "{name} is not in the table");
            continue;
        };
        let flag = line.split_whitespace().next().unwrap_or_default().trim_start_matches('-');
        let listed = setting.flag.expect("a setting with a flag").long;
        assert!(
            [listed, listed.trim_start_matches("no-")].contains(&flag.trim_start_matches("no-")),
            "{line}: {setting:?}"
        );
    }
}

#[test]
fn help_has_the_sentence_and_the_default_of_the_table() {
    let help = flags().render_long_help().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "--fusion-threshold-mb <MIB> Requests that are ready together travel together",
        "in MiB [default: 64] [variable: FARANDOLE_FUSION_THRESHOLD, HOROVOD_FUSION_THRESHOLD]",
        "[default: 30] [variable: FARANDOLE_START_TIMEOUT, HOROVOD_START_TIMEOUT]",
        "--no-stall-check 1: stalls are not reported",
    ] {
        assert!(help.contains(part), "{part} is not in {help}");
    }
    assert!(!help.contains("--stall-check "), "the opposite of a switch is understood and not shown");
}

#[test]
fn interfaces_of_the_environment_count_where_no_flag_names_any() {
    let network = |words: &[&str]| spec_with(&[("HOROVOD_GLOO_IFACE", "eth0, eth1")], words).unwrap().0.network;
    assert_eq!(network(&["-np", "1", "a"]), ["eth0", "eth1"]);
    assert_eq!(network(&["-np", "1", "--network-interface", "ib0", "a"]), ["ib0"]);
}

/// An elastic job in short: members to found it, bounds, spares, and slots of all hosts.
fn elastic_of(environment: &[(&str, &str)], words: &str) -> Result<(usize, usize, Option<usize>, usize, usize)> {
    let words: Vec<&str> = words.split_whitespace().chain(["a"]).collect();
    let (spec, _) = spec_with(environment, &words)?;
    let elastic = spec.elastic.context("the job is not elastic")?;
    let slots = elastic.hosts.iter().map(|host| host.slots).sum();
    assert_eq!(spec.placement.size(), elastic.np.min(slots));
    Ok((elastic.np, elastic.min_np, elastic.max_np, elastic.spares, slots))
}

#[test]
fn bounds_of_an_elastic_job_follow_from_each_other() {
    for (words, expected) in [
        ("-np 4 --min-np 2", (4, 2, Some(4), 0, 4)),
        ("-np 4 --min-np 2 --max-np 8", (4, 2, Some(8), 0, 8)),
        ("-np 4 --reset-limit 3", (4, 4, Some(4), 0, 4)),
        ("--min-np 2 --max-np 8", (8, 2, Some(8), 0, 8)),
        ("--min-np 2", (2, 2, Some(2), 0, 2)),
        ("-np 4 --spares 1", (4, 4, Some(4), 1, 5)),
        ("-H h1:2,h2:4 --min-np 2", (6, 2, Some(6), 0, 6)),
        ("-H h1:2,h2:4 --min-np 2 --spares 2", (4, 2, Some(4), 2, 6)),
        ("-H h1:2,h2:4,h1:1 -np 3 --min-np 2 --max-np 5", (3, 2, Some(5), 0, 7)),
    ] {
        assert_eq!(elastic_of(&[], words).unwrap(), expected, "{words}");
    }
    let gpus = [("FARANDOLE_TEST_GPUS", "GPU-a,GPU-b,GPU-c")];
    assert_eq!(elastic_of(&gpus, "--reset-limit 1").unwrap(), (3, 3, Some(3), 0, 3));
    assert!(spec_of(&["-np", "2", "--restarts", "3", "a"]).elastic.is_none());
    assert_eq!(spec_of(&["-np", "2", "--restarts", "3", "a"]).restarts, 3);
    let spec = spec_with(&[("HOROVOD_ELASTIC_TIMEOUT", "7")], &["-np", "2", "a"]).unwrap().0;
    assert!(spec.elastic.is_none(), "a variable makes no job elastic");
    let spec = spec_with(&[("HOROVOD_ELASTIC_TIMEOUT", "7")], &["-np", "2", "--min-np", "1", "a"]).unwrap().0;
    assert_eq!(spec.elastic.unwrap().timeout, Duration::from_secs(7));
}

#[test]
fn contradictions_in_an_elastic_job_are_refused() {
    for (words, explanation) in [
        ("-np 2 --min-np 3", "--min-np 3: is more than --max-np 2"),
        ("-np 2 --min-np 3 --max-np 4", "--min-np 3: is more than -np 2"),
        ("-np 4 --max-np 2", "-np 4: is more than --max-np 2"),
        ("-np 4 --min-np 0", "--min-np 0: a job without ranks"),
        ("-np 4 -H h1:2,h2:1 --min-np 1", "-np 4: the hosts have 3 slots, 1 too few"),
        ("-np 3 -H h1:2,h2:1 --spares 2", "-np 3 --spares 2: the hosts have 3 slots, 2 too few"),
        ("-np 2 --blacklist-cooldown-range 9 3", "--blacklist-cooldown-range 9 3: the first number"),
        ("-np 2 --blacklist-cooldown-range soon later", "expected a number of seconds"),
        ("-H h1 --host-discovery-script s", "cannot be used with"),
        ("-np 2 --min-np two", "invalid value 'two'"),
        ("-H h1:2 --slots-per-host 2", "with -H and --hostfile each host has its own number"),
        ("-np 4 --replace-slow", "--replace-slow: nobody could ever leave, because --min-np is 4"),
        ("-np 4 --min-np 2 --replace-slow=0", "--replace-slow=0: expected a number of iterations"),
        ("-np 2 --min-np 1 -x FARANDOLE_ELASTIC_MEMBER=1", "the launcher sets this itself"),
    ] {
        let error = format!("{:#}", elastic_of(&[], words).unwrap_err());
        assert!(error.contains(explanation), "{words}: {error}");
    }
}

#[test]
fn hosts_of_an_elastic_job_come_from_a_script_a_file_or_slurm() {
    let folder = farandole_testing::Folder::new();
    let script = folder.join("hosts.sh");
    fs::write(&script, "echo h1:2; echo h2\n").unwrap();
    let command = format!("sh {}", script.display());
    let words = ["--min-np", "2", "--slots-per-host", "3", "--host-discovery-script", &command, "a"];
    let elastic = spec_of(&words).elastic.unwrap();
    assert_eq!((elastic.np, elastic.min_np, elastic.max_np, elastic.hosts.len()), (5, 2, None, 2));
    assert_eq!(elastic.source, HostSource::Script { command: command.clone(), slots_per_host: 3 });
    // More ranks than there are slots by now: others may come.
    let spec = spec_of(&["-np", "8", "--min-np", "2", "--host-discovery-script", &command, "a"]);
    assert_eq!((spec.placement.size(), spec.elastic.unwrap().np), (3, 8));
    let file = folder.join("hosts");
    fs::write(&file, "h1 slots=2\n").unwrap();
    let spec = spec_of(&["--min-np", "1", "--hostfile", file.to_str().unwrap(), "a"]);
    assert_eq!(spec.elastic.unwrap().source, HostSource::File(file));
    let shown = show::show(&spec_of(&words), []);
    assert!(shown.contains("elastic: 2 to any number of ranks on hosts that sh "), "{shown}");
}

#[test]
fn a_file_describes_elastic_jobs_as_well() {
    let folder = farandole_testing::Folder::new();
    let file = folder.join("run.yaml");
    fs::write(&file, "elastic:\n  min_np: 2\n  timeout: 30\n  replace_slow: 70\n  blacklist_cooldown_range: 10,60\n")
        .unwrap();
    let spec = spec_of(&["-np", "4", "--config-file", file.to_str().unwrap(), "a"]);
    let elastic = spec.elastic.unwrap();
    assert_eq!((elastic.min_np, elastic.timeout, elastic.replace_slow), (2, Duration::from_secs(30), Some(70)));
    assert_eq!(elastic.cool_down, Some((Duration::from_secs(10), Duration::from_secs(60))));
}
