//! Candle on many ranks (feature `candle`).
//!
//! Candle's gradients come all at once from `backward`, in a `GradStore`, and belong to variables without names. So a
//! program says once which variables it trains and what they are called (a `VarMap` of candle-nn knows; any order will
//! do), and [`Averager`] replaces their gradients by the averages over all ranks; what steps then, an optimizer of
//! candle-nn or the program itself, need not know:
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use farandole::candle::{Averager, Wire, broadcast_parameters};
//!
//! let mut world = farandole::init()?;
//! let weight = Var::from_tensor(&Tensor::ones((2, 1), DType::F32, &Device::Cpu)?)?;
//! let named = vec![("weight".to_owned(), weight.clone())];
//! broadcast_parameters(&mut world, named.clone(), 0)?;
//! let averager = Averager::new(&world, named, Wire::F32)?;
//! for _ in 0..3 {
//!     let inputs = Tensor::new(&[[1.0f32, world.rank() as f32]], &Device::Cpu)?;     // each rank its own
//!     let loss = inputs.matmul(&weight)?.sqr()?.mean_all()?;
//!     let mut gradients = loss.backward()?;
//!     averager.average(&mut gradients)?;
//!     let gradient = gradients.get(&weight).expect("the loss depends on the weight");
//!     weight.set(&(weight.as_tensor() - (gradient * 0.1)?)?)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Variables`] are named variables as the state of an elastic training, which goes on when ranks leave or join
//! ([`crate::elastic`]).
//!
//! Tensors of any device come by way of host memory. There is no overlap with backward here: Candle hands out no
//! gradient before it has computed all.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var, WithDType};
use farandole_plan::{Dtype, GroupId};
use farandole_tensor::digest::digest;
use farandole_tensor::{Element, Region};
use half::{bf16, f16};

use crate::agreement::agree;
use crate::elastic::{ElasticState, WorldChange, joined, misfit, parted};
use crate::error::{Error, Result};
use crate::named::Submitter;
use crate::parameter_check::{CheckSchedule, Depth, MatchedBy, ParameterList, sample_of};
pub use crate::wire::Wire;
use crate::wire::{self, average, heard, presence};
use crate::world::World;
use crate::{Engine, wait_all};

/// Averages gradients over all ranks.
#[derive(Debug)]
pub struct Averager {
    /// The world does not wait for its averagers to end.
    submitter: Submitter,
    alone: bool,
    wire: Wire,
    present_name: Arc<str>,
    compared_name: String,
    /// Taken by `average` alone.
    checks: Mutex<CheckSchedule>,
    /// Sorted by name.
    variables: Vec<Variable>,
}

#[derive(Debug)]
struct Variable {
    /// Under which its gradient travels.
    name: Arc<str>,
    var: Var,
    dtype: Dtype,
}

impl Averager {
    /// For these variables, by name. All ranks call this together, with the same names in any order.
    ///
    /// # Errors
    /// [`Error::Parameters`] if names are used twice, the ranks have different variables, or elements are no floats.
    pub fn new(world: &World, variables: impl IntoIterator<Item = (String, Var)>, wire: Wire) -> Result<Averager> {
        let named = sorted(variables)?;
        let prefix = format!("gradient.{}", world.next_series());
        agree(world.engine(), &format!("{prefix}.parameters"), text(&named))?;
        let variables: Result<Vec<Variable>> = named
            .into_iter()
            .map(|(name, var)| {
                let dtype = float_dtype(var.dtype())?;
                Ok(Variable { name: format!("{prefix}/{name}").into(), var, dtype })
            })
            .collect();
        let present_name = format!("{prefix}.present").into();
        let compared_name = format!("{prefix}.compared");
        let checks = Mutex::new(CheckSchedule::new(world.engine().config().check_parameters, 0));
        let (alone, variables) = (world.size() == 1, variables?);
        Ok(Averager { submitter: world.submitter(), alone, wire, present_name, compared_name, checks, variables })
    }

    /// Replaces the gradients of the variables by their averages. All ranks call this once for each step.
    ///
    /// A variable that has no gradient on some ranks counts as zero there and has one afterwards; one that has none on
    /// any rank is left alone. Gradients of other tensors stay as they are.
    ///
    /// # Errors
    /// If a tensor cannot be read or made, or ranks are lost; [`Error::Overflow`] if gradients do not fit
    /// [`Wire::F16`]. The gradients are as they were then.
    pub fn average(&self, gradients: &mut GradStore) -> Result<()> {
        if self.alone {
            return Ok(());
        }
        let ended = || Error::Parameters("the world of this averager has ended".to_owned());
        let engine = self.submitter.engine().ok_or_else(ended)?;
        self.exchange(&engine, gradients).map_err(|error| self.submitter.report(error))
    }

    fn exchange(&self, engine: &Engine, gradients: &mut GradStore) -> Result<()> {
        self.compare(engine)?;
        let mut present = Vec::with_capacity(self.variables.len());
        let mut trouble = None;
        let mut tickets = Vec::with_capacity(self.variables.len() + 1);
        for Variable { name, var, dtype } in &self.variables {
            let travelling = self.wire.dtype(*dtype);
            let gradient = gradients.get(var).map(read);
            present.push(u32::from(gradient.is_some()));
            let contents = match gradient {
                Some(Ok(gradient)) if gradient.len_elems() == var.elem_count() => wire::converted(gradient, travelling),
                Some(Ok(_)) => {
                    trouble = Some(Error::Parameters(format!("{name} and its gradient have different shapes")));
                    wire::zeros(travelling, var.elem_count())
                }
                Some(Err(error)) => {
                    trouble = Some(error);
                    wire::zeros(travelling, var.elem_count())
                }
                None => wire::zeros(travelling, var.elem_count()),
            };
            let shape = var.dims().iter().map(|&dim| dim as u64).collect();
            tickets.push(engine.submit(average(Arc::clone(name), shape, contents))?);
        }
        let in_trouble = trouble.as_ref().map(|_| engine.rank());
        tickets.push(engine.submit(presence(Arc::clone(&self.present_name), present, in_trouble))?);
        let mut results = wait_all(tickets);
        let present = results.pop().expect("invariant: there is a result for each ticket");
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let present = heard(present?)?;
        let arrived = self.variables.iter().zip(results).zip(present).map(|((variable, result), present)| {
            let contents = result?.into_result().ok_or(Error::WrongElement)?;
            let Variable { name, var, dtype } = variable;
            Ok(if present { Some((var, made(wire::arrived(name, contents, *dtype)?, var)?)) } else { None })
        });
        // All of them before the first is replaced: an error leaves the gradients as they were.
        let averages: Result<Vec<Option<(&Var, Tensor)>>> = arrived.collect();
        for (var, average) in averages?.into_iter().flatten() {
            gradients.insert(var, average);
        }
        Ok(())
    }

    /// Compares the variables of all ranks, if that is due, and warns if they differ.
    fn compare(&self, engine: &Engine) -> Result<()> {
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let due = if self.variables.is_empty() { None } else { checks.next_step() };
        let Some(due) = due else { return Ok(()) };
        let mut list = ParameterList::new(MatchedBy::Name);
        for Variable { name, var, dtype } in &self.variables {
            let name = name.split_once('/').map_or(&**name, |(_, name)| name);
            let size_bytes = var.elem_count() * dtype.size_bytes();
            // What cannot be read is compared by its name alone: the others wait for this rank.
            let Ok(sample) = sampled(var.as_tensor(), size_bytes, due.depth) else {
                list.add_digest(name, 0, 0);
                continue;
            };
            list.add_digest(name, size_bytes, digest(&sample));
        }
        if let Some(found) = list.compare(engine, GroupId::WORLD, &self.compared_name)? {
            checks.end();
            found.warn(due, "farandole::candle::broadcast_parameters");
        }
        Ok(())
    }
}

/// The bytes of a tensor of so many that are compared.
fn sampled(tensor: &Tensor, size_bytes: usize, depth: Depth) -> Result<Vec<u8>> {
    if depth == Depth::Whole {
        return Ok(read(tensor)?.as_bytes().to_vec());
    }
    let flat = tensor.flatten_all().map_err(trouble)?;
    let element_bytes = size_bytes / flat.elem_count().max(1);
    let mut sample = Vec::new();
    for block in sample_of(size_bytes).filter(|block| !block.is_empty()) {
        let part = flat.narrow(0, block.start / element_bytes, block.len() / element_bytes).map_err(trouble)?;
        sample.extend_from_slice(read(&part)?.as_bytes());
    }
    Ok(sample)
}

/// Named variables as the state of a [`Training`](crate::elastic::Training): those that are trained, and whatever else
/// belongs to it, such as the moments of an optimizer.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use farandole::candle::{Variables, Wire};
/// use farandole::elastic::Training;
///
/// let weight = Var::from_tensor(&Tensor::ones((2, 1), DType::F32, &Device::Cpu)?)?;
/// let variables = Variables::new([("weight".to_owned(), weight.clone())], [], Wire::F32)?;
/// let mut training = Training::new(variables).begin()?;
/// while training.steps() < 3 {
///     training.step(
///         |world, variables, _batch| {
///             let inputs = Tensor::new(&[[1.0f32, world.rank() as f32]], &Device::Cpu)?;  // each rank its own
///             let mut gradients = inputs.matmul(&weight)?.sqr()?.mean_all()?.backward()?;
///             variables.average(&mut gradients)?;
///             let gradient = gradients.get(&weight).expect("the loss depends on the weight");
///             Ok::<_, Box<dyn std::error::Error>>((weight.as_tensor() - (gradient * 0.1)?)?)
///         },
///         |_, after| weight.set(&after).expect("it has the same shape"),
///     )?;
/// }
/// training.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Variables {
    trained: Vec<(String, Var)>,
    /// Trained and others, sorted by name.
    all: Vec<(String, Var)>,
    wire: Wire,
    /// Of the world that is now; none before the first.
    averager: Option<Averager>,
}

impl Variables {
    /// `trained` have gradients, which travel by `wire`; `others` are part of the state alone.
    ///
    /// # Errors
    /// [`Error::Parameters`] if names are used twice.
    pub fn new(
        trained: impl IntoIterator<Item = (String, Var)>,
        others: impl IntoIterator<Item = (String, Var)>,
        wire: Wire,
    ) -> Result<Variables> {
        let trained = sorted(trained)?;
        let all = sorted(trained.iter().cloned().chain(others))?;
        Ok(Variables { trained, all, wire, averager: None })
    }

    /// As [`Averager::average`], with the ranks of now.
    ///
    /// # Errors
    /// As there.
    pub fn average(&self, gradients: &mut GradStore) -> Result<()> {
        let early = || Error::Parameters("gradients are averaged when the training has begun".to_owned());
        self.averager.as_ref().ok_or_else(early)?.average(gradients)
    }
}

impl ElasticState for Variables {
    fn save(&self) -> Result<Vec<u8>> {
        let regions: Result<Vec<Region>> = self.all.iter().map(|(_, var)| read(var.as_tensor())).collect();
        let (list, regions) = (text(&self.all), regions?);
        let mut pieces = vec![list.as_bytes()];
        pieces.extend(regions.iter().map(Region::as_bytes));
        Ok(joined(&pieces))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let pieces = parted(saved)?;
        let own = text(&self.all);
        let (theirs, contents) = pieces.split_first().ok_or_else(|| misfit("it has no variables"))?;
        if *theirs != own.as_bytes() {
            return Err(misfit(&format!("variables {own:?} here, {:?} there", String::from_utf8_lossy(theirs))));
        }
        // All of them before the first is replaced: an error leaves them as they were.
        let mut values = Vec::with_capacity(self.all.len());
        for ((name, var), bytes) in self.all.iter().zip(contents) {
            let mut region = read(var.as_tensor())?;
            if region.as_bytes().len() != bytes.len() {
                return Err(misfit(&format!("{name} has another size")));
            }
            region.as_bytes_mut().copy_from_slice(bytes);
            values.push(made(region, var)?);
        }
        if values.len() != self.all.len() {
            return Err(misfit("it has fewer variables"));
        }
        self.all.iter().zip(values).try_for_each(|((_, var), value)| var.set(&value).map_err(trouble))
    }

    fn on_change(&mut self, world: &mut World, _: &WorldChange) -> Result<()> {
        self.averager = Some(Averager::new(world, self.trained.clone(), self.wire)?);
        Ok(())
    }
}

/// Gives all ranks the root's values of these variables, by name. All ranks call this together, with the same names in
/// any order.
///
/// # Errors
/// [`Error::Parameters`] if names are used twice, the ranks have different variables, or elements are no floats.
pub fn broadcast_parameters(
    world: &mut World,
    variables: impl IntoIterator<Item = (String, Var)>,
    root: usize,
) -> Result<()> {
    let named = sorted(variables)?;
    let name = format!("farandole.broadcast_parameters.{}", world.next_series());
    agree(world.engine(), &name, text(&named))?;
    for (_, var) in named {
        let mut region = read(var.as_tensor())?;
        world.broadcast::<u8>(region.as_bytes_mut(), root)?;
        var.set(&made(region, &var)?).map_err(trouble)?;
    }
    Ok(())
}

fn sorted(variables: impl IntoIterator<Item = (String, Var)>) -> Result<Vec<(String, Var)>> {
    let mut named: Vec<(String, Var)> = variables.into_iter().collect();
    named.sort_by(|one, other| one.0.cmp(&other.0));
    match named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(Error::Parameters(format!("two variables are called {}", pair[0].0))),
        None => Ok(named),
    }
}

fn text(named: &[(String, Var)]) -> String {
    named.iter().map(|(name, var)| format!("{name} {:?} {:?}\n", var.dtype(), var.dims())).collect()
}

fn float_dtype(dtype: DType) -> Result<Dtype> {
    match dtype {
        DType::F64 => Ok(Dtype::F64),
        DType::F32 => Ok(Dtype::F32),
        DType::F16 => Ok(Dtype::F16),
        DType::BF16 => Ok(Dtype::BF16),
        other => Err(Error::Parameters(format!("there is no average of {other:?} elements"))),
    }
}

/// A tensor's elements in host memory.
fn read(tensor: &Tensor) -> Result<Region> {
    fn take<T: Element + WithDType>(tensor: &Tensor) -> Result<Region> {
        let elements = tensor.flatten_all().and_then(|flat| flat.to_vec1::<T>());
        elements.map(Region::from_vec).map_err(trouble)
    }
    match float_dtype(tensor.dtype())? {
        Dtype::F64 => take::<f64>(tensor),
        Dtype::F16 => take::<f16>(tensor),
        Dtype::BF16 => take::<bf16>(tensor),
        _ => take::<f32>(tensor),
    }
}

/// A tensor of these elements, with the shape and on the device of another.
fn made(region: Region, like: &Tensor) -> Result<Tensor> {
    fn give<T: Element + WithDType>(region: Region, like: &Tensor) -> Result<Tensor> {
        let elements = region.into_vec::<T>().map_err(|_| Error::WrongElement)?;
        Tensor::from_vec(elements, like.dims(), like.device()).map_err(trouble)
    }
    match region.dtype() {
        Dtype::F64 => give::<f64>(region, like),
        Dtype::F16 => give::<f16>(region, like),
        Dtype::BF16 => give::<bf16>(region, like),
        _ => give::<f32>(region, like),
    }
}

fn trouble(error: candle_core::Error) -> Error {
    Error::Parameters(format!("a tensor of Candle cannot be read or made: {error}"))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn variables(rows: usize, value: f32) -> Variables {
        let var = |value: f32| Var::from_vec(vec![value; rows * 2], (rows, 2), &Device::Cpu).unwrap();
        let (trained, other) = (("weight".to_owned(), var(value)), ("moment".to_owned(), var(2.0 * value)));
        Variables::new([trained], [other], Wire::F32).unwrap()
    }

    fn values(variables: &Variables) -> Vec<Vec<f32>> {
        variables.all.iter().map(|(_, var)| var.flatten_all().unwrap().to_vec1().unwrap()).collect()
    }

    #[test]
    fn variables_become_those_of_another_rank_or_stay_as_they_were() {
        let (source, mut other) = (variables(3, 1.5), variables(3, 0.0));
        other.restore(&source.save().unwrap()).unwrap();
        assert_eq!(values(&other), values(&source));
        let mut odd = variables(4, 7.0);
        let error = odd.restore(&source.save().unwrap()).unwrap_err().to_string();
        assert!(error.contains("weight F32 [4, 2]") && error.contains("weight F32 [3, 2]"), "{error}");
        assert_eq!(values(&odd), values(&variables(4, 7.0)));
        assert!(odd.restore(b"").is_err());
    }
}
