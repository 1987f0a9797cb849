//! What ties a rank to the others besides its collectives: how it hears of their end, and tells of its own ([`Bond`]).

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use farandole_cluster::Lifeline;
use farandole_engine as engine;
use farandole_plan::{ErrorClass, Rank};
use farandole_transport as transport;

use crate::elastic::{Entrance, Losses, Member};
use crate::error::{Error, Result};

/// How long a rank that could not be connected waits to hear why. Verdicts reach all ranks within moments of each
/// other; whoever hears one first leaves, and those who were being connected to it see that before they hear the
/// verdict.
const VERDICT_MAY_FOLLOW: Duration = Duration::from_secs(1);

/// The same for a member of an elastic job. It hears of losses within moments; a machine that is very busy takes
/// longer, and nobody else waits for a rank that gives up.
const LOSS_MAY_FOLLOW: Duration = Duration::from_secs(5);

/// Between two attempts to connect the ranks of an elastic job over a network that breaks connections.
const BROKEN_PAUSE: Duration = Duration::from_millis(100);

/// See the module's text.
#[derive(Debug)]
pub(crate) enum Bond {
    /// A world of one.
    Alone,
    /// A job of a fixed size: whoever keeps the rendezvous pronounces its failure.
    Job(Lifeline),
    /// A generation of an elastic job: the members watch each other. With the numbers of its members, in rank order.
    Elastic(Arc<Member>, Arc<Losses>, Arc<[u64]>),
}

impl Bond {
    /// The connection to the rendezvous.
    pub(crate) fn lifeline(&self) -> Option<&Lifeline> {
        match self {
            Bond::Alone => None,
            Bond::Job(lifeline) => Some(lifeline),
            Bond::Elastic(member, ..) => Some(member.lifeline()),
        }
    }

    /// The number of this process in an elastic job.
    pub(crate) fn member(&self) -> Option<u64> {
        if let Bond::Elastic(member, ..) = self { Some(member.number()) } else { None }
    }

    /// Confirms that this rank is still in the job. The others of a job of a fixed size cannot continue without it.
    pub(crate) fn confirm(&self) -> Result<u64> {
        match self {
            Bond::Elastic(member, losses, _) => member.confirm(losses.generation()),
            Bond::Alone | Bond::Job(_) => Ok(0),
        }
    }

    /// Calls back when the collectives must end, with the rank that is to blame, if one can be named, the class and the
    /// cause.
    pub(crate) fn on_loss(&self, callback: impl Fn(Option<Rank>, ErrorClass, String) + Clone + Send + 'static) {
        if let Bond::Elastic(_, losses, _) = self {
            let callback = callback.clone();
            losses.on_loss(move |rank, cause| callback(rank, ErrorClass::RankLost, cause.to_owned()));
        }
        if let Some(lifeline) = self.lifeline() {
            lifeline.on_failure(move |notice| callback(notice.rank, notice.class(), notice.to_string()));
        }
    }

    /// How this process has come to its generation, in an elastic job with this id.
    pub(crate) fn entrance(&self, job: &str) -> Option<Entrance> {
        if let Bond::Elastic(member, ..) = self { Some(member.entrance(job)) } else { None }
    }

    /// The ranks of this world are connected.
    pub(crate) fn note_connected(&self) {
        if let Bond::Elastic(_, losses, _) = self {
            losses.note_connected();
        }
    }

    /// The program leaves this world.
    pub(crate) fn note_over(&self) {
        if let Bond::Elastic(_, losses, _) = self {
            losses.note_over();
        }
    }

    /// Whether ranks that could not be connected meet again in the next generation. They do if one of them is lost; the
    /// rank that notices a loss first leaves, and those that were being connected to it see that before they know why.
    /// They also do if a connection broke between ranks that live: `broken_since` has the time of the first such break,
    /// and a network that breaks connections for longer than `patience` is an error.
    pub(crate) fn meets_again(&self, error: &Error, broken_since: &mut Option<Instant>, patience: Duration) -> bool {
        let Bond::Elastic(_, losses, _) = self else { return false };
        let is_broken = matches!(error, Error::Transport(transport::Error::PeerGone { .. }))
            || matches!(error, Error::Engine(engine::Error::Failed(failure)) if failure.rank.is_some());
        if is_broken && broken_since.get_or_insert_with(Instant::now).elapsed() < patience {
            losses.any_within(BROKEN_PAUSE);
            return true;
        }
        let is_of_a_connection = matches!(error, Error::Transport(_) | Error::Engine(_));
        losses.any_within(if is_of_a_connection { LOSS_MAY_FOLLOW } else { Duration::ZERO })
    }

    /// Why ranks could not be connected: what has become of one of them, if that comes to light, or what this rank saw.
    pub(crate) fn with_verdict(&self, error: Error) -> Error {
        let Bond::Job(lifeline) = self else { return error };
        let (teller, told) = mpsc::channel();
        lifeline.on_failure(move |verdict| drop(teller.send(verdict.clone())));
        told.recv_timeout(VERDICT_MAY_FOLLOW).map_or(error, Error::Lost)
    }

    /// Tells whoever keeps the rendezvous that this rank's collectives have failed, unless it knows. Members of an
    /// elastic job find out for themselves, and continue; [`Bond::blame_at_last`] is for them.
    pub(crate) fn blame(&self, rank: Option<Rank>, cause: String) {
        if let Bond::Job(lifeline) = self
            && lifeline.notice().is_none()
        {
            lifeline.blame(rank, cause);
        }
    }

    /// The same of a process that ends for good: its exit is a consequence of what this rank did, which may be this one
    /// itself.
    pub(crate) fn blame_at_last(&self, rank: Option<Rank>, cause: String) {
        let Bond::Elastic(member, _, members) = self else { return self.blame(rank, cause) };
        let number = rank.and_then(|rank| members.get(rank.index()).copied());
        let number = number.and_then(|number| u32::try_from(number).ok()).map(Rank);
        member.lifeline().blame(number, cause);
    }
}
