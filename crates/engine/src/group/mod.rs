//! One group on one rank: its agreement, its mesh, the requests under way and the bucket that runs (`active`).
//!
//! [`Group::turn`] does what can be done now and never blocks: it hears what peers say, asks the agreement what to do,
//! moves the running bucket on, and says what there is to say. Groups share nothing with each other, so a group that
//! waits does not hold up another.
//!
//! A group's life: *open*; *closing* once this rank wants to leave; *closed* when the ranks have agreed to end, which
//! is orderly; *failed* after the first [`GroupError`]. In the last two states the mesh is kept a little longer, until
//! the peers have said their goodbyes: closing a socket whose peer still talks makes the kernel throw away our last
//! words.

mod active_bucket;
mod computing;
mod control;
mod group_error;
mod lifecycle;
mod stalls;
mod transfers;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use farandole_plan::agree::{Action, Member, Refusal};
use farandole_plan::choose::{AlgorithmLimits, Choices, Hierarchical};
use farandole_plan::plane::{DeviceReach, Plane};
use farandole_plan::stall::{self};
use farandole_plan::table::Table as Measured;
use farandole_plan::{GroupId, Rank, RankDeparture, Request};
use farandole_trace::event::NameId;
use farandole_transport::{Error as TransportError, Mesh, Progress};

use crate::bucket::GroupRank;
use crate::config::DevicePlaneChoice;
use crate::error::{Error, PeerLeft};
use crate::exec::device::DevicePlane;
use crate::exec::fusion_buffer::FusionBuffer;
use crate::exec::nccl::NcclPlane;
use crate::exec::planes::{Planes, maps_on_hosts, shares_memory};
use crate::pending::{Pending, PendingTable};
use crate::plane::{Offer, PlaneGroup};
use crate::record::group::GroupRecord;
use crate::submission::Outcome;
use crate::tensor_table::TensorTable;
use crate::transfer::Transfer;

pub(crate) use group_error::GroupError;
pub use stalls::StallNotice;

use active_bucket::ActiveBucket;
use computing::Computing;
use lifecycle::{CLOSE_LIMIT, Leaving, Withheld};
use stalls::{Stalls, check_interval};
use transfers::Transfers;

/// A driver that spins on a running bucket hears the control lines this seldom: each look is a system call for each
/// peer, and the bucket is what is waited for.
const GLANCES_PER_HEARING: u32 = 32;

/// How closely a turn looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// At what most likely moves.
    Glance,
    /// At everything; due before sleeping, because the waiter reports a change once.
    Thorough,
}

/// What a group is told when it is made.
pub(crate) struct Settings {
    pub(crate) id: GroupId,
    /// World ranks of the members.
    pub(crate) ranks: Arc<[Rank]>,
    /// Names of hosts for messages, by world rank.
    pub(crate) hosts: Arc<[String]>,
    pub(crate) agree: farandole_plan::agree::Settings,
    /// Larger buffers are not kept.
    pub(crate) fusion_limit_bytes: usize,
    /// What travels together in device memory between hosts; the same on all ranks.
    pub(crate) slice_bytes: u64,
    /// How long a bucket may stand still.
    pub(crate) wait: crate::wait_limits::WaitLimits,
    /// `None` if nobody watches.
    pub(crate) stall: Option<stall::StallLimits>,
    /// By which ways are chosen; the same on all ranks.
    pub(crate) table: Option<Arc<Measured>>,
    /// Whether the user has taken a part of that choice away; the same on all ranks.
    pub(crate) hierarchical: Hierarchical,
    /// How collectives in device memory are carried out; the same on all ranks.
    pub(crate) device_plane: DevicePlaneChoice,
}

/// What a group has besides its mesh.
#[derive(Default)]
pub(crate) struct Accelerators {
    /// Devices, if they are to be used.
    pub(crate) device: Option<DevicePlane>,
    /// NCCL, if all ranks have it.
    pub(crate) nccl: Option<NcclPlane>,
}

/// See the module's text.
pub(crate) struct Group {
    settings: Settings,
    here: GroupRank,
    mesh: Mesh,
    record: GroupRecord,
    member: Member,
    planes: Planes,
    /// What its ranks have for device memory.
    device_reach: DeviceReach,
    /// NCCL, if it is to be used. Ends before the devices that it works on.
    nccl: Option<NcclPlane>,
    /// Devices, if they are to be used.
    device: Option<DevicePlane>,
    /// What they compute for requests of this group.
    computing: Computing,
    table: PendingTable,
    fusion: FusionBuffer,
    /// Buckets that have ended here, if the ranks share memory.
    window_operations: u64,
    active: Option<Box<ActiveBucket>>,
    transfers: Transfers,
    state: State,
    leaving: Leaving,
    /// Why this rank leaves the job, if it does.
    departure: Option<RankDeparture>,
    /// The rank that has closed the group by leaving the job, if it is another one.
    left_by: OnceCell<Arc<PeerLeft>>,
    /// Peers that have said goodbye or are gone.
    left: Vec<bool>,
    /// Peers that were reported lost.
    lost: Vec<bool>,
    withheld: Withheld,
    /// Whether a control line still holds messages back.
    unflushed: bool,
    glances: u32,
    next_stall_check: Duration,
    /// Names whose stall was told, and when it is told again.
    stalls_reported: HashMap<Arc<str>, Duration>,
    stalls: Stalls,
    /// Reused between buckets.
    done: Vec<(Pending, Outcome)>,
    message: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// This rank wants to leave, since this moment.
    Closing(Duration),
    /// Orderly or not, it is over; until this moment it waits for what peers have to say.
    Ended(Duration),
}

/// What a group needs of the engine in a turn.
pub(crate) struct TurnInput<'a> {
    pub(crate) now: Duration,
    pub(crate) tensor_table: &'a TensorTable,
    pub(crate) on_stall: &'a (dyn Fn(&StallNotice) + Send + Sync),
}

impl Group {
    pub(crate) fn new(
        settings: Settings,
        mesh: Mesh,
        record: GroupRecord,
        added: Vec<(Offer, Box<dyn PlaneGroup>)>,
        Accelerators { device, nccl }: Accelerators,
    ) -> Group {
        let here = GroupRank { me: mesh.me(), size: mesh.size() };
        let member = Member::new(here.me, here.size, settings.agree.clone());
        let limits = AlgorithmLimits { hierarchical: settings.hierarchical, ..AlgorithmLimits::default() };
        let choices = Choices::new(settings.table.clone(), mesh.topology(), limits);
        let may_map = device.is_some() && settings.device_plane.may_map(mesh.has_common_pids);
        let maps = may_map && shares_memory(&mesh) && here.size <= farandole_device::MAX_RANKS;
        let maps_on_hosts = may_map && maps_on_hosts(&mesh);
        let has_nccl = device.is_some() && nccl.is_some() && here.size > 1;
        let device_reach = settings.device_plane.reach(maps, maps_on_hosts, has_nccl);
        let (kept_bytes, slice_bytes) = (settings.fusion_limit_bytes, settings.slice_bytes);
        let planes = Planes::new(here, choices, kept_bytes, slice_bytes, device_reach, added);
        let transfers = Transfers::new(here.me, &settings.ranks);
        let next_stall_check = settings.stall.map_or(Duration::MAX, |wait_limits| check_interval(&wait_limits));
        Group {
            settings,
            here,
            mesh,
            record,
            member,
            planes,
            device_reach,
            nccl,
            device,
            computing: Computing::default(),
            table: PendingTable::default(),
            fusion: FusionBuffer::new(),
            window_operations: 0,
            active: None,
            transfers,
            state: State::Open,
            leaving: Leaving::No,
            departure: None,
            left_by: OnceCell::new(),
            left: vec![false; here.size],
            lost: vec![false; here.size],
            withheld: Withheld::default(),
            unflushed: false,
            glances: 0,
            next_stall_check,
            stalls_reported: HashMap::new(),
            stalls: Stalls::default(),
            done: Vec::new(),
            message: Vec::new(),
        }
    }

    pub(crate) fn id(&self) -> GroupId {
        self.settings.id
    }

    /// What its ranks have for device memory.
    pub(crate) fn device_reach(&self) -> DeviceReach {
        self.device_reach
    }

    /// Takes a request in.
    pub(crate) fn submit(&mut self, request: Request, pending: Pending, turn: &TurnInput<'_>) {
        if let State::Ended(_) = self.state {
            let error = turn.tensor_table.ended(self.id()).unwrap_or_else(|| self.end_error());
            return pending.fail(error);
        }
        let runs_ahead = pending.runs_ahead && self.lets_run_ahead(&request);
        if let Some((request, pending)) = self.computing.hold(request, Pending { runs_ahead, ..pending }) {
            self.enter(request, pending, turn);
        }
    }

    /// Whether what this request asks for can be ordered by devices: in memory that they map (`exec::device::ordered`)
    /// or by NCCL (`exec::nccl`), and in the world's order.
    fn lets_run_ahead(&self, request: &Request) -> bool {
        let queues = match self.device_reach.plane(&request.collective, request.dtype) {
            Some(Plane::Device) => shares_memory(&self.mesh),
            plane => plane == Some(Plane::Nccl),
        };
        self.settings.id == GroupId::WORLD && queues
    }

    /// When devices want to be looked at.
    fn next_look_at_devices(&self) -> Duration {
        let Some(device) = &self.device else { return Duration::MAX };
        let is_suspicious = self.nccl.as_ref().is_some_and(NcclPlane::is_suspicious);
        if is_suspicious { device.trailing.look_again() } else { device.trailing.next_look() }
    }

    /// Looks whether devices get on with what was queued there.
    fn watch_trailing(&mut self, turn: &TurnInput<'_>) -> Result<(), GroupError> {
        if self.next_look_at_devices() > turn.now {
            return Ok(());
        }
        let Some(device) = &mut self.device else { return Ok(()) };
        while let Some((operation, times)) = device.trailing.take_done(turn.now)? {
            self.record.device_took(operation, times, turn.now);
        }
        if let Some(nccl) = &mut self.nccl {
            // After that: kernels of NCCL's end early when something has gone wrong.
            nccl.watch()?;
            if device.trailing.is_empty() {
                nccl.note_idle();
            }
        }
        let Some((waited, behind)) = device.stands_still(turn.now) else { return Ok(()) };
        let Some(waiting_for) = self.settings.wait.exceeded(waited) else { return Ok(()) };
        let windows = self.mesh.windows.as_ref();
        let peer = behind.zip(windows).map(|(local_rank, windows)| windows.rank(local_rank));
        Err(TransportError::Deadline { peer, waiting_for, waited }.into())
    }

    /// No request is submitted before this one is done. One that a device still computes may come.
    pub(crate) fn awaits(&mut self, name: &str) {
        if self.computing.is_empty() {
            self.member.awaits(name);
        }
    }

    /// Tells the agreement of a request whose data are there, or will be when a device comes to it.
    fn enter(&mut self, request: Request, pending: Pending, turn: &TurnInput<'_>) {
        self.record.submitted(&request, &pending, turn.now);
        match self.member.submit(request, turn.now) {
            Ok(id) => self.table.put(id, pending),
            Err(Refusal { reason }) => {
                turn.tensor_table.leave(self.id(), std::iter::once(&pending.name));
                self.record.failed(&pending, turn.now);
                let error = match self.member.is_closed() {
                    true => self.end_error(),
                    false => Error::Refused { name: Arc::clone(&pending.name), explanation: reason },
                };
                pending.fail(error);
            }
        }
    }

    /// An optimizer of this rank reduces gradients of these names in every step.
    pub(crate) fn reduces(&mut self, names: Vec<Arc<str>>) {
        self.member.reduces(names);
    }

    /// Takes a send or a receive in.
    pub(crate) fn begin_transfer(&mut self, transfer: Transfer, pending: Pending, tensor_table: &TensorTable) {
        match self.state {
            State::Ended(_) => pending.fail(tensor_table.ended(self.id()).unwrap_or_else(|| self.end_error())),
            State::Open | State::Closing(_) => self.transfers.begin(transfer, pending),
        }
    }

    /// The driver has taken orders in.
    pub(crate) fn note_cycle(&mut self, now: Duration) {
        self.record.cycle(now);
    }

    /// This process has been found asleep for so long in all; the moments that it is told are awake time.
    pub(crate) fn slept(&mut self, slept: Duration) {
        self.record.slept(slept);
    }

    /// A moment as it is recorded.
    pub(crate) fn time_ns(&self, moment: Duration) -> u64 {
        self.record.at(moment)
    }

    /// The thread that drives has waited for a request, of this group or another one.
    pub(crate) fn note_wait(&mut self, name: NameId, since: Duration, turned_at: Duration) {
        self.record.waited(name, since, turned_at);
    }

    /// Another thread drives.
    pub(crate) fn pick_up(&mut self) {
        self.record.pick_up();
    }

    /// Does what can be done now. Says whether anything moved.
    pub(crate) fn turn(&mut self, look: Look, turn: &TurnInput<'_>) -> Result<bool, GroupError> {
        if let State::Ended(_) = self.state {
            return Ok(self.linger() | self.release_withheld(turn.now));
        }
        let mut moved = false;
        self.glances += 1;
        if look == Look::Thorough || self.active.is_none() || self.glances >= GLANCES_PER_HEARING {
            self.glances = 0;
            moved |= self.hear(turn)?;
        }
        if self.member.next_timeout().is_some_and(|timeout| timeout <= turn.now) {
            self.member.handle_timeout(turn.now);
        }
        for (request, pending) in self.computing.take_computed() {
            moved = true;
            self.enter(request, pending, turn);
        }
        moved |= self.act(turn)?;
        self.watch_trailing(turn)?;
        moved |= self.transfers.advance(&mut self.mesh, &self.left, &mut self.unflushed)?;
        moved |= self.go_on_leaving(turn);
        if let State::Ended(_) = self.state {
            return Ok(true);
        }
        moved |= self.speak(turn.now)?;
        if self.cannot_close(turn.now) {
            self.say_goodbye(turn);
        }
        self.watch_for_stalls(turn)?;
        Ok(moved)
    }

    /// Whether somebody waits for this group to go on.
    pub(crate) fn has_work(&self) -> bool {
        self.state != State::Open
            || self.active.is_some()
            || !self.table.is_empty()
            || !self.computing.is_empty()
            || self.transfers.has_work()
            || self.unflushed
    }

    /// When [`Group::turn`] is due at the latest, even if nothing happens.
    pub(crate) fn next_timeout(&self) -> Duration {
        if let State::Ended(until) = self.state {
            return self.next_turn_after_end(until);
        }
        let closing = match self.state {
            State::Closing(since) => since + CLOSE_LIMIT,
            _ => Duration::MAX,
        };
        let agreement = self.member.next_timeout().unwrap_or(Duration::MAX).min(closing);
        let deadline = self.active.as_ref().map_or(Duration::MAX, |active| {
            active.moved.saturating_add(self.settings.wait.shortest()).min(active.next_look())
        });
        agreement.min(deadline).min(self.next_look_at_devices()).min(self.next_stall_check).min(self.probe_due())
    }

    /// The driver is about to sleep: peers on this host must ring when they have moved. Without a running bucket there
    /// is nothing in the windows to wait for, and ringing would only cost them time.
    pub(crate) fn fall_asleep(&mut self) {
        if let Some(active) = &mut self.active {
            self.record.doze(&active.bucket, || active.waiting_for(&self.mesh));
            active.fall_asleep(self.device.as_mut());
        }
        if let Some(device) = &mut self.device {
            self.computing.fall_asleep(device);
        }
        if let (Some(windows), Some(_)) = (&self.mesh.windows, &self.active) {
            windows.raise_asleep();
        }
    }

    /// The driver is awake: peers on this host need not ring.
    pub(crate) fn wake_up(&self) {
        if let Some(windows) = &self.mesh.windows {
            windows.lower_asleep();
        }
    }

    fn act(&mut self, turn: &TurnInput<'_>) -> Result<bool, GroupError> {
        let mut moved = false;
        let mut refused = Vec::new();
        let result = loop {
            while let Some(action) = self.member.poll_action(turn.now) {
                moved = true;
                self.take(action, &mut refused, turn);
            }
            match self.advance(turn.now) {
                Ok(Some(Progress::Done)) => {
                    moved = true;
                    if let Err(group_error) = self.complete(turn) {
                        break Err(group_error);
                    }
                }
                Ok(progress) => {
                    moved |= progress == Some(Progress::Moved);
                    break Ok(moved);
                }
                Err(group_error) => break Err(group_error),
            }
        };
        self.refuse(refused, turn);
        result
    }

    fn take(&mut self, action: Action, refused: &mut Vec<(Pending, Arc<str>)>, turn: &TurnInput<'_>) {
        match action {
            Action::Run(bucket) => self.start(bucket, turn.now),
            Action::Abandon { operation } => {
                let active = self.active.take().expect("invariant: only the running bucket is abandoned");
                assert_eq!(active.bucket.operation, operation, "invariant: only the running bucket is abandoned");
                self.record.abandoned(operation, turn.now);
                if let Some(windows) = &mut self.mesh.windows {
                    windows.give_up();
                }
            }
            Action::Refuse { requests, reason } => {
                refused.extend(requests.into_iter().map(|id| (self.table.take(id), Arc::clone(&reason))));
            }
            Action::Joined { request, last } => {
                let pending = self.table.take(request);
                turn.tensor_table.leave(self.id(), std::iter::once(&pending.name));
                self.record.done(&pending, turn.now);
                pending.promise.fulfil(Ok(Outcome { last_joined: Some(last), ..Outcome::default() }));
            }
            Action::Closed { .. } => {
                // The last messages of the agreement go before the goodbye. Whoever cannot be told has left.
                let _ = self.speak(turn.now);
                self.agree_to_leave(turn);
            }
        }
    }
}
