//! The fit of one clock to another, by operations that both have seen: the line of least squares, moved into the bounds
//! that no operation may break. The text of `align` says why. Which operations these are is found there.

use super::ClockFit;

/// Parts of a run for which limits are looked at apart: a drift that was fitted badly shows at the ends.
const PARTS: usize = 8;

/// A drift is fitted only from this time on: over less, the jitter of ends is larger than any drift.
const DRIFT_FROM_NS: u64 = 1_000_000_000;

/// No two clocks differ by more than this for each nanosecond: a bad oscillator drifts by a tenth of it, and what keeps
/// the time of day right may add half of it.
const MOST_DRIFT: f64 = 1e-3;

/// Residuals beyond so many times the median one are left out of the next fit.
const FAR: f64 = 3.0;

/// An operation that two clocks have seen. The known side is on the reference clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedOperation {
    /// The last start and the first and last end on the known side.
    pub(super) known_start: f64,
    pub(super) known_first_end: f64,
    pub(super) known_last_end: f64,
    /// The same on the other side, on its own clock.
    pub(super) start_ns: u64,
    pub(super) first_end_ns: u64,
    pub(super) last_end_ns: u64,
}

/// The line through the differences of ends; see the text of `align`. `None` without operations.
pub(super) fn fit_line(shared: &[SharedOperation]) -> Option<ClockFit> {
    let (first, last) = (shared.first()?, shared.last()?);
    let origin_ns = first.last_end_ns;
    let drifts = last.last_end_ns - origin_ns >= DRIFT_FROM_NS;
    let mut points: Vec<(f64, f64)> = shared
        .iter()
        .map(|one| ((one.last_end_ns - origin_ns) as f64, one.known_last_end - one.last_end_ns as f64))
        .collect();
    let mut line = (median(points.iter().map(|(_, y)| *y)), 0.0);
    for _ in 0..3 {
        let far = |(x, y): &(f64, f64), line: (f64, f64)| (y - line.0 - line.1 * x).abs();
        if drifts {
            line = least_squares(&points);
        } else {
            line.0 = points.iter().map(|(_, y)| *y).sum::<f64>() / points.len() as f64;
        }
        let limit = FAR * median(points.iter().map(|point| far(point, line)));
        let kept: Vec<(f64, f64)> = points.iter().copied().filter(|point| far(point, line) <= limit).collect();
        if kept.len() >= 2 {
            points = kept;
        }
    }
    let mut fit = ClockFit { offset_ns: line.0, drift: line.1, origin_ns, error_ns: None, operations: shared.len() };
    let limits = OffsetBounds::of(shared, &fit);
    let shift = limits.shift();
    fit.offset_ns += shift;
    fit.error_ns = Some(limits.furthest((last.last_end_ns - origin_ns) as f64, shift).ceil() as u64);
    Some(fit)
}

/// By how much a fit may be moved at one moment, which is counted from its origin on the trace's own clock.
#[derive(Clone, Copy, Debug)]
struct OffsetBound {
    at: f64,
    by: f64,
}

/// Bounds of the distance from a fit to the true line: in each part of the run the narrowest pair.
#[derive(Debug)]
struct OffsetBounds {
    /// No less than this.
    low: Vec<OffsetBound>,
    /// No more than this.
    high: Vec<OffsetBound>,
    /// The least and the greatest slope of that distance.
    slopes: [f64; 2],
}

impl OffsetBounds {
    fn of(shared: &[SharedOperation], fit: &ClockFit) -> OffsetBounds {
        let since = |time_ns: u64| time_ns as f64 - fit.origin_ns as f64;
        let low = |one: &SharedOperation| OffsetBound {
            at: since(one.first_end_ns),
            by: one.known_start - fit.apply(one.first_end_ns) as f64,
        };
        let high = |one: &SharedOperation| OffsetBound {
            at: since(one.start_ns),
            by: one.known_first_end - fit.apply(one.start_ns) as f64,
        };
        let order = |one: &OffsetBound, two: &OffsetBound| one.by.total_cmp(&two.by);
        let parts = || shared.chunks(shared.len().div_ceil(PARTS));
        OffsetBounds {
            low: parts().filter_map(|part| part.iter().map(low).max_by(order)).collect(),
            high: parts().filter_map(|part| part.iter().map(high).min_by(order)).collect(),
            slopes: [-MOST_DRIFT - fit.drift, MOST_DRIFT - fit.drift],
        }
    }

    /// The smallest shift within all bounds, or one that breaks all a little.
    fn shift(&self) -> f64 {
        let low_most = self.low.iter().map(|limit| limit.by).fold(f64::MIN, f64::max);
        let high_most = self.high.iter().map(|limit| limit.by).fold(f64::MAX, f64::min);
        if low_most <= high_most { 0_f64.clamp(low_most, high_most) } else { (low_most + high_most) / 2.0 }
    }

    /// How far the true line may be from the fit that was moved by `shift`, anywhere from the origin until `end`.
    ///
    /// The distance is a line, too, so it is greatest at one of the two ends. The lines within all bounds lie between a
    /// few that touch two of them, or touch one and have an extreme slope: these are tried. Where bounds contradict
    /// each other, because some rank recorded its start late, the bounds themselves are used.
    fn furthest(&self, end: f64, shift: f64) -> f64 {
        let touched: Vec<OffsetBound> = self.low.iter().chain(&self.high).copied().collect();
        let mut furthest: Option<f64> = None;
        for (index, one) in touched.iter().enumerate() {
            let others = touched[..index].iter().filter(|other| other.at != one.at);
            let slopes = others.map(|other| (other.by - one.by) / (other.at - one.at)).chain(self.slopes);
            for slope in slopes {
                let at = |moment: f64| one.by + slope * (moment - one.at);
                if self.allow(slope, at) {
                    let here = (at(0.0) - shift).abs().max((at(end) - shift).abs());
                    furthest = Some(furthest.map_or(here, |before| before.max(here)));
                }
            }
        }
        furthest.unwrap_or_else(|| touched.iter().map(|limit| (limit.by - shift).abs()).fold(0.0, f64::max))
    }

    /// Whether a line is within all bounds, but for rounding.
    fn allow(&self, slope: f64, line: impl Fn(f64) -> f64) -> bool {
        (self.slopes[0]..=self.slopes[1]).contains(&slope)
            && self.low.iter().all(|limit| line(limit.at) >= limit.by - 1.0)
            && self.high.iter().all(|limit| line(limit.at) <= limit.by + 1.0)
    }
}

/// The line of least squares: height at zero and slope.
fn least_squares(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean = |values: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(values).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(&|point| point.0), mean(&|point| point.1));
    let across = mean(&|point| (point.0 - mean_x) * (point.1 - mean_y));
    let along = mean(&|point| (point.0 - mean_x) * (point.0 - mean_x));
    let slope = if along > 0.0 { across / along } else { 0.0 };
    (mean_y - slope * mean_x, slope)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
