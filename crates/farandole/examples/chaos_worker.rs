//! One process of `cargo xtask chaos` and `cargo xtask elastic-bench`: trains for ever with nothing but
//! [`farandole::init`] and collectives, goes on when ranks leave and join, and notes every step.
//!
//! It takes the same words, notes the same lines and checks the same as `bindings/python/benchmarks/elastic_worker.py`,
//! which says what they mean: `chaos_worker farandole FOLDER` and `chaos_worker history FOLDER`.
//!
//! **The loop.** A step counts on a rank when everything that it needs of the others is there. When a collective fails,
//! or somebody wants to join, the rank drops its world and calls `init` again. In the new world all tell how many steps
//! they have made; those differ by one at most, because nobody completes a step that another has not begun. Whoever is
//! behind, or has just come, gets the state of the first that is not.
//!
//! **Checkpoints.** Rank 0 publishes one every few steps, and rank 0 of each generation loads the latest and notes its
//! step and checksum in `<pid>.loaded`. A damaged file ends the process. `elastic_chaos.py` compares these notes with
//! the history of the job.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farandole::publish::{self, Token};
use farandole::{ReduceOp, Result, World, elastic};
use rustix::time::{ClockId, clock_gettime};
use safetensors::SafeTensors;

/// Enough for several chunks on every plane, and few enough that a step costs next to nothing.
const PARAMETERS: usize = 8192;

/// Gradients are multiples of it, and less than a half: sums over eight ranks have 22 bits, and floats have 24.
const QUANTUM: f32 = 1.0 / (1 << 20) as f32;

/// A prime number of samples, so that no number of ranks divides it.
const SAMPLES: usize = 1021;

/// Of a rank in a step.
const BATCH: usize = 4;

/// Length of the sum that is checked.
const PROBE: usize = 20_000;

/// What a step would compute. Eight ranks on two processors have to live together.
const PACE: Duration = Duration::from_millis(5);

/// Steps between two checkpoints: one takes as long as a few steps.
const CHECKPOINT_STEPS: u64 = 20;

/// What all ranks have in common after a step.
#[derive(Clone, Debug, PartialEq)]
struct State {
    parameters: Vec<f32>,
    momentum: Vec<f32>,
    /// Steps that count, the ranks of the last one, the epoch, and samples used in it.
    steps: u64,
    ranks: u64,
    epoch: u64,
    used: Vec<u32>,
}

impl State {
    fn new() -> State {
        let parameters = (0..PARAMETERS).map(|place| ((place * 7919) % 1009) as f32 / 4096.0).collect();
        let (momentum, used) = (vec![0.0; PARAMETERS], vec![0; SAMPLES]);
        State { parameters, momentum, steps: 0, ranks: 0, epoch: 0, used }
    }

    /// A gradient that follows from parameters, step and rank.
    fn gradient(&self, rank: usize) -> Vec<f32> {
        let of = |(place, parameter): (usize, &f32)| {
            let noise = (self.steps as usize * 31 + rank * 17 + place) % 101;
            let slope = parameter * 0.01 * (rank + 1) as f32 + (noise as f32 - 50.0) / 256.0;
            (slope.clamp(-0.49, 0.49) / QUANTUM).round() * QUANTUM
        };
        self.parameters.iter().enumerate().map(of).collect()
    }

    /// Makes a step with the sum of all ranks' gradients.
    fn apply(&mut self, gradient: &[f32], ranks: usize) {
        for ((parameter, momentum), slope) in self.parameters.iter_mut().zip(&mut self.momentum).zip(gradient) {
            *momentum = 0.9 * *momentum + slope;
            *parameter -= 1e-3 * *momentum;
        }
        (self.steps, self.ranks) = (self.steps + 1, ranks as u64);
    }

    /// The samples of a rank in the next step: all together take the next ones that are not used.
    fn samples(&self, rank: usize, size: usize) -> Vec<usize> {
        let left = (0..SAMPLES).map(|place| (place * 389 + self.epoch as usize) % SAMPLES);
        let step = left.filter(|sample| self.used[*sample] == 0).take(BATCH * size);
        step.enumerate().filter(|(place, _)| place % size == rank).map(|(_, sample)| sample).collect()
    }

    /// Notes which samples a step has used. An error says what is wrong with them.
    fn use_samples(&mut self, used: &[u32]) -> std::result::Result<(), String> {
        self.used.iter_mut().zip(used).for_each(|(all, new)| *all += new);
        if let Some(sample) = self.used.iter().position(|count| *count > 1) {
            return Err(format!("sample {sample} of epoch {} was used {} times", self.epoch, self.used[sample]));
        }
        if used.iter().all(|count| *count == 0) {
            return Err(format!("a step of epoch {} used no sample", self.epoch));
        }
        if self.used.iter().all(|count| *count == 1) {
            (self.epoch, self.used) = (self.epoch + 1, vec![0; SAMPLES]);
        }
        Ok(())
    }

    /// FNV-1a over the bits.
    fn checksum(&self) -> u64 {
        let bits = self.parameters.iter().map(|parameter| u64::from(parameter.to_bits()));
        bits.fold(0xcbf2_9ce4_8422_2325, |hash: u64, bits| (hash ^ bits).wrapping_mul(0x0100_0000_01b3)) >> 1
    }

    fn numbers(&self) -> Vec<u64> {
        let used = self.used.iter().map(|count| u64::from(*count));
        [self.steps, self.ranks, self.epoch].into_iter().chain(used).collect()
    }

    fn floats(&self) -> Vec<f32> {
        [&self.parameters[..], &self.momentum].concat()
    }

    fn from_parts(numbers: &[u64], floats: &[f32]) -> State {
        let (parameters, momentum) = floats.split_at(PARAMETERS);
        let used = numbers[3..].iter().map(|count| *count as u32).collect();
        let (parameters, momentum) = (parameters.to_vec(), momentum.to_vec());
        State { parameters, momentum, steps: numbers[0], ranks: numbers[1], epoch: numbers[2], used }
    }
}

/// What this process has done, for the one that measures.
struct Notes {
    file: File,
    path: PathBuf,
    noted: u64,
    tries: u64,
}

impl Notes {
    fn new(folder: &Path) -> std::io::Result<Notes> {
        // `apart.py` sets the variable for a process in a PID namespace of its own.
        let pid = std::env::var("OUTER_PID").unwrap_or_else(|_| std::process::id().to_string());
        let path = folder.join(format!("{pid}.steps"));
        Ok(Notes { file: File::create(&path)?, path, noted: 0, tries: 0 })
    }

    /// Notes a step that is new to this process: it has made it, or was given the state after it.
    fn add(&mut self, state: &State) {
        if state.steps == self.noted {
            return;
        }
        let now = clock_gettime(ClockId::Monotonic);
        let (at, steps, ranks) = (now.tv_sec * 1_000_000_000 + now.tv_nsec, state.steps, state.ranks);
        let line = format!("{at} {steps} {ranks} {} {} 0\n", state.checksum(), self.tries);
        self.file.write_all(line.as_bytes()).unwrap_or_else(|error| self.wrong(&format!("notes: {error}")));
        (self.noted, self.tries) = (steps, 0);
    }

    /// Loads the latest checkpoint, if there is one, and notes what it contains.
    fn load(&self) {
        let path = self.path.with_file_name("checkpoint.safetensors");
        let Ok(bytes) = std::fs::read(&path) else { return };
        let state = publish::check(&bytes).and_then(|token| Ok((token, decode(&bytes)?)));
        let (token, state) = state.unwrap_or_else(|why| self.wrong(&format!("{}: {why}", path.display())));
        if token.is_none_or(|token| token.step != state.steps) {
            self.wrong(&format!("{}: step {} with the token {token:?}", path.display(), state.steps));
        }
        let line = format!("{} {}\n", state.steps, state.checksum());
        let loaded = File::options().append(true).create(true).open(self.path.with_extension("loaded"));
        let noted = loaded.and_then(|mut file| file.write_all(line.as_bytes()));
        noted.unwrap_or_else(|error| self.wrong(&format!("notes: {error}")));
    }

    /// Publishes a checkpoint. A rank that was replaced in the meantime is refused, and continues until it notices.
    fn save(&self, world: &World, state: &State) {
        let path = self.path.with_file_name("checkpoint.safetensors");
        let generation = elastic::generation().unwrap_or_default();
        let token = Token { run: 1, generation, step: state.steps };
        let fence = || world.fence().map(drop).map_err(|error| error.to_string());
        match world.publisher().publish(&path, encode(state), token, fence) {
            Err(error) if !error.is_of_this_rank_alone() => self.wrong(&error.to_string()),
            outcome => log::debug!("checkpoint of step {}: {outcome:?}", state.steps),
        }
    }

    /// Something has happened that must not: says so, and ends.
    #[allow(clippy::print_stderr, reason = "the launcher shows it")]
    fn wrong(&self, what: &str) -> ! {
        let _ = std::fs::write(self.path.with_extension("wrong"), what);
        eprintln!("{what}");
        std::process::exit(3);
    }
}

/// A safetensors file with the parameters, and the number of steps as metadata.
fn encode(state: &State) -> Vec<u8> {
    let length = PARAMETERS * size_of::<f32>();
    let header = format!(
        r#"{{"__metadata__":{{"steps":"{}"}},"parameters":{{"dtype":"F32","shape":[{PARAMETERS}],"data_offsets":[0,{length}]}}}}"#,
        state.steps
    );
    let data = state.parameters.iter().flat_map(|parameter| parameter.to_le_bytes());
    (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()).chain(data).collect()
}

/// The steps and parameters of such a file.
fn decode(bytes: &[u8]) -> std::result::Result<State, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let steps = header.metadata().as_ref().and_then(|metadata| metadata.get("steps")?.parse().ok());
    let parameters = file.tensor("parameters").map_err(|error| error.to_string())?;
    let (numbers, _) = parameters.data().as_chunks::<4>();
    let parameters = numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
    Ok(State { parameters, steps: steps.ok_or("no number of steps")?, ..State::new() })
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["farandole", folder] => train_for_ever(Path::new(folder)),
        ["history", folder] => compare(Path::new(folder)),
        _ => Err("usage: chaos_worker farandole|history FOLDER".to_owned()),
    };
    if let Err(error) = outcome {
        fail(&error);
    }
}

#[allow(clippy::print_stderr, reason = "whoever started it reads it")]
fn fail(error: &str) -> ! {
    eprintln!("{error}");
    std::process::exit(1);
}

/// Ends only if this process cannot be a rank any more.
fn train_for_ever(folder: &Path) -> std::result::Result<(), String> {
    let mut notes = Notes::new(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut state = None;
    loop {
        let mut world = farandole::init().map_err(|error| error.to_string())?;
        // What has failed is why the next generation is wanted.
        if let Err(error) = train(&mut world, &mut state, &mut notes) {
            log::debug!("{error}");
        }
    }
}

/// Trains until somebody is lost, or wants to join.
fn train(world: &mut World, state: &mut Option<State>, notes: &mut Notes) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let mut current = agree(world, state)?;
    if rank == 0 {
        notes.load();
    }
    loop {
        notes.add(&current);
        notes.tries += 1;
        std::thread::sleep(PACE);
        let mut used = vec![0u32; SAMPLES];
        current.samples(rank, size).into_iter().for_each(|sample| used[sample] += 1);
        let gradient = world.named("gradient").allreduce(current.gradient(rank), ReduceOp::Sum)?;
        let used = world.named("used").allreduce(used, ReduceOp::Sum)?;
        let candidates = vec![farandole::elastic::candidates() as u64];
        let candidates = world.named("candidates").allreduce(candidates, ReduceOp::Max)?;
        check_sum(world, current.steps, notes)?;
        let (gradient, used, candidates) = (gradient.wait()?, used.wait()?, candidates.wait()?);
        // All ranks have contributed to the next step, so all have completed this one: no later history is without it.
        if rank == 0 && current.steps.is_multiple_of(CHECKPOINT_STEPS) && current.steps > 0 {
            notes.save(world, &current);
        }
        current.apply(&gradient, size);
        current.use_samples(&used).unwrap_or_else(|what| notes.wrong(&what));
        *state = Some(current.clone());
        if candidates[0] > 0 {
            notes.add(&current);
            return Ok(());
        }
    }
}

/// The state that is furthest, which this rank has then, too.
fn agree(world: &World, state: &mut Option<State>) -> Result<State> {
    let own = state.clone();
    let made = own.as_ref().map_or(0, |state| state.steps + 1);
    let standings = world.named("standings").allgather(vec![made])?.wait()?;
    let most = standings.iter().copied().max().unwrap_or_default();
    let source = standings.iter().position(|made| *made == most).unwrap_or_default();
    let current = own.filter(|_| made == most).unwrap_or_else(State::new);
    if standings.iter().any(|made| *made != most) {
        let numbers = world.named("numbers").broadcast(current.numbers(), source)?;
        let floats = world.named("floats").broadcast(current.floats(), source)?;
        let (numbers, floats) = (numbers.wait()?, floats.wait()?);
        *state = Some(State::from_parts(&numbers, &floats));
    } else {
        *state = Some(current);
    }
    Ok(state.clone().expect("invariant: it was set"))
}

/// Adds up what every rank knows of every other one, by a direct call.
fn check_sum(world: &mut World, step: u64, notes: &Notes) -> Result<()> {
    let (rank, size, factor) = (world.rank() as f32, world.size() as f32, (step % 97 + 1) as f32);
    let pattern = |place: usize| (place % 13) as f32;
    let mut sum: Vec<f32> = (0..PROBE).map(|place| pattern(place) + factor * (rank + 1.0)).collect();
    world.allreduce(&mut sum, ReduceOp::Sum)?;
    let wanted = |place: usize| size * pattern(place) + factor * size * (size + 1.0) / 2.0;
    if let Some((at, found)) = sum.iter().enumerate().find(|(at, found)| **found != wanted(*at)) {
        let wanted = wanted(at);
        notes.wrong(&format!("step {step}, rank {rank} of {size}: the sum at {at} is {found} and not {wanted}"));
    }
    Ok(())
}

/// Compares what a job has noted with a run that has as many ranks in each step, and no faults.
#[allow(clippy::print_stdout, reason = "whoever started it reads it")]
fn compare(folder: &Path) -> std::result::Result<(), String> {
    let path = folder.join("history");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut state = State::new();
    for line in text.lines() {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let (Some(Ok(size)), Some(Ok(noted))) = (numbers.next(), numbers.next()) else {
            return Err(format!("{}: '{line}' is not a size and a checksum", path.display()));
        };
        let mut gradient = state.gradient(0);
        for rank in 1..size as usize {
            gradient.iter_mut().zip(state.gradient(rank)).for_each(|(sum, slope)| *sum += slope);
        }
        state.apply(&gradient, size as usize);
        if state.checksum() != noted {
            return Err(format!("after step {} the parameters are not those of a run without faults", state.steps));
        }
    }
    println!("{} steps give the same parameters in a run without faults", state.steps);
    Ok(())
}
