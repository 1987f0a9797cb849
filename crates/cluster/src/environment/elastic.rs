//! What the launcher of an elastic job says to its members besides what all ranks are told.
//!
//! | variable | meaning |
//! |---|---|
//! | `FARANDOLE_ELASTIC` | 1: the job is elastic |
//! | `FARANDOLE_ELASTIC_MEMBER` | the number of this process; no other process of the job ever has it |
//! | `FARANDOLE_ELASTIC_MIN_NP` | with fewer members the job waits |
//! | `FARANDOLE_ELASTIC_MAX_NP` | the job never has more members; any number where it is not set |
//! | `FARANDOLE_ELASTIC_TIMEOUT` | how many seconds the job waits, at most |
//! | `FARANDOLE_VOTES_FD` | an open descriptor: this process records its votes there |
//!
//! Both of the first two have to be there: a user may set the first one, or Horovod's, for a job of a fixed size.

use std::time::Duration;

use farandole_settings as settings;

use super::variables::{Variables, wrong};
use crate::error::Result;

/// The variable that holds this process's number in an elastic job.
pub const ELASTIC_MEMBER: &str = "FARANDOLE_ELASTIC_MEMBER";
/// The variable that holds the number of members below which an elastic job waits.
pub const ELASTIC_MIN_NP: &str = "FARANDOLE_ELASTIC_MIN_NP";
/// The variable that holds the largest number of members of an elastic job.
pub const ELASTIC_MAX_NP: &str = "FARANDOLE_ELASTIC_MAX_NP";
/// The variable that holds the descriptor of the file in which a member records its votes.
pub const VOTES_FD: &str = "FARANDOLE_VOTES_FD";
/// The variable that says how often the whole job has been started again.
pub const RESTART: &str = "FARANDOLE_RESTART";

/// A member of an elastic job, and what the job is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElasticMember {
    /// Its number; no other process of the job ever has it.
    pub number: u64,
    /// With fewer members the job waits. At least one.
    pub min_np: usize,
    /// The job never has more members.
    pub max_np: usize,
    /// How long the job waits, at most.
    pub timeout: Duration,
    /// The descriptor of the file in which it records its votes for its agent.
    pub votes_in: Option<u32>,
}

impl ElasticMember {
    pub(super) fn read(variables: Variables<'_>) -> Result<Option<ElasticMember>> {
        let read = |wrong: settings::Wrong| super::Error::Environment {
            variable: wrong.variable,
            problem: format!("'{}' is not {}", wrong.text, wrong.kind),
        };
        let is_elastic: bool = settings::ELASTIC.read(|name| variables.text(name)).map_err(read)?;
        let number = variables.value(ELASTIC_MEMBER, "the number of a member")?;
        let (true, Some(number)) = (is_elastic, number) else { return Ok(None) };
        let what = "a number of members";
        let min_np = variables.value::<usize>(ELASTIC_MIN_NP, what)?.unwrap_or(1).max(1);
        let max_np = variables.value(ELASTIC_MAX_NP, what)?.unwrap_or(usize::MAX);
        if max_np < min_np {
            return Err(wrong(ELASTIC_MAX_NP, format!("{max_np} is less than {ELASTIC_MIN_NP}, {min_np}")));
        }
        let timeout = settings::ELASTIC_TIMEOUT.read(|name| variables.text(name)).map_err(read)?;
        let votes_in = variables.value(VOTES_FD, "the number of a descriptor")?;
        Ok(Some(ElasticMember { number, min_np, max_np, timeout, votes_in }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<ElasticMember>> {
        let lookup = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        ElasticMember::read(Variables::new(&lookup))
    }

    #[test]
    fn a_member_is_one_by_its_number() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[("HOROVOD_ELASTIC", "1")]).unwrap(), None, "a user's switch for one rank makes no member");
        assert_eq!(read(&[(ELASTIC_MEMBER, "3")]).unwrap(), None);
        let all = [
            ("FARANDOLE_ELASTIC", "1"),
            (ELASTIC_MEMBER, "5"),
            (ELASTIC_MIN_NP, "2"),
            (ELASTIC_MAX_NP, "4"),
            ("HOROVOD_ELASTIC_TIMEOUT", "2.5"),
            (VOTES_FD, "9"),
        ];
        let timeout = Duration::from_millis(2500);
        assert_eq!(
            read(&all).unwrap(),
            Some(ElasticMember { number: 5, min_np: 2, max_np: 4, timeout, votes_in: Some(9) })
        );
        let timeout = Duration::from_secs(600);
        let least = ElasticMember { number: 5, min_np: 1, max_np: usize::MAX, timeout, votes_in: None };
        assert_eq!(read(&all[..2]).unwrap(), Some(least));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (name, value) in
            [(ELASTIC_MEMBER, "me"), (ELASTIC_MIN_NP, "-1"), (ELASTIC_MAX_NP, "1"), ("FARANDOLE_ELASTIC", "perhaps")]
        {
            let mut all = vec![(name, value), ("FARANDOLE_ELASTIC", "1"), (ELASTIC_MEMBER, "5")];
            all.push((ELASTIC_MIN_NP, "2"));
            let error = read(&all).unwrap_err().to_string();
            assert!(error.starts_with(name), "{name}={value}: {error}");
        }
    }
}
