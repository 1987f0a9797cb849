//! Elastic trainings of Rust programs as jobs of `farandole run`, with ranks that are killed and stopped at chosen
//! moments: they go on, ranks have the same bits, and every sample counts once in each epoch.
//!
//! The members are copies of this program, which train what the example `elastic` trains. A member finds in the
//! environment what becomes of it and when; it does it to itself (SIGKILL, SIGSTOP), so the moment is exact.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farandole::elastic::{ElasticState, WorldChange};
use farandole::{Result, World};
use farandole_testing::Folder;
use rustix::process::{Pid, Signal, getpid, kill_process};

#[path = "../../farandole/examples/elastic.rs"]
#[allow(unreachable_pub, reason = "an example is a program of its own")]
mod example;

use example::{EPOCHS, Learned, SAMPLES};

/// No job here takes longer unless something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// Steps of a training: 60 samples each.
const STEPS: u64 = EPOCHS * (SAMPLES as u64) / 60;

/// The variable with what becomes of members: `MEMBER:WHEN:WHAT`, separated by commas. MEMBER is a number, or `rank1`
/// for the first member that has this rank then: with spares, any members may be the first ranks. WHEN is a number of
/// steps; `save` and `send`, when the state is written down at the beginning and later; `restore`; or `change`, after
/// the beginning. WHAT is `kill`, `stop`, `fail`, or `await` (until somebody wants to join).
const FATES: &str = "ELASTIC_TEST_FATES";

/// How many ranks there are in the step under way.
static RANKS: AtomicUsize = AtomicUsize::new(0);

/// Where members leave notes.
const PLACE: &str = "ELASTIC_TEST_PLACE";

/// Carries out what becomes of this member in this moment.
fn meet_fate(moment: &str) {
    let member = std::env::var("FARANDOLE_ELASTIC_MEMBER").unwrap_or_default();
    for fate in std::env::var(FATES).unwrap_or_default().split(',') {
        let [who, when, what] = fate.split(':').collect::<Vec<_>>()[..] else { continue };
        if who != member || when != moment {
            continue;
        }
        match what {
            "kill" => kill_process(getpid(), Signal::KILL).unwrap(),
            "stop" => kill_process(getpid(), Signal::STOP).unwrap(),
            "fail" => panic!("it fails as it was told to"),
            // Unless somebody has joined already.
            _ => farandole_testing::wait_until("somebody who wants to join", DEADLINE, || {
                farandole::elastic::candidates() > 0 || RANKS.load(Ordering::Relaxed) > 2
            }),
        }
    }
}

/// The state of the example, which notes when it is sent, received, and when ranks have changed.
struct Fated(Learned);

impl ElasticState for Fated {
    fn save(&self) -> Result<Vec<u8>> {
        meet_fate(if self.0.1.iter().all(|used| *used == 0) { "save" } else { "send" });
        self.0.save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        meet_fate("restore");
        self.0.restore(saved)
    }

    fn on_change(&mut self, world: &mut World, change: &WorldChange) -> Result<()> {
        if change.steps > 0 {
            meet_fate("change");
        }
        self.0.on_change(world, change)
    }
}

/// FNV-1a over the bits.
fn checksum(weights: &[f32]) -> u64 {
    let bits = weights.iter().map(|weight| u64::from(weight.to_bits()));
    bits.fold(0xcbf2_9ce4_8422_2325, |hash, bits| (hash ^ bits).wrapping_mul(0x0100_0000_01b3))
}

/// A member: trains, and notes after each step its number, the ranks and the weights, and at last what was used.
#[test]
#[ignore = "role program: other tests start it"]
fn a_member_trains() {
    let (place, member) = (std::env::var(PLACE).unwrap(), std::env::var("FARANDOLE_ELASTIC_MEMBER").unwrap());
    let path = |kind: &str| std::path::Path::new(&place).join(format!("{kind}.{member}"));
    let mut notes = std::fs::File::create(path("steps")).unwrap();
    let after = |learned: &Learned, steps: u64, ranks: usize| {
        writeln!(notes, "{steps} {ranks} {}", checksum(&learned.0)).unwrap();
    };
    let before = |world: &World, step: u64| {
        RANKS.store(world.size(), Ordering::Relaxed);
        meet_fate(&step.to_string());
        if std::env::var(FATES).unwrap_or_default().contains(&format!("all:{step}:fence")) {
            assert_eq!(world.fence().unwrap(), farandole::elastic::generation().unwrap());
            std::fs::write(path("fenced"), world.fence().unwrap().to_string()).unwrap();
        }
        let fate = format!("rank1:{step}:kill");
        let is_fated = world.rank() == 1 && std::env::var(FATES).unwrap_or_default() == fate;
        if is_fated && std::fs::File::create_new(path("fated").with_extension("rank1")).is_ok() {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    };
    let trained = example::train(Fated(example::start()), |state| &state.0, |state| &mut state.0, before, after);
    let Fated((weights, used)) = trained.unwrap_or_else(|error| panic!("{error}"));
    let odd = used.iter().filter(|count| u64::from(**count) != EPOCHS).count();
    std::fs::write(path("ended"), format!("{} {odd}", checksum(&weights))).unwrap();
}

/// How a job has ended, and what its members have noted.
struct Ended {
    output: Output,
    /// Steps, ranks and weights, by member.
    notes: BTreeMap<u64, Vec<(u64, usize, u64)>>,
    /// The last weights and the number of samples that were not used as often as they should be, by member.
    ended: BTreeMap<u64, (u64, usize)>,
    /// The generation in which a member was confirmed.
    fenced: BTreeMap<u64, u64>,
}

impl Ended {
    fn said(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!(
            "{}\n{}\n{}\n{:?}",
            self.output.status,
            text(&self.output.stdout),
            text(&self.output.stderr),
            self.notes
        )
    }

    /// The job went well: members that were not lost have the same bits after every step, and used every sample once.
    fn assert_well(&self, survivors: &[u64]) {
        assert!(self.output.status.success(), "{}", self.said());
        let mut by_step: BTreeMap<u64, u64> = BTreeMap::new();
        for (member, notes) in &self.notes {
            assert!(notes.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1), "{member}: {}", self.said());
            for (step, _, weights) in notes {
                let known = by_step.entry(*step).or_insert(*weights);
                assert_eq!(known, weights, "member {member} after step {step}: {}", self.said());
            }
        }
        assert_eq!(*by_step.keys().next_back().unwrap(), STEPS, "{}", self.said());
        for member in survivors {
            let (weights, odd) = self.ended.get(member).unwrap_or_else(|| panic!("{member}: {}", self.said()));
            assert_eq!((*weights, *odd), (by_step[&STEPS], 0), "{member}: {}", self.said());
        }
    }

    /// With how many ranks a member made its last step.
    fn last_ranks(&self, member: u64) -> usize {
        self.notes[&member].last().unwrap().1
    }
}

fn run(flags: &[&str], fates: &str) -> Ended {
    let place = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.arg("run").args(flags).arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "a_member_trains", "--nocapture"]);
    command.env(FATES, fates).env(PLACE, &*place);
    let output = farandole_testing::finish(&mut command, DEADLINE);
    let files = |kind: &str| -> BTreeMap<u64, String> {
        let names = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let numbers = names.filter_map(|name| name.strip_prefix(kind)?.strip_prefix('.')?.parse().ok());
        let read = |number: u64| (number, std::fs::read_to_string(place.join(format!("{kind}.{number}"))).unwrap());
        numbers.map(read).collect()
    };
    let numbers = |line: &str| -> Vec<u64> { line.split(' ').map(|word| word.parse().unwrap()).collect() };
    let notes = files("steps").into_iter().map(|(member, text)| {
        let note = |line: &str| (numbers(line)[0], numbers(line)[1] as usize, numbers(line)[2]);
        (member, text.lines().map(note).collect())
    });
    let ended =
        files("ended").into_iter().map(|(member, text)| (member, (numbers(&text)[0], numbers(&text)[1] as usize)));
    let fenced = files("fenced").into_iter().map(|(member, text)| (member, numbers(&text)[0]));
    Ended { output, notes: notes.collect(), ended: ended.collect(), fenced: fenced.collect() }
}

/// Nobody is replaced: a host that has failed is left alone for as long as the test lasts.
const NO_REPLACEMENT: [&str; 3] = ["--blacklist-cooldown-range", "900", "900"];

fn run_without_replacement(ranks: &str, fates: &str) -> Ended {
    run(&[&["-np", ranks, "--min-np", "1", "--heartbeat-timeout", "2"], &NO_REPLACEMENT[..]].concat(), fates)
}

/// A job of two in which member 0 comes when there is a file `go`, and member 1 never; both note their processes.
const ONE_COMES: &str = r#"
    echo $$ > "$ELASTIC_TEST_PLACE/new.$FARANDOLE_ELASTIC_MEMBER"
    mv "$ELASTIC_TEST_PLACE/new.$FARANDOLE_ELASTIC_MEMBER" "$ELASTIC_TEST_PLACE/pid.$FARANDOLE_ELASTIC_MEMBER"
    [ "$FARANDOLE_ELASTIC_MEMBER" = 0 ] || exec sleep 100
    until [ -e "$ELASTIC_TEST_PLACE/go" ]; do sleep 0.01; done
    "$0" --ignored --exact a_member_trains --nocapture > "$ELASTIC_TEST_PLACE/said" 2>&1
    touch "$ELASTIC_TEST_PLACE/over"
"#;

#[test]
fn a_process_that_waits_for_its_job_to_begin_is_told_that_the_launcher_is_gone() {
    // Member 0 waits already when the launcher is killed, or comes afterwards.
    for waits in [true, false] {
        let place = Folder::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
        command.args(["run", "-np", "2", "--min-np", "2", "sh", "-c", ONE_COMES]);
        let mut launcher = command.arg(std::env::current_exe().unwrap()).env(PLACE, &*place).spawn().unwrap();
        let pids: Vec<Pid> = (0..2)
            .map(|member| {
                farandole_testing::wait_for("a member", DEADLINE, || {
                    let pid = std::fs::read_to_string(place.join(format!("pid.{member}"))).ok()?;
                    Pid::from_raw(pid.trim().parse().ok()?)
                })
            })
            .collect();
        let go = || std::fs::write(place.join("go"), "").unwrap();
        if waits {
            go();
            farandole_testing::wait_until("member 0 to come", DEADLINE, || place.join("steps.0").exists());
        }
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        go();
        farandole_testing::wait_until("member 0 to be told", DEADLINE, || place.join("over").exists());
        let said = std::fs::read_to_string(place.join("said")).unwrap();
        assert!(said.contains("nobody else can begin this elastic job"), "{said}");
        kill_process(pids[1], Signal::KILL).unwrap();
    }
}

#[test]
fn a_training_without_losses_uses_every_sample_once() {
    let ended = run_without_replacement("2", "");
    ended.assert_well(&[0, 1]);
    assert_eq!(ended.last_ranks(0), 2);
}

#[test]
fn survivors_of_a_killed_rank_go_on_with_the_next_step() {
    let ended = run_without_replacement("3", "1:7:kill");
    ended.assert_well(&[0, 2]);
    assert_eq!((ended.last_ranks(0), ended.notes[&1].len()), (2, 7), "{}", ended.said());
}

#[test]
fn rank_0_may_be_the_one() {
    let ended = run_without_replacement("3", "0:7:kill");
    ended.assert_well(&[1, 2]);
    assert_eq!(ended.last_ranks(1), 2);
}

#[test]
fn survivors_of_a_killed_rank_are_confirmed_in_the_next_generation() {
    let ended = run_without_replacement("3", "1:1:kill,all:3:fence");
    ended.assert_well(&[0, 2]);
    assert_eq!(ended.fenced, BTreeMap::from([(0, 2), (2, 2)]), "{}", ended.said());
}

#[test]
fn a_rank_that_is_stopped_is_left_behind() {
    let ended = run_without_replacement("3", "2:5:stop");
    ended.assert_well(&[0, 1]);
    assert_eq!(ended.last_ranks(0), 2);
}

#[test]
fn a_rank_may_be_lost_in_the_first_step_and_in_the_last() {
    let ended = run_without_replacement("3", &format!("1:0:kill,2:{}:kill", STEPS - 1));
    ended.assert_well(&[0]);
    assert_eq!((ended.last_ranks(0), ended.notes[&2].len() as u64), (1, STEPS - 1), "{}", ended.said());
}

#[test]
fn all_ranks_but_one_may_be_lost_at_once() {
    let ended = run_without_replacement("4", "0:9:kill,1:9:kill,3:9:kill");
    ended.assert_well(&[2]);
    assert_eq!(ended.last_ranks(2), 1);
}

#[test]
fn the_source_may_be_lost_while_it_sends_the_first_state() {
    let ended = run_without_replacement("3", "0:save:kill");
    ended.assert_well(&[1, 2]);
    assert_eq!(ended.notes[&1][0], (1, 2, ended.notes[&1][0].2), "{}", ended.said());
}

/// Members are replaced at once, however often they fail.
const REPLACED: [&str; 7] = ["-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "0", "0"];

#[test]
fn a_replacement_gets_the_state_of_a_survivor() {
    let ended = run(&REPLACED, "1:5:kill,0:12:await");
    ended.assert_well(&[0, 2, 3]);
    assert_eq!(ended.last_ranks(3), 3, "{}", ended.said());
    assert!(ended.notes[&3][0].0 > 5, "{}", ended.said());
}

#[test]
fn the_source_may_be_lost_while_it_sends_its_state_to_a_replacement() {
    let ended = run(&REPLACED, "1:5:kill,0:12:await,0:send:kill");
    ended.assert_well(&[2, 3]);
    assert!(!ended.ended.contains_key(&0), "{}", ended.said());
}

#[test]
fn a_replacement_may_be_lost_while_it_receives_the_state() {
    let ended = run(&REPLACED, "1:5:kill,0:12:await,3:restore:kill");
    ended.assert_well(&[0, 2]);
    assert!(!ended.ended.contains_key(&3), "{}", ended.said());
}

#[test]
fn a_survivor_may_be_lost_while_the_others_agree_with_a_replacement() {
    let ended = run(&REPLACED, "1:5:kill,0:12:await,2:change:kill");
    ended.assert_well(&[0]);
    assert!(!ended.ended.contains_key(&2), "{}", ended.said());
}

#[test]
fn a_spare_takes_the_place_of_a_killed_rank() {
    let ended = run(&["-np", "2", "--spares", "1"], "rank1:5:kill");
    let survivors: Vec<u64> = ended.ended.keys().copied().filter(|member| *member < 3).collect();
    assert_eq!(survivors.len(), 2, "{}", ended.said());
    ended.assert_well(&survivors);
    assert!(survivors.iter().all(|member| ended.last_ranks(*member) == 2), "{}", ended.said());
}

#[test]
fn below_the_least_number_of_ranks_a_training_waits_and_ends_with_the_cause() {
    let flags = ["-np", "2", "--min-np", "2", "--elastic-timeout", "1"];
    let ended = run(&[&flags, &NO_REPLACEMENT[..]].concat(), "1:5:kill");
    assert!(!ended.output.status.success() && ended.ended.is_empty(), "{}", ended.said());
    assert!(ended.said().contains("the job has 1 member, fewer than --min-np 2"), "{}", ended.said());
}

#[test]
fn an_error_of_the_program_ends_its_rank_and_not_the_others() {
    let ended = run_without_replacement("3", "1:7:fail");
    ended.assert_well(&[0, 2]);
    assert!(ended.said().contains("as it was told to"), "{}", ended.said());
}
