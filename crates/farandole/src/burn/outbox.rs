//! Gradients on their way: [`Outbox`].
//!
//! One step, seen from here. Layers that can tell when a gradient is ready announce it in forward ([`Outbox::expect`])
//! and post it in backward ([`AnnouncedGradient::post`]); the last posting of a parameter in a step sends it, while
//! backward goes on. Then [`Outbox::collect`] takes the gradients that Burn has gathered, sends those that nobody
//! posted, waits for all, and gives back the averages.
//!
//! Invariants: in each step each rank sends each parameter exactly once, whether it has a gradient for it or not, so
//! that no rank waits for another's. A rank without a gradient (a branch of the network that its samples did not take)
//! sends zeros; so that a parameter without a gradient on *any* rank is left alone, as it would be in one process, the
//! ranks also tell each other which gradients they have. A world of one sends nothing at all.
//!
//! A posting happens inside of Burn's backward, where no error can be returned: it is kept for `collect`, which comes
//! next. A rank in trouble still sends everything, with zeros, and tells the others; the step fails on all ranks and
//! nobody waits in vain.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::burn::module::{Module, ModuleVisitor, Param, ParamId};
use ::burn::optim::GradientsParams;
use ::burn::tensor::{Tensor, TensorData};
use farandole_plan::{Dtype, GroupId};
use farandole_tensor::Region;

use super::compared;
use super::parameters::{list, text};
use super::staging::{self, float_dtype};
use crate::agreement::agree;
use crate::error::{Error, Result};
use crate::named::Submitter;
use crate::parameter_check::CheckSchedule;
use crate::wire::{self, Wire};
use crate::world::World;
use crate::{Engine, Ticket, wait_all};

/// The gradients of one module, from the moment they are ready until all ranks' averages are there. Clones are the same
/// outbox.
#[derive(Clone)]
pub struct Outbox {
    office: Arc<Office>,
}

/// What all clones share.
struct Office {
    /// The world may end while a layer still holds an outbox; it does not wait for that.
    submitter: Submitter,
    alone: bool,
    wire: Wire,
    passes_per_step: usize,
    /// Name of the requests in which ranks compare their parameters, before they change them.
    compared_name: String,
    /// Taken by `collect` alone.
    checks: Mutex<CheckSchedule>,
    /// Name of the request in which ranks say what they have.
    present_name: Arc<str>,
    addresses: Vec<Address>,
    by_id: HashMap<ParamId, usize>,
    /// Taken for each posting, by the thread that runs backward, and by `collect` on the thread of the training loop:
    /// two threads at most, and never at the same time for long, since submitting does not wait.
    desk: Mutex<Desk>,
}

/// A parameter as it was when the outbox was made.
struct Address {
    /// Under which its gradient travels.
    name: Arc<str>,
    shape: Vec<usize>,
    dtype: Dtype,
}

/// The state of the step.
struct Desk {
    /// Its number. Burn may drop what belongs to a forward long after; what was announced in one step is not expected
    /// in another.
    step: u64,
    /// One for each address.
    letters: Vec<Letter>,
    /// What went wrong where nothing could be returned.
    trouble: Option<Error>,
}

/// A gradient in the making.
#[derive(Default)]
struct Letter {
    /// The sum of what was posted.
    sum: Option<Region>,
    /// Announced and not yet posted.
    expected: usize,
    /// How often everything that was announced had been posted.
    passes: usize,
    way: Way,
}

/// Where a letter is.
#[derive(Default)]
enum Way {
    /// Still here.
    #[default]
    Open,
    /// With the engine.
    Sent(Ticket),
    /// Complete, with nobody to send it to.
    Home,
}

impl Outbox {
    /// An outbox for a module's trained parameters. All ranks call this together, after the parameters are loaded or
    /// broadcast (loading may give them new identities). The gradients of `passes_per_step` backward passes are summed
    /// before they travel.
    ///
    /// # Errors
    /// [`Error::Parameters`] if the ranks have different modules.
    pub fn new<M: Module>(world: &World, module: &M, wire: Wire, passes_per_step: usize) -> Result<Outbox> {
        let (engine, series) = (world.engine(), world.next_series());
        let mut entries = list(module);
        entries.retain(|entry| entry.trained);
        let prefix = format!("gradient.{series}");
        agree(engine, &format!("{prefix}.parameters"), text(&entries))?;
        let by_id = entries.iter().enumerate().map(|(index, entry)| (entry.id, index)).collect();
        let addresses: Result<Vec<Address>> = entries
            .into_iter()
            .map(|entry| {
                let name = format!("{prefix}/{}", entry.path).into();
                Ok(Address { name, shape: entry.shape, dtype: float_dtype(entry.dtype)? })
            })
            .collect();
        let addresses = addresses?;
        let desk = Mutex::new(Desk::new(0, addresses.len()));
        let office = Office {
            submitter: world.submitter(),
            alone: engine.size() == 1,
            wire,
            passes_per_step: passes_per_step.max(1),
            compared_name: format!("{prefix}.compared"),
            checks: Mutex::new(CheckSchedule::new(engine.config().check_parameters, 0)),
            present_name: format!("{prefix}.present").into(),
            addresses,
            by_id,
            desk,
        };
        Ok(Outbox { office: Arc::new(office) })
    }

    /// Whether this is a parameter whose gradients go out here.
    pub fn knows(&self, id: ParamId) -> bool {
        self.office.by_id.contains_key(&id)
    }

    /// Announces that a gradient of this parameter will be posted, if it is known here. A layer says so in forward; a
    /// parameter that several layers use is sent when all of them have posted their part.
    ///
    /// A forward pass that is never differentiated should not announce anything: Burn keeps its tape for a while, and
    /// until the end of the step what was announced is waited for, so that the gradients of this step leave only with
    /// [`Outbox::collect`]. They are right nevertheless. Whoever evaluates with `module.valid()`, or without the
    /// outbox, announces nothing.
    pub fn expect(&self, id: ParamId) -> Option<AnnouncedGradient> {
        let address = *self.office.by_id.get(&id)?;
        let mut desk = self.office.desk();
        desk.letters[address].expected += 1;
        Some(AnnouncedGradient { outbox: self.clone(), address, step: desk.step, posted: AtomicBool::new(false) })
    }

    /// Posts a gradient that was not announced: the whole gradient that this backward pass has for the parameter. The
    /// last pass of a step sends the sum.
    pub fn post(&self, id: ParamId, gradient: TensorData) {
        match self.expect(id) {
            Some(posting) => posting.post(gradient),
            None => self.office.desk().fail(Error::Parameters(format!(
                "a gradient was posted for {id:?}, which is not a trained parameter of this outbox's module"
            ))),
        }
    }

    /// Sends what no layer has posted, waits for all ranks, and gives back the averages. All ranks call this once for
    /// each step, with what Burn has gathered from the backward passes, for those parameters that were not posted.
    ///
    /// A parameter that has no gradient on some ranks counts as zero there; one that has none on any rank is not in the
    /// result.
    ///
    /// # Errors
    /// If a gradient was posted more often than a step has passes, part of it was posted and part of it was not, the
    /// module is another one, or ranks are lost; [`Error::Overflow`], on all ranks, if gradients do not fit
    /// [`Wire::F16`].
    pub fn collect<M: Module>(&self, module: &M, gradients: GradientsParams) -> Result<GradientsParams> {
        self.averaged(module, gradients).map_err(|error| self.office.submitter.report(error))
    }

    fn averaged<M: Module>(&self, module: &M, gradients: GradientsParams) -> Result<GradientsParams> {
        self.office.compare(module)?;
        let mut closing = Closing { office: &self.office, gradients, seen: vec![false; self.office.addresses.len()] };
        module.visit(&mut closing);
        let Closing { gradients, seen, .. } = closing;
        let mut desk = self.office.desk().clear();
        if let Some(missing) = seen.iter().position(|seen| !seen) {
            let name = &self.office.addresses[missing].name;
            desk.fail(Error::Parameters(format!(
                "{name} is not in the module any more: make a new outbox after parameters were loaded or replaced"
            )));
        }
        if !gradients.is_empty() {
            desk.fail(Error::Parameters(format!(
                "{} gradients belong to no parameter of this outbox: make a new one after parameters were loaded, \
                 replaced or unfrozen",
                gradients.len()
            )));
        }
        let Desk { letters, trouble, .. } = desk;
        let averages = self.office.averages(letters, trouble.is_some());
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let averages = averages?;
        let mut opening = Opening { office: &self.office, averages, gradients };
        module.visit(&mut opening);
        Ok(opening.gradients)
    }
}

impl Office {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares the parameters of all ranks, if that is due, and warns if they differ.
    fn compare<M: Module>(&self, module: &M) -> Result<()> {
        if self.alone || self.addresses.is_empty() {
            return Ok(());
        }
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(due) = checks.next_step() else { return Ok(()) };
        let path = |name: &'_ Arc<str>| name.find('/').map_or(0, |end| end + 1);
        let names = self.by_id.iter().map(|(id, &index)| {
            let name = &self.addresses[index].name;
            (*id, &name[path(name)..])
        });
        let list = compared::listed(module, names.collect(), due.depth);
        if let Some(found) = list.compare(&*self.engine()?, GroupId::WORLD, &self.compared_name)? {
            checks.end();
            found.warn(due, "farandole::burn::broadcast_parameters");
        }
        Ok(())
    }

    fn engine(&self) -> Result<Arc<Engine>> {
        self.submitter.engine().ok_or_else(|| Error::Parameters("the world of this outbox has ended".to_owned()))
    }

    /// Adds a part to a parameter's gradient.
    fn add(&self, letter: &mut Letter, address: usize, gradient: TensorData) -> Result<()> {
        let Address { name, shape, dtype } = &self.addresses[address];
        if gradient.shape().as_slice() != shape.as_slice() {
            let got = gradient.shape().to_vec();
            return Err(Error::Parameters(format!("{name} has the shape {shape:?}, its gradient {got:?}")));
        }
        let part = wire::converted(staging::into_region(gradient)?, *dtype);
        match &mut letter.sum {
            Some(sum) => wire::add(sum, &part),
            None => letter.sum = Some(part),
        }
        Ok(())
    }

    /// Closes a letter and hands it to the engine.
    fn send(&self, letter: &mut Letter, address: usize) -> Result<()> {
        if self.alone {
            letter.way = Way::Home;
            return Ok(());
        }
        let Address { name, shape, dtype } = &self.addresses[address];
        let travelling = self.wire.dtype(*dtype);
        let contents = match letter.sum.take() {
            Some(sum) => wire::converted(sum, travelling),
            None => wire::zeros(travelling, shape.iter().product()),
        };
        let shape = shape.iter().map(|&dim| dim as u64).collect();
        let ticket = self.engine()?.submit(wire::average(Arc::clone(name), shape, contents))?;
        letter.way = Way::Sent(ticket);
        Ok(())
    }

    /// Sends the letters that are still here, whatever is in them, and waits for all. `None` where no rank had a
    /// gradient.
    fn averages(&self, letters: Vec<Letter>, in_trouble: bool) -> Result<Vec<Option<Region>>> {
        if self.alone {
            return Ok(letters.into_iter().map(|letter| letter.sum).collect());
        }
        let engine = self.engine()?;
        let mut present = Vec::with_capacity(letters.len());
        let mut tickets = Vec::with_capacity(letters.len() + 1);
        for (address, mut letter) in letters.into_iter().enumerate() {
            present.push(u32::from(letter.passes > 0));
            if matches!(letter.way, Way::Open) {
                self.send(&mut letter, address)?;
            }
            if let Way::Sent(ticket) = letter.way {
                tickets.push(ticket);
            }
        }
        let in_trouble = in_trouble.then(|| engine.rank());
        tickets.push(engine.submit(wire::presence(Arc::clone(&self.present_name), present, in_trouble))?);
        let mut results = wait_all(tickets);
        let present = wire::heard(results.pop().expect("invariant: there is a result for each ticket")?)?;
        let averages = results.into_iter().zip(present).zip(&self.addresses).map(|((result, present), address)| {
            let average = result?.into_result().ok_or(Error::WrongElement)?;
            if present { wire::arrived(&address.name, average, address.dtype).map(Some) } else { Ok(None) }
        });
        averages.collect()
    }
}

impl Desk {
    fn new(step: u64, letters: usize) -> Desk {
        Desk { step, letters: std::iter::repeat_with(Letter::default).take(letters).collect(), trouble: None }
    }

    /// Makes room for the next step.
    fn clear(&mut self) -> Desk {
        let next = Desk::new(self.step + 1, self.letters.len());
        mem::replace(self, next)
    }

    /// Something that was announced in this step need not be waited for any more.
    fn no_longer_expects(&mut self, address: usize, step: u64) {
        if self.step == step {
            self.letters[address].expected -= 1;
        }
    }

    /// Keeps the first trouble.
    fn fail(&mut self, error: Error) {
        self.trouble.get_or_insert(error);
    }
}

/// A gradient that was announced. Dropped without being posted, it is no longer expected: its forward had no backward.
pub struct AnnouncedGradient {
    outbox: Outbox,
    address: usize,
    /// In which it was announced.
    step: u64,
    /// Set by the one thread that runs backward, read when the posting is dropped; orders nothing.
    posted: AtomicBool,
}

impl AnnouncedGradient {
    /// Posts the gradient. Of several calls the first one counts.
    pub fn post(&self, gradient: TensorData) {
        if self.posted.swap(true, Ordering::Relaxed) {
            return;
        }
        let office = &self.outbox.office;
        let mut desk = office.desk();
        desk.no_longer_expects(self.address, self.step);
        let letter = &mut desk.letters[self.address];
        let done = if matches!(letter.way, Way::Open) {
            office.add(letter, self.address, gradient).and_then(|()| {
                letter.passes += usize::from(letter.expected == 0);
                if letter.expected == 0 && letter.passes == office.passes_per_step {
                    office.send(letter, self.address)?;
                }
                Ok(())
            })
        } else {
            let (name, passes) = (&office.addresses[self.address].name, office.passes_per_step);
            Err(Error::Parameters(format!(
                "{name} was posted again after it had been sent: a step of this outbox has {passes} backward passes, \
                 and collect was not called after them"
            )))
        };
        if let Err(error) = done {
            desk.fail(error);
        }
    }
}

impl Drop for AnnouncedGradient {
    fn drop(&mut self) {
        if !*self.posted.get_mut() {
            self.outbox.office.desk().no_longer_expects(self.address, self.step);
        }
    }
}

/// Adds the gradients that Burn has gathered to the letters.
struct Closing<'a> {
    office: &'a Office,
    gradients: GradientsParams,
    seen: Vec<bool>,
}

impl ModuleVisitor for Closing<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(&address) = self.office.by_id.get(&param.id) else { return };
        if mem::replace(&mut self.seen[address], true) {
            return;
        }
        let gradient = self.gradients.remove::<D>(param.id);
        let mut desk = self.office.desk();
        let letter = &mut desk.letters[address];
        let result = match (&letter.way, gradient) {
            (Way::Open, gradient) => {
                let added = gradient.map_or(Ok(()), |gradient| self.office.add(letter, address, gradient.into_data()));
                letter.passes += usize::from(letter.sum.is_some());
                added
            }
            (Way::Sent(_) | Way::Home, None) => Ok(()),
            (Way::Sent(_) | Way::Home, Some(_)) => Err(Error::Parameters(format!(
                "part of the gradient of {} was posted and sent during backward, and part of it was not posted: \
                 post all of it or nothing",
                self.office.addresses[address].name
            ))),
        };
        if let Err(error) = result {
            desk.fail(error);
        }
    }
}

/// Puts averages where Burn's optimizers look for gradients.
struct Opening<'a> {
    office: &'a Office,
    averages: Vec<Option<Region>>,
    gradients: GradientsParams,
}

impl ModuleVisitor for Opening<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(&address) = self.office.by_id.get(&param.id) else { return };
        let Some(average) = self.averages[address].take() else { return };
        let data = staging::into_data(average, &self.office.addresses[address].shape);
        let data = data.expect("invariant: gradients have float elements");
        let tensor = Tensor::<D>::from_data(data, (&param.device().without_autodiff(), param.dtype()));
        self.gradients.register(param.id, tensor);
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("parameters", &self.office.addresses.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for AnnouncedGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnnouncedGradient({})", self.outbox.office.addresses[self.address].name)
    }
}
