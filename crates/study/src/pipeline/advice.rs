//! What the figures of `farandole data bench` mean: what a sample's time goes to, how many workers a training needs,
//! and what converting the data once would change.
//!
//! Pure: figures go in, sentences come out. A number of workers is what the rate of one worker asks for; it is said
//! whether the machine has as many cores, because decoding is arithmetic and two workers on one core gain nothing.
//! [`farandole_insight::verdict::InputNeeds`] says the same of a training, by its trace alone.

use super::figures::PipelineFigures;

/// What was measured, as far as advice needs it.
pub(crate) struct AdviceBasis<'a> {
    /// With one worker, warm.
    pub(crate) alone: &'a PipelineFigures,
    /// The highest rate of all, and with how many workers.
    pub(crate) best: (usize, &'a PipelineFigures),
    /// Reading without decoding, with one worker.
    pub(crate) reading: &'a PipelineFigures,
    /// With images reduced beforehand, with one worker, and to which shorter side.
    pub(crate) reduced: Option<(usize, &'a PipelineFigures)>,
    /// With as many workers as were measured at most, from the disk.
    pub(crate) cold: Option<&'a PipelineFigures>,
    /// Samples a second that the training takes.
    pub(crate) need: Option<f64>,
    /// Cores of this machine.
    pub(crate) cores: usize,
}

/// A share below which an improvement is not worth a conversion.
const WORTH: f64 = 1.15;

/// Sentences for people, the most important first.
pub(crate) fn advice(figures: &AdviceBasis<'_>) -> Vec<String> {
    let mut said = vec![most_of_it(figures.alone), saturation(figures)];
    if let Some(need) = figures.need {
        said.push(needed(figures, need));
        said.push(stalls(figures, need));
    } else if let Some((side, reduced)) = worth(figures) {
        said.push(format!(
            "Images reduced once to a shorter side of {side} make {:.0} samples/s with one worker instead of {:.0}: {}",
            reduced.samples_per_s,
            figures.alone.samples_per_s,
            command(side)
        ));
    }
    if figures.alone.broken > 0 {
        said.push(format!("{} samples could not be read and were replaced by others.", figures.alone.broken));
    }
    said
}

fn most_of_it(alone: &PipelineFigures) -> String {
    let all = alone.sample_us().max(1e-9);
    let stages = [
        ("reading", alone.read_us),
        ("decoding", alone.decode_us),
        ("changing pixels", alone.transform_us),
        ("storing numbers", alone.store_us),
    ];
    let (name, most) = stages.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or(("reading", 0.0));
    format!("A sample takes {all:.0} us of a worker, {:.0} % of it {name}.", 100.0 * most / all)
}

fn saturation(figures: &AdviceBasis<'_>) -> String {
    let (workers, best) = figures.best;
    let reading = figures.reading.samples_per_s;
    let plural = if workers == 1 { "" } else { "s" };
    let limit = if workers >= figures.cores {
        format!(" that is all {} cores", figures.cores)
    } else {
        " more gain nothing".to_owned()
    };
    format!(
        "The most was {:.0} samples/s with {workers} worker{plural};{limit}. Reading alone makes {reading:.0} with one.",
        best.samples_per_s
    )
}

fn needed(figures: &AdviceBasis<'_>, need: f64) -> String {
    let workers = |rate: f64| (need / rate.max(1e-9)).ceil().max(1.0);
    let own = workers(figures.alone.samples_per_s);
    let enough = match own as usize <= figures.cores {
        true => String::new(),
        false => format!(", and this machine has {} cores", figures.cores),
    };
    let mut said = format!(
        "One worker feeds {:.0} samples/s, you need {need:.0}: {own:.0} worker{}{enough}",
        figures.alone.samples_per_s,
        if own > 1.0 { "s" } else { "" }
    );
    match worth(figures) {
        Some((side, reduced)) if workers(reduced.samples_per_s) < own => {
            let fewer = workers(reduced.samples_per_s);
            said += &format!("; or convert once, then {fewer:.0}: {}", command(side));
        }
        _ => said.push('.'),
    }
    said
}

/// What of the training's rate is lost to preparing samples and to fetching them: the rates without input (synthetic),
/// with samples in memory (warm) and from the disk (cold), as DS-Analyzer compares them.
fn stalls(figures: &AdviceBasis<'_>, need: f64) -> String {
    let share = |rate: f64| 100.0 * (1.0 - (rate / need).min(1.0));
    let warm = figures.best.1.samples_per_s;
    let mut said = format!(
        "The training takes {need:.0} samples/s if it never waits. Of that, {:.0} % are lost to preparing samples (warm, \
         {warm:.0} samples/s)",
        share(warm)
    );
    if let Some(cold) = figures.cold {
        let cold = cold.samples_per_s.min(warm);
        said += &format!(", and {:.0} % more to fetching them (cold, {cold:.0} samples/s)", share(cold) - share(warm));
    }
    said + ", if the training leaves these cores to the pipeline."
}

/// What reducing images once gains, if it does.
fn worth<'a>(figures: &AdviceBasis<'a>) -> Option<(usize, &'a PipelineFigures)> {
    figures.reduced.filter(|(_, reduced)| reduced.samples_per_s > WORTH * figures.alone.samples_per_s)
}

fn command(side: usize) -> String {
    format!("`farandole data convert SOURCE FOLDER --to tar --resize {side}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(samples_per_s: f64, read_us: f64, decode_us: f64) -> PipelineFigures {
        PipelineFigures {
            samples: 100,
            samples_per_s,
            peak_per_s: samples_per_s,
            bytes_per_s: 1e6,
            read_us,
            decode_us,
            transform_us: 10.0,
            store_us: 5.0,
            memory_bytes: 1 << 20,
            broken: 0,
        }
    }

    #[test]
    fn needs_are_said_in_workers_and_so_is_what_converting_gains() {
        let cold = made(40.0, 9_000.0, 16_000.0);
        let (alone, reading, reduced) =
            (made(60.0, 100.0, 16_000.0), made(9_000.0, 100.0, 0.0), made(220.0, 50.0, 4_000.0));
        let figures = AdviceBasis {
            alone: &alone,
            best: (2, &alone),
            reading: &reading,
            reduced: Some((256, &reduced)),
            cold: Some(&cold),
            need: Some(410.0),
            cores: 4,
        };
        let said = advice(&figures);
        assert!(said[0].contains("99 % of it decoding"), "{said:?}");
        assert!(said[1].contains("with 2 workers; more gain nothing"), "{said:?}");
        assert!(
            said[2].starts_with("One worker feeds 60 samples/s, you need 410: 7 workers, and this machine has 4 cores"),
            "{said:?}"
        );
        assert!(
            said[3].contains("85 % are lost to preparing samples (warm, 60 samples/s), and 5 % more to"),
            "{said:?}"
        );
        assert!(said[2].contains("then 2: `farandole data convert SOURCE FOLDER --to tar --resize 256`"), "{said:?}");
    }

    #[test]
    fn a_conversion_that_gains_little_is_not_proposed() {
        let (alone, reduced) = (made(100.0, 9_000.0, 900.0), made(105.0, 9_000.0, 500.0));
        let figures = AdviceBasis {
            alone: &alone,
            best: (1, &alone),
            reading: &alone,
            reduced: Some((256, &reduced)),
            cold: None,
            need: None,
            cores: 1,
        };
        let said = advice(&figures);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("91 % of it reading"), "{said:?}");
        assert!(said[1].contains("that is all 1 cores"), "{said:?}");
    }
}
