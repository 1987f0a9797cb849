//! The steps of a schedule that go through shared memory.
//!
//! [`take`] carries out one window or mapped step if what it waits for has happened, and says [`Progress::Pending`] if
//! not. What each step waits for is defined in `plan::schedule`; where the bytes lie and why they may be touched is the
//! business of `transport::shm`; the arithmetic is `tensor`'s. Here the three meet, and nothing else is here.
//!
//! Contributions are folded in the order of the ranks, whoever folds, so that all ranks and all runs get the same bits.

use std::sync::Arc;

use farandole_plan::{Buffer, Rank, Schedule, Span, Step};
use farandole_transport::shm::{Pass, Point, Windows, copy_out};
use farandole_transport::{Progress, Result};

use super::Buffers;
use super::step_trace::{StepTrace, Taken};
use super::store_policy::{Choice, Stores};

/// Results that leave around the cache are folded in blocks of this size: what has just been folded is still in the
/// first-level cache when it is copied for the peers, half of which is left for the contributions.
const BLOCK_BYTES: usize = 16 << 10;

/// Buffers from this size on are not found in a cache by whoever uses them next, so results are put into them around
/// it: that spares memory the reading of lines that are about to be overwritten. At 64 MB and 256 MB it took a tenth to
/// a fifth less time with cores that share a last-level cache of 32 MB.
const KEPT_MAX_BYTES: usize = 32 << 20;

/// Copies to where another core will read, or nobody soon.
fn show(stores: Stores, target: &mut [u8], source: &[u8]) {
    match stores {
        Stores::Streaming => copy_out(target, source),
        Stores::Cached => target.copy_from_slice(source),
    }
}

/// Takes a step if it can be taken now.
pub(crate) fn take(step: &Step, windows: &mut Windows, buffers: &mut Buffers<'_>) -> Result<Progress> {
    // What goes into a slot must have memory there.
    match *step {
        Step::Publish { span, .. } => windows.reserve_tiles(buffers.range(span).len())?,
        Step::Stage { span, at, .. } => windows.reserve_tiles(buffers.range(Span { start: at, ..span }).end)?,
        // The result goes to where the contribution was, anywhere in the tile.
        Step::FoldTile { span, .. } => windows.reserve_tiles(buffers.range(span).len())?,
        _ => {}
    }
    let taken = match *step {
        Step::Publish { tile, span, except } => publish(windows, buffers, tile.into(), span, except),
        Step::Stage { tile, from, span, at } => stage(windows, buffers, tile.into(), from, span, at),
        Step::Copy { source, work } => {
            let (from, to) = (buffers.range(source), buffers.range(work));
            buffers.work[to].copy_from_slice(&buffers.source[from]);
            true
        }
        Step::Expose => {
            windows.expose();
            true
        }
        // Everything else looks at what peers do, which makes sense only if they are about the same thing.
        _ if !windows.all_begun()? => false,
        Step::FoldTile { tile, span, chunk } => fold_tile(windows, buffers, tile.into(), span, chunk),
        Step::Fetch { tile, span, from, chunk } => {
            fetch(windows, buffers, tile.into(), span, windows.local_rank(from), chunk)
        }
        Step::FoldWhole { tile, span } => {
            let folded = fold_published(windows, buffers, tile.into(), span, 0);
            if folded {
                windows.release_slots(tile.into());
            }
            folded
        }
        Step::FoldChunk { tile, chunk, at } => fold_published(windows, buffers, tile.into(), chunk, at),
        Step::Take { tile, from, span, at } => {
            take_published(windows, buffers, tile.into(), windows.local_rank(from), span, at)
        }
        Step::Release { tile } => {
            windows.release_slots(tile.into());
            true
        }
        Step::Drain { tile } => windows.all_released(tile.into()),
        Step::FoldAcross { span } => fold_across(windows, buffers, span),
        Step::Settle => {
            windows.settle();
            windows.all_settled()
        }
        Step::Send { .. } | Step::Recv { .. } => {
            panic!("invariant: messages do not go through windows")
        }
    };
    Ok(if taken { Progress::Done } else { Progress::Pending })
}

fn publish(windows: &mut Windows, buffers: &Buffers<'_>, tile: u64, span: Span, except: Span) -> bool {
    let whole = buffers.range(span);
    if !whole.is_empty() {
        let Some(slot) = windows.vacant_slot(tile, whole.len()) else { return false };
        let except = if except.is_empty() { whole.end..whole.end } else { buffers.range(except) };
        for part in [whole.start..except.start, except.end..whole.end] {
            let place = part.start - whole.start..part.end - whole.start;
            show(buffers.stores, &mut slot[place], &buffers.own()[part]);
        }
    } else if windows.vacant_slot(tile, 0).is_none() {
        return false;
    }
    windows.mark_filled(tile);
    true
}

fn stage(windows: &mut Windows, buffers: &Buffers<'_>, tile: u64, from: Buffer, span: Span, at: u64) -> bool {
    let source = buffers.range(span);
    let start = at as usize * buffers.elem_bytes();
    let Some(slot) = windows.vacant_slot(tile, start + source.len()) else { return false };
    let buffer = match from {
        Buffer::Work => &*buffers.work,
        Buffer::Source => buffers.source,
    };
    show(buffers.stores, &mut slot[start..], &buffer[source]);
    true
}

fn fold_tile(windows: &mut Windows, buffers: &mut Buffers<'_>, tile: u64, span: Span, chunk: Span) -> bool {
    let (own, whole, me) = (buffers.range(chunk), buffers.range(span), windows.me());
    let Some(mut others) = windows.chunks(tile, own.start - whole.start, own.len()) else { return false };
    let (fold, finish) = (buffers.fold(), buffers.finish);
    let contribution = buffers.contribution.map(|contribution| &contribution[own.clone()]);
    let own = &mut buffers.work[own];
    match (buffers.stores, contribution) {
        (Stores::Cached, Some(contribution)) => {
            let (before, after) = others.split_at_mut(me);
            fold.fold_apart(own, before, contribution, after, finish);
        }
        (Stores::Cached, None) => {
            others.insert(me, own);
            fold.fold_all(&mut others, finish);
        }
        // Blocks are folded where they stay in the cache and leave around it.
        (Stores::Streaming, contribution) => {
            for start in (0..own.len()).step_by(BLOCK_BYTES) {
                let block = start..own.len().min(start + BLOCK_BYTES);
                let contributions: Vec<&[u8]> = others.iter().map(|other| &other[block.clone()]).collect();
                let (before, after) = contributions.split_at(me);
                let result = &mut own[block.clone()];
                match contribution {
                    Some(contribution) => {
                        let all = [before, &[&contribution[block.clone()]], after].concat();
                        fold.fold_many(result, &all, finish);
                    }
                    None => fold.fold_ranks(result, before, after, None, finish),
                }
                others.iter_mut().for_each(|other| copy_out(&mut other[block.clone()], result));
            }
        }
    }
    windows.release_chunks(tile);
    true
}

fn fetch(windows: &Windows, buffers: &mut Buffers<'_>, tile: u64, span: Span, local_rank: usize, chunk: Span) -> bool {
    let (target, whole) = (buffers.range(chunk), buffers.range(span));
    let place = target.start - whole.start;
    let Some(result) = windows.returned(local_rank, tile, place, target.len()) else { return false };
    let stores = if buffers.work.len() >= KEPT_MAX_BYTES { Stores::Streaming } else { Stores::Cached };
    show(stores, &mut buffers.work[target], result);
    true
}

fn fold_published(windows: &mut Windows, buffers: &mut Buffers<'_>, tile: u64, chunk: Span, at: u64) -> bool {
    if !windows.all_filled(tile) {
        return false;
    }
    let own = buffers.range(chunk);
    let (offset, len) = (at as usize * buffers.elem_bytes(), own.len());
    if len > 0 {
        let (fold, finish) = (buffers.fold(), buffers.finish);
        let others: Vec<&[u8]> = windows
            .peers()
            .map(|local_rank| windows.filled(local_rank, tile, offset, len).expect("all have published"))
            .collect();
        let (before, after) = others.split_at(windows.me());
        match buffers.contribution {
            Some(contribution) => {
                let all = [before, &[&contribution[own.clone()]], after].concat();
                fold.fold_many(&mut buffers.work[own], &all, finish);
            }
            None => fold.fold_ranks(&mut buffers.work[own], before, after, None, finish),
        }
    }
    true
}

fn take_published(
    windows: &Windows,
    buffers: &mut Buffers<'_>,
    tile: u64,
    local_rank: usize,
    span: Span,
    at: u64,
) -> bool {
    let target = buffers.range(span);
    let place = at as usize * buffers.elem_bytes();
    let Some(published) = windows.filled(local_rank, tile, place, target.len()) else { return false };
    buffers.work[target].copy_from_slice(published);
    true
}

fn fold_across(windows: &mut Windows, buffers: &mut Buffers<'_>, span: Span) -> bool {
    if !windows.all_exposed() {
        return false;
    }
    let range = buffers.range(span);
    let (fold, finish) = (buffers.fold(), buffers.finish);
    let mapped = buffers.mapped.as_deref_mut().expect("invariant: mapped steps come with a mapped buffer");
    fold.fold_all(&mut mapped.across(windows, range), finish);
    true
}

/// One rank's walk through a schedule of window or mapped steps.
#[derive(Debug)]
pub(crate) struct WindowRun {
    schedule: Arc<Schedule>,
    step: usize,
    stores: Choice,
    step_trace: Option<Box<StepTrace>>,
}

impl WindowRun {
    /// A walk within an operation that this rank has begun on its windows.
    pub(crate) fn new(schedule: Arc<Schedule>, stores: Choice) -> WindowRun {
        WindowRun { schedule, step: 0, stores, step_trace: None }
    }

    /// How contributions and results leave.
    pub(crate) fn stores(&self) -> Choice {
        self.stores
    }

    /// Does what can be done now.
    pub(crate) fn advance(&mut self, windows: &mut Windows, buffers: &mut Buffers<'_>) -> Result<Progress> {
        let before = self.step;
        buffers.stores = self.stores.stores;
        while let Some(step) = self.schedule.steps.get(self.step) {
            if windows.pass(Point::Step(self.step))? == Pass::Shut || take(step, windows, buffers)? != Progress::Done {
                return Ok(if self.step > before { Progress::Moved } else { Progress::Pending });
            }
            self.step += 1;
            if let Some(step_trace) = &mut self.step_trace {
                // What the walk had come to before this call could not be taken then.
                let taken = if self.step == before + 1 { Taken::AfterAWait } else { Taken::AtOnce };
                step_trace.note(step, buffers.elem_bytes(), taken);
            }
        }
        if !self.schedule.steps.is_empty() {
            if windows.pass(Point::Finish)? == Pass::Shut {
                return Ok(Progress::Pending);
            }
            windows.finish();
        }
        Ok(Progress::Done)
    }

    /// Where the walk is: the number of its step, from one, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.step + 1, self.schedule.steps.len())
    }

    /// Traces its steps from now on.
    pub(crate) fn trace_steps(&mut self) {
        self.step_trace = Some(Box::default());
    }

    /// The step trace, if there is one.
    pub(crate) fn step_trace(&mut self) -> Option<&mut StepTrace> {
        self.step_trace.as_deref_mut()
    }

    /// A peer that the walk is waiting for, if one can be named.
    pub(crate) fn waiting_for(&self, windows: &Windows) -> Option<Rank> {
        if let Some(absent) = windows.first_absent() {
            return Some(windows.rank(absent));
        }
        match self.schedule.steps.get(self.step)? {
            Step::Fetch { from, .. } | Step::Take { from, .. } => Some(*from),
            _ => windows.last_behind().map(|local_rank| windows.rank(local_rank)),
        }
    }
}
