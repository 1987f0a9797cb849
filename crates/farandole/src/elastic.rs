//! A process as a member of an elastic job, and what programs may ask of it.
//!
//! Ranks of an elastic job come and go; the processes that stay are members, and go from one generation to the next. A
//! world is a rank's view of one generation. When a member is lost, every collective of the world fails with that
//! cause; the program drops its world and calls [`crate::init`] again, which comes back when the members have agreed on
//! the next generation (`cluster::membership`), with another rank and size. So a process keeps its memory, and all that
//! is rebuilt are connections.
//!
//! What is kept between worlds is here, once in a process: the membership endpoint and the lifeline. A generation in
//! which somebody is lost before all are connected is left at once for the next one (`setup`).
//!
//! [`Training`] is a training loop that does all of this by itself: steps that count on all ranks or on none, a state
//! that goes from memory to memory, and every sample once. A process that joins can have got that state before
//! ([`StreamedState`]). Front ends with a training of their own do the same with [`state_source`] and
//! [`Setup::before_joining`](crate::Setup::before_joining).

mod follower;
mod joining;
mod samples;
mod sources;
mod standing;
mod state;
mod streamed;
mod training;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use farandole_cluster::membership::{
    ConfirmRefusal, Endpoint, EndpointOptions, Generation, Limits, Loss, LossNotice, MemberId,
};
use farandole_cluster::streaming::StreamPeer;
use farandole_cluster::{ElasticMember, Entry, Environment, FailureKind, Lifeline, RendezvousAccess};
use farandole_plan::Rank;
use farandole_trace::{GenerationView, clock};

use crate::error::{Error, Result};

pub use farandole_cluster::streaming::{StateSource, Streamed};
/// A number that depends on all bits of a state, or of a part of it.
pub use farandole_tensor::digest::digest as state_digest;
pub use samples::{SamplePlace, Samples, StepBatch};
pub use sources::{BeforeJoining, Sources, StateStream};
pub use standing::{Decision, Standing, decide, pause_before_retry};
pub use state::{ElasticState, WorldChange};
#[cfg(any(feature = "burn", feature = "candle"))]
pub(crate) use state::{joined, misfit, parted};
pub(crate) use streamed::contact as stream_contact;
pub use streamed::{StateUpdate, StreamedState, Streaming, source as state_source};
pub use training::{Builder, LossPolicy, StepOutcome, Training};

/// This process's part in its elastic job, from the first `init` on.
static MEMBER: Mutex<Option<Arc<Member>>> = Mutex::new(None);

/// The generation that this process is in; zero: none.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Member {
    id: MemberId,
    endpoint: Endpoint,
    lifeline: Lifeline,
    timeout: Duration,
    /// Where members send their states, for a process that joins, until it has asked.
    sources: Mutex<Option<Sources>>,
    /// The first generation, until it is entered.
    founded: Mutex<Option<Arc<Generation>>>,
    /// How it has come to the generation that it is in, or on the way to. Locked by whoever calls `init`.
    passage: Mutex<Passage>,
    /// What the launcher or this host's agent first told of the ends of others: more than that a connection was closed.
    /// Written by the lifeline's thread, read by whoever calls `init`.
    told: Mutex<BTreeMap<u64, String>>,
}

/// How a member has come from the last generation in which it was connected to the one that it enters. In between may
/// be others, in which somebody was lost before all were connected.
#[derive(Debug, Default)]
struct Passage {
    /// Of the generation that was agreed on last.
    losses: Option<Arc<Losses>>,
    entrance: Entrance,
}

/// What is recorded of it. The moments are on the clock of records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entrance {
    /// Which generation it is.
    pub(crate) view: GenerationView,
    /// When the generation before was over for this member, if it was in one.
    pub(crate) noticed_ns: Option<u64>,
    /// When it first asked for another one.
    pub(crate) asked_ns: u64,
    pub(crate) agreed_ns: u64,
    /// Members of the one before, or of those in between, that are left out, and why.
    pub(crate) lost: Vec<(u64, String)>,
}

/// What a process brings to the rendezvous: where its endpoint is, and its introduction to the others.
struct Brought {
    contact: Vec<u8>,
    payload: Vec<u8>,
}

impl Brought {
    fn encode(&self) -> Vec<u8> {
        let length = (self.contact.len() as u32).to_le_bytes();
        [&length[..], &self.contact, &self.payload].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Brought> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (contact, payload) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        Some(Brought { contact: contact.to_vec(), payload: payload.to_vec() })
    }

    fn read(member: u64, bytes: &[u8]) -> Result<Brought> {
        Brought::decode(bytes).ok_or_else(|| {
            Error::Rendezvous(format!(
                "member {member} came to the rendezvous with something that is not an address: does it run the same \
                 version of farandole?"
            ))
        })
    }
}

impl Member {
    /// This process as a member, which it becomes with the first call. `payload` is what it brings along then.
    pub(crate) fn get(
        elastic: &ElasticMember,
        access: &RendezvousAccess,
        host: &str,
        silence: Option<Duration>,
        payload: &[u8],
    ) -> Result<Arc<Member>> {
        let mut member = lock();
        if let Some(member) = &*member {
            return Ok(Arc::clone(member));
        }
        let made = Arc::new(Member::enter(elastic, access, host, silence, payload)?);
        let weak = Arc::downgrade(&made);
        made.lifeline.on_loss(move |lost, notice, votes| {
            let Some(member) = weak.upgrade() else { return };
            let ended =
                matches!(notice.kind, FailureKind::Exited { .. } | FailureKind::Signalled { .. } | FailureKind::Gone);
            let loss = if ended { Loss::Certain } else { Loss::Suspected };
            member.told().entry(lost).or_insert_with(|| notice.to_string());
            match votes.filter(|_| ended) {
                Some(votes) => member.endpoint.report_reaped(MemberId(lost), votes, notice.to_string()),
                None => member.endpoint.report(MemberId(lost), loss, notice.to_string()),
            }
        });
        made.endpoint.on_question(made.lifeline.witness_line());
        let weak = Arc::downgrade(&made);
        made.lifeline.on_witness_answer(move |answer| {
            weak.upgrade().into_iter().for_each(|member| member.endpoint.hear_witness(answer.clone()));
        });
        *member = Some(Arc::clone(&made));
        Ok(made)
    }

    fn enter(
        elastic: &ElasticMember,
        access: &RendezvousAccess,
        host: &str,
        silence: Option<Duration>,
        payload: &[u8],
    ) -> Result<Member> {
        let id = MemberId(elastic.number);
        let limits = Limits { min_members: elastic.min_np, max_members: elastic.max_np, silence };
        let options = EndpointOptions {
            host: host.to_owned(),
            listen_at: access.listen_at.clone(),
            record_in: farandole_settings::MEMBERSHIP_LOG.in_environment().map(Into::into),
            votes_in: elastic.votes_in,
            ..EndpointOptions::new(access.key.clone(), access.job, limits)
        };
        let endpoint = Endpoint::bind(options)?;
        let brought = Brought { contact: endpoint.contact(), payload: payload.to_vec() };
        let rendezvous = access.rendezvous.clone().expect("invariant: an elastic job has a launcher");
        let deadline = Instant::now() + elastic.timeout;
        let (entry, lifeline) = rendezvous.with_silence(silence).enter(elastic.number, &brought.encode(), deadline)?;
        let (mut founded, mut sources) = (None, None);
        match entry {
            Entry::Founding(generation) => {
                let read = |(number, blob): &(u64, Vec<u8>)| {
                    Brought::read(*number, blob)
                        .map(|Brought { contact, payload }| (MemberId(*number), payload, contact))
                };
                founded =
                    Some(endpoint.found_with_witness(id, generation.members.iter().map(read).collect::<Result<_>>()?));
            }
            Entry::Joining { seeds } => {
                let seeds: Vec<Brought> = seeds.iter().filter_map(|seed| Brought::decode(seed)).collect();
                let (key, job, host) = (access.key.clone(), access.job, host.to_owned());
                let own = StreamPeer { key, job, host, member: elastic.number };
                sources = Some(Sources::among(own, seeds.iter().map(|seed| &seed.payload[..])));
                endpoint.join(id, seeds.into_iter().map(|seed| seed.contact).collect());
            }
        }
        let (timeout, founded, sources) = (elastic.timeout, Mutex::new(founded), Mutex::new(sources));
        let (passage, told) = (Mutex::default(), Mutex::default());
        Ok(Member { id, endpoint, lifeline, timeout, sources, founded, passage, told })
    }

    /// Where members send their states, if this process joins and has not asked before.
    pub(crate) fn take_sources(&self) -> Option<Sources> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner).take();
        sources.filter(|sources| !sources.contacts.is_empty())
    }

    /// How long it waits for a generation.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Waits until the members have agreed on a generation with this process in it, and says what losses end it.
    pub(crate) fn next_generation(&self, payload: &[u8], deadline: Instant) -> Result<(Arc<Generation>, Arc<Losses>)> {
        let asked_ns = clock::now_ns();
        let founded = self.founded.lock().unwrap_or_else(PoisonError::into_inner).take();
        let own = |generation: &Arc<Generation>| {
            generation.rank(self.id).map(|rank| generation.members[rank].payload.clone())
        };
        let generation = match founded.filter(|generation| own(generation).is_some_and(|own| *own == *payload)) {
            Some(generation) => generation,
            None => self.endpoint.next_generation(payload.to_vec(), deadline)?,
        };
        let losses = Arc::new(Losses::new(generation.number));
        self.passage().agree(asked_ns, &generation, &losses);
        let (heard, left) = (Arc::clone(&losses), Arc::clone(&losses));
        self.endpoint.on_loss(move |notice| heard.hear(notice));
        let ranks = Arc::clone(&generation);
        self.endpoint.on_boundary(move |number, member| left.hear_of_boundary(number, member, ranks.rank(member)));
        GENERATION.store(generation.number, Ordering::Relaxed);
        let brought = |member: &farandole_cluster::membership::Introduction| {
            (member.id.0, Brought { contact: member.contact.to_vec(), payload: member.payload.to_vec() }.encode())
        };
        self.lifeline.tell_generation(generation.number, generation.members.iter().map(brought).collect());
        Ok((generation, losses))
    }

    /// How it has come to the generation that was agreed on last, in the job with this id.
    pub(crate) fn entrance(&self, job: &str) -> Entrance {
        let mut entrance = self.passage().entrance.clone();
        let told = self.told();
        for (member, cause) in &mut entrance.lost {
            if let Some(words) = told.get(member) {
                cause.clone_from(words);
            }
        }
        let view = GenerationView { job: job.to_owned(), member: self.id.0, ..entrance.view };
        Entrance { view, ..entrance }
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passage(&self) -> MutexGuard<'_, Passage> {
        self.passage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process's rank in a generation.
    pub(crate) fn rank(&self, generation: &Generation) -> Rank {
        Rank::from(generation.rank(self.id).expect("invariant: a member enters generations that it is in"))
    }

    /// Whether the members have confirmed that this process is in this generation of the job.
    pub(crate) fn confirm(&self, generation: u64) -> Result<u64> {
        let confirmed = self.endpoint.confirm()?;
        if confirmed == generation {
            return Ok(generation);
        }
        let refusal = ConfirmRefusal::Changed { generation: confirmed };
        Err(farandole_cluster::Error::Unconfirmed(refusal.to_string()).into())
    }

    /// The number that this process has for life.
    pub(crate) fn number(&self) -> u64 {
        self.id.0
    }

    pub(crate) fn lifeline(&self) -> &Lifeline {
        &self.lifeline
    }
}

impl Passage {
    /// The members have agreed on a generation.
    fn agree(&mut self, asked_ns: u64, generation: &Generation, losses: &Arc<Losses>) {
        let before = self.losses.replace(Arc::clone(losses));
        let entrance = &mut self.entrance;
        // One that was never connected leads on: what led to it leads to this one, too.
        if before.as_ref().is_none_or(|before| before.is_connected.load(Ordering::Relaxed)) {
            let noticed_ns = before.map(|before| before.over_ns().unwrap_or(asked_ns).min(asked_ns));
            *entrance = Entrance { noticed_ns, asked_ns, ..Entrance::default() };
        }
        entrance.lost.extend(generation.left_out.iter().map(|(member, cause)| (member.0, cause.to_string())));
        entrance.agreed_ns = clock::now_ns();
        let members = generation.members.iter().map(|member| member.id.0).collect();
        entrance.view = GenerationView { number: generation.number, members, ..GenerationView::default() };
    }
}

type OnLoss = Box<dyn Fn(Option<Rank>, &str) + Send>;

/// Losses that end a generation, and who wants to know of them.
pub(crate) struct Losses {
    generation: u64,
    /// Whether its ranks have connected here; before that, somebody who has left the generation is as good as lost.
    /// Set by `setup`, read by the endpoint's thread; orders nothing.
    is_connected: AtomicBool,
    /// When the generation was over for this member, on the clock of records; zero: it is not. Set once, by the
    /// endpoint's thread or by whoever drops the world; orders nothing.
    over_ns: AtomicU64,
    /// Locked by the endpoint's thread when a loss is heard, and while callbacks run; by `setup` to add one.
    heard: Mutex<(Vec<LossNotice>, Vec<OnLoss>)>,
}

impl Losses {
    fn new(generation: u64) -> Losses {
        Losses { generation, is_connected: AtomicBool::new(false), over_ns: AtomicU64::new(0), heard: Mutex::default() }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// All ranks are connected with this one: from now on they come to the boundary together, or are lost.
    pub(crate) fn note_connected(&self) {
        self.is_connected.store(true, Ordering::Relaxed);
    }

    /// The generation is over for this member: somebody is lost, or the program leaves it. The first time counts.
    pub(crate) fn note_over(&self) {
        let _ = self.over_ns.compare_exchange(0, clock::now_ns(), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn over_ns(&self) -> Option<u64> {
        Some(self.over_ns.load(Ordering::Relaxed)).filter(|over_ns| *over_ns > 0)
    }

    /// A member waits for the next generation.
    fn hear_of_boundary(&self, generation: u64, member: MemberId, rank: Option<usize>) {
        if !self.is_connected.load(Ordering::Relaxed) {
            let cause =
                "it waits for the next generation, because it could not connect to all ranks of this one".to_owned();
            self.hear(&LossNotice { generation, member, rank, loss: Loss::Suspected, cause });
        }
    }

    fn hear(&self, notice: &LossNotice) {
        if notice.generation == self.generation {
            self.note_over();
            let mut heard = self.lock();
            heard.1.iter().for_each(|on_loss| tell(on_loss, notice));
            heard.0.push(notice.clone());
        }
    }

    /// Calls back for every loss, and here and now for those that are known.
    pub(crate) fn on_loss(&self, on_loss: impl Fn(Option<Rank>, &str) + Send + 'static) {
        let mut heard = self.lock();
        heard.0.iter().for_each(|notice| tell(&on_loss, notice));
        heard.1.push(Box::new(on_loss));
    }

    /// Whether there was one, or is within this time.
    pub(crate) fn any_within(&self, time: Duration) -> bool {
        let (teller, told) = mpsc::channel();
        self.on_loss(move |_, _| {
            let _ = teller.send(());
        });
        told.recv_timeout(time).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<LossNotice>, Vec<OnLoss>)> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(on_loss: &impl Fn(Option<Rank>, &str), notice: &LossNotice) {
    on_loss(notice.rank.map(Rank::from), &notice.to_string());
}

impl std::fmt::Debug for Losses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Losses").field("generation", &self.generation).field("heard", &self.lock().0).finish()
    }
}

/// Whether this process is a member of an elastic job, as its environment says.
pub fn is_enabled() -> bool {
    elastic_member().is_some()
}

/// Whether nobody can join a job of so many ranks.
pub fn is_full(ranks: usize) -> bool {
    elastic_member().is_none_or(|elastic| ranks >= elastic.max_np)
}

fn elastic_member() -> Option<&'static ElasticMember> {
    static MEMBER: OnceLock<Option<ElasticMember>> = OnceLock::new();
    MEMBER.get_or_init(|| Environment::from_process().ok().and_then(|environment| environment.elastic)).as_ref()
}

/// The number of the generation that this process is in, if its job is elastic and it has entered one.
pub fn generation() -> Option<u64> {
    Some(GENERATION.load(Ordering::Relaxed)).filter(|number| *number > 0)
}

/// How many processes the next generation of the job would take in, as the member knows that decides it; 0 on all
/// others. Costs next to nothing. Members find the largest number (by a collective) before they leave their world for
/// the next generation.
pub fn candidates() -> usize {
    lock().as_ref().map_or(0, |member| member.endpoint.candidates())
}

/// Leaves an elastic job for good and in order: the others go on without this process. A process that ends without it
/// counts as lost.
pub fn leave() {
    let member = lock().take();
    if let Some(member) = member {
        member.endpoint.leave();
        GENERATION.store(0, Ordering::Relaxed);
    }
}

fn lock() -> MutexGuard<'static, Option<Arc<Member>>> {
    MEMBER.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_brought_is_read() {
        let brought = Brought { contact: vec![1, 2, 3], payload: vec![4; 300] };
        let read = Brought::decode(&brought.encode()).unwrap();
        assert_eq!((read.contact, read.payload), (brought.contact, brought.payload));
        for garbage in [&[][..], &[1, 0, 0], &[9, 0, 0, 0, 1]] {
            assert!(Brought::read(3, garbage).is_err_and(|error| error.to_string().contains("member 3")));
        }
    }

    fn generation(number: u64, members: &[u64], left_out: u64) -> Generation {
        let introduce = |id: &u64| farandole_cluster::membership::Introduction {
            id: MemberId(*id),
            payload: Arc::from([]),
            contact: Arc::from([]),
        };
        let left_out = vec![(MemberId(left_out), Arc::from("it was killed"))];
        Generation { number, members: members.iter().map(introduce).collect(), left_out, witness: true }
    }

    #[test]
    fn what_led_to_a_generation_that_was_never_connected_leads_to_the_next() {
        let [first, second, third] = [1, 2, 3].map(|number| Arc::new(Losses::new(number)));
        let mut passage = Passage::default();
        passage.agree(5, &generation(1, &[0, 1, 2, 3], 9), &first);
        assert_eq!((passage.entrance.noticed_ns, passage.entrance.asked_ns), (None, 5), "it was in none before");
        first.note_connected();
        first.note_over();
        let (noticed_ns, asked_ns) = (first.over_ns().unwrap(), clock::now_ns());
        passage.agree(asked_ns, &generation(2, &[0, 1, 2], 3), &second);
        second.note_over();
        passage.agree(asked_ns + 9, &generation(3, &[0, 1], 2), &third);
        let entrance = &passage.entrance;
        assert_eq!((entrance.noticed_ns, entrance.asked_ns), (Some(noticed_ns), asked_ns));
        assert_eq!(entrance.lost.iter().map(|lost| lost.0).collect::<Vec<_>>(), [3, 2]);
        assert_eq!((entrance.view.number, &entrance.view.members[..]), (3, &[0, 1][..]));
    }

    /// A rank that was being connected saw another leave the generation before it heard of the loss, and ended.
    #[test]
    fn a_loss_that_is_heard_a_moment_later_counts() {
        let losses = Arc::new(Losses::new(2));
        assert!(!losses.any_within(Duration::from_millis(1)));
        let heard = Arc::clone(&losses);
        let this = farandole_testing::Sleeper::this_thread();
        let later = std::thread::spawn(move || {
            this.wait_until_asleep();
            heard.hear_of_boundary(2, MemberId(0), Some(0));
        });
        assert!(losses.any_within(Duration::from_secs(30)));
        assert!(losses.any_within(Duration::ZERO), "and is remembered");
        later.join().unwrap();
    }

    #[test]
    fn losses_of_other_generations_end_nothing() {
        let losses = Losses::new(2);
        let notice = |generation| LossNotice {
            generation,
            member: MemberId(5),
            rank: Some(1),
            loss: Loss::Certain,
            cause: "it was killed".to_owned(),
        };
        losses.hear(&notice(1));
        losses.hear_of_boundary(1, MemberId(5), Some(1));
        losses.note_connected();
        losses.hear_of_boundary(2, MemberId(5), Some(1));
        assert!(!losses.any_within(Duration::ZERO));
        losses.hear(&notice(2));
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        losses.on_loss(move |rank, cause| tell.lock().unwrap().push((rank, cause.to_owned())));
        let told = told.lock().unwrap();
        assert_eq!(told[0].0, Some(Rank(1)));
        assert!(told[0].1.contains("it was killed"), "{told:?}");
    }
}
