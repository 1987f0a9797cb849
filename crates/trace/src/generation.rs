//! What a trace says about the generation of an elastic job that it is of.
//!
//! A member of such a job keeps one trace for each generation that it is in, because rank and size are others in each.
//! The settings of a trace say which it is: the job, the generation, the member's own number, and the numbers of all
//! members in rank order. The number of generation 1 is 1; jobs of a fixed size have
//! none. When a member came how far is in records ([`Event::Recovery`](crate::Event::Recovery)).

use crate::trace::TraceHeader;

/// Settings of a header.
const JOB: &str = "elastic.job";
const GENERATION: &str = "elastic.generation";
const MEMBER: &str = "elastic.member";
const MEMBERS: &str = "elastic.members";

/// A generation, as a member of it sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationView {
    /// The job, the same in all its generations and different from other jobs'.
    pub job: String,
    /// The generation's number.
    pub number: u64,
    /// This member's own number.
    pub member: u64,
    /// The numbers of all members, in rank order.
    pub members: Vec<u64>,
}

impl GenerationView {
    /// What a header says of it: all but the members, of whom there may be many.
    pub fn settings(&self) -> Vec<(String, String)> {
        [(JOB, self.job.clone()), (GENERATION, self.number.to_string()), (MEMBER, self.member.to_string())]
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec()
    }

    /// What is noted after the header.
    pub fn members_setting(&self) -> (&'static str, String) {
        let members: Vec<String> = self.members.iter().map(u64::to_string).collect();
        (MEMBERS, members.join(" "))
    }
}

impl TraceHeader {
    /// The generation that the trace is of; zero: of a job with a fixed size.
    pub fn generation(&self) -> u64 {
        self.number(GENERATION).unwrap_or(0)
    }

    /// The number of the member whose trace it is; its rank in a job of a fixed size.
    pub fn member(&self) -> u64 {
        self.number(MEMBER).unwrap_or_else(|| self.rank.into())
    }

    /// The elastic job that it is of.
    pub fn elastic_job(&self) -> Option<&str> {
        self.setting(JOB)
    }

    /// The members of the generation, in rank order, as far as they are known.
    pub fn members(&self) -> Vec<u64> {
        let members = self.setting(MEMBERS).unwrap_or_default().split(' ');
        members.map_while(|member| member.parse().ok()).collect()
    }

    fn number(&self, setting: &str) -> Option<u64> {
        self.setting(setting)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_which_generation_it_is_of() {
        let view = GenerationView { job: "j".into(), number: 3, member: 5, members: vec![0, 2, 5] };
        let mut header = TraceHeader { rank: 2, settings: view.settings(), ..TraceHeader::default() };
        let (name, value) = view.members_setting();
        header.set(name.to_owned(), value);
        assert_eq!((header.generation(), header.member(), header.members()), (3, 5, vec![0, 2, 5]));
        assert_eq!(header.elastic_job(), Some("j"));
        let fixed = TraceHeader { rank: 2, ..TraceHeader::default() };
        assert_eq!((fixed.generation(), fixed.member(), fixed.members()), (0, 2, vec![]));
    }
}
