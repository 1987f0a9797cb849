//! What outputs mean: how wrong they are, as something to learn from, and what is counted to judge them.
//!
//! A *loss* is a tensor with a gradient, the mean over the samples of this rank's batch. A *score* is a set of sums in
//! double precision that batches and ranks add up; metrics are computed from the sums alone, so they are exact for all
//! samples together, however these were cut into batches and over ranks.

use std::fmt;

use burn::tensor::activation::{log_sigmoid, log_softmax};
use burn::tensor::{Device, Tensor, TensorData};

use crate::model::Output;
use farandole_data::sample::{Labels, Task};

/// Outputs, labels and task do not belong together, or a label is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskError(String);

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TaskError {}

fn wrong<T>(what: String) -> Result<T, TaskError> {
    Err(TaskError(what))
}

/// The mean loss of a batch: cross entropy, binary cross entropy, squared error or L1, as the task says.
///
/// With `label_smoothing` s, a share s of every label is spread evenly: over all classes, or over "applies" and "does
/// not". A sample of two classes (`Labels::Mixed`) has the loss of both by their shares; `Labels::Labels` may give any
/// share to any class.
pub fn loss(output: Output, labels: &Labels, task: Task, label_smoothing: f32) -> Result<Tensor<1>, TaskError> {
    match (output, task) {
        (Output::Numbers(numbers), Task::SingleLabel { classes }) => {
            let [samples, outputs] = numbers.dims();
            let targets = class_shares(labels, samples, classes, outputs)?;
            let spread = label_smoothing / classes as f32;
            let targets = targets.into_iter().map(|share| share * (1.0 - label_smoothing) + spread).collect();
            let targets = constant(targets, [samples, classes], &numbers.device());
            Ok((log_softmax(numbers, 1) * targets).sum().div_scalar(-(samples as f32)))
        }
        (Output::Numbers(numbers), Task::MultiLabel { labels: count }) => {
            let [samples, outputs] = numbers.dims();
            let targets = label_shares(labels, samples, count, outputs)?;
            let spread = label_smoothing / 2.0;
            let targets = targets.iter().map(|target| target * (1.0 - label_smoothing) + spread).collect();
            let targets = constant(targets, [samples, count], &numbers.device());
            // -t log(p) - (1 - t) log(1 - p) with 1 - p = sigmoid(-z), and log(sigmoid(-z)) = log(sigmoid(z)) - z.
            let entropy = log_sigmoid(numbers.clone()).neg() + numbers * (targets.neg() + 1.0);
            Ok(entropy.mean())
        }
        (Output::Numbers(numbers), Task::Regression) => {
            let [samples, outputs] = numbers.dims();
            let targets = values(labels, samples, outputs)?.to_vec();
            let targets = constant(targets, [samples, 1], &numbers.device());
            let difference = numbers - targets;
            Ok((difference.clone() * difference).mean())
        }
        (Output::Images(images), Task::SuperResolution { .. }) => {
            let shape = images.dims();
            let targets = large_images(labels, shape)?.to_vec();
            let targets = constant(targets, shape, &images.device());
            Ok((images - targets).abs().mean())
        }
        _ => wrong("the network's outputs are not of the task's kind".to_owned()),
    }
}

fn constant<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// For each sample the share of each class.
fn class_shares(labels: &Labels, samples: usize, classes: usize, outputs: usize) -> Result<Vec<f32>, TaskError> {
    if outputs != classes {
        return wrong(format!("the network has {outputs} outputs for {classes} classes"));
    }
    let mut shares = vec![0.0; samples * classes];
    let mut add = |numbers: &[u32], share: &dyn Fn(usize) -> f32| {
        for (sample, &class) in numbers.iter().enumerate() {
            if class as usize >= classes {
                return wrong(format!("a sample has class {class}, but there are only classes 0 to {}", classes - 1));
            }
            shares[sample * classes + class as usize] += share(sample);
        }
        Ok(())
    };
    match labels {
        Labels::Classes(numbers) if numbers.len() == samples => {
            add(numbers, &|_| 1.0)?;
            Ok(shares)
        }
        Labels::Mixed { first, second, share } if [first.len(), second.len(), share.len()] == [samples; 3] => {
            add(first, &|sample| share[sample])?;
            add(second, &|sample| 1.0 - share[sample])?;
            Ok(shares)
        }
        Labels::Labels(shares) if shares.len() == samples * classes => Ok(shares.clone()),
        _ => wrong(format!("{} for {samples} samples of {classes} classes", kind(labels))),
    }
}

fn label_shares(labels: &Labels, samples: usize, count: usize, outputs: usize) -> Result<&[f32], TaskError> {
    if outputs != count {
        return wrong(format!("the network has {outputs} outputs for {count} labels"));
    }
    match labels {
        Labels::Labels(shares) if shares.len() == samples * count => Ok(shares),
        _ => wrong(format!("{} for {samples} samples with {count} labels each", kind(labels))),
    }
}

fn values(labels: &Labels, samples: usize, outputs: usize) -> Result<&[f32], TaskError> {
    match labels {
        Labels::Values(values) if values.len() == samples && outputs == 1 => Ok(values),
        _ => wrong(format!("{} for {samples} numbers from {outputs} outputs", kind(labels))),
    }
}

fn large_images(labels: &Labels, shape: [usize; 4]) -> Result<&[f32], TaskError> {
    match labels {
        Labels::Images(images) if images.len() == shape.iter().product::<usize>() => Ok(images),
        _ => wrong(format!("{} for images of shape {shape:?}", kind(labels))),
    }
}

fn kind(labels: &Labels) -> String {
    match labels {
        Labels::Classes(numbers) => format!("there are {} class numbers", numbers.len()),
        Labels::Mixed { first, .. } => format!("there are {} pairs of class numbers", first.len()),
        Labels::Labels(shares) => format!("there are {} labels", shares.len()),
        Labels::Values(values) => format!("there are {} values", values.len()),
        Labels::Images(pixels) => format!("there are {} pixels of larger images", pixels.len()),
    }
}

/// How many the best guesses are among which a class counts as found, besides the best one alone.
const TOP: usize = 5;
/// An image that is met exactly has no noise at all; it counts as this much signal to noise, in decibel.
const BEST_PSNR: f64 = 100.0;

/// Sums that judge outputs. Add those of batches and ranks; ask for metrics at last.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    task: Task,
    samples: f64,
    /// Of losses without smoothing, one for each sample.
    loss: f64,
    /// What the task counts: correct and correct among the best five; absolute and squared errors; signal-to-noise
    /// ratios.
    counts: [f64; 2],
    /// Multi-label: found, found wrongly and missed, for each label.
    labels: Vec<[f64; 3]>,
}

impl Score {
    /// No sample yet.
    pub fn new(task: Task) -> Self {
        let labels = if let Task::MultiLabel { labels } = task { vec![[0.0; 3]; labels] } else { Vec::new() };
        Self { task, samples: 0.0, loss: 0.0, counts: [0.0; 2], labels }
    }

    /// The score of one batch.
    pub fn of(output: Output, labels: &Labels, task: Task) -> Result<Self, TaskError> {
        let mut score = Self::new(task);
        let numbers_of = |data: TensorData| {
            data.convert::<f32>()
                .try_to_vec::<f32>()
                .map_err(|error| TaskError(format!("outputs are no numbers: {error:?}")))
        };
        match (output, task) {
            (Output::Numbers(tensor), _) => {
                let [samples, outputs] = tensor.dims();
                let numbers = numbers_of(tensor.into_data())?;
                score.samples = samples as f64;
                match task {
                    Task::SingleLabel { classes } => {
                        score.add_classes(&numbers, &class_shares(labels, samples, classes, outputs)?, classes);
                    }
                    Task::MultiLabel { labels: count } => {
                        score.add_labels(&numbers, label_shares(labels, samples, count, outputs)?);
                    }
                    Task::Regression => score.add_values(&numbers, values(labels, samples, outputs)?),
                    Task::SuperResolution { .. } => return wrong("numbers are no larger images".to_owned()),
                }
            }
            (Output::Images(tensor), Task::SuperResolution { .. }) => {
                let shape = tensor.dims();
                let numbers = numbers_of(tensor.into_data())?;
                score.samples = shape[0] as f64;
                score.add_images(&numbers, large_images(labels, shape)?, shape[1] * shape[2] * shape[3]);
            }
            (Output::Images(_), _) => return wrong("images are no answer to this task".to_owned()),
        }
        Ok(score)
    }

    fn add_classes(&mut self, numbers: &[f32], shares: &[f32], classes: usize) {
        for (numbers, shares) in numbers.chunks(classes).zip(shares.chunks(classes)) {
            let most = f64::from(numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let sum: f64 = numbers.iter().map(|&z| (f64::from(z) - most).exp()).sum();
            let log_sum = most + sum.ln();
            self.loss +=
                numbers.iter().zip(shares).map(|(&z, &s)| f64::from(s) * (log_sum - f64::from(z))).sum::<f64>();
            let mut truth = 0;
            for (class, share) in shares.iter().enumerate() {
                if *share > shares[truth] {
                    truth = class;
                }
            }
            // Classes as good as the true one count as better when they come first, as they do in a stable sort.
            let better = numbers.iter().enumerate();
            let better =
                better.filter(|&(class, &z)| z > numbers[truth] || (z == numbers[truth] && class < truth)).count();
            // A network that has lost its way gives no numbers at all: then nothing is found.
            let found = !numbers[truth].is_nan();
            self.counts[0] += f64::from(u8::from(found && better == 0));
            self.counts[1] += f64::from(u8::from(found && better < TOP));
        }
    }

    fn add_labels(&mut self, numbers: &[f32], shares: &[f32]) {
        let count = self.labels.len();
        for (place, (&z, &target)) in numbers.iter().zip(shares).enumerate() {
            let (z, t) = (f64::from(z), f64::from(target));
            // log(1 + exp(z)) - t z, without exp of anything large.
            self.loss += (z.max(0.0) - t * z + (-z.abs()).exp().ln_1p()) / count as f64;
            let [found, wrongly, missed] = &mut self.labels[place % count];
            match (z > 0.0, target > 0.5) {
                (true, true) => *found += 1.0,
                (true, false) => *wrongly += 1.0,
                (false, true) => *missed += 1.0,
                (false, false) => {}
            }
        }
    }

    fn add_values(&mut self, numbers: &[f32], values: &[f32]) {
        for (&number, &value) in numbers.iter().zip(values) {
            let error = f64::from(number) - f64::from(value);
            self.loss += error * error;
            self.counts[0] += error.abs();
            self.counts[1] += error * error;
        }
    }

    fn add_images(&mut self, numbers: &[f32], truth: &[f32], size: usize) {
        for (numbers, truth) in numbers.chunks(size).zip(truth.chunks(size)) {
            let errors = || numbers.iter().zip(truth).map(|(&a, &b)| f64::from(a) - f64::from(b));
            self.loss += errors().map(f64::abs).sum::<f64>() / size as f64;
            let noise = errors().map(|error| error * error).sum::<f64>() / size as f64;
            let (low, high) =
                truth.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &v| (low.min(v), high.max(v)));
            let range = if high > low { f64::from(high) - f64::from(low) } else { 1.0 };
            let ratio = if noise > 0.0 { 10.0 * (range * range / noise).log10() } else { BEST_PSNR };
            self.counts[0] += ratio.min(BEST_PSNR);
        }
    }

    /// Adds what other samples gave for the same task.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.task, other.task, "scores of different tasks cannot be added");
        let sums: Vec<f64> = self.sums().iter().zip(other.sums()).map(|(a, b)| a + b).collect();
        *self = Self::from_sums(self.task, &sums).expect("the same task has as many sums");
    }

    /// All sums in one row, to be added up over ranks.
    pub fn sums(&self) -> Vec<f64> {
        let mut sums = vec![self.samples, self.loss, self.counts[0], self.counts[1]];
        sums.extend(self.labels.iter().flatten());
        sums
    }

    /// The score with these sums. None when the task has another number of sums.
    pub fn from_sums(task: Task, sums: &[f64]) -> Option<Self> {
        let mut score = Self::new(task);
        let [samples, loss, first, second, labels @ ..] = sums else { return None };
        if labels.len() != 3 * score.labels.len() {
            return None;
        }
        score.samples = *samples;
        score.loss = *loss;
        score.counts = [*first, *second];
        for (label, sums) in score.labels.iter_mut().zip(labels.chunks(3)) {
            label.copy_from_slice(sums);
        }
        Some(score)
    }

    /// How many samples were judged.
    pub fn samples(&self) -> u64 {
        self.samples as u64
    }

    /// Names and values, the loss first, then what the task is judged by. Empty when no sample was judged.
    pub fn metrics(&self) -> Vec<(&'static str, f64)> {
        if self.samples == 0.0 {
            return Vec::new();
        }
        let mean = |sum: f64| sum / self.samples;
        let mut metrics = vec![("loss", mean(self.loss))];
        match self.task {
            Task::SingleLabel { classes } => {
                metrics.push(("accuracy", mean(self.counts[0])));
                if classes > TOP {
                    metrics.push(("top5", mean(self.counts[1])));
                }
            }
            Task::MultiLabel { .. } => {
                let [micro, macro_mean] = self.f1();
                metrics.extend([("f1_micro", micro), ("f1_macro", macro_mean)]);
            }
            Task::Regression => metrics.extend([("mae", mean(self.counts[0])), ("rmse", mean(self.counts[1]).sqrt())]),
            Task::SuperResolution { .. } => metrics.push(("psnr", mean(self.counts[0]))),
        }
        metrics
    }

    /// What the task is judged by, if a sample was judged.
    pub fn headline(&self) -> Option<(&'static str, f64)> {
        self.metrics().get(1).copied()
    }

    /// F1 over all labels together, and the mean of each label's own over the labels that were there or were found.
    fn f1(&self) -> [f64; 2] {
        // Without anything to find and nothing found there was no mistake.
        let f1 = |[found, wrongly, missed]: [f64; 3]| {
            let all = 2.0 * found + wrongly + missed;
            if all > 0.0 { 2.0 * found / all } else { 1.0 }
        };
        let total = self.labels.iter().fold([0.0; 3], |sum, label| std::array::from_fn(|i| sum[i] + label[i]));
        let seen: Vec<f64> =
            self.labels.iter().filter(|label| label.iter().sum::<f64>() > 0.0).map(|label| f1(*label)).collect();
        let mean = if seen.is_empty() { 1.0 } else { seen.iter().sum::<f64>() / seen.len() as f64 };
        [f1(total), mean]
    }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
