//! A table of labels in a folder of images, in any storage.
//!
//! The table is that of `folder::table`, and so are its rules; here its lines become marks, as records of shards have
//! them. Records come in the order of lines.
//!
//! **Invariant:** every line has a file that is there; one without is an error that names the line.

use std::collections::HashMap;
use std::sync::Arc;

use super::config::LabelKind;
use super::labels::Marks;
use crate::DataError;
use crate::format::StoredFile;
use crate::limit::Limit;
use crate::sample::Split;
use crate::source::image_folder::table::{Mistake, Said, Table, is_number, mistake, read_rows};
use crate::storage::{Object, Storage};

/// What a table says, line by line.
#[derive(Clone, Debug)]
pub(crate) struct Labelled {
    pub(crate) kind: LabelKind,
    pub(crate) marks: Vec<Marks>,
    /// Which lines are learned from, where the table says so.
    pub(crate) splits: Vec<Option<Split>>,
}

impl Labelled {
    /// Whether the table says what is learned from.
    pub(crate) fn is_divided(&self) -> bool {
        self.splits.iter().any(Option::is_some)
    }

    /// Which lines are of a part. What no word says is learned from.
    pub(crate) fn is_of(&self, line: usize, split: Split) -> bool {
        (self.splits[line] == Some(Split::Test)) == (split == Split::Test)
    }

    /// These lines alone.
    pub(crate) fn some(&self, lines: &[usize]) -> Labelled {
        Labelled {
            kind: self.kind,
            marks: lines.iter().map(|line| self.marks[*line].clone()).collect(),
            splits: vec![None; lines.len()],
        }
    }
}

/// Reads a table of a folder whose files are known, and says which of them it names.
pub(crate) fn read(
    storage: &Arc<dyn Storage>,
    table: &Object,
    root: &str,
    files: &[Object],
) -> Result<(Labelled, Vec<Object>), DataError> {
    let file = StoredFile::known(Arc::clone(storage), &table.path, table.bytes);
    let fail = |error: crate::format::FormatError| DataError(error.to_string());
    Limit::of_process().check(table.bytes).map_err(|error| fail(file.error_of_all(error.to_string())))?;
    let bytes = file.head(table.bytes as usize).map_err(fail)?;
    let understood = read_rows(bytes).and_then(|table| Ok((labelled(&table)?, named(&table, root, files)?)));
    understood.map_err(|mistake| mistake.in_table(file.shown()))
}

/// The files that lines name.
fn named(table: &Table, root: &str, files: &[Object]) -> Result<Vec<Object>, Mistake> {
    let by_path: HashMap<&str, &Object> = files.iter().map(|file| (file.path.as_str(), file)).collect();
    let find = |file: &str| {
        let parts: Vec<&str> = file.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        by_path.get(format!("{root}{}", parts.join("/")).as_str()).map(|file| (*file).clone())
    };
    let mut found = Vec::with_capacity(table.rows.len());
    for row in &table.rows {
        let Some(file) = find(&row.file) else { return mistake(row.line, format!("there is no file {}", row.file)) };
        found.push(file);
    }
    Ok(found)
}

fn labelled(table: &Table) -> Result<Labelled, Mistake> {
    let said = table.said();
    let kind = match said {
        Said::Class => LabelKind::Class,
        Said::Labels => LabelKind::MultiLabel,
        Said::Value => LabelKind::Value,
    };
    let is_numbered = said != Said::Value && table.rows.iter().all(|row| row.words(said).into_iter().all(is_number));
    let mut marks = Vec::with_capacity(table.rows.len());
    for row in &table.rows {
        let words = row.words(said);
        if said == Said::Class && words.is_empty() {
            return mistake(row.line, "no class is named");
        }
        marks.push(match said {
            Said::Value => {
                let value = row.said.trim().parse::<f32>().ok().filter(|value| value.is_finite());
                let Some(value) = value else {
                    return mistake(row.line, format!("`{}` is no number for {}", row.said, table.column));
                };
                Marks::Floats(vec![value])
            }
            _ if is_numbered => {
                let numbers: Result<Vec<i64>, _> = words.iter().map(|word| word.parse()).collect();
                let Ok(numbers) = numbers else {
                    return mistake(row.line, format!("label {} is out of range", row.said));
                };
                Marks::Ints(numbers)
            }
            _ => Marks::Names(words.into_iter().map(str::to_owned).collect()),
        });
    }
    Ok(Labelled { kind, marks, splits: table.rows.iter().map(|row| row.split).collect() })
}

#[cfg(test)]
mod tests {
    use farandole_testing::Folder;

    use super::super::{Records, RecordsConfig, open, open_data_set};
    use super::*;
    use crate::DataSet as _;
    use crate::sample::{ImageShape, Label, Task};
    use crate::source::image_folder::FolderConfig;
    use crate::storage::LocalFiles;

    /// A folder with a table and five images of one grey pixel.
    fn place(table: &str) -> Folder {
        let folder = Folder::new();
        std::fs::create_dir_all(folder.join("deep")).unwrap();
        for (number, name) in ["a.png", "b.jpg", "deep/c.pgm", "d", "e.png"].into_iter().enumerate() {
            std::fs::write(folder.join(name), [b"P5\n1 1\n255\n".as_slice(), &[number as u8]].concat()).unwrap();
        }
        std::fs::write(folder.join("labels.csv"), table).unwrap();
        folder
    }

    fn records(folder: &Folder, config: &RecordsConfig) -> Result<Arc<dyn Records>, String> {
        open(Arc::new(LocalFiles::new(&**folder)), "", config).map_err(|error| error.0)
    }

    fn labels(records: &dyn Records) -> Vec<Label> {
        (0..records.len()).map(|index| records.read(index, &mut Vec::new()).unwrap()).collect()
    }

    #[test]
    fn a_table_says_which_images_there_are_and_what_they_show() {
        let found = |table: &str| {
            let folder = place(table);
            let records = records(&folder, &RecordsConfig::default()).unwrap();
            (labels(&*records), records)
        };
        // Not by folders, and not in the order of names. A file that the table does not name is none of the data set.
        let (labels, classes) = found("file,class\nd,dog\n./deep/c.pgm,cat\na.png,dog\n");
        assert_eq!(labels, [1, 0, 1].map(Label::Class));
        assert_eq!(classes.class_names(), ["cat", "dog"]);
        assert!(classes.name(1).ends_with("/deep/c.pgm") && classes.describe().contains("a table"));
        assert_eq!(found("file,label\na.png,2\nb.jpg,0\n").0, [2, 0].map(Label::Class));
        let (labels, any) = found("file,labels\na.png,wood;water\nb.jpg,\n");
        assert_eq!(any.task(), Task::MultiLabel { labels: 2 });
        assert_eq!(labels, [vec![1.0, 1.0], vec![0.0, 0.0]].map(Label::Labels));
        let (labels, ages) = found("file,age\na.png,34.5\nb.jpg,61\n");
        assert_eq!((ages.task(), labels), (Task::Regression, [34.5, 61.0].map(Label::Value).to_vec()));
        let (_, other) = found("file,age\na.png,34.5\nb.jpg,62\n");
        assert_ne!(ages.fingerprint(), other.fingerprint());
    }

    #[test]
    fn a_table_that_divides_images_wants_to_know_which_part() {
        let folder = place("file,class,split\na.png,0,train\nb.jpg,1,test\nd,1,train\n");
        let error = records(&folder, &RecordsConfig::default()).err().unwrap();
        assert!(error.contains("split") && error.contains("say which part"), "{error}");
        let part = |split| records(&folder, &RecordsConfig { split: Some(split), ..RecordsConfig::default() });
        assert_eq!(labels(&*part(Split::Train).unwrap()), [0, 1].map(Label::Class));
        assert_eq!(part(Split::Test).unwrap().len(), 1);
        let wanted = FolderConfig::new(ImageShape { bands: 1, height: 1, width: 1 });
        let storage: Arc<dyn Storage> = Arc::new(LocalFiles::new(&*folder));
        let data = open_data_set(storage, "", &RecordsConfig::default(), &wanted).unwrap();
        assert_eq!((data.len(Split::Train), data.len(Split::Test)), (2, 1));
        let whole = place("file,class\na.png,0\nb.jpg,1\n");
        let config = RecordsConfig { split: Some(Split::Test), ..RecordsConfig::default() };
        assert!(records(&whole, &config).err().unwrap().contains("no part for tests"));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (table, line, cause) in [
            ("file,class\na.png,x\nz.png,y\n", 3, "there is no file z.png"),
            ("file,class\na.png,x\nb.jpg,\n", 3, "no class is named"),
            ("file,class\na.png,x\n../b.jpg,y\n", 3, "`..`"),
            ("file,age\na.png,old\n", 2, "no number for age"),
            ("file,class\na.png,99999999999999999999\n", 2, "out of range"),
            ("image,class\n", 1, "no header"),
        ] {
            let error = records(&place(table), &RecordsConfig::default()).err().unwrap();
            assert!(error.contains(&format!("labels.csv, line {line}: ")) && error.contains(cause), "{error}");
        }
        // What only shows when all lines are known names the file.
        let error = records(&place("file,class\na.png,-1\n"), &RecordsConfig::default()).err().unwrap();
        assert!(error.contains("a.png") && error.contains("out of range"), "{error}");
    }
}
