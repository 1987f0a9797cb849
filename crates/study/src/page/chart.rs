//! Lines over points, and stacked bars, as pictures that fit any width.
//!
//! Places are in percent of the picture, so it may be as wide as there is room, and text keeps its size. Series differ
//! in the shape of their marks and in how their lines are broken, not only in colour. Every picture stands above the
//! table with its numbers.

use farandole_insight::report::page::escaped;

/// One line of a chart: a value for each place, or none where there is none.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) values: Vec<Option<f64>>,
    /// Marks where values were measured; a law or an ideal has none.
    pub(super) measured: bool,
}

/// Where the picture's area begins and ends, in percent: the rest is for numbers at its side and below it.
const LEFT: f64 = 9.0;
const RIGHT: f64 = 97.0;
const TOP: f64 = 5.0;
const BOTTOM: f64 = 86.0;

/// How many lines cross the picture.
const GRID: usize = 4;

/// How many kinds of lines the style sheet has.
const KINDS: usize = 4;

/// A chart of lines. Places are equally far apart whatever their labels say.
pub(super) fn lines(
    title: &str,
    (axis, labels): (&str, &[String]),
    series: &[Series],
    number: fn(f64) -> String,
) -> String {
    let highest = series.iter().flat_map(|series| series.values.iter().flatten()).fold(0.0f64, |a, b| a.max(*b));
    let top = round_up(highest);
    let x = |place: usize| LEFT + (RIGHT - LEFT) * (place as f64 + 0.5) / labels.len().max(1) as f64;
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / top;
    let mut drawing = String::new();
    for line in 0..=GRID {
        let value = top * line as f64 / GRID as f64;
        drawing += &format!(
            "<line class=\"grid\" x1=\"{LEFT}%\" x2=\"{RIGHT}%\" y1=\"{0:.2}%\" y2=\"{0:.2}%\"/>\
             <text class=\"tick\" x=\"{1:.2}%\" y=\"{0:.2}%\" dy=\".35em\" text-anchor=\"end\">{2}</text>\n",
            y(value),
            LEFT - 1.0,
            escaped(&number(value))
        );
    }
    for (place, label) in labels.iter().enumerate() {
        drawing += &format!(
            "<text class=\"tick\" x=\"{:.2}%\" y=\"{:.2}%\" text-anchor=\"middle\">{}</text>\n",
            x(place),
            BOTTOM + 9.0,
            escaped(label)
        );
    }
    for (kind, one) in series.iter().enumerate() {
        let kind = kind % KINDS;
        let known: Vec<(usize, f64)> =
            one.values.iter().enumerate().filter_map(|(place, value)| Some((place, (*value)?))).collect();
        for pair in known.windows(2) {
            let [(from, low), (to, high)] = [pair[0], pair[1]];
            drawing += &format!(
                "<line class=\"line k{kind}\" x1=\"{:.2}%\" y1=\"{:.2}%\" x2=\"{:.2}%\" y2=\"{:.2}%\"/>\n",
                x(from),
                y(low),
                x(to),
                y(high)
            );
        }
        for (place, value) in known.iter().filter(|_| one.measured) {
            let said = format!("{}, {}: {}", one.name, labels[*place], number(*value));
            drawing += &mark(kind, x(*place), y(*value), &said);
        }
    }
    picture(title, &drawing) + &format!("<p class=\"below\">{}</p>\n", escaped(axis)) + &legend(series)
}

/// A mark: a circle, a square, a rhombus or a ring.
fn mark(kind: usize, x: f64, y: f64, said: &str) -> String {
    let shape = match kind {
        0 => format!("<circle cx=\"{x:.2}%\" cy=\"{y:.2}%\" r=\"5\"/>"),
        1 => format!("<rect x=\"{x:.2}%\" y=\"{y:.2}%\" width=\"9\" height=\"9\" transform=\"translate(-4.5,-4.5)\"/>"),
        2 => format!("<circle class=\"ring\" cx=\"{x:.2}%\" cy=\"{y:.2}%\" r=\"5\"/>"),
        _ => format!("<rect x=\"{x:.2}%\" y=\"{y:.2}%\" width=\"4\" height=\"12\" transform=\"translate(-2,-6)\"/>"),
    };
    format!("<g class=\"mark k{kind}\"><title>{}</title>{shape}</g>\n", escaped(said))
}

fn picture(title: &str, drawing: &str) -> String {
    format!("<svg class=\"chart\" width=\"100%\" role=\"img\" aria-label=\"{}\">\n{drawing}</svg>\n", escaped(title))
}

fn legend(series: &[Series]) -> String {
    let entry = |(kind, series): (usize, &Series)| {
        let kind = kind % KINDS;
        let line = format!("<line class=\"line k{kind}\" x1=\"0%\" y1=\"50%\" x2=\"100%\" y2=\"50%\"/>");
        let mark = if series.measured { mark(kind, 50.0, 50.0, &series.name) } else { String::new() };
        format!(
            "<li><svg class=\"sample\" aria-hidden=\"true\">{line}{mark}</svg><span>{}</span></li>\n",
            escaped(&series.name)
        )
    };
    let entries: String = series.iter().enumerate().map(entry).collect();
    format!("<ul class=\"legend\">\n{entries}</ul>\n")
}

/// For each label a bar of parts, as long as their sum; the number of each part stands in a table below.
pub(super) fn stacks(title: &str, labels: &[String], parts: &[String], values: &[Vec<f64>]) -> String {
    let longest = values.iter().map(|row| row.iter().sum::<f64>()).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut bars = String::new();
    for (label, row) in labels.iter().zip(values) {
        let mut from = 0.0;
        let mut rects = String::new();
        for (part, value) in row.iter().enumerate() {
            let width = 100.0 * value / longest;
            rects += &format!(
                "<rect class=\"part s{}\" x=\"{from:.3}%\" y=\"0\" width=\"{width:.3}%\" height=\"100%\"><title>{}: {}</title></rect>\n",
                part % PARTS,
                escaped(&parts[part]),
                escaped(&seconds(*value))
            );
            from += width;
        }
        bars += &format!(
            "<div class=\"row\"><span class=\"name\">{}</span><svg class=\"bar\" width=\"100%\" role=\"img\" aria-label=\"{}\">{rects}</svg>\
             <span class=\"number\">{}</span></div>\n",
            escaped(label),
            escaped(&format!("{title}, {label}")),
            seconds(row.iter().sum())
        );
    }
    let entry = |(part, name): (usize, &String)| {
        format!(
            "<li><svg class=\"swatch\" aria-hidden=\"true\"><rect class=\"part s{}\" width=\"100%\" height=\"100%\"/></svg><span>{}</span></li>\n",
            part % PARTS,
            escaped(name)
        )
    };
    let entries: String = parts.iter().enumerate().map(entry).collect();
    format!("<ul class=\"legend\">\n{entries}</ul>\n<div class=\"bars\">\n{bars}</div>\n")
}

/// How many paints the style sheet has for parts of bars.
const PARTS: usize = 6;

/// A time that people can read.
pub(super) fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", 1e3 * seconds) } else { format!("{seconds:.2} s") }
}

/// A number that is not below and whose quarters are round: 1, 2, 4, 6 or 8 times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * power).find(|round| *round >= value * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, round) in
            [(0.0, 1.0), (0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (2.2, 4.0), (420.0, 600.0), (8001.0, 10_000.0)]
        {
            assert!((round_up(value) - round).abs() < 1e-9 * round, "{value}: {}", round_up(value));
        }
    }

    #[test]
    fn a_missing_value_leaves_a_gap_in_marks_and_joins_its_neighbours() {
        let series = [Series { name: "a".into(), values: vec![Some(1.0), None, Some(2.0)], measured: true }];
        let chart = lines("t", ("ranks", &["1".into(), "2".into(), "4".into()]), &series, |value| value.to_string());
        assert_eq!(chart.matches("class=\"line k0\"").count(), 2, "one line and the legend's:\n{chart}");
        assert_eq!(chart.matches("<circle").count(), 3, "two marks and the legend's:\n{chart}");
    }
}
