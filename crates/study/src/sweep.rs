//! Which points a study has, and which of them the others are compared with.
//!
//! A pure function from what was asked to a list of points. Everything that makes a study pointless is said here,
//! before the first job runs: a total batch that some number of ranks does not divide, ranks that do not divide the
//! cores.

use serde::{Deserialize, Serialize};

use super::error::{Error, Result, refuse};
use super::input::InputAxes;
use super::point::StudyPoint;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StudyKind {
    /// Ranks; the batch of each rank is fixed.
    Weak,
    /// Ranks; the batch of all ranks together is fixed.
    Strong,
    /// The batch of each rank.
    Batch,
    /// Ranks and threads on the same cores.
    Threads,
    /// The network.
    Models,
    /// The element type of gradients on the wire.
    Precision,
    /// The plane of tensors on GPUs.
    Planes,
    /// The storage of samples.
    Storage,
    /// The file format of samples.
    Format,
    /// Workers, batches ahead and caches of the loader.
    Loader,
}

impl StudyKind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [StudyKind; 10] = [
        StudyKind::Weak,
        StudyKind::Strong,
        StudyKind::Batch,
        StudyKind::Threads,
        StudyKind::Models,
        StudyKind::Precision,
        StudyKind::Planes,
        StudyKind::Storage,
        StudyKind::Format,
        StudyKind::Loader,
    ];

    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            StudyKind::Weak => "weak",
            StudyKind::Strong => "strong",
            StudyKind::Batch => "batch",
            StudyKind::Threads => "threads",
            StudyKind::Models => "models",
            StudyKind::Precision => "precision",
            StudyKind::Planes => "planes",
            StudyKind::Storage => "storage",
            StudyKind::Format => "format",
            StudyKind::Loader => "loader",
        }
    }

    /// What is varied, in one line.
    pub fn meaning(self) -> &'static str {
        match self {
            StudyKind::Weak => "Ranks, with the batch of each rank fixed: the work grows with the ranks",
            StudyKind::Strong => "Ranks, with the batch of all ranks together fixed: the same work for more ranks",
            StudyKind::Batch => "The batch of each rank",
            StudyKind::Threads => "How the cores are divided into ranks and threads of each",
            StudyKind::Models => "The network, each on few and on many ranks",
            StudyKind::Precision => "How gradients travel",
            StudyKind::Planes => "Where tensors on GPUs are reduced, with and without MPS",
            StudyKind::Storage => "Where samples lie",
            StudyKind::Format => "How samples are stored",
            StudyKind::Loader => "Who reads samples: workers, batches ahead, caches",
        }
    }

    /// Whether it is about the input pipeline.
    pub fn is_input(self) -> bool {
        matches!(self, StudyKind::Storage | StudyKind::Format | StudyKind::Loader)
    }

    /// Whether ranks are varied beside something else, so that points are compared with those on as many ranks.
    pub fn compares_within_ranks(self) -> bool {
        matches!(self, StudyKind::Batch | StudyKind::Precision | StudyKind::Planes)
    }

    /// Whether twice the ranks should do twice as much: otherwise there is no efficiency, only a ratio.
    pub fn scales(self) -> bool {
        matches!(self, StudyKind::Weak | StudyKind::Strong | StudyKind::Models)
    }
}

/// What was asked for, with every default filled in.
#[derive(Clone, Debug)]
pub struct Axes {
    /// What is varied.
    pub kind: StudyKind,
    /// Networks; several in a study of models.
    pub models: Vec<String>,
    /// For threads, the numbers of ranks that are tried; all that divide the cores if there is none.
    pub ranks: Vec<usize>,
    /// Threads of each rank.
    pub threads: usize,
    /// Samples of each rank in one step; several in a study of batches.
    pub batches: Vec<usize>,
    /// Samples of all ranks in one step, where these are fixed.
    pub total_batch: usize,
    /// Element types of gradients on the wire; several in a study of precision.
    pub precisions: Vec<String>,
    /// Of a study of planes; empty in others.
    pub planes: Vec<String>,
    /// Cores that all ranks together may use.
    pub cores: usize,
    /// The number of ranks, batch, threads, model, precision or plane that is compared with, where it is not the first.
    pub baseline: Option<String>,
    /// Of a study of the input pipeline; none in others.
    pub input: Option<InputAxes>,
}

/// The points of a study, in the order in which they are shown.
pub fn points(axes: &Axes) -> Result<Vec<StudyPoint>> {
    let one = StudyPoint {
        model: axes.models[0].clone(),
        ranks: *axes.ranks.last().unwrap_or(&1),
        threads: axes.threads,
        batch: axes.batches[0],
        precision: axes.precisions[0].clone(),
        plane: String::new(),
        input: None,
    };
    let points: Vec<StudyPoint> = match axes.kind {
        StudyKind::Weak => axes.ranks.iter().map(|&ranks| StudyPoint { ranks, ..one.clone() }).collect(),
        StudyKind::Strong => {
            let share =
                |&ranks: &usize| Ok(StudyPoint { ranks, batch: share(axes.total_batch, ranks)?, ..one.clone() });
            axes.ranks.iter().map(share).collect::<Result<_>>()?
        }
        StudyKind::Batch => on_all_ranks(axes, axes.batches.iter().map(|&batch| StudyPoint { batch, ..one.clone() })),
        StudyKind::Threads => layouts(axes, &one)?,
        StudyKind::Models => {
            let ranks = |model: &String| {
                let one = StudyPoint { model: model.clone(), ..one.clone() };
                axes.ranks.iter().map(move |&ranks| StudyPoint { ranks, ..one.clone() }).collect::<Vec<_>>()
            };
            axes.models.iter().flat_map(ranks).collect()
        }
        StudyKind::Precision => {
            let precisions = axes.precisions.iter().map(|name| StudyPoint { precision: name.clone(), ..one.clone() });
            on_all_ranks(axes, precisions)
        }
        StudyKind::Planes => {
            on_all_ranks(axes, axes.planes.iter().map(|plane| StudyPoint { plane: plane.clone(), ..one.clone() }))
        }
        StudyKind::Storage | StudyKind::Format | StudyKind::Loader => {
            let inputs = axes.input.iter().flat_map(InputAxes::points).collect::<Vec<_>>();
            on_all_ranks(axes, inputs.iter().map(|input| StudyPoint { input: Some(input.clone()), ..one.clone() }))
        }
    };
    if points.is_empty() { refuse("nothing to measure".to_owned()) } else { Ok(points) }
}

/// The same points on each number of ranks.
fn on_all_ranks(axes: &Axes, points: impl Iterator<Item = StudyPoint> + Clone) -> Vec<StudyPoint> {
    let on = |&ranks: &usize| points.clone().map(move |point| StudyPoint { ranks, ..point });
    axes.ranks.iter().flat_map(on).collect()
}

/// The batch of each rank where all ranks together have a fixed one.
fn share(total: usize, ranks: usize) -> Result<usize> {
    if !total.is_multiple_of(ranks) {
        return refuse(format!(
            "a total batch of {total} cannot be divided among {ranks} ranks: the work would not be the same. Give \
             --total-batch a multiple of {ranks}, or leave {ranks} out of --ranks"
        ));
    }
    Ok(total / ranks)
}

/// Every way to divide the cores into equal ranks without leaving one idle, or those with the wanted numbers of ranks.
fn layouts(axes: &Axes, one: &StudyPoint) -> Result<Vec<StudyPoint>> {
    let cores = axes.cores;
    if let Some(ranks) = axes.ranks.iter().find(|ranks| !cores.is_multiple_of(**ranks)) {
        return refuse(format!("--ranks {ranks}: {cores} cores cannot be divided evenly among {ranks} ranks"));
    }
    let divisors = (1..=cores).filter(|ranks| cores.is_multiple_of(*ranks));
    divisors
        .filter(|ranks| axes.ranks.is_empty() || axes.ranks.contains(ranks))
        .map(|ranks| {
            let batch = share(axes.total_batch, ranks)?;
            Ok(StudyPoint { ranks, threads: axes.cores / ranks, batch, ..one.clone() })
        })
        .collect()
}

/// The position of the point that `points[position]` is compared with.
pub fn baseline(axes: &Axes, points: &[StudyPoint], position: usize) -> Result<usize> {
    let value = |point: &StudyPoint| match axes.kind {
        StudyKind::Weak | StudyKind::Strong | StudyKind::Threads | StudyKind::Models => point.ranks.to_string(),
        StudyKind::Batch => point.batch.to_string(),
        StudyKind::Precision => point.precision.clone(),
        StudyKind::Planes => point.plane.clone(),
        StudyKind::Storage | StudyKind::Format => {
            point.input.as_ref().map_or_else(String::new, |input| input.name.clone())
        }
        StudyKind::Loader => point.input.as_ref().map_or_else(String::new, |input| input.workers.to_string()),
    };
    let own = &points[position];
    let alike = |point: &StudyPoint| match axes.kind {
        StudyKind::Models => point.model == own.model,
        StudyKind::Storage | StudyKind::Format => {
            let of =
                |point: &StudyPoint| point.input.as_ref().map(|input| (input.cache, input.workers, input.prefetch));
            point.ranks == own.ranks && of(point) == of(own)
        }
        StudyKind::Loader => {
            let of = |point: &StudyPoint| point.input.as_ref().map(|input| input.cache);
            point.ranks == own.ranks && of(point) == of(own)
        }
        kind => !kind.compares_within_ranks() || point.ranks == own.ranks,
    };
    let wanted = |point: &StudyPoint| axes.baseline.as_ref().is_none_or(|baseline| *baseline == value(point));
    points.iter().position(|point| alike(point) && wanted(point)).ok_or_else(|| {
        let mut known: Vec<String> = Vec::new();
        for value in points.iter().map(value) {
            if !known.contains(&value) {
                known.push(value);
            }
        }
        let wanted = axes.baseline.as_deref().unwrap_or_default();
        Error(format!("--baseline {wanted}: this study has {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(kind: StudyKind) -> Axes {
        Axes {
            kind,
            models: vec!["a".into(), "b".into()],
            ranks: vec![1, 2, 4],
            threads: 1,
            batches: vec![8, 16],
            total_batch: 32,
            precisions: vec!["f32".into(), "bf16-wire".into()],
            planes: vec!["staged".into(), "own".into()],
            cores: 4,
            baseline: None,
            input: None,
        }
    }

    fn shown(kind: StudyKind) -> Vec<(String, usize, usize, usize)> {
        let points = points(&axes(kind)).unwrap();
        points.into_iter().map(|point| (point.model, point.ranks, point.threads, point.batch)).collect()
    }

    #[test]
    fn weak_keeps_the_batch_of_a_rank_and_strong_that_of_all() {
        let a = || "a".to_owned();
        assert_eq!(shown(StudyKind::Weak), [(a(), 1, 1, 8), (a(), 2, 1, 8), (a(), 4, 1, 8)]);
        assert_eq!(shown(StudyKind::Strong), [(a(), 1, 1, 32), (a(), 2, 1, 16), (a(), 4, 1, 8)]);
    }

    #[test]
    fn layouts_use_all_cores_and_the_same_total_batch() {
        let a = || "a".to_owned();
        assert_eq!(shown(StudyKind::Threads), [(a(), 1, 4, 32), (a(), 2, 2, 16), (a(), 4, 1, 8)]);
        let some = Axes { ranks: vec![1, 4], ..axes(StudyKind::Threads) };
        let ranks = |axes: &Axes| points(axes).unwrap().iter().map(|point| point.ranks).collect::<Vec<_>>();
        assert_eq!(ranks(&some), [1, 4]);
        assert_eq!(ranks(&Axes { ranks: vec![], ..some.clone() }), [1, 2, 4]);
        let error = points(&Axes { ranks: vec![1, 3], ..some }).unwrap_err().to_string();
        assert!(error.contains("--ranks 3: 4 cores"), "{error}");
    }

    #[test]
    fn batches_and_precisions_are_measured_on_every_number_of_ranks_and_compared_within_it() {
        let batch = axes(StudyKind::Batch);
        let measured = points(&batch).unwrap();
        let shown: Vec<(usize, usize)> = measured.iter().map(|point| (point.ranks, point.batch)).collect();
        assert_eq!(shown, [(1, 8), (1, 16), (2, 8), (2, 16), (4, 8), (4, 16)]);
        assert_eq!(baseline(&batch, &measured, 3).unwrap(), 2);
        let declared = Axes { baseline: Some("16".into()), ..batch };
        assert_eq!(baseline(&declared, &measured, 4).unwrap(), 5);
        let missing = Axes { baseline: Some("32".into()), ..declared };
        assert!(baseline(&missing, &measured, 0).unwrap_err().to_string().ends_with("this study has 8, 16"));
        let precision = axes(StudyKind::Precision);
        let measured = points(&precision).unwrap();
        let shown: Vec<(usize, &str)> = measured.iter().map(|point| (point.ranks, &*point.precision)).collect();
        assert_eq!(&shown[..3], [(1, "f32"), (1, "bf16-wire"), (2, "f32")]);
        assert_eq!(baseline(&precision, &measured, 5).unwrap(), 4);
        let planes = axes(StudyKind::Planes);
        let measured = points(&planes).unwrap();
        let shown: Vec<(usize, &str)> = measured.iter().map(|point| (point.ranks, &*point.plane)).collect();
        assert_eq!(&shown[..3], [(1, "staged"), (1, "own"), (2, "staged")]);
        assert_eq!(baseline(&planes, &measured, 3).unwrap(), 2);
    }

    #[test]
    fn a_total_batch_that_cannot_be_divided_is_refused_with_the_number_of_ranks() {
        let odd = Axes { total_batch: 30, ..axes(StudyKind::Strong) };
        let error = points(&odd).unwrap_err().to_string();
        assert!(error.contains("30") && error.contains("4 ranks"), "{error}");
    }

    #[test]
    fn models_are_compared_with_themselves_and_others_with_the_declared_baseline() {
        let models = axes(StudyKind::Models);
        let points_ = points(&models).unwrap();
        assert_eq!(points_.len(), 6);
        assert_eq!(baseline(&models, &points_, 5).unwrap(), 3);
        let weak = Axes { baseline: Some("2".into()), ..axes(StudyKind::Weak) };
        assert_eq!(baseline(&weak, &points(&weak).unwrap(), 0).unwrap(), 1);
        let missing = Axes { baseline: Some("3".into()), ..axes(StudyKind::Weak) };
        let error = baseline(&missing, &points(&missing).unwrap(), 0).unwrap_err().to_string();
        assert!(error.contains("1, 2, 4"), "{error}");
    }
}
