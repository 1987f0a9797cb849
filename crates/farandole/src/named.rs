//! Named requests of a world: in any order, from any thread, in the background.
//!
//! [`World::named`] starts a request, which says what it needs in the way of a builder and ends in a [`Pending`]
//! result. Requests of the same name on all ranks belong together; while one is under way its name is taken.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farandole_engine::{Engine, Error as EngineError, Outcome, Submission, Ticket};
use farandole_plan::{Batch, Collective, Dtype, GroupId, Rank, ReduceOp, Request};
use farandole_tensor::element::with_bytes_mut;
use farandole_tensor::{Element, Region};

use crate::error::{Error, Result};
use crate::sets::ProcessSet;
use crate::world::{Reporter, World};

/// What submits requests without keeping the world: a handle that outlives it gets
/// [`EngineError::ShutDown`](crate::EngineError::ShutDown).
#[derive(Clone, Debug)]
pub(crate) struct Submitter {
    engine: Weak<Engine>,
    reporter: Weak<Reporter>,
}

impl Submitter {
    pub(crate) fn new(engine: &Arc<Engine>, reporter: &Arc<Reporter>) -> Submitter {
        Submitter { engine: Arc::downgrade(engine), reporter: Arc::downgrade(reporter) }
    }

    /// The ranks of a group.
    pub(crate) fn group(&self, group: GroupId) -> Result<Arc<[Rank]>> {
        self.with(|engine| engine.group(group))
    }

    fn submit<R>(&self, submission: Submission, read: fn(Outcome) -> R) -> Result<Pending<R>> {
        let ticket = self.with(|engine| engine.submit(submission))?;
        Ok(Pending { ticket, read, reporter: self.reporter.clone() })
    }

    /// Nobody waits in here: the engine ends with its world.
    fn with<R>(&self, call: impl FnOnce(&Engine) -> farandole_engine::Result<R>) -> Result<R> {
        let engine = self.engine().ok_or(EngineError::ShutDown)?;
        call(&engine).map_err(|error| reported(&self.reporter, error))
    }

    /// The engine, while the world exists.
    pub(crate) fn engine(&self) -> Option<Arc<Engine>> {
        self.engine.upgrade()
    }

    /// Passes an error of a ticket on to the caller, as [`World::report`].
    #[cfg(any(feature = "burn", feature = "candle"))]
    pub(crate) fn report(&self, error: Error) -> Error {
        match error {
            Error::Engine(error) => reported(&self.reporter, error),
            other => other,
        }
    }
}

/// The error for the caller. The launcher is told of it as long as the world exists.
fn reported(reporter: &Weak<Reporter>, error: EngineError) -> Error {
    match reporter.upgrade() {
        Some(reporter) => reporter.report(error),
        None => error.into(),
    }
}

/// A request in the making.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for before a collective is chosen"]
pub struct Named {
    submitter: Submitter,
    name: String,
    /// Among whom, unless among all.
    set: Option<ProcessSet>,
    priority: i32,
    prescale: f64,
    postscale: f64,
    row_elements: usize,
}

impl World {
    /// A request under this name.
    ///
    /// ```
    /// # use farandole::ReduceOp;
    /// let world = farandole::init()?;
    /// let sum = world.named("statistics").allreduce(vec![1i64, 2], ReduceOp::Sum)?;
    /// let rows = world.named("examples").rows_of(2).allgather(vec![0.5f32, 0.25])?;  // both under way
    /// assert_eq!(sum.wait()?, [world.size() as i64, 2 * world.size() as i64]);
    /// assert_eq!(rows.wait()?.len(), 2 * world.size());
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn named(&self, name: &str) -> Named {
        Named::new(self.submitter(), name)
    }

    /// Tells the others that this rank has no more data: until all have said so it contributes neutral values to their
    /// named allreduces, whatever they are called. Gives back the last rank to come.
    ///
    /// ```
    /// let world = farandole::init()?;
    /// // … train on the batches that this rank has …
    /// let last = world.join()?;
    /// assert!(last < world.size());
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn join(&self) -> Result<usize> {
        self.named("join").without_memory(Collective::Join, last_joined)?.wait()
    }
}

impl Named {
    pub(crate) fn new(submitter: Submitter, name: &str) -> Named {
        let name = name.to_owned();
        Named { submitter, name, set: None, priority: 0, prescale: 1.0, postscale: 1.0, row_elements: 1 }
    }

    /// The same among the members of a process set.
    pub fn within(mut self, set: &ProcessSet) -> Self {
        self.set = Some(set.clone());
        self
    }

    /// Among requests that are ready at the same time, those of higher priority go first. Zero otherwise.
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// With a factor for each contribution and one for the result of an allreduce or reducescatter.
    pub fn scaled(mut self, before: f64, after: f64) -> Self {
        (self.prescale, self.postscale) = (before, after);
        self
    }

    /// The data are rows of so many elements: what is gathered, exchanged or scattered goes by rows.
    pub fn rows_of(mut self, elements: usize) -> Self {
        self.row_elements = elements.max(1);
        self
    }

    /// Every rank gets the combination of all contributions.
    pub fn allreduce<T: Element + Default>(self, data: Vec<T>, op: ReduceOp) -> Result<Pending<Vec<T>>> {
        let (prescale, postscale) = (self.prescale, self.postscale);
        self.submit(Collective::Allreduce { op, prescale, postscale }, data, None, elements)
    }

    /// Allreduces of several tensors that run together or not at all; the results come in the order of the tensors.
    ///
    /// ```
    /// # use farandole::ReduceOp;
    /// let world = farandole::init()?;
    /// let layers = vec![vec![1.0f32; 8], vec![2.0f32; 3]];
    /// for averaged in world.named("layers").grouped_allreduce(layers, ReduceOp::Average)? {
    ///     averaged.wait()?;
    /// }
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn grouped_allreduce<T: Element + Default>(
        self,
        tensors: Vec<Vec<T>>,
        op: ReduceOp,
    ) -> Result<Vec<Pending<Vec<T>>>> {
        let members =
            u32::try_from(tensors.len()).map_err(|_| Error::Parts("too many tensors for one group".into()))?;
        let batch = Batch { name: self.name.as_str().into(), members };
        let submitted = tensors.into_iter().enumerate().map(|(number, data)| {
            let mut member = self.clone();
            member.name = format!("{}.{number}", self.name);
            let (prescale, postscale) = (member.prescale, member.postscale);
            member.submit(Collective::Allreduce { op, prescale, postscale }, data, Some(batch.clone()), elements)
        });
        submitted.collect()
    }

    /// Every rank gets all contributions, one after the other in the order of the ranks; each may have another length.
    pub fn allgather<T: Element + Default>(self, data: Vec<T>) -> Result<Pending<Vec<T>>> {
        self.submit(Collective::Allgather, data, None, elements)
    }

    /// Every rank gets the data of this rank of the world.
    pub fn broadcast<T: Element + Default>(self, data: Vec<T>, root: usize) -> Result<Pending<Vec<T>>> {
        let members = self.submitter.group(self.group()?)?;
        let Some(root) = members.iter().position(|member| member.index() == root) else {
            return Err(Error::Parts(format!("rank {root} is not among those that {} is broadcast to", self.name)));
        };
        self.submit(Collective::Broadcast { root: Rank::from(root) }, data, None, elements)
    }

    /// Sends each rank an equal part and gets one from each.
    pub fn alltoall<T: Element + Default>(self, data: Vec<T>) -> Result<Pending<Vec<T>>> {
        self.submit(Collective::Alltoall { splits: None }, data, None, elements)
    }

    /// Sends each rank so many rows; the result is what they send and how many rows came from each.
    pub fn alltoallv<T: Element + Default>(
        self,
        data: Vec<T>,
        rows: &[usize],
    ) -> Result<Pending<(Vec<T>, Vec<usize>)>> {
        let splits = Some(rows.iter().map(|&rows| rows as u64).collect());
        self.submit(Collective::Alltoall { splits }, data, None, |outcome| {
            let counts = outcome.received_splits.iter().map(|&rows| rows as usize).collect();
            (elements(outcome), counts)
        })
    }

    /// Every rank gets its part of the combination of all contributions.
    pub fn reduce_scatter<T: Element + Default>(self, data: Vec<T>, op: ReduceOp) -> Result<Pending<Vec<T>>> {
        let (prescale, postscale) = (self.prescale, self.postscale);
        self.submit(Collective::ReduceScatter { op, prescale, postscale }, data, None, elements)
    }

    /// Is done when every rank has asked for it.
    pub fn barrier(self) -> Result<Pending<()>> {
        self.without_memory(Collective::Barrier, |_| ())
    }

    fn without_memory<R>(self, collective: Collective, read: fn(Outcome) -> R) -> Result<Pending<R>> {
        let request = self.request(collective, Dtype::U8, vec![]);
        let submission = Submission::without_memory(request).in_group(self.group()?);
        self.submitter.submit(submission, read)
    }

    fn group(&self) -> Result<GroupId> {
        self.set.as_ref().map_or(Ok(GroupId::WORLD), ProcessSet::current_group)
    }

    fn request(&self, collective: Collective, dtype: Dtype, shape: Vec<u64>) -> Request {
        Request::new(self.name.as_str(), collective, dtype, shape).with_priority(self.priority)
    }

    fn submit<T: Element, R>(
        self,
        collective: Collective,
        data: Vec<T>,
        batch: Option<Batch>,
        read: fn(Outcome) -> R,
    ) -> Result<Pending<R>> {
        let (elements, width) = (data.len(), self.row_elements);
        if !elements.is_multiple_of(width) {
            return Err(Error::Parts(format!("{} has {elements} elements, which are no rows of {width}", self.name)));
        }
        let shape = match width {
            1 => vec![elements as u64],
            _ => vec![(elements / width) as u64, width as u64],
        };
        let request = self.request(collective, T::DTYPE, shape).in_batch(batch);
        let submission = Submission::new(request, Region::from_vec(data)).in_group(self.group()?);
        self.submitter.submit(submission, read)
    }
}

/// The result of a named request, which may still be under way: a vector for most collectives.
#[must_use = "a result that nobody waits for is lost"]
pub struct Pending<R> {
    ticket: Ticket,
    read: fn(Outcome) -> R,
    /// Tells the launcher which rank a failure is to be blamed on; gone with the world.
    reporter: Weak<Reporter>,
}

impl<R> Pending<R> {
    /// Whether waiting would not take any time.
    pub fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<R> {
        let outcome = self.ticket.wait().map_err(|error| reported(&self.reporter, error))?;
        Ok((self.read)(outcome))
    }

    /// Waits for the result, but not for long. After [`EngineError::TimedOut`](crate::EngineError::TimedOut) the
    /// request is still under way.
    pub fn wait_for(&self, at_most: Duration) -> Result<R> {
        let outcome = self.ticket.wait_for(at_most).map_err(|error| reported(&self.reporter, error))?;
        Ok((self.read)(outcome))
    }
}

impl<R> fmt::Debug for Pending<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// The elements of a result: the caller's own vector where the result has replaced its contents, otherwise a new one.
pub(crate) fn elements<T: Element + Default>(outcome: Outcome) -> Vec<T> {
    let region = outcome.into_result().expect("invariant: a request with memory has a result");
    assert_eq!(region.dtype(), T::DTYPE, "invariant: a result has the element type of its request");
    region.into_vec().unwrap_or_else(|region| {
        let mut elements = vec![T::default(); region.len_elems()];
        with_bytes_mut(&mut elements, |bytes| bytes.copy_from_slice(region.as_bytes()));
        elements
    })
}

fn last_joined(outcome: Outcome) -> usize {
    outcome.last_joined.expect("invariant: a join ends with the last rank to join").index()
}
