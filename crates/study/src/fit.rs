//! Laws that measured points are held against.
//!
//! *Amdahl* (strong scaling: the same work for more ranks): a share `s` of it is done by one rank while the others
//! wait, so `1/S(n) = s + (1 - s)/n`, and no number of ranks gets beyond `1/s`. *Gustafson* (weak scaling: work grows
//! with the ranks): of every rank's time the share `s` does not grow with them, so `S(n) = n - s (n - 1)`. Both are
//! straight lines through a known point in the right coordinates; `s` is their slope by least squares. A negative slope
//! is no share but a speed-up beyond the number of ranks.
//!
//! A *step* of `B` samples takes `a + b B`: `a` is paid however small the batch, and `a/b` is the batch at which half
//! of the time is lost to it.

/// A law with its one number, found from points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) law: Law,
    /// The share that does not scale.
    pub(crate) share: f64,
    /// The largest difference between a measured speed-up and the law's, relative to the law's.
    pub(crate) worst: f64,
    /// How many points beyond the baseline it was found from.
    pub(crate) points: usize,
}

/// Which law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Law {
    Amdahl,
    Gustafson,
}

impl Share {
    /// Finds the share from pairs of relative number of ranks and speed-up. `None` where no point is beyond the
    /// baseline.
    pub(crate) fn of(law: Law, points: &[(f64, f64)]) -> Option<Share> {
        let beyond: Vec<(f64, f64)> = points.iter().copied().filter(|&(ranks, _)| ranks > 1.0).collect();
        let (mut products, mut squares) = (0.0, 0.0);
        for &(ranks, speedup) in &beyond {
            let (x, y) = match law {
                Law::Amdahl => (1.0 - 1.0 / ranks, 1.0 / speedup - 1.0 / ranks),
                Law::Gustafson => (ranks - 1.0, ranks - speedup),
            };
            products += x * y;
            squares += x * x;
        }
        if beyond.is_empty() {
            return None;
        }
        let mut found = Share { law, share: products / squares, worst: 0.0, points: beyond.len() };
        found.worst =
            beyond.iter().map(|&(ranks, speedup)| (speedup / found.speedup(ranks) - 1.0).abs()).fold(0.0, f64::max);
        Some(found)
    }

    /// The speed-up on so many times the ranks of the baseline.
    pub(crate) fn speedup(&self, ranks: f64) -> f64 {
        match self.law {
            Law::Amdahl => 1.0 / (self.share + (1.0 - self.share) / ranks),
            Law::Gustafson => ranks - self.share * (ranks - 1.0),
        }
    }

    /// In words.
    pub(crate) fn sentence(&self) -> String {
        let percent = 100.0 * self.share;
        let from = match self.points {
            1 => "from one point, so it fits by construction".to_owned(),
            points => format!("from {points} points, off by {:.0} % at most", 100.0 * self.worst),
        };
        if self.share < 0.0 {
            return format!(
                "No share of the work fails to scale: the speed-up is beyond the number of ranks ({from})."
            );
        }
        match self.law {
            Law::Amdahl if self.share > 0.0005 => format!(
                "Amdahl: {percent:.1} % of the work does not scale ({from}); no number of ranks gets beyond {:.1}×.",
                1.0 / self.share
            ),
            Law::Amdahl => format!("Amdahl: everything scales ({from})."),
            Law::Gustafson => {
                format!("Gustafson: {percent:.1} % of each rank's time does not scale with the ranks ({from}).")
            }
        }
    }
}

/// The time of a step by its batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepTime {
    /// Paid by every step, in seconds.
    pub(crate) fixed_s: f64,
    /// Paid for every sample, in seconds.
    pub(crate) per_sample_s: f64,
}

impl StepTime {
    /// The line through pairs of batch and seconds for a step. Differences count relative to the time, so that small
    /// batches, which decide about the fixed part, are not outweighed by large ones. `None` with fewer than two
    /// batches.
    pub(crate) fn of(points: &[(f64, f64)]) -> Option<StepTime> {
        let (mut w, mut wx, mut wxx, mut wy, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for &(batch, seconds) in points {
            let weight = 1.0 / (seconds * seconds);
            w += weight;
            wx += weight * batch;
            wxx += weight * batch * batch;
            wy += weight * seconds;
            wxy += weight * batch * seconds;
        }
        let determinant = w * wxx - wx * wx;
        if points.len() < 2 || determinant.abs() < f64::EPSILON * w * wxx {
            return None;
        }
        let per_sample_s = (w * wxy - wx * wy) / determinant;
        Some(StepTime { fixed_s: (wy - per_sample_s * wx) / w, per_sample_s })
    }

    /// In words.
    pub(crate) fn sentence(&self) -> String {
        if self.fixed_s <= 0.0 || self.per_sample_s <= 0.0 {
            return "A step takes no measurable time beyond that of its samples.".to_owned();
        }
        format!(
            "A step takes {:.2} ms and {:.3} ms for each sample: at a batch of {:.0} half of the time is the step's own.",
            1e3 * self.fixed_s,
            1e3 * self.per_sample_s,
            (self.fixed_s / self.per_sample_s).max(1.0)
        )
    }
}

/// How near the best throughput a batch must come to be large enough.
const LARGE_ENOUGH: f64 = 0.9;

/// The knee: the smallest batch with nine tenths of the best throughput, out of pairs of batch and throughput.
pub(crate) fn knee(points: &[(usize, f64)]) -> Option<usize> {
    let best = points.iter().map(|&(_, throughput)| throughput).fold(0.0, f64::max);
    points.iter().filter(|&&(_, throughput)| throughput >= LARGE_ENOUGH * best).map(|&(batch, _)| batch).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn amdahls_share_is_found_exactly_from_points_that_obey_him() {
        let law = |n: f64| 1.0 / (0.1 + 0.9 / n);
        let share = Share::of(Law::Amdahl, &[(1.0, 1.0), (2.0, law(2.0)), (4.0, law(4.0)), (8.0, law(8.0))]).unwrap();
        near(share.share, 0.1);
        near(share.worst, 0.0);
        assert!(share.sentence().contains("10.0 %") && share.sentence().contains("10.0×"), "{}", share.sentence());
    }

    #[test]
    fn gustafsons_share_is_found_exactly_from_points_that_obey_him() {
        let share = Share::of(Law::Gustafson, &[(1.0, 1.0), (2.0, 1.8), (4.0, 3.4)]).unwrap();
        near(share.share, 0.2);
        near(share.speedup(8.0), 6.6);
    }

    #[test]
    fn nothing_is_fitted_to_the_baseline_alone_and_beyond_linear_is_said_so() {
        assert_eq!(Share::of(Law::Amdahl, &[(1.0, 1.0)]), None);
        let share = Share::of(Law::Gustafson, &[(2.0, 2.2)]).unwrap();
        assert!(share.sentence().contains("beyond the number of ranks"), "{}", share.sentence());
        assert!(share.sentence().contains("one point"), "{}", share.sentence());
    }

    #[test]
    fn the_time_of_a_step_is_a_line_in_its_batch() {
        let line = StepTime::of(&[(1.0, 0.011), (10.0, 0.020), (100.0, 0.110)]).unwrap();
        near(line.fixed_s, 0.010);
        near(line.per_sample_s, 0.001);
        assert!(line.sentence().contains("batch of 10 "), "{}", line.sentence());
        assert_eq!(StepTime::of(&[(4.0, 1.0)]), None);
        assert_eq!(StepTime::of(&[(4.0, 1.0), (4.0, 1.1)]), None);
    }

    #[test]
    fn the_knee_is_the_smallest_batch_that_is_nearly_best() {
        assert_eq!(knee(&[(1, 10.0), (8, 50.0), (16, 92.0), (32, 100.0), (64, 99.0)]), Some(16));
        assert_eq!(knee(&[]), None);
    }
}
