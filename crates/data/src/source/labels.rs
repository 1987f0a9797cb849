//! What records say about themselves, and what it means.
//!
//! A record says [`Marks`]: numbers or names, as its format has them. When all records are known, `resolve` decides
//! what is to be learned, numbers names, and keeps 4 bytes for each class or value.
//!
//! **Invariant:** every number is below the number of classes, which is at most [`MAX_LABELS`]; a record that says
//! something else than the others is named.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::config::{LabelKind, RecordsConfig};
use crate::DataError;
use crate::sample::{Label, Task};
use crate::source::image_folder::MAX_LABELS;

/// What a record says about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) enum Marks {
    /// Nothing.
    #[default]
    Nothing,
    /// Whole numbers.
    Ints(Vec<i64>),
    /// Numbers with a fraction.
    Floats(Vec<f32>),
    /// Names.
    Names(Vec<String>),
}

impl Marks {
    /// A text: a whole number, a number, or else a name.
    pub(crate) fn of_text(text: &str) -> Marks {
        let text = text.trim();
        if let Ok(number) = text.parse() {
            Marks::Ints(vec![number])
        } else if let Ok(number) = text.parse() {
            Marks::Floats(vec![number])
        } else if text.is_empty() {
            Marks::Nothing
        } else {
            Marks::Names(vec![text.to_owned()])
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Marks::Nothing => "nothing",
            Marks::Ints(_) => "whole numbers",
            Marks::Floats(_) => "numbers with a fraction",
            Marks::Names(_) => "names",
        }
    }

    fn len(&self) -> usize {
        match self {
            Marks::Nothing => 0,
            Marks::Ints(values) => values.len(),
            Marks::Floats(values) => values.len(),
            Marks::Names(values) => values.len(),
        }
    }

    fn floats(&self) -> Vec<f32> {
        match self {
            Marks::Ints(values) => values.iter().map(|value| *value as f32).collect(),
            Marks::Floats(values) => values.clone(),
            Marks::Nothing | Marks::Names(_) => Vec::new(),
        }
    }
}

/// What is known about all records.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) task: Task,
    pub(crate) names: Vec<String>,
    labels: Compact,
}

#[derive(Debug)]
enum Compact {
    Same,
    Classes(Vec<u32>),
    Values(Vec<f32>),
    /// The numbers of all records in a row, and where those of each record end.
    Many {
        ends: Vec<usize>,
        numbers: Vec<u32>,
    },
}

impl Known {
    pub(crate) fn label(&self, index: usize) -> Label {
        match &self.labels {
            Compact::Same => Label::Class(0),
            Compact::Classes(classes) => Label::Class(classes[index]),
            Compact::Values(values) => Label::Value(values[index]),
            Compact::Many { ends, numbers } => {
                let Task::MultiLabel { labels } = self.task else { unreachable!("many numbers are labels") };
                let mut all = vec![0.0; labels];
                let begin = index.checked_sub(1).map_or(0, |before| ends[before]);
                numbers[begin..ends[index]].iter().for_each(|number| all[*number as usize] = 1.0);
                Label::Labels(all)
            }
        }
    }

    /// Each record is of one class, known by its number.
    pub(crate) fn classes(classes: Vec<u32>, names: Vec<String>) -> Known {
        Known { task: Task::SingleLabel { classes: names.len() }, names, labels: Compact::Classes(classes) }
    }
}

/// Decides what the marks of all records mean. `name_of` names a record for an error.
pub(crate) fn resolve(
    all: &[Marks],
    config: &RecordsConfig,
    name_of: &dyn Fn(usize) -> String,
) -> Result<Known, DataError> {
    let fail = |index: usize, cause: String| Err(DataError(format!("{}: {cause}", name_of(index))));
    if config.kind == LabelKind::Nothing || all.is_empty() {
        let (task, names) = (Task::SingleLabel { classes: config.classes.unwrap_or(1) }, config.class_names.clone());
        return Ok(Known { task, names, labels: Compact::Same });
    }
    let mut first = &all[0];
    for (index, marks) in all.iter().enumerate() {
        match (first, marks) {
            (_, Marks::Nothing) => {
                let cause = "nothing says what it shows: it has no label, or one under a name that is not known";
                return fail(index, cause.to_owned());
            }
            // Numbers that happen to be whole are numbers.
            (Marks::Ints(_), Marks::Floats(_)) => first = marks,
            (Marks::Floats(_), Marks::Ints(_)) => {}
            _ if std::mem::discriminant(first) == std::mem::discriminant(marks) => {}
            _ => {
                let cause = format!("its label is made of {}, those before it of {}", marks.word(), first.word());
                return fail(index, cause);
            }
        }
    }
    let single = all.iter().all(|marks| marks.len() == 1);
    let kind = match (config.kind, first, single) {
        (LabelKind::Found, Marks::Ints(_) | Marks::Names(_), true) => LabelKind::Class,
        (LabelKind::Found, Marks::Ints(_) | Marks::Names(_), false) => LabelKind::MultiLabel,
        (LabelKind::Found, _, true) => LabelKind::Value,
        (LabelKind::Found, _, false) => {
            let cause = "its label is a list of numbers with a fraction: say what they mean (0 or 1 for each label?)";
            return fail(0, cause.to_owned());
        }
        (kind, _, _) => kind,
    };
    match kind {
        LabelKind::Class | LabelKind::MultiLabel => numbered(all, first, kind, config, &fail),
        LabelKind::MultiHot => multi_hot(all, config, &fail),
        _ => values(all, &fail),
    }
}

type Fail<'a> = &'a dyn Fn(usize, String) -> Result<Known, DataError>;

/// Numbers or names of classes or labels.
fn numbered(
    all: &[Marks],
    first: &Marks,
    kind: LabelKind,
    config: &RecordsConfig,
    fail: Fail<'_>,
) -> Result<Known, DataError> {
    let mut names = config.class_names.clone();
    let named = matches!(first, Marks::Names(_));
    if named && names.is_empty() {
        let sorted: BTreeSet<&String> =
            all.iter().flat_map(|marks| if let Marks::Names(names) = marks { names.as_slice() } else { &[] }).collect();
        names = sorted.into_iter().cloned().collect();
    }
    let by_name: std::collections::HashMap<&str, usize> =
        names.iter().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
    let given = config.classes.or((!names.is_empty()).then_some(names.len()));
    let limit = given.unwrap_or(MAX_LABELS).min(MAX_LABELS);
    let (mut ends, mut numbers, mut count) = (Vec::with_capacity(all.len()), Vec::new(), 0);
    for (index, marks) in all.iter().enumerate() {
        if kind == LabelKind::Class && marks.len() != 1 {
            return fail(index, format!("it should be of one class, and has {} labels", marks.len()));
        }
        let found: Vec<Option<usize>> = match marks {
            Marks::Names(said) => said.iter().map(|name| by_name.get(name.as_str()).copied()).collect(),
            Marks::Ints(said) => said.iter().map(|number| usize::try_from(*number).ok()).collect(),
            Marks::Floats(said) => return fail(index, format!("{said:?} are no numbers of classes")),
            Marks::Nothing => unreachable!("records without marks were refused"),
        };
        for (place, number) in found.into_iter().enumerate() {
            let Some(number) = number.filter(|number| *number < limit) else {
                let said = match marks {
                    Marks::Names(said) => format!("`{}`", said[place]),
                    Marks::Ints(said) => said[place].to_string(),
                    _ => unreachable!("only names and whole numbers are numbered"),
                };
                let cause = if named { "is not among the names that were given" } else { "is out of range" };
                return fail(index, format!("label {said} {cause}: there are {limit}, and numbers begin with 0"));
            };
            count = count.max(number + 1);
            numbers.push(number as u32);
        }
        ends.push(numbers.len());
    }
    let count = given.unwrap_or(count);
    if kind == LabelKind::Class {
        let task = Task::SingleLabel { classes: count };
        return Ok(Known { task, names, labels: Compact::Classes(numbers) });
    }
    if count == 0 {
        return fail(0, "neither it nor any other record has a label".to_owned());
    }
    Ok(Known { task: Task::MultiLabel { labels: count }, names, labels: Compact::Many { ends, numbers } })
}

/// For each label 0 or 1.
fn multi_hot(all: &[Marks], config: &RecordsConfig, fail: Fail<'_>) -> Result<Known, DataError> {
    let labels = config.classes.unwrap_or(all[0].len());
    let (mut ends, mut numbers) = (Vec::with_capacity(all.len()), Vec::new());
    for (index, marks) in all.iter().enumerate() {
        let flags = marks.floats();
        if flags.len() != labels || labels == 0 || labels > MAX_LABELS {
            return fail(index, format!("it says 0 or 1 for {} labels, and there are {labels}", flags.len()));
        }
        if let Some(odd) = flags.iter().find(|flag| **flag != 0.0 && **flag != 1.0) {
            return fail(index, format!("{odd} is neither 0 nor 1"));
        }
        numbers.extend((0..).zip(&flags).filter(|(_, flag)| **flag == 1.0).map(|(number, _): (u32, _)| number));
        ends.push(numbers.len());
    }
    let names = config.class_names.clone();
    Ok(Known { task: Task::MultiLabel { labels }, names, labels: Compact::Many { ends, numbers } })
}

/// One number for each record.
fn values(all: &[Marks], fail: Fail<'_>) -> Result<Known, DataError> {
    let mut values = Vec::with_capacity(all.len());
    for (index, marks) in all.iter().enumerate() {
        match marks.floats().as_slice() {
            [value] if value.is_finite() => values.push(*value),
            _ => return fail(index, format!("its label should be one number, and is {marks:?}")),
        }
    }
    Ok(Known { task: Task::Regression, names: Vec::new(), labels: Compact::Values(values) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(all: &[Marks], config: &RecordsConfig) -> Result<Known, String> {
        resolve(all, config, &|index| format!("record {index}")).map_err(|error| error.0)
    }

    fn ints(values: &[i64]) -> Marks {
        Marks::Ints(values.to_vec())
    }

    fn names(values: &[&str]) -> Marks {
        Marks::Names(values.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn labels_are_what_they_look_like() {
        let config = RecordsConfig::default();
        let found = known(&[ints(&[2]), ints(&[0])], &config).unwrap();
        assert_eq!((found.task, found.label(0)), (Task::SingleLabel { classes: 3 }, Label::Class(2)));
        let found = known(&[names(&["dog"]), names(&["cat"])], &config).unwrap();
        assert_eq!((found.names.join(" "), found.label(0)), ("cat dog".to_owned(), Label::Class(1)));
        let found = known(&[ints(&[0, 2]), ints(&[]), ints(&[1])], &config).unwrap();
        assert_eq!(found.task, Task::MultiLabel { labels: 3 });
        assert_eq!(found.label(0), Label::Labels(vec![1.0, 0.0, 1.0]));
        assert_eq!(found.label(1), Label::Labels(vec![0.0; 3]));
        assert_eq!(found.label(2), Label::Labels(vec![0.0, 1.0, 0.0]));
        let found = known(&[ints(&[3]), Marks::Floats(vec![0.5])], &config).unwrap();
        assert_eq!(
            (found.task, found.label(0), found.label(1)),
            (Task::Regression, Label::Value(3.0), Label::Value(0.5))
        );
    }

    #[test]
    fn what_was_said_in_advance_counts() {
        let given = RecordsConfig { class_names: vec!["dog".into(), "cat".into()], ..RecordsConfig::default() };
        assert_eq!(known(&[names(&["dog"])], &given).unwrap().label(0), Label::Class(0));
        let error = known(&[names(&["dog"]), names(&["cow"])], &given).unwrap_err();
        assert!(error.starts_with("record 1: label `cow`"), "{error}");
        let hot = RecordsConfig { kind: LabelKind::MultiHot, ..RecordsConfig::default() };
        assert_eq!(known(&[ints(&[0, 1, 1])], &hot).unwrap().label(0), Label::Labels(vec![0.0, 1.0, 1.0]));
        assert!(known(&[ints(&[0, 2])], &hot).unwrap_err().contains("neither 0 nor 1"));
        assert!(known(&[ints(&[0, 1]), ints(&[1])], &hot).unwrap_err().starts_with("record 1"));
        let nothing = RecordsConfig { kind: LabelKind::Nothing, ..RecordsConfig::default() };
        assert_eq!(known(&[Marks::Nothing], &nothing).unwrap().label(0), Label::Class(0));
        let value = RecordsConfig { kind: LabelKind::Value, ..RecordsConfig::default() };
        assert_eq!(known(&[ints(&[40])], &value).unwrap().label(0), Label::Value(40.0));
    }

    #[test]
    fn a_record_that_differs_is_named() {
        let config = RecordsConfig::default();
        assert!(known(&[ints(&[1]), Marks::Nothing], &config).unwrap_err().starts_with("record 1: nothing says"));
        assert!(known(&[ints(&[1]), names(&["a"])], &config).unwrap_err().starts_with("record 1: its label"));
        for wrong in [-1, MAX_LABELS as i64, i64::MAX] {
            let error = known(&[ints(&[1]), ints(&[wrong])], &config).unwrap_err();
            assert!(error.starts_with("record 1: label") && error.contains("out of range"), "{error}");
        }
        let few = RecordsConfig { classes: Some(3), ..RecordsConfig::default() };
        assert!(known(&[ints(&[3])], &few).unwrap_err().contains("there are 3"));
        assert!(known(&[Marks::Floats(vec![0.5, 0.5])], &config).unwrap_err().contains("say what they mean"));
        assert!(known(&[Marks::Floats(vec![f32::NAN])], &config).unwrap_err().contains("one number"));
    }

    #[test]
    fn texts_are_numbers_where_they_can_be() {
        assert_eq!(Marks::of_text(" 7\n"), ints(&[7]));
        assert_eq!(Marks::of_text("0.5"), Marks::Floats(vec![0.5]));
        assert_eq!(Marks::of_text("cat"), names(&["cat"]));
        assert_eq!(Marks::of_text(" "), Marks::Nothing);
    }
}
