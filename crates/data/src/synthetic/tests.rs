//! What must hold for every generated data set: samples by number, of the promised shape, about normal, and not to be
//! learned by a line through pixels.

use super::*;
use crate::sample::Label;

const SIZES: Sizes = Sizes { train: 400, test: 100 };

fn all() -> Vec<Generated> {
    vec![
        cifar_like(3, SIZES),
        imagenet_like(3, SIZES, 40, 1000).unwrap(),
        imagenet_like(3, SIZES, 17, 30).unwrap(),
        bigearthnet_like(3, SIZES, 24).unwrap(),
        faces_like(3, SIZES, 32).unwrap(),
        pairs_like(3, SIZES, 12, 2).unwrap(),
        pairs_like(3, SIZES, 9, 4).unwrap(),
    ]
}

fn moments<'a>(values: impl Iterator<Item = &'a f32> + Clone) -> (f32, f32) {
    let count = values.clone().count() as f32;
    let mean = values.clone().sum::<f32>() / count;
    (mean, (values.map(|value| (value - mean).powi(2)).sum::<f32>() / count).sqrt())
}

#[test]
fn samples_have_their_shape_and_are_about_normal() {
    for data in all() {
        let samples: Vec<Sample> = (0..60).map(|index| data.sample(Split::Train, index).unwrap()).collect();
        for sample in &samples {
            assert_eq!(sample.image.len(), data.shape().len());
            assert!(sample.image.iter().all(|value| value.is_finite() && value.abs() < 4.0), "{}", data.describe());
            match (data.task(), &sample.label) {
                (Task::SingleLabel { classes }, Label::Class(class)) => assert!((*class as usize) < classes),
                (Task::MultiLabel { labels }, Label::Labels(given)) => {
                    assert_eq!(given.len(), labels);
                    let count = given.iter().filter(|label| **label == 1.0).count();
                    assert!((1..=12).contains(&count) && given.iter().all(|label| *label == 0.0 || *label == 1.0));
                }
                (Task::Regression, Label::Value(value)) => assert!(value.abs() < 1.8),
                (Task::SuperResolution { scale }, Label::Image(larger)) => {
                    assert_eq!(larger.len(), data.shape().len() * scale * scale);
                }
                other => panic!("{other:?}"),
            }
        }
        let (mean, deviation) = moments(samples.iter().flat_map(|sample| &sample.image));
        assert!(mean.abs() < 0.35 && (0.5..1.4).contains(&deviation), "{}: {mean} {deviation}", data.describe());
    }
}

#[test]
fn a_sample_is_the_same_whatever_came_before_and_unlike_any_other() {
    for data in all() {
        let first = data.sample(Split::Train, 7).unwrap();
        data.sample(Split::Train, 8).unwrap();
        assert_eq!(data.sample(Split::Train, 7).unwrap(), first);
        assert_eq!(data.clone().sample(Split::Train, 7).unwrap(), first);
        for other in [data.sample(Split::Test, 7), data.sample(Split::Train, 17)] {
            assert_ne!(other.unwrap().image, first.image, "{}", data.describe());
        }
    }
    let of_seed = |seed| cifar_like(seed, SIZES).sample(Split::Train, 0).unwrap();
    assert_ne!(of_seed(1), of_seed(2));
}

#[test]
fn a_sample_beyond_the_end_and_sizes_that_cannot_be_are_refused() {
    let error = cifar_like(1, SIZES).sample(Split::Test, 100).unwrap_err().to_string();
    assert!(error.contains("test sample 100") && error.contains("there are 100"), "{error}");
    let says = |made: Result<Generated, DataError>, words: &str| {
        let error = made.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    says(imagenet_like(1, SIZES, 0, 10), "0 x 0");
    says(imagenet_like(1, SIZES, 64, 1001), "1 to 1000");
    says(imagenet_like(1, SIZES, 64, 0), "1 to 1000");
    says(bigearthnet_like(1, SIZES, 100), "a multiple of 6");
    says(pairs_like(1, SIZES, 48, 1), "2 to 8");
    says(pairs_like(1, SIZES, 4096, 4), "16384");
}

#[test]
fn a_large_data_set_costs_nothing_until_it_is_used() {
    let data = imagenet_like(1, Sizes { train: usize::MAX, test: 1 << 40 }, 32, 1000).unwrap();
    assert!(data.sample(Split::Train, usize::MAX - 1).is_ok());
    assert!(data.sample(Split::Test, (1 << 40) - 1).is_ok());
}

#[test]
fn labels_of_land_keep_company() {
    let data = bigearthnet_like(5, Sizes { train: 3_000, test: 1 }, 12).unwrap();
    let mut alone = [0u32; land::LABELS];
    let mut together = vec![[0u32; land::LABELS]; land::LABELS];
    let mut labels = 0;
    for index in 0..3_000 {
        let Label::Labels(given) = data.sample(Split::Train, index).unwrap().label else { panic!() };
        let here: Vec<usize> = (0..land::LABELS).filter(|label| given[*label] == 1.0).collect();
        labels += here.len();
        for label in &here {
            alone[*label] += 1;
            here.iter().for_each(|other| together[*label][*other] += 1);
        }
    }
    let mean = labels as f32 / 3_000.0;
    assert!((1.8..3.5).contains(&mean), "{mean} labels on an image");
    assert!(alone.iter().all(|count| *count > 5), "every label occurs: {alone:?}");
    let (rarest, commonest) = (alone.iter().min().unwrap(), alone.iter().max().unwrap());
    assert!(commonest > &(8 * rarest), "some are common and some rare");
    // Of one landscape: far more often together than if they did not know of each other; of two: far less often.
    let lift = |a: usize, b: usize| together[a][b] as f32 * 3_000.0 / (alone[a] * alone[b]) as f32;
    assert!(lift(9, 11) > 1.8 && lift(23, 21) > 1.5, "{} {}", lift(9, 11), lift(23, 21));
    assert!(lift(2, 23) < 0.6 && lift(38, 11) < 0.6, "{} {}", lift(2, 23), lift(38, 11));
}

#[test]
fn coarse_bands_are_smooth_and_fine_ones_are_not() {
    let data = bigearthnet_like(5, SIZES, 120).unwrap();
    let image = data.sample(Split::Train, 0).unwrap().image;
    let roughness = |band: usize| {
        let pixels = &image[band * 120 * 120..(band + 1) * 120 * 120];
        pixels.windows(2).map(|pair| (pair[0] - pair[1]).abs()).sum::<f32>()
    };
    // B01 has pixels of 60 m, B05 of 20 m, B02 of 10 m.
    assert!(
        roughness(0) < 0.75 * roughness(4) && roughness(4) < 0.6 * roughness(1),
        "{} {} {}",
        roughness(0),
        roughness(4),
        roughness(1)
    );
}

/// A softmax on all pixels, by plain gradient descent with a decaying step; the share of test samples that it gets
/// right.
fn linear_accuracy(data: &Generated, classes: usize, rounds: usize) -> f32 {
    let load = |split: Split| -> Vec<(Vec<f32>, usize)> {
        let samples = (0..data.len(split)).map(|index| data.sample(split, index).unwrap());
        let class = |label: &Label| if let Label::Class(class) = label { *class as usize } else { panic!("no class") };
        samples.map(|sample| (sample.image.clone(), class(&sample.label))).collect()
    };
    let pixels = data.shape().len();
    let mut weights = vec![vec![0.0f32; pixels]; classes];
    let score = |weights: &[Vec<f32>], image: &[f32]| -> Vec<f32> {
        weights.iter().map(|row| row.iter().zip(image).map(|(weight, pixel)| weight * pixel).sum()).collect()
    };
    let train = load(Split::Train);
    for round in 0..rounds {
        let rate = 0.3 / pixels as f32 / (1.0 + round as f32);
        for (image, class) in &train {
            let mut scores = score(&weights, image);
            let most = scores.iter().copied().fold(f32::MIN, f32::max);
            scores.iter_mut().for_each(|score| *score = (*score - most).exp());
            let sum: f32 = scores.iter().sum();
            for (number, row) in weights.iter_mut().enumerate() {
                let slope = rate * (scores[number] / sum - f32::from(u8::from(number == *class)));
                row.iter_mut().zip(image).for_each(|(weight, pixel)| *weight -= slope * pixel);
            }
        }
    }
    let test = load(Split::Test);
    let right = test.iter().filter(|(image, class)| {
        let scores = score(&weights, image);
        (0..classes).all(|other| other == *class || scores[other] < scores[*class])
    });
    right.count() as f32 / test.len() as f32
}

#[test]
fn a_linear_classifier_does_not_solve_the_cifar_like_set() {
    let accuracy = linear_accuracy(&cifar_like(3, Sizes { train: 3_000, test: 500 }), 10, 4);
    assert!(accuracy < 0.4, "a line through pixels is right in {accuracy}");
    assert!(accuracy > 0.02, "the classes do not come out worse than by chance: {accuracy}");
}
