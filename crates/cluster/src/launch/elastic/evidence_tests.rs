//! What the launcher makes of broken connections, of records of votes and of members that disagree.

use super::story::{Story, settings};
use super::*;
use crate::launch::message::HowEnded;

const KILLED: HowEnded = HowEnded::Signalled(9);
const WELL: HowEnded = HowEnded::Exited(0);

/// A reset between launcher and agent freed the slots of members that were well: a second process used their GPUs.
#[test]
fn a_broken_connection_to_an_agent_starts_no_second_process_in_a_live_slot() {
    for has_begun in [false, true] {
        let mut story = Story::new(settings(&[1, 1]));
        if has_begun {
            story.enter(&[]);
            story.generation(0, 1, &[0, 1]);
        }
        story.break_agent(1);
        story.pass(Duration::from_secs(30), &[]);
        assert_eq!(story.agents_started, [0, 1, 1], "the host has another agent");
        assert_eq!(story.numbers(), [0, 1], "{:?}", story.said);
        // The process ends, and the agent that has not started it does not find it any more.
        story.running.retain(|(member, ..)| *member != 1);
        story.pass(Duration::from_secs(2), &[]);
        assert_eq!(story.running, [(0, 0, 0), (2, 1, 0)], "{:?}", story.said);
    }
}

/// The launcher was connected to both parts of a job that had split, and dropped the second list.
#[test]
fn two_member_lists_of_a_generation_end_the_job_and_both_are_named() {
    for older in [false, true] {
        let mut story = Story::new(settings(&[1, 1]));
        story.enter(&[]);
        story.generation(0, 2, &[0]);
        if older {
            story.generation(0, 3, &[0]);
        }
        story.generation(0, 2, &[0]);
        assert!(!story.finished);
        story.generation(1, 2, &[1]);
        assert!(story.finished && story.supervision.exit_code() == 1);
        let last = story.last_line();
        assert!(last.starts_with("the job has split: generation 2 has two member lists: 0, and 1;"), "{last}");
    }
}

#[test]
fn the_launcher_is_the_witness_of_its_members() {
    let mut story = Story::new(settings(&[1, 1]));
    // Base 1, ballot 1 of member 1, in the words of members.
    let question = [&[0][..], &1u64.to_le_bytes(), &1u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    story.hear(1, AgentReport::WitnessAsked { member: 1, question: question.clone() });
    let answer = [&[0][..], &question[1..], &[0]].concat();
    assert_eq!(story.told.pop(), Some((1, Directive::WitnessAnswer { member: 1, answer })));
    story.hear(1, AgentReport::WitnessAsked { member: 1, question: vec![9] });
    assert!(!matches!(story.told.last(), Some((_, Directive::WitnessAnswer { .. }))), "nonsense gets no answer");
}

#[test]
fn members_of_other_hosts_get_the_vote_record_of_a_dead_one() {
    for how in [KILLED, WELL] {
        let mut story = Story::new(settings(&[1, 1]));
        story.enter(&[]);
        story.hear(1, AgentReport::Reaped { member: 1, votes: Some(vec![7]) });
        story.ended(1, how);
        let told = |(host, directive): &(usize, Directive)| match directive {
            Directive::MemberLost { member: 1, votes, .. } => Some((*host, votes.clone())),
            _ => None,
        };
        assert_eq!(story.told.iter().filter_map(told).collect::<Vec<_>>(), [(0, Some(vec![7]))], "{how:?}");
    }
}
