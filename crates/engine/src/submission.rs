//! Handing requests in: what a caller gives ([`Submission`]) and gets back ([`Outcome`] or [`Returned`]), and the ways
//! to do it ([`Engine::submit`] and its variants).
//!
//! A submission is checked, its name is entered in the tensor table, and it goes to the command queue. Wrong use is
//! found here, before any other rank hears of the request.
//!
//! Memory moves with them. A region that comes in with a submission belongs to the engine until the ticket is done and
//! comes back in the outcome, so a caller cannot touch a tensor while ranks are working on it. Results that the caller
//! has no memory for (how many rows come in is known only after the ranks have agreed) lie in memory of the engine's
//! own making.
//!
//! Memory may lie on a *device*; the request says so, too. Then the submission has the event after which the data are
//! there. A submission that *runs ahead* may be answered as soon as its work is queued on the devices of all ranks; the
//! outcome has the event after which the result is there, for streams to wait for. What goes wrong after that ends the
//! group ([`Engine::failure`]). [`Engine::works_on_devices`] says which collectives are carried out there. Results
//! that the caller has no memory for lie in device memory of the engine's own; whoever gets such a region drops it only
//! when nothing on the device uses it any more.

use std::sync::Arc;

use farandole_device::Event;
use farandole_plan::{Collective, Device, Dtype, GroupId, Rank, ReduceOp, Request, Shape};
use farandole_tensor::Region;
use farandole_trace::event::{NameId, ThreadId};

use crate::command_queue::After;
use crate::completion::Slot;
use crate::completion_queue::{CompletionQueue, Sleeper};
use crate::driver::Command;
use crate::driver_lock::Push;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pending::{Pending, Promise, Recipient};
use crate::record::group::Mark;
use crate::ticket::{QuietTickets, Ticket};

/// One request with its memory.
#[derive(Debug)]
pub struct Submission {
    /// Which ranks.
    pub group: GroupId,
    /// What is asked for.
    pub request: Request,
    /// This rank's tensor. Nothing for barrier and join. An allreduce of halves takes single precision on a device: it
    /// is narrowed when it is packed, and the result is widened when it is unpacked ([`Submission::can_hold`]).
    pub input: Option<Region>,
    /// Where the result goes. Without it the result of allreduce, broadcast and reduce replaces the input, and other
    /// collectives bring memory of their own, as they do if the result turns out to have another size than the output.
    pub output: Option<Region>,
    /// When the input holds its data, if it lies on a device; without it, it does already.
    pub ready: Option<Event>,
    /// Whether the outcome may come before the result is there ([`Outcome::after`]).
    pub runs_ahead: bool,
}

impl Submission {
    /// A request of the whole world whose result replaces the input (allreduce, broadcast, reduce) or lies in memory of
    /// its own (allgather, alltoall, reducescatter, gather, scatter).
    pub fn new(request: Request, input: Region) -> Submission {
        Submission { group: GroupId::WORLD, request, input: Some(input), output: None, ready: None, runs_ahead: false }
    }

    /// A request of the whole world without memory (barrier, join).
    pub fn without_memory(request: Request) -> Submission {
        Submission { group: GroupId::WORLD, request, input: None, output: None, ready: None, runs_ahead: false }
    }

    /// The same for another group.
    pub fn in_group(mut self, group: GroupId) -> Submission {
        self.group = group;
        self
    }

    /// The same with a place of its own for the result.
    pub fn with_output(mut self, output: Region) -> Submission {
        self.output = Some(output);
        self
    }

    /// The same for memory on a device that holds its data after this event.
    pub fn ready_after(mut self, event: Event) -> Submission {
        self.ready = Some(event);
        self
    }

    /// The same for a caller whose streams wait for the result ([`Outcome::after`]).
    pub fn running_ahead(mut self) -> Submission {
        self.runs_ahead = true;
        self
    }

    /// Whether memory of one type may come with a request of another: what a request says is the type that travels.
    pub fn can_hold(held: Dtype, request: &Request) -> bool {
        let narrows = held == Dtype::F32 && matches!(request.dtype, Dtype::F16 | Dtype::BF16);
        let is_taken = request.device != Device::Cpu && matches!(request.collective, Collective::Allreduce { .. });
        held == request.dtype || narrows && is_taken
    }

    /// Whether the memory fits the request.
    pub(crate) fn check(&self) -> Result<()> {
        let request = &self.request;
        let wrong = |what: String| Err(Error::WrongMemory { name: Arc::clone(&request.name), what: what.into() });
        let bytes_of = |dtype: Dtype| {
            request.shape.iter().try_fold(dtype.size_bytes() as u64, |bytes, dim| bytes.checked_mul(*dim))
        };
        let held = self.input.as_ref().map_or(request.dtype, Region::dtype);
        let Some(bytes) = bytes_of(held) else {
            return wrong(format!("the shape {:?} has more elements than there is memory", request.shape));
        };
        let needs_input = !matches!(request.collective, Collective::Barrier | Collective::Join);
        if needs_input != self.input.is_some() {
            let word = request.collective.word();
            return wrong(format!("{word} {} memory", if needs_input { "needs" } else { "takes no" }));
        }
        if self.output.is_some() && !needs_input {
            return wrong(format!("{} takes no memory", request.collective.word()));
        }
        // How large the results of the others are, the ranks must agree on first.
        let knows_size = matches!(
            request.collective,
            Collective::Allreduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. }
        );
        for (role, region) in [("input", &self.input), ("output", &self.output)] {
            let Some(region) = region else { continue };
            let place = region.device().map_or(Device::Cpu, |on_device| Device::Gpu(on_device.ordinal));
            if place != request.device {
                let what = format!("the {role} lies in memory of {place:?}, the request says {:?}", request.device);
                return wrong(what);
            }
            if region.dtype() != held || !Submission::can_hold(held, request) {
                return wrong(format!("the {role} holds {}, the request says {}", region.dtype(), request.dtype));
            }
            if region.len_bytes() as u64 != bytes && (role == "input" || knows_size) {
                return wrong(format!(
                    "the {role} has {} bytes, a {held} tensor of shape {:?} has {bytes}",
                    region.len_bytes(),
                    request.shape
                ));
            }
        }
        Ok(())
    }
}

/// What a finished request leaves.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The input's region, given back. It holds the result if there was no output to put it.
    pub input: Option<Region>,
    /// The output's region given back, or memory made for the result.
    pub output: Option<Region>,
    /// Dimensions of the result.
    pub shape: Shape,
    /// For alltoall, gather and scatter: how many rows came from each rank.
    pub received_splits: Vec<u64>,
    /// For join: the last rank (inside the group) to join.
    pub last_joined: Option<Rank>,
    /// For a message between two ranks: the other one (inside the group).
    pub source: Option<Rank>,
    /// The result is there after this event; without it, it is there. Only for submissions that run ahead. The memory
    /// is kept as long as devices use it.
    pub after: Option<Event>,
}

/// What a request that was not carried out leaves: why, and its memory.
///
/// The regions are those that came with the submission. What is in them depends on how far the request had come.
/// Tensors that travel in the fusion buffer, and whatever was refused, are as they were; one that is large enough to be
/// worked on in place, and was under way when the group failed, may be changed in part.
#[derive(Debug)]
pub struct Returned {
    /// Why.
    pub error: Error,
    /// The input's region.
    pub input: Option<Region>,
    /// The output's region.
    pub output: Option<Region>,
}

impl Returned {
    /// For a caller that has nothing to get back.
    pub(crate) fn without_memory(error: Error) -> Box<Returned> {
        Box::new(Returned { error, input: None, output: None })
    }

    /// For a caller whose submission was not accepted.
    pub(crate) fn of(submission: Submission, error: Error) -> Box<Returned> {
        Box::new(Returned { error, input: submission.input, output: submission.output })
    }
}

impl From<Box<Returned>> for Error {
    fn from(returned: Box<Returned>) -> Error {
        returned.error
    }
}

impl Outcome {
    /// The memory that holds the result, if the collective has one.
    pub fn into_result(self) -> Option<Region> {
        self.output.or(self.input)
    }
}

impl Engine {
    /// Hands a request in. Returns at once; the ticket tells how it went.
    ///
    /// # Errors
    /// Wrong use is found here and costs nothing: memory that does not fit, a name that is still under way, an unknown
    /// or foreign group, an engine that is shut down. The submission's memory is dropped then;
    /// [`Engine::submit_returning`] gives it back.
    pub fn submit(&self, submission: Submission) -> Result<Ticket> {
        Ok(self.submit_returning(submission)?)
    }

    /// As [`Engine::submit`], but whoever is refused gets the submission's memory back, untouched.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn submit_returning(&self, submission: Submission) -> std::result::Result<Ticket, Box<Returned>> {
        self.push(submission, Push::Ringing).map(|(ticket, _)| ticket)
    }

    /// Hands a request in and waits for it. Cheaper than submitting and waiting: nobody is woken for it.
    ///
    /// # Errors
    /// As [`Engine::submit`], and whatever goes wrong with the request.
    pub fn run(&self, submission: Submission) -> Result<Outcome> {
        let (ticket, after) = self.push(submission, Push::Quiet)?;
        ticket.wait_after(after)
    }

    /// Hands requests in that the caller waits for at once: nobody is woken for them. Whatever is refused is answered
    /// when they are waited for, in its place.
    pub fn submit_quietly(&self, submissions: impl IntoIterator<Item = Submission>) -> QuietTickets {
        let mut all = After::Nothing;
        let tickets = submissions.into_iter().map(|submission| {
            let (ticket, after) = self.push(submission, Push::Quiet)?;
            all = if after == After::Ring { after } else { all };
            Ok(ticket)
        });
        let tickets = tickets.collect();
        QuietTickets::new(tickets, all)
    }

    /// Hands requests in whose outcomes come out of a queue of this engine: the first with this key, the others with
    /// those that follow it. Whoever drives is woken once, after the last. Returns those that were refused, by their
    /// place; nothing comes out of the queue for them.
    pub fn submit_to(
        &self,
        queue: &CompletionQueue,
        first_key: u64,
        submissions: impl ExactSizeIterator<Item = Submission>,
    ) -> Vec<(usize, Box<Returned>)> {
        let mut refused = Vec::new();
        let mut all = After::Nothing;
        // Before the first push: a driver may be quicker than we are.
        let sleeper = queue.queue().owe(submissions.len());
        for (place, submission) in submissions.enumerate() {
            let name_id = match self.enter(&submission) {
                Ok(name_id) => name_id,
                Err(error) => {
                    refused.push((place, Returned::of(submission, error)));
                    continue;
                }
            };
            let recipient = Recipient::Queue(Arc::clone(queue.queue()), first_key + place as u64);
            let after = self.hand_over(submission, name_id, recipient, Push::Later);
            all = if after == After::Ring { after } else { all };
        }
        queue.queue().take_back(refused.len());
        match sleeper {
            Sleeper::Drives => queue.queue().wake(all),
            Sleeper::None => self.shared.driver_lock.make_up_for(all),
        }
        refused
    }

    fn push(&self, submission: Submission, push: Push) -> std::result::Result<(Ticket, After), Box<Returned>> {
        let name_id = match self.enter(&submission) {
            Ok(name_id) => name_id,
            Err(error) => return Err(Returned::of(submission, error)),
        };
        let (group, name) = (submission.group, Arc::clone(&submission.request.name));
        let slot = Arc::new(Slot::new());
        let after = self.hand_over(submission, name_id, Recipient::Ticket(Arc::clone(&slot)), push);
        Ok((Ticket { group, name, name_id, slot, shared: Arc::clone(&self.shared) }, after))
    }

    /// Finds wrong use, and enters the request's name among those under way.
    fn enter(&self, submission: &Submission) -> Result<NameId> {
        self.shared.check_fork()?;
        submission.check()?;
        if submission.request.device != Device::Cpu {
            self.check_device(submission)?;
        }
        self.shared.tensor_table.enter(submission.group, &submission.request, &self.recorder)
    }

    /// Whether a collective on tensors in device memory is carried out there in a group: its ranks are on one host and
    /// see each other's device memory. All ranks get the same answer. The first call logs a warning if ranks of one
    /// host could not map each other's memory.
    ///
    /// # Errors
    /// [`Error::UnknownGroup`] if there is none.
    pub fn works_on_devices(&self, group: GroupId, collective: &Collective, dtype: Dtype) -> Result<bool> {
        if let Some(why) = &self.not_mapped {
            self.not_mapped_logged.call_once(|| log::warn!("{why}"));
        }
        Ok(self.shared.tensor_table.device_reach(group)?.plane(collective, dtype).is_some())
    }

    fn check_device(&self, submission: &Submission) -> Result<()> {
        let Submission { group, request, .. } = submission;
        let wrong = |what: &str| Err(Error::WrongMemory { name: Arc::clone(&request.name), what: what.into() });
        match request.collective.reduction() {
            _ if self.works_on_devices(*group, &request.collective, request.dtype)? => Ok(()),
            Some((ReduceOp::Adasum, ..)) => {
                wrong("Adasum works in device memory only among ranks of one host that see each other's")
            }
            _ => wrong("the ranks of this group do not see each other's device memory"),
        }
    }

    fn hand_over(&self, submission: Submission, name_id: NameId, recipient: Recipient, push: Push) -> After {
        let Submission { group, request, input, output, ready, runs_ahead } = submission;
        let mark = Mark { name: name_id, thread: ThreadId::current(), time_ns: None };
        self.shared.driver_lock.note_submitter(mark.thread);
        let name = Arc::clone(&request.name);
        let mut pending = Pending { name, mark, promise: Promise::new(recipient), input, output, ready, runs_ahead };
        // Whoever pushes quietly drives at once, and the driver looks at the clock anyway.
        if push != Push::Quiet && self.recorder.is_on() {
            let stamped = |time_ns| {
                pending.mark.time_ns = Some(time_ns);
                Command::Submit { group, request, pending }
            };
            return self.shared.driver_lock.push_stamped(stamped, push);
        }
        self.shared.driver_lock.push(Command::Submit { group, request, pending }, push)
    }
}

#[cfg(test)]
mod tests {
    use farandole_plan::{Device, Dtype, ReduceOp};

    use super::*;

    fn allreduce(shape: &[u64]) -> Request {
        Request {
            name: "t".into(),
            collective: Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 },
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            device: Device::Cpu,
            batch: None,
            priority: 0,
        }
    }

    #[test]
    fn memory_must_fit_the_request() {
        assert!(Submission::new(allreduce(&[2, 3]), Region::from_vec(vec![0f32; 6])).check().is_ok());
        let short = Submission::new(allreduce(&[2, 3]), Region::from_vec(vec![0f32; 5])).check().unwrap_err();
        assert!(short.to_string().contains("the input has 20 bytes"), "{short}");
        let other = Submission::new(allreduce(&[6]), Region::from_vec(vec![0i32; 6])).check().unwrap_err();
        assert!(other.to_string().contains("int32"), "{other}");
        let huge = Submission::new(allreduce(&[u64::MAX, 2]), Region::from_vec(vec![0f32; 6])).check().unwrap_err();
        assert!(huge.to_string().contains("more elements than there is memory"), "{huge}");
        assert!(Submission::without_memory(allreduce(&[0])).check().is_err());
        assert!(Submission::new(allreduce(&[0]), Region::from_vec(Vec::<f32>::new())).check().is_ok());
    }

    #[test]
    fn only_singles_on_a_device_travel_as_halves() {
        let device = farandole_device::pretend::Pretend::new().device();
        let on_device = |dtype: Dtype| device.allocate(2 * dtype.size_bytes()).unwrap().into_region(dtype);
        let request = |dtype, device| Request { dtype, device, ..allreduce(&[2]) };
        let there = |held: Dtype, dtype| Submission::new(request(dtype, Device::Gpu(0)), on_device(held)).check();
        assert!(there(Dtype::F32, Dtype::F16).is_ok() && there(Dtype::F32, Dtype::BF16).is_ok());
        assert!(there(Dtype::F64, Dtype::F16).is_err() && there(Dtype::F16, Dtype::F32).is_err());
        let here = Submission::new(request(Dtype::F16, Device::Cpu), Region::from_vec(vec![0f32; 2])).check();
        assert!(here.unwrap_err().to_string().contains("the input holds float32"));
        let mixed = Submission::new(request(Dtype::F16, Device::Gpu(0)), on_device(Dtype::F32));
        assert!(mixed.with_output(on_device(Dtype::F16)).check().is_err());
    }

    #[test]
    fn an_output_must_fit_too() {
        let submission = |output| Submission::new(allreduce(&[1]), Region::from_vec(vec![0f32])).with_output(output);
        assert!(submission(Region::from_vec(vec![0f32])).check().is_ok());
        assert!(submission(Region::from_vec(vec![0f32; 2])).check().is_err());
    }
}
