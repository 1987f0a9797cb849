//! Do all ranks have the same parameters? Asked before the first step of a training, and repeatedly on request.
//!
//! Ranks that average gradients stay equal only if they began equal. Where a program forgets to broadcast its
//! parameters, each rank trains a model of its own, and nothing fails. So front ends compare parameters where all ranks
//! wait for each other anyway: when the gradients of a step are reduced, before the step changes anything.
//!
//! **What is compared** are the bits: what is not a number equals itself, and 0.0 and -0.0 differ. Each parameter gets
//! a digest ([`ParameterList::add`]) of a sample or of all of it ([`Depth`]), with its *identity*: its name where ranks
//! find each other's gradients by names, its place in the list where they do so by places.
//!
//! **Exchanges.** All are allreduces, so that a rank which has joined (it has no more data) takes part without knowing;
//! their sizes are the same on all ranks, whatever these have.
//!
//! 1. `Min` of six numbers: how many parameters, a digest of their identities in order, the sum of their digests; and
//!    the complements of these, whose minimum is the complement of the maximum. Where minimum and maximum agree, ranks
//!    have the same: 48 bytes, once.
//! 2. `Min` of the digests of all parameters and of their complements, as many as the rank with most has. It finds the
//!    first parameter that differs. If the identities are in another order somewhere, all ranks sort by identity first.
//! 3. `Sum` of a table in which each rank has filled its row: the digest and the identity of that parameter. It finds
//!    which ranks differ.
//!
//! Not here: reading tensors, which is the front ends' matter, and errors: a difference is a warning. It comes from one
//! rank, and ends the checks.

use std::fmt;

use farandole_engine::{Engine, Submission};
use farandole_plan::{Collective, GroupId, Rank, ReduceOp, Request};
use farandole_tensor::{Region, digest};

/// The parts of so many bytes that are compared with [`Depth::Sample`].
pub use farandole_tensor::digest::blocks as sample_of;

use crate::error::Result;
use crate::named::elements;

/// How much of each parameter is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// A few blocks ([`digest::sampled`]): finds parameters that were initialised differently.
    Sample,
    /// All bits.
    Whole,
}

/// When an optimizer compares parameters: `FARANDOLE_CHECK_PARAMETERS`.
#[derive(Clone, Debug)]
pub struct CheckSchedule {
    every: Option<u64>,
    /// Steps before the first check.
    after: u64,
    steps: u64,
    is_over: bool,
}

/// A check that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// How much is compared.
    pub depth: Depth,
    /// Steps that were made before it, since the job has these ranks.
    pub steps: u64,
}

impl CheckSchedule {
    /// `every` as [`Config::check_parameters`](crate::Config::check_parameters) has it. The first check comes after so
    /// many steps: one, where programs broadcast their parameters at the end of the first step.
    pub fn new(every: Option<u64>, after: u64) -> CheckSchedule {
        CheckSchedule { every, after, steps: 0, is_over: every == Some(0) }
    }

    /// A step begins: is a check due? All ranks ask at the same steps.
    pub fn next_step(&mut self) -> Option<Due> {
        if self.is_over {
            return None;
        }
        let steps = self.steps;
        self.steps += 1;
        let since_first = steps.checked_sub(self.after)?;
        let depth = match self.every {
            None => {
                self.is_over = true;
                Depth::Sample
            }
            Some(every) if since_first.is_multiple_of(every) => Depth::Whole,
            Some(_) => return None,
        };
        Some(Due { depth, steps })
    }

    /// A difference was found: there is nothing more to be said.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// Whether no check will be due any more.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

/// By what the ranks' gradients of one parameter find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchedBy {
    /// Names are the same on all ranks; their order may differ.
    Name,
    /// The order is the same on all ranks; names are only shown.
    Place,
}

/// The parameters of one optimizer, as they are compared.
#[derive(Clone, Debug)]
pub struct ParameterList {
    identity: MatchedBy,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    identity: u64,
    digest: u64,
}

/// In place of the digest of a parameter that a rank does not have. A row of zeros is that of a rank that has joined.
const MISSING: u64 = 1;

impl ParameterList {
    /// A list without parameters.
    pub fn new(identity: MatchedBy) -> ParameterList {
        ParameterList { identity, entries: Vec::new() }
    }

    /// Adds a parameter that lies in host memory.
    pub fn add(&mut self, name: impl Into<String>, bytes: &[u8], depth: Depth) {
        let content = match depth {
            Depth::Sample => digest::sampled(bytes),
            Depth::Whole => digest::digest(bytes),
        };
        self.add_digest(name, bytes.len(), content);
    }

    /// Adds a parameter of so many bytes whose digest ([`digest::digest`] of all of it, or of its sample) is known.
    pub fn add_digest(&mut self, name: impl Into<String>, len_bytes: usize, content: u64) {
        let name = name.into();
        let identity = match self.identity {
            MatchedBy::Name => digest::digest(name.as_bytes()),
            MatchedBy::Place => self.entries.len() as u64,
        };
        let digest = digest::combined([identity, len_bytes as u64, content]).max(MISSING + 1);
        self.entries.push(Entry { name, identity, digest });
    }

    /// Compares this list with those of the other ranks of a group. All ranks of the group call this together, with the
    /// same `name` for the requests.
    ///
    /// # Errors
    /// If ranks are lost.
    pub fn compare(mut self, engine: &Engine, group: GroupId, name: &str) -> Result<Option<Divergence>> {
        let members = engine.group(group)?;
        let Some(place) = engine.rank_in(group)? else { return Ok(None) };
        self.compare_by(name, &members, place.index(), |name, values, op| {
            let request = request(name, &values, op);
            Ok(elements(engine.run(Submission::new(request, Region::from_vec(values)).in_group(group))?))
        })
    }

    /// The same by a function that carries an allreduce out. `members` are ranks of the world, and this rank has the
    /// place `place` among them.
    ///
    /// # Errors
    /// Those of the function.
    pub fn compare_by<E>(
        &mut self,
        name: &str,
        members: &[Rank],
        place: usize,
        mut allreduce: impl FnMut(&str, Vec<u64>, ReduceOp) -> std::result::Result<Vec<u64>, E>,
    ) -> std::result::Result<Option<Divergence>, E> {
        let order = digest::combined(self.entries.iter().map(|entry| entry.identity));
        let total = self.entries.iter().fold(0u64, |sum, entry| sum.wrapping_add(entry.digest));
        let own = [self.entries.len() as u64, order, total];
        let extremes = Extremes::of(allreduce(name, Extremes::sent(&own), ReduceOp::Min)?);
        if extremes.agree(0) && extremes.agree(2) {
            return Ok(None);
        }
        if !extremes.agree(1) {
            self.entries.sort_by(|one, other| one.name.cmp(&other.name));
        }
        let mut digests: Vec<u64> = self.entries.iter().map(|entry| entry.digest).collect();
        digests.resize(extremes.largest(0) as usize, MISSING);
        let extremes = Extremes::of(allreduce(&format!("{name}.first"), Extremes::sent(&digests), ReduceOp::Min)?);
        // None, if two differences cancel each other out in the sum of one rank: then there is nothing to name.
        let Some(first) = (0..digests.len()).find(|&index| !extremes.agree(index)) else { return Ok(None) };
        let entry = self.entries.get(first);
        let mut table = vec![0; 2 * members.len()];
        table[2 * place] = digests[first];
        table[2 * place + 1] = entry.map_or(0, |entry| entry.identity);
        let table = allreduce(&format!("{name}.ranks"), table, ReduceOp::Sum)?;
        let rows = members.iter().zip(table.as_chunks::<2>().0).map(|(rank, row)| (rank.index(), *row));
        Ok(Divergence::of(rows.filter(|(_, [digest, _])| *digest != 0).collect(), entry, members[place].index()))
    }
}

/// The allreduce of one exchange.
pub fn request(name: &str, values: &[u64], op: ReduceOp) -> Request {
    Request::new(name, Collective::allreduce(op), farandole_plan::Dtype::U64, [values.len() as u64])
}

/// The smallest and the largest of each of the ranks' numbers.
struct Extremes(Vec<u64>);

impl Extremes {
    fn sent(own: &[u64]) -> Vec<u64> {
        own.iter().copied().chain(own.iter().map(|number| !number)).collect()
    }

    fn of(smallest: Vec<u64>) -> Extremes {
        Extremes(smallest)
    }

    fn largest(&self, index: usize) -> u64 {
        !self.0[self.0.len() / 2 + index]
    }

    fn agree(&self, index: usize) -> bool {
        self.0[index] == self.largest(index)
    }
}

/// The first parameter that differs between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// What this rank calls it; `None` if it has none.
    pub parameter: Option<String>,
    /// Ranks of the world that have the same of it, the most ranks first.
    pub groups: Vec<Vec<usize>>,
    /// Whether it is not even the same parameter.
    pub other_lists: bool,
    /// Whether this rank is the one that says so.
    pub is_told_here: bool,
}

impl Divergence {
    fn of(rows: Vec<(usize, [u64; 2])>, entry: Option<&Entry>, own: usize) -> Option<Divergence> {
        let first_with_it = rows.iter().find(|(_, [digest, _])| *digest != MISSING)?;
        let other_lists = rows.iter().any(|(_, [digest, id])| *digest == MISSING || *id != first_with_it.1[1]);
        let mut groups: Vec<(u64, Vec<usize>)> = Vec::new();
        for (rank, [digest, _]) in &rows {
            match groups.iter_mut().find(|(known, _)| known == digest) {
                Some((_, ranks)) => ranks.push(*rank),
                None => groups.push((*digest, vec![*rank])),
            }
        }
        groups.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks[0]));
        let groups = groups.into_iter().map(|(_, ranks)| ranks).collect();
        let parameter = entry.map(|entry| entry.name.clone());
        Some(Divergence { parameter, groups, other_lists, is_told_here: first_with_it.0 == own })
    }

    /// The ranks that differ from more than half of all; all ranks, if no value is on so many.
    pub fn minority(&self) -> Vec<usize> {
        let all: usize = self.groups.iter().map(Vec::len).sum();
        let has_majority = 2 * self.groups[0].len() > all;
        let mut ranks: Vec<usize> = self.groups[usize::from(has_majority)..].concat();
        ranks.sort_unstable();
        ranks
    }

    /// The warning. `remedy` is what the front end gives all ranks the parameters of one with.
    pub fn warning(&self, due: Due, remedy: &str) -> String {
        let name = self.parameter.as_deref().unwrap_or_default();
        if self.other_lists {
            return format!(
                "optimizers have different parameters on the ranks, from \"{name}\" on: {self}; make the same \
                 model and the same optimizer on all ranks"
            );
        }
        let (when, cause) = match due.steps {
            0 => ("before the first step".to_owned(), format!("was {remedy} forgotten?")),
            1 => ("after the first step".to_owned(), format!("was {remedy} forgotten?")),
            steps => (
                format!("after {steps} steps"),
                "does the script change parameters on some ranks only, or is memory of a host faulty?".to_owned(),
            ),
        };
        format!("parameters differ between ranks {when}; {cause} The first that differs is \"{name}\": {self}")
    }

    /// Writes the warning to the log, on one rank.
    pub fn warn(&self, due: Due, remedy: &str) {
        if self.is_told_here {
            log::warn!("{}", self.warning(due, remedy));
        }
    }
}

/// Which ranks differ from which.
impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minority = self.minority();
        let others: usize = self.groups.iter().map(Vec::len).sum::<usize>() - minority.len();
        let verb = if minority.len() == 1 { "differs" } else { "differ" };
        match (others, &self.groups[..]) {
            (0, [one, other]) => write!(f, "{} and {} differ", ranks_in_words(one), ranks_in_words(other)),
            (0, groups) => {
                let groups: Vec<String> = groups.iter().map(|ranks| ranks_in_words(ranks)).collect();
                write!(f, "{} differ from each other", groups.join(", "))
            }
            _ => write!(f, "{} {verb} from {}", ranks_in_words(&minority), ranks_in_words(&self.groups[0])),
        }
    }
}

/// "rank 3", "ranks 0–2, 5".
fn ranks_in_words(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let runs: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first}, {last}"),
            _ => format!("{first}–{last}"),
        })
        .collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, runs.join(", "))
}

#[cfg(test)]
#[path = "parameter_check_tests.rs"]
mod tests;
