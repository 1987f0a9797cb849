//! A schedule of messages, carried out over links, a piece at a time.
//!
//! A [`LinkRun`] is the state of one rank's walk through one [`Schedule`]: the number of the step it has come to
//! (`step`), the sends that have been posted and not yet left (`posted`, first in, first out for each peer), and how
//! far the receive at `step` has got (`cursor`). [`LinkRun::advance`] does what can be done now and returns; it is
//! called again when something may have changed. It holds no memory: the buffers are lent to each call.
//!
//! The one rule that a schedule leaves to its driver is kept here: a message whose place is still being sent from is
//! taken from the link (so that two ranks that exchange the same elements do not wait for each other) but put into
//! place only when the send has left.
//!
//! Partial results of half precision travel as singles, results as halves (`carrier`). Then the work buffer holds
//! singles, and results lie in a buffer of their own ([`Halves`]): those that arrive are put there, those that become
//! final on this rank are finished and rounded into it, before they are sent and at the end.
//!
//! A schedule may mix messages between hosts with steps through the windows of each host; those are `windows`'. What
//! the elements mean before and after is not here (`bucket`).

use std::collections::VecDeque;
use std::sync::Arc;

use farandole_plan::{Arrival, Buffer, Rank, Results, Schedule, Span, Step};
use farandole_tensor::copy_finished;
use farandole_transport::shm::{Pass, Point, Windows};
use farandole_transport::{Link, Progress, RecvCursor, Result, SendCursor, Tag};

use super::buffers::{Buffers, FOLDS, Halves, scaled};
use super::step_trace::{StepTrace, Taken};
use super::store_policy::Stores;
use super::windows as window_steps;

/// The links of one rank to its peers in a group.
pub(crate) trait Links {
    /// The link to a peer.
    fn link(&mut self, peer: Rank) -> &mut dyn Link;

    /// The windows of this rank's host, if it shares memory with others.
    fn windows(&mut self) -> Option<&mut Windows>;
}

impl Buffers<'_> {
    /// What a message of these elements is sent from.
    fn outgoing(&self, from: Buffer, span: Span, carries: Carries) -> &[u8] {
        match (carries, from) {
            (Carries::Results, _) => {
                let halves = self.halves();
                &halves.results[scaled(span, halves.dtype.size_bytes())]
            }
            (Carries::Elements, Buffer::Work) => &self.work[self.range(span)],
            (Carries::Elements, Buffer::Source) => &self.source[self.range(span)],
        }
    }

    /// Finishes and rounds elements whose last fold is done.
    fn round(&mut self, span: Span) {
        let (range, carrier) = (self.range(span), self.dtype);
        let halves = self.halves.as_mut().expect("invariant: a run that rounds is lent a place for results");
        let target = &mut halves.results[scaled(span, halves.dtype.size_bytes())];
        copy_finished(target, halves.dtype, &self.work[range], carrier, halves.finish);
    }

    fn halves(&self) -> &Halves<'_> {
        self.halves.as_ref().expect("invariant: a run that rounds is lent a place for results")
    }
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carries {
    /// Elements as they lie in the work buffer or the source.
    Elements,
    /// Results, which lie apart from it.
    Results,
}

/// The elements that two spans have in common.
fn common(a: Span, b: Span) -> Option<Span> {
    let (start, end) = (a.start.max(b.start), a.end().min(b.end()));
    (start < end).then(|| Span::between(start, end))
}

/// A send that has been posted and not yet left.
#[derive(Debug)]
struct Posted {
    tag: Tag,
    from: Buffer,
    span: Span,
    carries: Carries,
    cursor: SendCursor,
}

/// Where a message goes whose place is still being sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aside {
    /// Straight to its place.
    Unused,
    /// Into the buffer, of which a part may be filled.
    Filling,
    /// It lies in the buffer and waits for the send to leave.
    Full,
}

/// One rank's walk through a schedule.
#[derive(Debug)]
pub(crate) struct LinkRun {
    schedule: Arc<Schedule>,
    step: usize,
    cursor: RecvCursor,
    aside: Aside,
    buffer: Vec<u8>,
    posted: Vec<VecDeque<Posted>>,
    /// Sends in `posted`, over all peers.
    unsent: usize,
    messages_sent: Vec<u32>,
    messages_received: Vec<u32>,
    operation: u64,
    descriptor: u64,
    /// Which messages carry results, if these are rounded.
    results: Option<Box<Results>>,
    step_trace: Option<Box<StepTrace>>,
}

impl LinkRun {
    /// A walk from the first step. `descriptor` stands for what this rank takes the operation to be.
    pub(crate) fn new(schedule: Arc<Schedule>, ranks: usize, operation: u64, descriptor: u64) -> LinkRun {
        LinkRun {
            schedule,
            step: 0,
            cursor: RecvCursor::default(),
            aside: Aside::Unused,
            buffer: Vec::new(),
            posted: (0..ranks).map(|_| VecDeque::new()).collect(),
            unsent: 0,
            messages_sent: vec![0; ranks],
            messages_received: vec![0; ranks],
            operation,
            descriptor,
            results: None,
            step_trace: None,
        }
    }

    /// From now on the work buffer holds singles, `elems` of them, and results are halves. Not for schedules with
    /// window steps, which know one element type.
    pub(crate) fn round_results(&mut self, elems: u64) {
        assert!(
            self.step == 0 && self.schedule.slots == 0,
            "invariant: results are rounded in messages, from the first on"
        );
        self.results = Some(Box::new(self.schedule.results(elems)));
    }

    /// Goes on with another schedule of the same operation; messages are counted on.
    pub(crate) fn then(&mut self, schedule: Arc<Schedule>) {
        assert!(
            self.step == self.schedule.steps.len() && self.unsent == 0,
            "invariant: one schedule ends before the next"
        );
        self.schedule = schedule;
        self.step = 0;
    }

    /// Does what can be done now.
    pub(crate) fn advance(&mut self, links: &mut dyn Links, buffers: &mut Buffers<'_>) -> Result<Progress> {
        self.advance_until(usize::MAX, links, buffers)
    }

    /// The same, without this step and those behind it.
    pub(crate) fn advance_until(
        &mut self,
        until: usize,
        links: &mut dyn Links,
        buffers: &mut Buffers<'_>,
    ) -> Result<Progress> {
        let mut moved = self.push_out(links, buffers)?;
        let schedule = Arc::clone(&self.schedule);
        let before = self.step;
        while let Some(step) = schedule.steps.get(self.step) {
            if self.step >= until {
                return Ok(progress(moved));
            }
            match self.take_step(step, links, buffers)? {
                Progress::Done => {
                    self.step += 1;
                    moved = true;
                    if let Some(step_trace) = &mut self.step_trace {
                        // What the walk had come to before this call could not be taken then.
                        let taken = if self.step == before + 1 { Taken::AfterAWait } else { Taken::AtOnce };
                        let elem_bytes = match carries(&self.results, self.step - 1) {
                            Carries::Results => buffers.halves().dtype.size_bytes(),
                            Carries::Elements => buffers.elem_bytes(),
                        };
                        step_trace.note(step, elem_bytes, taken);
                    }
                }
                Progress::Moved => moved = true,
                Progress::Pending => {
                    // What has come in may have let a peer go on, which may take what we want to send.
                    return Ok(progress(moved));
                }
            }
        }
        if self.unsent > 0 {
            moved |= self.push_out(links, buffers)?;
        }
        if self.unsent == 0
            && let Some(results) = &self.results
        {
            results.made_here.iter().for_each(|&span| buffers.round(span));
        }
        if self.unsent == 0 && schedule.slots > 0 {
            let windows = links.windows().expect("invariant: window steps are for ranks with windows");
            if windows.pass(Point::Finish)? == Pass::Shut {
                return Ok(Progress::Pending);
            }
            windows.finish();
        }
        Ok(match (self.unsent, moved) {
            (0, _) => Progress::Done,
            (_, true) => Progress::Moved,
            (_, false) => Progress::Pending,
        })
    }

    /// Traces its steps from now on.
    pub(crate) fn trace_steps(&mut self) {
        self.step_trace = Some(Box::default());
    }

    /// The step trace, if there is one.
    pub(crate) fn step_trace(&mut self) -> Option<&mut StepTrace> {
        self.step_trace.as_deref_mut()
    }

    /// The peer that the walk is waiting for, if it is waiting for one.
    pub(crate) fn waiting_for(&self) -> Option<Rank> {
        match self.schedule.steps.get(self.step) {
            Some(Step::Recv { from, .. }) => Some(*from),
            _ => self.posted.iter().position(|queue| !queue.is_empty()).map(Rank::from),
        }
    }

    /// How many steps are taken.
    pub(crate) fn taken(&self) -> usize {
        self.step
    }

    /// Where the walk is: the number of its step, from one, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.step + 1, self.schedule.steps.len())
    }

    fn take_step(&mut self, step: &Step, links: &mut dyn Links, buffers: &mut Buffers<'_>) -> Result<Progress> {
        match *step {
            Step::Send { to, from, span } => {
                self.post(to, from, span, links, buffers)?;
                Ok(Progress::Done)
            }
            Step::Recv { from, span, arrival } => self.receive(from, span, arrival, links, buffers),
            Step::Copy { source, work } => {
                if self.is_being_sent(work) {
                    return self.push_out(links, buffers).map(progress);
                }
                let (from, to) = (buffers.range(source), buffers.range(work));
                buffers.work[to].copy_from_slice(&buffers.source[from]);
                Ok(Progress::Done)
            }
            ref shared => {
                // Steps through windows write to the work buffer; what is still being sent from it must leave first.
                if self.unsent > 0 && self.push_out(links, buffers)? {
                    return Ok(Progress::Moved);
                }
                if self.unsent > 0 {
                    return Ok(Progress::Pending);
                }
                let windows = links.windows().expect("invariant: window steps are for ranks with windows");
                if windows.pass(Point::Step(self.step))? == Pass::Shut {
                    return Ok(Progress::Pending);
                }
                buffers.stores = Stores::Streaming;
                window_steps::take(shared, windows, buffers)
            }
        }
    }

    fn post(
        &mut self,
        to: Rank,
        from: Buffer,
        span: Span,
        links: &mut dyn Links,
        buffers: &mut Buffers<'_>,
    ) -> Result<()> {
        let carries = carries(&self.results, self.step);
        if let (Carries::Results, Some(results)) = (carries, &self.results) {
            results.made_here.iter().filter_map(|&made| common(made, span)).for_each(|span| buffers.round(span));
        }
        let message = &mut self.messages_sent[to.index()];
        let tag = Tag { operation: self.operation, message: *message, descriptor: self.descriptor };
        *message += 1;
        let queue = &mut self.posted[to.index()];
        queue.push_back(Posted { tag, from, span, carries, cursor: SendCursor::default() });
        self.unsent += 1;
        if queue.len() == 1 {
            self.push_to(to, links, buffers)?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        from: Rank,
        span: Span,
        arrival: Arrival,
        links: &mut dyn Links,
        buffers: &mut Buffers<'_>,
    ) -> Result<Progress> {
        if carries(&self.results, self.step) == Carries::Results {
            let (tag, halves) = (self.next_tag(from), buffers.halves.as_mut());
            let halves = halves.expect("invariant: a run that rounds is lent a place for results");
            // Nothing is sent from there before it has come.
            let target = &mut halves.results[scaled(span, halves.dtype.size_bytes())];
            let progress = links.link(from).recv_into(tag, target, &mut self.cursor)?;
            return Ok(self.received(from, progress));
        }
        if self.cursor == RecvCursor::default() && self.aside == Aside::Unused && self.is_being_sent(span) {
            self.aside = Aside::Filling;
        }
        if self.aside != Aside::Unused {
            return self.receive_aside(from, span, arrival, links, buffers);
        }
        let tag = self.next_tag(from);
        let range = buffers.range(span);
        let fold = buffers.fold;
        let target = &mut buffers.work[range];
        let link = links.link(from);
        let progress = match arrival {
            Arrival::Place => link.recv_into(tag, target, &mut self.cursor)?,
            Arrival::Fold => {
                let fold = fold.expect(FOLDS);
                link.recv(tag, target.len() as u64, &mut self.cursor, &mut |offset, piece| {
                    fold.fold(&mut target[offset as usize..][..piece.len()], piece);
                })?
            }
        };
        Ok(self.received(from, progress))
    }

    fn received(&mut self, from: Rank, progress: Progress) -> Progress {
        if progress == Progress::Done {
            self.cursor = RecvCursor::default();
            self.messages_received[from.index()] += 1;
        }
        progress
    }

    /// Receives a message whose place is still being sent from: takes it from the link first, so that the peer can go
    /// on, and puts it into place when the send has left.
    fn receive_aside(
        &mut self,
        from: Rank,
        span: Span,
        arrival: Arrival,
        links: &mut dyn Links,
        buffers: &mut Buffers<'_>,
    ) -> Result<Progress> {
        let range = buffers.range(span);
        if self.aside == Aside::Filling {
            self.buffer.resize(range.len(), 0);
            let tag = self.next_tag(from);
            match links.link(from).recv_into(tag, &mut self.buffer, &mut self.cursor)? {
                Progress::Done => self.aside = Aside::Full,
                unfinished => return Ok(unfinished),
            }
        }
        if self.is_being_sent(span) {
            return self.push_out(links, buffers).map(progress);
        }
        let fold = buffers.fold;
        let target = &mut buffers.work[range];
        match arrival {
            Arrival::Place => target.copy_from_slice(&self.buffer),
            Arrival::Fold => fold.expect(FOLDS).fold(target, &self.buffer),
        }
        self.aside = Aside::Unused;
        Ok(self.received(from, Progress::Done))
    }

    fn next_tag(&self, from: Rank) -> Tag {
        let message = self.messages_received[from.index()];
        Tag { operation: self.operation, message, descriptor: self.descriptor }
    }

    /// Whether a posted send has yet to read some of these elements of the work buffer.
    fn is_being_sent(&self, span: Span) -> bool {
        let reads_work = |posted: &Posted| posted.from == Buffer::Work && posted.carries == Carries::Elements;
        self.unsent > 0 && self.posted.iter().flatten().any(|posted| reads_work(posted) && posted.span.overlaps(span))
    }

    /// Moves posted sends on, to all peers. Says whether anything moved.
    fn push_out(&mut self, links: &mut dyn Links, buffers: &Buffers<'_>) -> Result<bool> {
        let mut moved = false;
        if self.unsent > 0 {
            for peer in 0..self.posted.len() {
                moved |= self.push_to(Rank::from(peer), links, buffers)?;
            }
        }
        Ok(moved)
    }

    fn push_to(&mut self, peer: Rank, links: &mut dyn Links, buffers: &Buffers<'_>) -> Result<bool> {
        let mut moved = false;
        while let Some(posted) = self.posted[peer.index()].front_mut() {
            let bytes = buffers.outgoing(posted.from, posted.span, posted.carries);
            match links.link(peer).send(posted.tag, bytes, &mut posted.cursor)? {
                Progress::Done => {
                    self.posted[peer.index()].pop_front();
                    self.unsent -= 1;
                    moved = true;
                }
                Progress::Moved => moved = true,
                Progress::Pending => break,
            }
        }
        Ok(moved)
    }
}

/// What the message of a step carries.
fn carries(results: &Option<Box<Results>>, step: usize) -> Carries {
    match results {
        Some(results) if results.carried[step] => Carries::Results,
        _ => Carries::Elements,
    }
}

fn progress(moved: bool) -> Progress {
    if moved { Progress::Moved } else { Progress::Pending }
}
