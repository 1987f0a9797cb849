//! One step: passes over the rank's share of a batch, and what all ranks make of it.

use std::time::Instant;

use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use farandole::burn::add_gradients;
use farandole::{Phase, World};

use super::desk::Desk;
use super::learned::Learned;
use super::tally::{Sums, Tally, not_finite};
use crate::error::{Error, Result};
use crate::layer::{Draw, ForwardPass};
use crate::task;
use farandole_data::sample::{Labels, SampleBatch};
use farandole_data::sampler::Shard;

/// What all ranks have made of a step: the weights follow from it.
pub(super) struct Made {
    averages: GradientsParams,
    rate: f64,
    sums: Sums,
    began: Instant,
    /// Samples of this rank.
    count: usize,
    /// Samples of all ranks.
    global_count: usize,
}

impl Desk {
    /// Takes the batch of the next step, and computes with all ranks what is to be learned from it. Changes no weight.
    pub(super) fn compute(&mut self, world: &mut World, learned: &Learned) -> Result<Made> {
        let began = Instant::now();
        let (plan, at) = (self.plan(learned), learned.progress.at);
        let number = learned.progress.number(&plan);
        self.follow(world, learned)?;
        world.mark_iteration(number);
        let Desk { seat, watch, .. } = self;
        let seat = seat.as_mut().expect("invariant: a rank has a seat now");
        let batch = watch.time(Phase::InputWait, || seat.batch(at))?;
        let (shard, passes) = (seat.shard, seat.passes);

        let mut own = Sums { replaced: batch.replaced as f64, samples: batch.count as f64, ..Sums::default() };
        own.stops = f64::from(u8::from(self.stop.asked()));
        let (count, global_count) = (batch.count, batch.global_count);
        let cuts = cuts(&shard, at.step as usize, passes);
        let before = samples_before(&shard, at.step as usize);
        let (mut tally, mut gradients) = (None, GradientsParams::new());
        for (pass, piece) in pieces(batch, cuts, self.spec.shape.len()).enumerate() {
            let Some(piece) = piece else { continue };
            let is_last = pass + 1 == passes;
            let draw = Draw { seed: self.job.seed, step: number, first_sample: before + piece.first };
            let pass = Pass { piece, draw, norm_batch: plan.norm_batch, global_count };
            let more = self.pass(world, learned, pass, &mut own, is_last.then_some(&mut tally))?;
            gradients = add_gradients(learned.learner.module(), gradients, more);
        }
        let sums = match tally.take() {
            Some(tally) => tally,
            None => Tally::send(world, &own)?,
        };
        let sums = self.watch.time(Phase::OptimizerStep, || sums.wait())?;
        if sums.infinite > 0.0 || !sums.losses.is_finite() {
            return Err(not_finite(world, at.epoch, at.step, own.infinite > 0.0));
        }
        let averages = self.watch.time(Phase::OptimizerStep, || learned.learner.average(gradients))?;
        Ok(Made { averages, rate: plan.schedule.rate(number), sums, began, count, global_count })
    }

    /// Learns from what all ranks have made.
    pub(super) fn apply(&mut self, learned: &mut Learned, made: Made) {
        let Made { averages, rate, sums, began, count, global_count } = made;
        let plan = self.plan(learned);
        self.watch.time(Phase::OptimizerStep, || learned.learner.apply(rate, averages));
        let took = began.elapsed();
        self.watch.step(took, count, global_count);
        learned.progress.stepped(&Sums { seconds: took.as_secs_f64(), ..sums }, &plan);
    }

    /// Forward and backward over a piece of the batch. The tally leaves between the two, in the last pass of a step.
    fn pass(
        &mut self,
        world: &mut World,
        learned: &Learned,
        Pass { piece, draw, norm_batch, global_count }: Pass,
        own: &mut Sums,
        tally: Option<&mut Option<Tally>>,
    ) -> Result<GradientsParams> {
        let (spec, device, network) = (&self.spec, &self.device, learned.learner.module());
        let shape = spec.shape;
        let pass =
            ForwardPass { norm_group: Some(norm_batch), ..ForwardPass::training(learned.learner.outbox(), draw) };
        let (count, labels, smoothing) = (piece.count, piece.labels, self.job.label_smoothing);
        let images = TensorData::new(piece.images, [count, shape.bands, shape.height, shape.width]);
        let loss = self.watch.time(Phase::Forward, || {
            let output = network.forward(Tensor::from_data(images, device), &pass);
            task::loss(output, &labels, spec.task, smoothing)
        });
        let loss = loss.map_err(|error| Error::Data(error.to_string()))?;
        let value = f64::from(loss.clone().into_scalar::<f32>());
        own.losses += value * count as f64;
        own.infinite += f64::from(u8::from(!value.is_finite()));
        if let Some(tally) = tally {
            *tally = Some(Tally::send(world, own)?);
        }
        // The engine takes the mean over ranks of what each has: with this weight it is the mean over all samples.
        let weight = (count * world.size()) as f64 / global_count as f64;
        Ok(self.watch.time(Phase::Backward, || {
            let gradients = loss.mul_scalar(weight).backward();
            GradientsParams::from_grads(gradients, network)
        }))
    }
}

/// One pass of a step.
struct Pass {
    piece: Piece,
    draw: Draw,
    norm_batch: usize,
    global_count: usize,
}

/// What one pass is about.
#[derive(Debug, PartialEq)]
struct Piece {
    /// Where its first sample is in the rank's batch.
    first: usize,
    count: usize,
    images: Vec<f32>,
    labels: Labels,
}

/// Where a rank's batch is cut for its passes: from the first place to the last, one more than there are passes.
///
/// The passes of all ranks are cut out of the global batch by the same law as the ranks' shares are, so that a pass
/// sees the same samples on whichever rank it is, also where the last batch is short: two ranks with one pass each do
/// what one rank does with two.
fn cuts(shard: &Shard, step: usize, passes: usize) -> Vec<usize> {
    let pass = |rank: usize| Shard { rank, world_size: shard.world_size * passes, ..*shard };
    let first = shard.positions(step).start;
    let ends = (0..passes).map(|number| pass(shard.rank * passes + number).positions(step).end - first);
    std::iter::once(0).chain(ends).collect()
}

/// How many samples of the global batch come before this rank's.
fn samples_before(shard: &Shard, step: usize) -> usize {
    shard.positions(step).start - shard.global_positions(step).start
}

/// A rank's batch, cut into a piece for each pass; a short batch may have none for some.
fn pieces(batch: SampleBatch, cuts: Vec<usize>, image_len: usize) -> Box<dyn Iterator<Item = Option<Piece>>> {
    let SampleBatch { count, images, labels, .. } = batch;
    if cuts == [0, count] {
        let whole = Piece { first: 0, count, images, labels };
        return Box::new(std::iter::once((count > 0).then_some(whole)));
    }
    Box::new((1..cuts.len()).map(move |end| {
        let range = cuts[end - 1]..cuts[end];
        (!range.is_empty()).then(|| Piece {
            first: range.start,
            count: range.len(),
            images: images[range.start * image_len..range.end * image_len].to_vec(),
            labels: cut(&labels, count, range),
        })
    }))
}

/// The labels of some of the samples.
fn cut(labels: &Labels, count: usize, range: std::ops::Range<usize>) -> Labels {
    let part = |numbers: &[f32]| {
        let each = numbers.len() / count;
        numbers[range.start * each..range.end * each].to_vec()
    };
    match labels {
        Labels::Classes(classes) => Labels::Classes(classes[range].to_vec()),
        Labels::Mixed { first, second, share } => Labels::Mixed {
            first: first[range.clone()].to_vec(),
            second: second[range.clone()].to_vec(),
            share: share[range].to_vec(),
        },
        Labels::Labels(numbers) => Labels::Labels(part(numbers)),
        Labels::Values(numbers) => Labels::Values(part(numbers)),
        Labels::Images(numbers) => Labels::Images(part(numbers)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(count: usize) -> SampleBatch {
        SampleBatch {
            count,
            images: (0..count * 2).map(|at| at as f32).collect(),
            labels: Labels::Classes((0..count as u32).collect()),
            global_count: count,
            replaced: 0,
        }
    }

    fn shard(rank: usize, world_size: usize, batch: usize, length: usize) -> Shard {
        Shard { rank, world_size, global_batch: batch * world_size, length }
    }

    #[test]
    fn pieces_are_all_of_the_batch_in_order() {
        for (count, passes) in [(8, 2), (7, 3), (1, 4), (5, 1), (0, 2), (3, 2), (0, 1)] {
            let cuts = cuts(&shard(0, 1, 2 * 4 * passes, count), 0, passes);
            let cut: Vec<Option<Piece>> = pieces(batch(count), cuts, 2).collect();
            assert_eq!(cut.len(), passes);
            let cut: Vec<Piece> = cut.into_iter().flatten().collect();
            let images: Vec<f32> = cut.iter().flat_map(|piece| piece.images.clone()).collect();
            assert_eq!(images, batch(count).images);
            let counts: usize = cut.iter().map(|piece| piece.count).sum();
            assert_eq!(counts, count);
            for piece in &cut {
                assert_eq!(
                    piece.labels,
                    Labels::Classes((piece.first as u32..(piece.first + piece.count) as u32).collect())
                );
            }
        }
    }

    #[test]
    fn passes_see_the_same_samples_whether_ranks_or_one_rank_make_them() {
        for length in 1..40 {
            let alone = shard(0, 1, 12, length);
            for step in 0..alone.steps() {
                let places = |ranks: usize, passes: usize| -> Vec<usize> {
                    let all = (0..ranks).flat_map(|rank| {
                        let shard = shard(rank, ranks, 12 / ranks, length);
                        let first = shard.positions(step).start;
                        cuts(&shard, step, passes).into_iter().skip(1).map(move |cut| first + cut)
                    });
                    all.collect()
                };
                assert_eq!(places(4, 1), places(1, 4), "{length} samples, step {step}");
                assert_eq!(places(4, 1), places(2, 2), "{length} samples, step {step}");
            }
        }
    }

    #[test]
    fn labels_with_several_numbers_are_cut_by_samples() {
        let labels = Labels::Labels((0..12).map(|at| at as f32).collect());
        assert_eq!(cut(&labels, 4, 1..3), Labels::Labels(vec![3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
    }
}
