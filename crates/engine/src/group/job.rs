//! The bucket that runs: from the agreement's word to start it until its tickets are done.
//!
//! A bucket has a *road* (`route`), a *workspace* (`bucket`) and a *stage*. If it must not touch memory before all
//! ranks have come to it, it begins with an *entry*; then the memory is loaded and the bytes travel.

use std::time::Duration;

use farandole_plan::agree::Bucket;
use farandole_plan::{Collective, Rank};
use farandole_transport::{Error as TransportError, Mesh, Progress};

use super::{Group, Surroundings, Trouble};
use crate::bucket::Workspace;
use crate::route::{Road, Travel, shares_memory};
use crate::run::{Memory, Run};

/// The bucket that runs.
pub(super) struct Job {
    pub(super) bucket: Bucket,
    road: Road,
    workspace: Workspace,
    stage: Stage,
    pub(super) began: Duration,
    /// When something last moved.
    pub(super) moved: Duration,
    /// For how long nothing must have moved before that is told again; zero: it was not told.
    pub(super) tell_again: Duration,
}

pub(super) enum Stage {
    /// All ranks gather before memory is touched: in their windows if they share memory, else by a barrier.
    Entry(Option<Run>),
    /// The ranks work.
    Work(Travel),
}

impl Job {
    /// Where it is on its way, in words.
    pub(super) fn place(&self) -> String {
        match &self.stage {
            Stage::Entry(_) => "gathering before memory is touched".to_owned(),
            Stage::Work(travel) => travel.place(),
        }
    }

    /// The peer that it waits for, if one can be named.
    pub(super) fn waiting_for(&self, mesh: &Mesh) -> Option<Rank> {
        waiting_for_peer(&self.stage, mesh)
    }
}

impl Group {
    /// Starts a bucket.
    pub(super) fn start(&mut self, bucket: Bucket, now: Duration) {
        assert!(self.job.is_none(), "invariant: one bucket runs at a time");
        self.diary.started(&bucket, &self.table, now);
        let road = self.router.road(&bucket.plan, &self.mesh, self.fusion.mapped_bytes());
        let mut workspace = Workspace::choose(&bucket, road, self.place, self.settings.fusion_limit_bytes);
        let number = self.window_operation(&bucket);
        let shares_memory = shares_memory(&self.mesh);
        if let Some(windows) = self.mesh.windows.as_mut().filter(|_| shares_memory) {
            windows.begin(number, self.router.descriptor(&bucket.plan), &[]);
        }
        // Whoever shares memory must see that all others have come before it goes on to the next bucket, or a slow
        // rank would find the board overwritten. Steps through windows see to that themselves.
        let gathers = shares_memory && (road == Road::Messages || bucket.plan.elems == 0);
        let stage = if bucket.entry_barrier || gathers {
            Stage::Entry((!shares_memory).then(|| self.router.entry(&bucket)))
        } else {
            workspace.load(&bucket, self.place, &mut self.table, &mut self.fusion);
            self.diary.packed(&bucket, now);
            let mut travel = self.router.travel(&bucket, road, &self.mesh, None);
            if self.diary.wants_footprints(&bucket) {
                travel.watch();
            }
            Stage::Work(travel)
        };
        self.job = Some(Job { bucket, road, workspace, stage, began: now, moved: now, tell_again: Duration::ZERO });
    }

    /// The number of a bucket on the boards of this host. Like the bucket's own it grows and is the same on all ranks;
    /// besides, two buckets that run one after the other have numbers of different parity, because a board has two
    /// sides. An abandoned bucket and the one in its place have the same parity, which does no harm: nobody looks any
    /// more.
    fn window_operation(&self, bucket: &Bucket) -> u64 {
        self.window_operations + 2 * u64::from(bucket.operation.generation()) + 1
    }

    /// Moves the running bucket on, if there is one.
    pub(super) fn advance(&mut self, now: Duration) -> Result<Option<Progress>, Trouble> {
        let Some(job) = &mut self.job else { return Ok(None) };
        let mut progress = Progress::Done;
        if let Stage::Entry(barrier) = &mut job.stage {
            progress = gather(&mut self.mesh, barrier)?;
            if progress == Progress::Done {
                let entry = barrier.take();
                self.diary.moved(&job.bucket, now);
                self.diary.entered(&job.bucket, now);
                job.workspace.load(&job.bucket, self.place, &mut self.table, &mut self.fusion);
                self.diary.packed(&job.bucket, now);
                let mut travel = self.router.travel(&job.bucket, job.road, &self.mesh, entry);
                if self.diary.wants_footprints(&job.bucket) {
                    travel.watch();
                }
                job.stage = Stage::Work(travel);
            }
        }
        if let Stage::Work(travel) = &mut job.stage {
            let baggage = job.workspace.baggage(&job.bucket, &mut self.table, &mut self.fusion);
            progress = travel.advance(&mut self.mesh, &job.bucket.plan, baggage)?;
            if progress != Progress::Pending {
                self.diary.moved(&job.bucket, now);
            }
            if progress == Progress::Done {
                self.router.learn(travel);
            }
            if let Some(footprints) = travel.footprints() {
                self.diary.steps(&job.bucket, footprints);
            }
        }
        if progress == Progress::Pending {
            self.diary.still(&job.bucket, now, || waiting_for_peer(&job.stage, &self.mesh));
        }
        if progress != Progress::Pending {
            (job.moved, job.tell_again) = (now, Duration::ZERO);
        } else if let Some(waiting_for) = self.settings.wait.exceeded(now.saturating_sub(job.moved)) {
            let peer = waiting_for_peer(&job.stage, &self.mesh);
            return Err(TransportError::Deadline { peer, waiting_for, waited: now - job.moved }.into());
        }
        Ok(Some(progress))
    }

    /// The running bucket is done on this rank.
    pub(super) fn complete(&mut self, around: &Surroundings<'_>) -> Result<(), Trouble> {
        let Job { bucket, workspace, .. } = self.job.take().expect("invariant: a bucket that is done was running");
        self.diary.travelled(&bucket, around.now);
        workspace.unload(&bucket, self.place, &mut self.table, &mut self.fusion, &mut self.done);
        self.diary.finished(&bucket, self.done.iter().map(|(pending, _)| pending), around.now);
        self.member.finished(bucket.operation, around.now);
        around.roster.leave(self.settings.id, self.done.iter().map(|(pending, _)| &pending.name));
        // One at a time: if the owner of a tensor that nobody waits for panics as it is dropped, the others are still
        // here.
        while let Some((pending, outcome)) = self.done.pop() {
            pending.promise.fulfil(Ok(outcome));
        }
        self.prepare_mapped(&bucket)
    }

    /// Lets the mapped fusion buffer grow to what this bucket would have liked.
    fn prepare_mapped(&mut self, bucket: &Bucket) -> Result<(), Trouble> {
        self.window_operations += 1;
        if !shares_memory(&self.mesh) {
            return Ok(());
        }
        let plan = &bucket.plan;
        let wants = plan.staged && matches!(plan.collective, Collective::Allreduce { .. });
        let wanted_bytes = if wants { Road::Mapped.bytes(plan) as usize } else { 0 };
        let windows = self.mesh.windows.as_mut().expect("invariant: ranks that share memory have windows");
        Ok(self.fusion.after_bucket(wanted_bytes, windows)?)
    }
}

/// The peer that a bucket waits for, if one can be named.
fn waiting_for_peer(stage: &Stage, mesh: &Mesh) -> Option<Rank> {
    match stage {
        Stage::Entry(Some(barrier)) => barrier.waiting_for(),
        Stage::Entry(None) => {
            mesh.windows.as_ref().and_then(|windows| windows.first_absent().map(|seat| windows.rank(seat)))
        }
        Stage::Work(travel) => travel.waiting_for(mesh),
    }
}

/// Waits until all ranks have come to the bucket.
fn gather(mesh: &mut Mesh, barrier: &mut Option<Run>) -> Result<Progress, TransportError> {
    if let Some(run) = barrier {
        return run.advance(mesh, &mut Memory { work: &mut [], source: &[], elem_bytes: 1, fold: None, halves: None });
    }
    let windows = mesh.windows.as_mut().expect("invariant: ranks gather by a barrier or in their windows");
    Ok(if windows.all_begun()? { Progress::Done } else { Progress::Pending })
}
