//! Named requests of a world: in any order, from any thread, in the background.
//!
//! [`World::named`] starts a request, which says what it needs in the way of a builder and ends in a [`Pending`]
//! result. Requests of the same name on all ranks belong together; while one is under way its name is taken.

use std::marker::PhantomData;
use std::time::Duration;

use farandole_engine::{Outcome, Submission, Ticket};
use farandole_plan::{Batch, Collective, Device, Dtype, GroupId, Rank, ReduceOp, Request};
use farandole_tensor::element::with_bytes_mut;
use farandole_tensor::{Element, Region};

use crate::error::{Error, Result};
use crate::sets::ProcessSet;
use crate::world::World;

/// A request in the making.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for before a collective is chosen"]
pub struct Named<'a> {
    world: &'a World,
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
    pub fn named(&self, name: &str) -> Named<'_> {
        Named {
            world: self,
            name: name.to_owned(),
            set: None,
            priority: 0,
            prescale: 1.0,
            postscale: 1.0,
            row_elements: 1,
        }
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
        let request = self.named("join").request(Collective::Join, Dtype::U8, vec![]);
        let outcome = self.engine().run(Submission::without_memory(request)).map_err(|error| self.report(error))?;
        outcome.last_joined.map(Rank::index).ok_or(Error::WrongElement)
    }

    /// Asks for the combination of the tensors that all ranks submit under this name, in any order and from any thread.
    /// The result comes out of the ticket; see [`wait`](crate::wait). [`World::named`] has the other collectives.
    pub fn submit_allreduce<T: Element>(&self, name: &str, data: Vec<T>, op: ReduceOp) -> Result<Ticket> {
        self.named(name).allreduce(data, op).map(Pending::into_ticket)
    }
}

impl Named<'_> {
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
    pub fn allreduce<T: Element>(self, data: Vec<T>, op: ReduceOp) -> Result<Pending<T>> {
        let (prescale, postscale) = (self.prescale, self.postscale);
        self.submit(Collective::Allreduce { op, prescale, postscale }, data, None)
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
    pub fn grouped_allreduce<T: Element>(self, tensors: Vec<Vec<T>>, op: ReduceOp) -> Result<Vec<Pending<T>>> {
        let members =
            u32::try_from(tensors.len()).map_err(|_| Error::Parts("too many tensors for one group".into()))?;
        let batch = Batch { name: self.name.as_str().into(), members };
        let submitted = tensors.into_iter().enumerate().map(|(number, data)| {
            let mut member = self.clone();
            member.name = format!("{}.{number}", self.name);
            let (prescale, postscale) = (member.prescale, member.postscale);
            member.submit(Collective::Allreduce { op, prescale, postscale }, data, Some(batch.clone()))
        });
        submitted.collect()
    }

    /// Every rank gets all contributions, one after the other in the order of the ranks; each may have another length.
    pub fn allgather<T: Element>(self, data: Vec<T>) -> Result<Pending<T>> {
        self.submit(Collective::Allgather, data, None)
    }

    /// Every rank gets the data of this rank of the world.
    pub fn broadcast<T: Element>(self, data: Vec<T>, root: usize) -> Result<Pending<T>> {
        let members = self.world.engine().group(self.group()?).map_err(|error| self.world.report(error))?;
        let Some(root) = members.iter().position(|member| member.index() == root) else {
            return Err(Error::Parts(format!("rank {root} is not among those that {} is broadcast to", self.name)));
        };
        self.submit(Collective::Broadcast { root: Rank::from(root) }, data, None)
    }

    /// Sends each rank an equal part and gets one from each.
    pub fn alltoall<T: Element>(self, data: Vec<T>) -> Result<Pending<T>> {
        self.submit(Collective::Alltoall { splits: None }, data, None)
    }

    /// Sends each rank so many rows and gets what they send; see [`Pending::wait_counted`].
    pub fn alltoall_counted<T: Element>(self, data: Vec<T>, rows: &[usize]) -> Result<Pending<T>> {
        let splits = Some(rows.iter().map(|&rows| rows as u64).collect());
        self.submit(Collective::Alltoall { splits }, data, None)
    }

    /// Every rank gets its part of the combination of all contributions.
    pub fn reduce_scatter<T: Element>(self, data: Vec<T>, op: ReduceOp) -> Result<Pending<T>> {
        let (prescale, postscale) = (self.prescale, self.postscale);
        self.submit(Collective::ReduceScatter { op, prescale, postscale }, data, None)
    }

    /// Is done when every rank has asked for it.
    pub fn barrier(self) -> Result<Ticket> {
        let request = self.request(Collective::Barrier, Dtype::U8, vec![]);
        let submission = Submission::without_memory(request).in_group(self.group()?);
        self.world.engine().submit(submission).map_err(|error| self.world.report(error))
    }

    fn group(&self) -> Result<GroupId> {
        self.set.as_ref().map_or(Ok(GroupId::WORLD), |set| set.group_in(self.world))
    }

    fn request(&self, collective: Collective, dtype: Dtype, shape: Vec<u64>) -> Request {
        let (name, priority) = (self.name.as_str().into(), self.priority);
        Request { name, collective, dtype, shape, device: Device::Cpu, batch: None, priority }
    }

    fn submit<T: Element>(self, collective: Collective, data: Vec<T>, batch: Option<Batch>) -> Result<Pending<T>> {
        let (elements, width) = (data.len(), self.row_elements);
        if !elements.is_multiple_of(width) {
            return Err(Error::Parts(format!("{} has {elements} elements, which are no rows of {width}", self.name)));
        }
        let shape = match width {
            1 => vec![elements as u64],
            _ => vec![(elements / width) as u64, width as u64],
        };
        let mut request = self.request(collective, T::DTYPE, shape);
        request.batch = batch;
        let submission = Submission::new(request, Region::from_vec(data)).in_group(self.group()?);
        let ticket = self.world.engine().submit(submission).map_err(|error| self.world.report(error))?;
        Ok(Pending { ticket, elements: PhantomData })
    }
}

/// The result of a named request, which may still be under way.
#[derive(Debug)]
#[must_use = "a result that nobody waits for is lost"]
pub struct Pending<T> {
    ticket: Ticket,
    elements: PhantomData<fn() -> T>,
}

impl<T: Element> Pending<T> {
    /// Whether waiting would not take any time.
    pub fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    /// The ticket inside.
    pub fn into_ticket(self) -> Ticket {
        self.ticket
    }
}

impl<T: Element + Default> Pending<T> {
    /// Waits for the result.
    pub fn wait(self) -> Result<Vec<T>> {
        elements(self.ticket.wait()?)
    }

    /// Waits for the result, but not for long. After [`EngineError::TimedOut`](crate::EngineError::TimedOut) the
    /// request is still under way.
    pub fn wait_for(&self, at_most: Duration) -> Result<Vec<T>> {
        elements(self.ticket.wait_for(at_most)?)
    }

    /// Waits for the result of an alltoall; also how many rows came from each rank.
    pub fn wait_counted(self) -> Result<(Vec<T>, Vec<usize>)> {
        let outcome = self.ticket.wait()?;
        let counts = outcome.received_splits.iter().map(|&rows| rows as usize).collect();
        Ok((elements(outcome)?, counts))
    }
}

/// The elements of a result: the caller's own vector where the result has replaced its contents, otherwise a new one.
pub(crate) fn elements<T: Element + Default>(outcome: Outcome) -> Result<Vec<T>> {
    let region = outcome.into_result().ok_or(Error::WrongElement)?;
    if region.dtype() != T::DTYPE {
        return Err(Error::WrongElement);
    }
    Ok(region.into_vec().unwrap_or_else(|region| {
        let mut elements = vec![T::default(); region.len_elems()];
        with_bytes_mut(&mut elements, |bytes| bytes.copy_from_slice(region.as_bytes()));
        elements
    }))
}

/// Waits for a request and takes its elements.
pub fn wait<T: Element + Default>(ticket: Ticket) -> Result<Vec<T>> {
    elements(ticket.wait()?)
}
