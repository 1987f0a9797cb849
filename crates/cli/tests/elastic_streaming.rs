//! Processes that join elastic jobs of `farandole run` get the state before they do, while the others train on; and
//! whatever goes wrong with that, the parameters have the same bits on all ranks, and are those of a run with as many
//! ranks in each step and no faults.
//!
//! The members are copies of this program. States are sent slowly, so that many steps are made meanwhile. A member
//! finds in the environment what becomes of it and when; it does it to itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use farandole::elastic::{ElasticState, StreamedState, Streaming, Training};
use farandole::{Error, ReduceOp, Result};
use farandole_testing::Folder;
use rustix::process::{Signal, getpid, kill_process};

/// No job here takes longer unless something hangs.
const DEADLINE: Duration = Duration::from_secs(90);

/// Parameters; there is as much momentum.
const WIDTH: usize = 64 << 10;

/// Numbers of an update. Few, so that the log stays small however slowly states are sent.
const UPDATE: usize = 64;

/// How much is sent in a second: a state takes a second and a half.
const PACE: u64 = 8 * WIDTH as u64 * 2 / 3;

/// What a step would compute: some sixty steps are made while a state is sent.
const STEP: Duration = Duration::from_millis(20);

/// Steps with all ranks, after which a training is over.
const LAST_STEPS: u64 = 20;

/// The variable with what becomes of members: `MEMBER:WHEN:WHAT`, separated by commas. MEMBER is a number; `sender`,
/// the first that writes down its state for another one; or `rank1`. WHEN is a number of steps;
/// `sent+N`, N steps after the member has written down its state; `started`, half a second after the member has
/// begun; or `replay`, when a process that has not joined makes a step. WHAT is `kill`, `stop` or `differ`.
const FATES: &str = "STREAMING_TEST_FATES";

/// The variables with the folder for notes, the ranks of a complete job, and limits of streams.
const PLACE: &str = "STREAMING_TEST_PLACE";
const COMPLETE: &str = "STREAMING_TEST_COMPLETE";
const MOST_LOG: &str = "STREAMING_TEST_MOST_LOG";
const LEAST_BYTES: &str = "STREAMING_TEST_LEAST_BYTES";

/// The variable with the number of steps, where a training does not wait until the job is complete again.
const STEPS: &str = "STREAMING_TEST_STEPS";

/// The variable with after how many steps something is done together that is no step; never, if it is not set.
const EXCHANGE_EVERY: &str = "STREAMING_TEST_EXCHANGE_EVERY";

/// Whether this process is a member.
static HAS_JOINED: AtomicBool = AtomicBool::new(false);

/// Whether this member is the first that has written down its state.
static IS_SENDER: AtomicBool = AtomicBool::new(false);

/// The step after which this member has last written down its state.
static SENT_AT: AtomicU64 = AtomicU64::new(u64::MAX);

static NOTES: Mutex<Option<std::fs::File>> = Mutex::new(None);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn member() -> String {
    std::env::var("FARANDOLE_ELASTIC_MEMBER").unwrap_or_default()
}

/// A line of this member's notes.
fn note(line: &str) {
    if let Some(file) = &mut *NOTES.lock().unwrap() {
        writeln!(file, "{line}").unwrap();
    }
}

/// What becomes of this member in this moment.
fn fate(moment: &str) -> Option<String> {
    let fates = std::env::var(FATES).unwrap_or_default();
    let who = if IS_SENDER.load(Ordering::Relaxed) { "sender".to_owned() } else { member() };
    of(&fates, &who, moment)
}

/// Whether this member is the first that asks for this; it alone is told so, once.
fn is_first(what: &str) -> bool {
    std::fs::File::create_new(std::path::PathBuf::from(std::env::var_os(PLACE).unwrap()).join(what)).is_ok()
}

/// What becomes of somebody in this moment.
fn of(fates: &str, who: &str, moment: &str) -> Option<String> {
    fates.split(',').find_map(|fate| fate.strip_prefix(&format!("{who}:{moment}:")).map(str::to_owned))
}

fn meet_fate(moment: &str) {
    carry_out(fate(moment));
}

fn carry_out(fate: Option<String>) {
    match fate.as_deref() {
        Some("kill") => kill_process(getpid(), Signal::KILL).unwrap(),
        Some("stop") => kill_process(getpid(), Signal::STOP).unwrap(),
        _ => {}
    }
}

/// What is trained. All of it follows from the updates: sums of all ranks, and how many ranks there were.
#[derive(Clone)]
struct Network {
    weights: Vec<f32>,
    momentum: Vec<f32>,
    /// Steps; those in a row with a complete job, after it was incomplete; exchanges; whether it was incomplete; and
    /// the ranks of the last step.
    counters: Vec<u64>,
}

impl Network {
    fn new() -> Network {
        let weights = (0..WIDTH).map(|place| ((place * 7919) % 1009) as f32 / 4096.0).collect();
        Network { weights, momentum: vec![0.0; WIDTH], counters: vec![0; 5] }
    }

    fn steps(&self) -> u64 {
        self.counters[0]
    }

    /// What a rank adds to the sum: multiples of a small number, so that sums are exact in any order.
    fn contribution(&self, rank: usize) -> Vec<f32> {
        let of = |place: usize| {
            let noise = (self.steps() as usize * 31 + rank * 17 + place) % 101;
            let slope = self.weights[place * (WIDTH / UPDATE)] * 0.01 * (rank + 1) as f32 + noise as f32 / 256.0;
            (slope.clamp(-0.49, 0.49) * 1048576.0).round() / 1048576.0
        };
        (0..UPDATE).map(of).collect()
    }

    /// FNV-1a over the bits of the parameters.
    fn checksum(&self) -> u64 {
        let bits = self.weights.iter().map(|weight| u64::from(weight.to_bits()));
        bits.fold(0xcbf2_9ce4_8422_2325, |hash, bits| (hash ^ bits).wrapping_mul(0x0100_0000_01b3))
    }

    fn make_step(&mut self, sum: &[f32], ranks: u64, complete: u64) {
        for (place, (weight, momentum)) in self.weights.iter_mut().zip(&mut self.momentum).enumerate() {
            *momentum = 0.9 * *momentum + sum[place % UPDATE] / ranks as f32;
            *weight -= 1e-3 * *momentum;
        }
        let [steps, settled, _, was_incomplete, last] = &mut self.counters[..] else { panic!("five counters") };
        (*steps, *last) = (*steps + 1, ranks);
        *was_incomplete |= u64::from(ranks < complete);
        *settled = if ranks == complete && *was_incomplete == 1 { *settled + 1 } else { 0 };
    }

    fn is_trained(&self) -> bool {
        number(STEPS).map_or(self.counters[1] >= LAST_STEPS, |steps| self.steps() >= steps)
    }
}

impl ElasticState for Network {
    fn save(&self) -> Result<Vec<u8>> {
        if self.steps() > 0 {
            note(&format!("save {} 0 0", self.steps()));
            SENT_AT.store(self.steps(), Ordering::Relaxed);
            if is_first("sender") {
                IS_SENDER.store(true, Ordering::Relaxed);
            }
        }
        let Network { weights, momentum, counters } = self.clone();
        ((weights, momentum), counters).save()
    }

    fn digest(&self) -> Result<u64> {
        let Network { weights, momentum, counters } = self.clone();
        ((weights, momentum), counters).digest()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let Network { weights, momentum, counters } = self.clone();
        let mut all = ((weights, momentum), counters);
        all.restore(saved)?;
        let ((weights, momentum), counters) = all;
        *self = Network { weights, momentum, counters };
        note(&format!("restore {} 0 0", self.steps()));
        Ok(())
    }
}

impl StreamedState for Network {
    type Update = (Vec<f32>, Vec<u64>);

    fn apply(&mut self, (sum, ranks): (Vec<f32>, Vec<u64>)) {
        self.make_step(&sum, ranks[0], number(COMPLETE).unwrap());
        if !HAS_JOINED.load(Ordering::Relaxed) {
            note(&format!("replay {} {} {}", self.steps(), ranks[0], self.checksum()));
            meet_fate("replay");
            if fate("replay").is_some_and(|fate| fate == "differ") {
                self.weights[WIDTH / 2] += 1.0;
            }
        }
    }
}

/// A member: trains until the job has been complete for a while, and notes what it does.
#[test]
#[ignore = "role program: other tests start it"]
fn a_member_trains() {
    let place = std::env::var(PLACE).unwrap();
    let path = std::path::Path::new(&place).join(format!("member.{}", member()));
    *NOTES.lock().unwrap() = Some(std::fs::File::create(path).unwrap());
    if fate("started").is_some() {
        std::thread::spawn(|| {
            farandole_testing::lapse("a member that has started", Duration::from_millis(500));
            meet_fate("started");
        });
    }
    let mut streaming = Streaming::default();
    streaming.least_bytes = number(LEAST_BYTES).unwrap_or(1000) as usize;
    streaming.most_log = number(MOST_LOG).unwrap_or(4) as usize;
    streaming.bytes_per_second = Some(PACE);
    let mut training = Training::new(Network::new()).streamed_with(streaming).begin().unwrap();
    HAS_JOINED.store(true, Ordering::Relaxed);
    while !training.state().is_trained() {
        if let Some(every) = number(EXCHANGE_EVERY)
            && training.steps() > 0
            && training.steps() / every > training.state().counters[2]
        {
            training.exchange(|world, _| Ok::<_, Error>(world.size()), |state, _| state.counters[2] += 1).unwrap();
        }
        training.streamed_step(step).unwrap();
        let state = training.state();
        note(&format!("step {} {} {}", state.steps(), state.counters[4], state.checksum()));
    }
    training.finish().unwrap();
    note("ended 0 0 0");
}

/// The first half of a step.
fn step(
    world: &mut farandole::World,
    state: &Network,
    batch: &farandole::elastic::StepBatch,
) -> Result<(Vec<f32>, Vec<u64>)> {
    assert_eq!(batch.step, state.steps());
    farandole_testing::lapse("a step", STEP);
    meet_fate(&state.steps().to_string());
    let fate = of(&std::env::var(FATES).unwrap_or_default(), "rank1", &state.steps().to_string());
    if world.rank() == 1 && fate.is_some() && is_first("rank1") {
        carry_out(fate);
    }
    let since = state.steps().saturating_sub(SENT_AT.load(Ordering::Relaxed));
    meet_fate(&format!("sent+{since}"));
    let mut sum = state.contribution(world.rank());
    world.allreduce(&mut sum, ReduceOp::Sum)?;
    Ok((sum, vec![world.size() as u64]))
}

/// A line of a member's notes: what, after which step, with how many ranks, and the parameters.
type Note = (String, u64, u64, u64);

struct Ended {
    output: Output,
    notes: BTreeMap<u64, Vec<Note>>,
}

impl Ended {
    fn said(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let stories = self.notes.iter().map(|(member, notes)| {
            let other = notes.iter().filter(|note| note.0 != "step" && note.0 != "replay");
            let first = notes.iter().find(|note| note.0 == "step").map(|note| note.1);
            format!("member {member}: first step {first:?}, {:?}", other.collect::<Vec<_>>())
        });
        let stories = stories.collect::<Vec<_>>().join("\n");
        format!("{}\n{}\n{}\n{stories}", self.output.status, text(&self.output.stdout), text(&self.output.stderr))
    }

    /// What a member has noted of this kind: after which steps.
    fn after(&self, member: u64, kind: &str) -> Vec<u64> {
        self.notes[&member].iter().filter(|note| note.0 == kind).map(|note| note.1).collect()
    }

    /// The job went well: all members have the same bits after every step, those of a run without faults.
    fn assert_well(&self, complete: u64, survivors: &[u64]) {
        assert!(self.output.status.success(), "{}", self.said());
        for member in survivors {
            assert_eq!(self.after(*member, "ended").len(), 1, "member {member}: {}", self.said());
        }
        let mut by_step: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (member, notes) in &self.notes {
            for (_, step, ranks, weights) in notes.iter().filter(|note| note.0 == "step") {
                let known = by_step.entry(*step).or_insert((*ranks, *weights));
                assert_eq!(*known, (*ranks, *weights), "member {member} after step {step}: {}", self.said());
            }
        }
        let mut alone = Network::new();
        for (step, (ranks, weights)) in &by_step {
            assert_eq!(*step, alone.steps() + 1, "a step is missing: {}", self.said());
            let mut sum = alone.contribution(0);
            for rank in 1..*ranks as usize {
                sum.iter_mut().zip(alone.contribution(rank)).for_each(|(sum, more)| *sum += more);
            }
            alone.make_step(&sum, *ranks, complete);
            assert_eq!(alone.checksum(), *weights, "step {step} with {ranks} ranks: {}", self.said());
        }
        assert_eq!(alone.counters[1], LAST_STEPS, "{}", self.said());
    }

    /// Which of these members has first written down its state, and after which step.
    fn sender(&self, among: &[u64]) -> (u64, u64) {
        let sent = among.iter().filter_map(|member| Some((*member, *self.after(*member, "save").first()?)));
        sent.min_by_key(|(_, step)| *step).unwrap_or_else(|| panic!("nobody: {}", self.said()))
    }

    /// The first step that a member has made together with the others.
    fn first_step(&self, member: u64) -> u64 {
        self.after(member, "step")[0]
    }
}

fn run(flags: &[&str], complete: u64, fates: &str, others: &[(&str, &str)]) -> Ended {
    let place = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_farandole"));
    command.arg("run").args(flags).arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "a_member_trains", "--nocapture"]);
    command.env(FATES, fates).env(PLACE, &*place).env(COMPLETE, complete.to_string());
    command.envs(others.iter().copied());
    let output = farandole_testing::finish(&mut command, DEADLINE);
    let names = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let members = names.filter_map(|name| name.strip_prefix("member.")?.parse::<u64>().ok());
    let notes = members.map(|member| {
        let text = std::fs::read_to_string(place.join(format!("member.{member}"))).unwrap();
        let read = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, numbers @ ..] = &words[..] else { panic!("{line}") };
            let at = |place: usize| numbers.get(place).and_then(|word| word.parse().ok()).unwrap_or(0);
            ((*what).to_owned(), at(0), at(1), at(2))
        };
        (member, text.lines().map(read).collect())
    });
    Ended { output, notes: notes.collect() }
}

/// Members are replaced at once, however often they fail.
fn replaced(ranks: &str) -> [&str; 7] {
    ["-np", ranks, "--min-np", "1", "--blacklist-cooldown-range", "0", "0"]
}

/// While a state is sent, members make some sixty steps; on a machine that is very busy, fewer.
const MANY: u64 = 15;

#[test]
fn a_process_gets_the_state_while_the_others_go_on() {
    let ended = run(&replaced("3"), 3, "1:5:kill", &[]);
    ended.assert_well(3, &[0, 2, 3]);
    let ((sender, sent), first) = (ended.sender(&[0, 2]), ended.first_step(3));
    assert_eq!(ended.after(sender, "save"), [sent], "one copy, and nothing when it is let in: {}", ended.said());
    let restored = [0, 2].map(|member| ended.after(member, "restore").into_iter().filter(|step| *step > 0).count());
    assert_eq!(restored, [0, 0], "nobody else is sent anything: {}", ended.said());
    assert_eq!(ended.after(3, "restore"), [sent], "{}", ended.said());
    assert!(first > sent + MANY, "steps went on meanwhile: {}", ended.said());
    // It has made all steps in between, with the bits of the others.
    let replayed: Vec<u64> = ended.after(3, "replay");
    assert_eq!(replayed, (sent + 1..first).collect::<Vec<_>>(), "{}", ended.said());
    let steps: BTreeMap<u64, u64> = ended.notes[&0].iter().map(|note| (note.1, note.3)).collect();
    let same = ended.notes[&3].iter().filter(|note| note.0 == "replay").all(|note| steps[&note.1] == note.3);
    assert!(same, "{}", ended.said());
}

#[test]
fn two_processes_may_get_it_at_the_same_time() {
    let ended = run(&replaced("4"), 4, "1:5:kill,2:5:kill", &[]);
    ended.assert_well(4, &[0, 3, 4, 5]);
    for joined in [4, 5] {
        assert_eq!(ended.after(joined, "restore").len(), 1, "{}", ended.said());
        assert!(ended.first_step(joined) > ended.after(joined, "restore")[0] + MANY, "{}", ended.said());
    }
}

#[test]
fn the_member_that_sends_its_state_may_be_lost() {
    let ended = run(&replaced("3"), 3, "1:5:kill,sender:sent+8:kill", &[]);
    let (sender, sent) = ended.sender(&[0, 2]);
    ended.assert_well(3, &[2 - sender, 3, 4]);
    assert!(ended.first_step(3) > sent + MANY, "it asked the other one: {}", ended.said());
    assert!(!ended.after(3, "replay").is_empty(), "{}", ended.said());
}

#[test]
fn the_member_that_sends_its_state_may_be_stopped() {
    let flags = [&replaced("3")[..], &["--heartbeat-timeout", "2"]].concat();
    let ended = run(&flags, 3, "1:5:kill,sender:sent+8:stop", &[]);
    let (sender, sent) = ended.sender(&[0, 2]);
    ended.assert_well(3, &[2 - sender, 3, 4]);
    assert!(ended.first_step(3) > sent + MANY, "it asked the other one: {}", ended.said());
}

#[test]
fn a_process_may_be_lost_while_it_gets_the_state() {
    let ended = run(&replaced("3"), 3, "1:5:kill,3:started:kill", &[]);
    ended.assert_well(3, &[0, 2, 4]);
    assert!(ended.after(3, "restore").is_empty() && ended.after(3, "step").is_empty(), "{}", ended.said());
    let ended = run(&replaced("3"), 3, "1:5:kill,3:replay:kill", &[]);
    ended.assert_well(3, &[0, 2, 4]);
    assert!(ended.after(3, "step").is_empty(), "{}", ended.said());
}

#[test]
fn a_process_that_cannot_keep_up_gets_the_whole_state_when_it_is_let_in() {
    let ended = run(&replaced("3"), 3, "1:5:kill", &[(MOST_LOG, "0")]);
    ended.assert_well(3, &[0, 2, 3]);
    assert!(ended.after(3, "replay").is_empty(), "{}", ended.said());
    assert_eq!(ended.after(3, "restore"), [ended.first_step(3) - 1], "{}", ended.said());
}

#[test]
fn a_state_that_differs_is_replaced() {
    let ended = run(&replaced("3"), 3, "1:5:kill,3:replay:differ", &[]);
    ended.assert_well(3, &[0, 2, 3]);
    let restored = ended.after(3, "restore");
    assert_eq!((restored.len(), restored[1]), (2, ended.first_step(3) - 1), "{}", ended.said());
    assert!(ended.said().contains("is not the state of rank 0"), "{}", ended.said());
}

#[test]
fn a_state_that_changes_in_other_ways_is_sent_whole_in_the_end() {
    let ended = run(&replaced("3"), 3, "1:5:kill", &[(EXCHANGE_EVERY, "7")]);
    ended.assert_well(3, &[0, 2, 3]);
    assert_eq!(ended.after(3, "restore").last(), Some(&(ended.first_step(3) - 1)), "{}", ended.said());
}

#[test]
fn a_small_state_is_not_streamed() {
    let ended = run(&replaced("3"), 3, "1:5:kill", &[(LEAST_BYTES, "100000000")]);
    ended.assert_well(3, &[0, 2, 3]);
    assert_eq!(ended.after(3, "restore"), [ended.first_step(3) - 1], "{}", ended.said());
}

/// Nobody makes a step while the job waits for this very process.
#[test]
fn a_process_that_is_waited_for_joins_at_once() {
    let flags = ["-np", "2", "--min-np", "2", "--blacklist-cooldown-range", "0", "0"];
    let ended = run(&flags, 2, "1:5:kill", &[(STEPS, "30")]);
    assert!(ended.output.status.success(), "{}", ended.said());
    assert_eq!((ended.first_step(2), ended.after(2, "restore")), (6, vec![5]), "{}", ended.said());
}

#[test]
fn a_spare_of_a_complete_job_is_not_sent_anything() {
    let ended = run(&["-np", "2", "--spares", "1"], 2, "rank1:40:kill", &[(STEPS, "60")]);
    assert!(ended.output.status.success(), "{}", ended.said());
    // Any of the three may be the spare.
    let is_spare = |member: &&u64| ended.after(**member, "step").first() == Some(&41);
    let spare = ended.notes.keys().find(is_spare).unwrap_or_else(|| panic!("nobody: {}", ended.said()));
    assert_eq!(ended.after(*spare, "restore"), [40], "{}", ended.said());
}
