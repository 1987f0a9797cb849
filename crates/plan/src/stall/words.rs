//! What a stall comes to, in words: one line, and the whole report behind it.
//!
//! [`verdict`] is a table of causes, the surest first: a process that cannot do anything at all explains more than what
//! its program did before, and two names that were meant to be the same explain more than where each program waits.
//! [`whole`] says, in this order, the verdict, what Horovod's users know and search for, and the status of every rank
//! that was asked.

use std::fmt::Write as _;
use std::time::Duration;

use super::probe::{Places, Sight, Testimony};
use super::rank_status::{GroupState, Interpreter, MainThread, RankStatus, ThreadStack};
use super::{Crossing, NearMiss, Omission, Report, UnevenGroups};
use crate::request::{GroupId, Rank};

/// What ranks wait for, as parts of sentences.
pub(super) struct Wanted {
    /// After "has not": what the missing rank has not done.
    done: String,
    /// After "others wait": where or for what.
    wait: String,
    /// Whether it is a direct call.
    direct: bool,
}

impl Wanted {
    /// A request with this name.
    pub(super) fn request(name: &str) -> Wanted {
        Wanted { done: format!("asked for {name:?}"), wait: format!("for {name:?}"), direct: false }
    }

    /// A direct call, as a user would write it.
    pub(super) fn direct(call: &str) -> Wanted {
        Wanted { done: format!("come to the direct {call}"), wait: format!("in the direct {call}"), direct: true }
    }
}

/// What it comes to, in one line.
pub(super) fn verdict(
    report: &Report,
    wanted: &Wanted,
    testimonies: &[(Rank, Testimony)],
    places: &Places<'_>,
) -> String {
    let first = |say: &dyn Fn(Rank, &Testimony) -> Option<String>| {
        testimonies.iter().find_map(|(rank, testimony)| say(*rank, testimony))
    };
    let of_account = |say: &dyn Fn(Rank, &RankStatus) -> Option<String>| {
        first(&|rank, testimony| match testimony {
            Testimony::Given(rank_status) => say(rank, rank_status),
            Testimony::Silent(_) => None,
        })
    };
    let world = |rank: Rank| places.world(rank);
    let Wanted { wait, .. } = wanted;
    let line = first(&|rank, testimony| unable(rank, testimony, places))
        .or_else(|| report.omissions.first().map(|omission| omitted(omission, places)))
        .or_else(|| report.uneven_groups.first().map(|groups| uneven(groups, places)))
        .or_else(|| {
            report.near_misses.first().map(|NearMiss { name, rank, instead }| {
                format!("rank {} never asked for {name:?}, it asked for {instead:?}: names differ.", world(*rank))
            })
        })
        .or_else(|| report.crossings.first().map(|crossing| crossed(crossing, places)))
        .or_else(|| in_the_same_call(report, wanted))
        .or_else(|| of_account(&|rank, rank_status| in_another_call(world(rank), rank_status, wanted)))
        .or_else(|| {
            of_account(&|rank, rank_status| {
                let phase = rank_status.phase.as_ref()?;
                Some(format!(
                    "rank {} has been in phase {:?} for {} while others wait {wait}{}",
                    world(rank),
                    phase.what,
                    seconds(phase.ago),
                    advice(&phase.what)
                ))
            })
        })
        .or_else(|| of_account(&|rank, rank_status| elsewhere(world(rank), rank_status, wanted)))
        .or_else(|| of_account(&|rank, rank_status| Some(idle(world(rank), rank_status, wanted))))
        .unwrap_or_else(|| format!("ranks wait {wait}, for others of which nothing is known."));
    let others = report.stalled.iter().flat_map(|waiting| &waiting.missing).collect::<std::collections::BTreeSet<_>>();
    let Report { omissions, uneven_groups, near_misses, crossings, .. } = report;
    let are_mutual = omissions.len() + uneven_groups.len() + near_misses.len() + crossings.len() > 0;
    let line = match others.len() {
        0 | 1 => line,
        // Two ranks that wait for each other are both missing, and the line is about both.
        2 if are_mutual => line,
        missing => format!("{line} ({missing} ranks are missing; this is about one.)"),
    };
    format!("{line}{}", since(report, wanted, testimonies, places))
}

/// Who waits since when, and what the missing rank did last; empty where nothing of it is known.
fn since(report: &Report, wanted: &Wanted, testimonies: &[(Rank, Testimony)], places: &Places<'_>) -> String {
    // The request that the sentence before is about: that which a rank has left out, or the oldest.
    let omitted = report.omissions.first().map(|omission| &omission.name);
    let subject = report.stalled.iter().find(|waiting| Some(&waiting.name) == omitted);
    let oldest = report.stalled.first();
    let Some((subject, oldest)) = subject.or(oldest).zip(oldest) else { return String::new() };
    let wait = omitted.map_or_else(|| wanted.wait.clone(), |name| format!("for {name:?}"));
    if subject.asked.is_empty() {
        return String::new();
    }
    let has = if subject.asked.len() == 1 { "has" } else { "have" };
    let waiting: Vec<Rank> = subject.asked.iter().map(|rank| places.world(*rank)).collect();
    let waited = report.waited.saturating_sub(subject.since.saturating_sub(oldest.since));
    let mut text = format!(" {} {has} waited {wait} for {}", listed("Rank", &waiting), seconds(waited));
    let missing = testimonies.iter().filter(|(rank, _)| subject.missing.contains(rank));
    let given = missing.filter_map(|(rank, testimony)| match testimony {
        Testimony::Given(rank_status) => Some((places.world(*rank), rank_status)),
        Testimony::Silent(_) => None,
    });
    if let Some((rank, rank_status)) = given.into_iter().find(|(_, rank_status)| rank_status.records) {
        let done = match &rank_status.finished {
            Some(done) => format!("; rank {rank} last finished {:?}, {} ago", done.what, seconds(done.ago)),
            None => format!("; rank {rank} has finished no collective yet"),
        };
        text.push_str(&done);
    }
    text + "."
}

/// `Rank 3`, `Ranks 0, 2-7 and 9`.
fn listed(word: &str, ranks: &[Rank]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for Rank(rank) in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let runs = runs.iter().map(|(first, last)| match last - first {
        0 => format!("{first}"),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    });
    let listed = runs.collect::<Vec<String>>().join(", ");
    let plural = if ranks.len() == 1 { "" } else { "s" };
    match listed.rsplit_once(", ") {
        Some((first, last)) => format!("{word}{plural} {first} and {last}"),
        None => format!("{word}{plural} {listed}"),
    }
}

/// Why a request is refused that waits for a gradient which ranks of the group lack, while others have asked for it.
pub(crate) fn no_gradient(lacking: &[Rank], asked: &[Rank], world_ranks: &[Rank]) -> String {
    let world = |ranks: &[Rank]| {
        let ranks = ranks.iter().map(|rank| world_ranks.get(rank.index()).copied().unwrap_or(*rank));
        ranks.collect::<Vec<Rank>>()
    };
    let (lacking, asked) = (listed("rank", &world(lacking)), listed("rank", &world(asked)));
    let (lack, reduce) = (
        if lacking.starts_with("ranks") { "have" } else { "has" },
        if asked.starts_with("ranks") { "reduce" } else { "reduces" },
    );
    format!(
        "{lacking} {lack} no gradient of this name, which {asked} {reduce}: the parameter is frozen on {lacking}, or was not \
         given to the optimizer there; reduce gradients of the same parameters on all ranks."
    )
}

/// Ranks that have asked for different numbers of tensors of a group.
fn uneven(groups: &UnevenGroups, places: &Places<'_>) -> String {
    let UnevenGroups { name, fewer: (fewer, few), more: (more, many) } = groups;
    let (fewer, more) = (places.world(*fewer), places.world(*more));
    format!(
        "rank {more} has asked for {many} tensors of {name:?} and rank {fewer} for {few}: if these are gradients, rank {fewer} lacks \
         some (parameters are frozen or unused there)."
    )
}

/// A rank that has begun its next step without a request of this one.
fn omitted(omission: &Omission, places: &Places<'_>) -> String {
    let Omission { name, rank, instead } = omission;
    let rank = places.world(*rank);
    format!(
        "rank {rank} has submitted the next {instead:?} but not {name:?}: if that is a gradient, rank {rank} has none (its parameter \
         is frozen or unused there)."
    )
}

/// A rank that cannot answer.
fn unable(rank: Rank, testimony: &Testimony, places: &Places<'_>) -> Option<String> {
    let Testimony::Silent(sight) = testimony else { return None };
    let (rank, host) = (places.world(rank), places.host(rank));
    Some(match sight {
        Sight::Stopped(pid) => format!(
            "rank {rank} on {host} (pid {pid}) is stopped (SIGSTOP, Ctrl-Z or a debugger); `kill -CONT {pid}` there lets it go on."
        ),
        Sight::Gone(pid) => format!("rank {rank} on {host} (pid {pid}) is gone."),
        Sight::Alive(pid) => format!(
            "rank {rank} on {host} (pid {pid}) does not answer although its process is there: the machine is overloaded, or it hangs."
        ),
        Sight::Nothing => format!(
            "rank {rank} on {host} does not answer: it is stopped or hangs, its host is down, or the network between is cut."
        ),
    })
}

fn crossed(crossing: &Crossing, places: &Places<'_>) -> String {
    let Crossing { name, rank, instead, other } = crossing;
    let (rank, other) = (places.world(*rank), places.world(*other));
    format!(
        "rank {other} asked for {name:?}, which rank {rank} has not asked for, and rank {rank} for {instead:?}, which rank {other} has \
         not asked for: they ask for different tensors, or wait for them in different orders."
    )
}

/// All are in the direct call, so nobody is missing.
fn in_the_same_call(report: &Report, wanted: &Wanted) -> Option<String> {
    let nobody = report.stalled.iter().all(|waiting| waiting.missing.is_empty());
    (wanted.direct && nobody).then(|| {
        format!(
            "all ranks that were asked are {} and wait for each other: data does not get through between them, or it has only just gone on.",
            wanted.wait
        )
    })
}

/// A rank that waits for others elsewhere: in a direct call, or for a request while others are in a direct call.
fn in_another_call(rank: Rank, rank_status: &RankStatus, wanted: &Wanted) -> Option<String> {
    let wait = &wanted.wait;
    if let Some(direct) = &rank_status.direct {
        let of = direct.peer.map_or_else(String::new, |peer| format!(" and waits for rank {peer}"));
        let (what, time) = (&direct.call.what, seconds(direct.call.ago));
        let so = if wanted.direct { "it is not the same call" } else { "the ranks do not make the same calls" };
        return Some(format!(
            "rank {rank} has been in a direct {what} for {time}{of}, while others wait {wait}: {so}."
        ));
    }
    let waits = rank_status.groups.iter().find(|state| wanted.direct && state.running.is_none())?;
    let name = waits.names.first()?;
    Some(format!(
        "rank {rank} has asked for {name:?}, which waits for others, and not {}, in which others wait: the ranks do not make the same calls.",
        wanted.done
    ))
}

/// What can be done about a phase that others wait for.
fn advice(phase: &str) -> &'static str {
    match phase {
        "evaluation" => ": let all ranks evaluate, each its share.",
        "input wait" => ": its input is late.",
        "checkpoint" => ": its checkpoint takes that long.",
        _ => ".",
    }
}

/// A rank whose program is seen to do something else.
fn elsewhere(rank: Rank, rank_status: &RankStatus, wanted: &Wanted) -> Option<String> {
    let done = &wanted.done;
    let threads = match &rank_status.interpreter {
        Interpreter::None => return None,
        Interpreter::Answered(threads) => threads,
        Interpreter::Silent(waited, threads) => {
            let place = place(threads).map_or_else(String::new, |place| format!(", last seen in {place}"));
            return Some(format!(
                "rank {rank} has not {done}: its interpreter did not answer within {}, so it is inside native code \
                 that holds the interpreter's lock{place}.",
                seconds(*waited)
            ));
        }
    };
    let place = place(threads)?;
    Some(format!("rank {rank} has not {done}; it is in {place}."))
}

/// Where the main thread is.
fn place(threads: &[ThreadStack]) -> Option<&str> {
    threads.first().and_then(|thread| thread.frames.last()).map(|frame| &**frame)
}

fn idle(rank: Rank, rank_status: &RankStatus, wanted: &Wanted) -> String {
    let Wanted { done, wait, direct } = wanted;
    match (&rank_status.submitted, &rank_status.direct_done, rank_status.records) {
        (_, _, false) => format!("rank {rank} has not {done}; it records nothing, so no more is known."),
        (_, Some(last), true) if *direct => {
            let (what, ago) = (&last.what, seconds(last.ago));
            format!("rank {rank} has not {done}; the last such call on its record is a direct {what}, {ago} ago.")
        }
        (Some(last), _, true) => {
            format!(
                "rank {rank} has not {done}; what it asked for last was {:?}, {} ago.",
                last.what,
                seconds(last.ago)
            )
        }
        (None, _, true) if *direct => format!("rank {rank} has not {done}, nor done anything else yet."),
        (None, _, true) => format!("rank {rank} has not asked for anything yet, while others wait {wait}."),
    }
}

/// The whole report. `waited` is how long the ranks have had to answer.
pub(super) fn whole(
    verdict: &str,
    report: &Report,
    wanted: &Wanted,
    testimonies: &[(Rank, Testimony)],
    places: &Places<'_>,
    waited: Duration,
) -> String {
    let mut text = format!("Stall: {verdict}\n{}", report.text);
    for (rank, testimony) in testimonies {
        let (world, host) = (places.world(*rank), places.host(*rank));
        match testimony {
            Testimony::Given(rank_status) => {
                let _ = write!(text, "\nRank {world} on {host} (pid {}):", rank_status.pid);
                for line in lines(rank_status, wanted) {
                    let _ = write!(text, "\n  {line}");
                }
            }
            Testimony::Silent(sight) => {
                let seen = match sight {
                    Sight::Nothing => "",
                    Sight::Stopped(_) => "; its process is stopped",
                    Sight::Alive(_) => "; its process is there",
                    Sight::Gone(_) => "; its process is gone",
                };
                let _ = write!(text, "\nRank {world} on {host}: no answer within {}{seen}.", seconds(waited));
            }
        }
    }
    let missing = report.stalled.iter().flat_map(|waiting| &waiting.missing);
    let missing: std::collections::BTreeSet<&Rank> = missing.collect();
    let unasked = missing.iter().filter(|rank| testimonies.iter().all(|(asked, _)| asked != **rank)).count();
    if unasked > 0 {
        let _ = write!(text, "\n{unasked} more ranks are missing and were not asked.");
    }
    text
}

fn lines(rank_status: &RankStatus, wanted: &Wanted) -> Vec<String> {
    let mut lines = Vec::new();
    if rank_status.records {
        lines.push(doing(rank_status));
        lines.push(last(rank_status));
    } else {
        lines.push("it records nothing (FARANDOLE_RECORDER_RECORDS=0), so its past is not known".to_owned());
    }
    if let Some(direct) = &rank_status.direct {
        let peer = direct.peer.map_or_else(String::new, |peer| format!(", waiting for rank {peer}"));
        lines.push(format!("in a direct {} for {}{peer}", direct.call.what, seconds(direct.call.ago)));
    }
    if let (Some(done), true) = (&rank_status.direct_done, wanted.direct) {
        lines.push(format!("last direct call on record: {}, done {} ago", done.what, seconds(done.ago)));
    }
    if rank_status.groups.is_empty() {
        lines.push("engine: idle, nothing is asked of it".to_owned());
    }
    lines.extend(rank_status.groups.iter().map(engine));
    lines.extend(match rank_status.main_thread {
        MainThread::Unknown => None,
        MainThread::Runs => Some("main thread: runs".to_owned()),
        MainThread::Sleeps => Some("main thread: sleeps".to_owned()),
        MainThread::Disk => Some("main thread: waits for a disk or a network file system".to_owned()),
    });
    stacks(&rank_status.interpreter, &mut lines);
    lines
}

fn doing(rank_status: &RankStatus) -> String {
    let mut line = match &rank_status.phase {
        Some(phase) => format!("in phase {:?} for {}", phase.what, seconds(phase.ago)),
        None => "in no phase that it has marked".to_owned(),
    };
    if let Some(epoch) = rank_status.epoch {
        let _ = write!(line, "; epoch {epoch}");
    }
    if let Some((number, ago)) = rank_status.iteration {
        let _ = write!(line, "; iteration {number}, begun {} ago", seconds(ago));
    }
    line
}

fn last(rank_status: &RankStatus) -> String {
    let done = match &rank_status.finished {
        Some(done) => format!("last collective: {:?}, done {} ago", done.what, seconds(done.ago)),
        None => "no collective has been done yet".to_owned(),
    };
    let since = match (&rank_status.submitted, &rank_status.finished) {
        (None, _) => "it has submitted nothing".to_owned(),
        (Some(asked), Some(done)) if asked.ago >= done.ago => "it has submitted nothing since".to_owned(),
        (Some(asked), _) => format!("submitted last: {:?}, {} ago", asked.what, seconds(asked.ago)),
    };
    format!("{done}; {since}")
}

fn engine(state: &GroupState) -> String {
    let of = match state.group {
        GroupId::WORLD => String::new(),
        group => format!(" (group {group})"),
    };
    let names: Vec<String> = state.names.iter().map(|name| format!("{name:?}")).collect();
    let more = if state.pending > names.len() as u64 { ", ..." } else { "" };
    let pending = match state.pending {
        0 => String::new(),
        pending => format!("; {pending} pending: {}{more}", names.join(", ")),
    };
    let Some(running) = &state.running else {
        return format!("engine{of}: waits for other ranks to ask for the same{pending}");
    };
    let peer = running.peer.map_or_else(String::new, |peer| format!(", waiting for rank {peer}"));
    format!(
        "engine{of}: bucket {} ({:?}) under way for {}, {}, still for {}{peer}{pending}",
        running.operation,
        running.tensor.what,
        seconds(running.tensor.ago),
        running.place,
        seconds(running.still)
    )
}

fn stacks(interpreter: &Interpreter, lines: &mut Vec<String>) {
    let threads = match interpreter {
        Interpreter::None => return,
        Interpreter::Answered(threads) => threads,
        Interpreter::Silent(waited, threads) => {
            let outside = if threads.is_empty() { "" } else { "; seen from outside:" };
            lines.push(format!(
                "its interpreter did not answer within {}: it is inside native code or holds the interpreter's lock{outside}",
                seconds(*waited)
            ));
            threads
        }
    };
    for thread in threads {
        lines.push(format!("Python, {}:", thread.name));
        lines.extend(thread.frames.iter().map(|frame| format!("  {frame}")));
    }
}

/// As people say it: whole seconds from ten on.
fn seconds(time: Duration) -> String {
    if time >= Duration::from_secs(10) {
        format!("{} s", time.as_secs())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
