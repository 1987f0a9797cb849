//! Images and labels as arrays of NumPy.
//!
//! An archive (`.npz`) has both; beside a file of images (`.npy`) lies one with labels. Which is which, the words in
//! their names say: `images`, `image`, `data`, `x` or `arr_0`, and `labels`, `label`, `targets`, `y` or `arr_1`. Where
//! an archive has several parts, `train`, `test` or `val` is another word of the names.
//!
//! Images are `[rows, height, width]`, `[rows, height, width, bands]` or `[rows, bands, height, width]` with 1 or 3
//! bands. Whole numbers are from 0 to 255, numbers with a fraction from 0 to 1; others are refused, because what they
//! mean would be a guess. A row becomes a PNM image.

use std::sync::{Arc, OnceLock};

use super::config::RecordsConfig;
use super::find::PARTS;
use super::index::Entry;
use super::labels::Marks;
use super::sharded::{Place, ShardReader};
use crate::DataError;
use crate::format::npy::{Array, ArrayBytes, Element, Values, ZipMember, members, unpacked};
use crate::format::{FormatError, StoredFile, pnm};
use crate::limit::Limit;

/// Words of names of images and labels, in pairs: a file of images has its labels in one named by the other word.
const WORDS: [(&str, &str); 5] =
    [("images", "labels"), ("image", "label"), ("data", "labels"), ("x", "y"), ("data", "targets")];

/// Reads arrays.
#[derive(Debug)]
pub(crate) struct ArrayRows {
    image: Option<String>,
    label: Option<String>,
    part: Option<&'static str>,
    /// The images of each file, by number.
    images: Vec<OnceLock<Array>>,
}

impl ArrayRows {
    /// Reads so many files; of archives this part.
    pub(crate) fn new(config: &RecordsConfig, files: usize, part: Option<&'static str>) -> ArrayRows {
        let images = (0..files).map(|_| OnceLock::new()).collect();
        ArrayRows { image: config.image.clone(), label: config.label.clone(), part, images }
    }

    fn arrays(&self, file: &StoredFile) -> Result<(Array, Option<Array>), FormatError> {
        if file.path().to_lowercase().ends_with(".npz") { self.of_archive(file) } else { self.of_file(file) }
    }

    fn of_archive(&self, file: &StoredFile) -> Result<(Array, Option<Array>), FormatError> {
        let members = members(file)?;
        let find = |given: Option<&str>, is_one: fn(&str) -> bool| {
            let named = members.iter().find(|member| given.is_some_and(|given| stem(member) == given));
            let parts = [self.part, None, Some("train")];
            let suits = |member: &&ZipMember, part| is_one(stem(member)) && part_of_name(stem(member)) == part;
            let mut usual = parts.into_iter().filter_map(|part| members.iter().find(|member| suits(member, part)));
            if given.is_some() { named } else { usual.next() }
        };
        let names = || members.iter().map(stem).collect::<Vec<_>>().join(", ");
        let Some(images) = find(self.image.as_deref(), is_images) else {
            return Err(file.error_of_all(format!("there are no images among its arrays {}: name one", names())));
        };
        let labels = find(self.label.as_deref(), is_labels);
        if let (Some(label), None) = (&self.label, labels) {
            return Err(file.error_of_all(format!("there is no array {label} among {}", names())));
        }
        let open = |member: &ZipMember| {
            let bytes = if member.is_packed {
                ArrayBytes::Unpacked(Arc::new(unpacked(file, member)?))
            } else {
                ArrayBytes::Stored { offset: member.offset, bytes: member.bytes }
            };
            Array::within(file, bytes)
        };
        Ok((open(images)?, labels.map(open).transpose()?))
    }

    fn of_file(&self, file: &StoredFile) -> Result<(Array, Option<Array>), FormatError> {
        let (folder, name) = file.path().rsplit_once('/').map_or(("", file.path()), |(folder, name)| (folder, name));
        let beside = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        let names: Vec<String> = match &self.label {
            Some(given) => vec![beside(given)],
            None => WORDS.iter().filter_map(|(image, label)| Some(beside(&exchanged(name, image, label)?))).collect(),
        };
        let labels = names.iter().find_map(|path| StoredFile::open(Arc::clone(file.storage()), path).ok());
        if let (Some(label), None) = (&self.label, &labels) {
            return Err(file.error_of_all(format!("there is no file {label} with labels beside it")));
        }
        Ok((Array::open(file)?, labels.as_ref().map(Array::open).transpose()?))
    }
}

impl ShardReader for ArrayRows {
    fn format(&self) -> &'static str {
        "NumPy"
    }

    fn sought(&self) -> String {
        format!("NumPy {:?} {:?}", self.image, self.label)
    }

    fn is_indexed(&self) -> bool {
        false
    }

    fn scan(&self, number: usize, shard: &StoredFile) -> Result<Vec<Entry>, FormatError> {
        let (images, labels) = self.arrays(shard)?;
        if let Some(labels) = labels.as_ref().filter(|labels| labels.rows() != images.rows()) {
            let (rows, there) = (images.rows(), labels.rows());
            let place = labels.file().shown();
            return Err(shard.error_of_all(format!("there are {rows} images, and {there} labels in {place}")));
        }
        let mut entries = Vec::new();
        let mut buffer = Vec::new();
        // Rows of a byte are known by entries that are many times larger.
        let limit = Limit::of_process().check_all(images.rows(), size_of::<Entry>());
        limit.map_err(|error| shard.error_of_all(format!("{} rows: {error}", images.rows())))?;
        for row in 0..images.rows() {
            let marks = match &labels {
                None => Marks::Nothing,
                Some(labels) => match labels.values(row, &mut buffer)? {
                    Values::Ints(values) => Marks::Ints(values),
                    Values::Floats(values) => Marks::Floats(values),
                },
            };
            entries.push(Entry { offset: row, bytes: 0, key: None, marks });
        }
        let _ = self.images[number].set(images);
        Ok(entries)
    }

    fn read(&self, number: usize, shard: &StoredFile, place: Place, encoded: &mut Vec<u8>) -> Result<(), FormatError> {
        let images = self.images[number].get().expect("invariant: files without an index were looked through");
        images.read_row(place.offset, encoded)?;
        *encoded = pixels(images, encoded).map_err(|cause| shard.error_of_all(cause))?;
        Ok(())
    }
}

/// Whether a file holds images, by its name: those with labels are found by those with images.
pub(crate) fn holds_images(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    name.to_lowercase().ends_with(".npz") || !is_labels(stem)
}

/// Whether an archive has a part of this name beside the one to learn from.
pub(crate) fn parts(file: &StoredFile) -> Result<Vec<&'static str>, DataError> {
    let members = members(file).map_err(|error| DataError(error.to_string()))?;
    let images = members.iter().filter(|member| is_images(stem(member)));
    Ok(images.filter_map(|member| part_of_name(stem(member))).collect())
}

fn stem(member: &ZipMember) -> &str {
    member.name.strip_suffix(".npy").unwrap_or(&member.name)
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|character: char| !character.is_ascii_alphabetic()).filter(|word| !word.is_empty())
}

fn has_word(name: &str, word: &str) -> bool {
    words(name).any(|found| found.eq_ignore_ascii_case(word))
}

fn is_images(name: &str) -> bool {
    name == "arr_0" || WORDS.iter().any(|(image, _)| has_word(name, image))
}

fn is_labels(name: &str) -> bool {
    name == "arr_1" || WORDS.iter().any(|(_, label)| has_word(name, label))
}

fn part_of_name(name: &str) -> Option<&'static str> {
    PARTS.into_iter().find(|part| has_word(name, part))
}

/// A name with one word in the place of another; nothing if it does not have that word.
fn exchanged(name: &str, from: &str, to: &str) -> Option<String> {
    let word = words(name).find(|word| word.eq_ignore_ascii_case(from))?;
    let at = word.as_ptr().addr() - name.as_ptr().addr();
    Some(format!("{}{to}{}", &name[..at], &name[at + word.len()..]))
}

/// A row as an image.
fn pixels(array: &Array, row: &[u8]) -> Result<Vec<u8>, String> {
    let shape: Vec<usize> = array.row_shape().iter().map(|axis| usize::try_from(*axis).unwrap_or(usize::MAX)).collect();
    let (height, width, bands, is_planar) = match *shape.as_slice() {
        [height, width] => (height, width, 1, false),
        [height, width, bands @ (1 | 3)] => (height, width, bands, false),
        [bands @ (1 | 3), height, width] => (height, width, bands, true),
        _ => return Err(format!("rows of the shape {shape:?} are no images of 1 or 3 bands")),
    };
    let mut bytes = to_bytes(array.element(), row)?;
    if is_planar && bands > 1 {
        let plane = height * width;
        bytes = (0..plane * bands).map(|at| bytes[at % bands * plane + at / bands]).collect();
    }
    pnm::encode(height, width, bands, &bytes).ok_or_else(|| format!("images of the shape {shape:?} have no pixels"))
}

/// Brightness as bytes.
fn to_bytes(element: Element, row: &[u8]) -> Result<Vec<u8>, String> {
    match (element, element.values(row)) {
        (Element::Unsigned(1), _) => Ok(row.to_vec()),
        (_, Values::Ints(values)) => {
            let wrong = |value: i64| format!("{value} is no brightness: whole numbers are from 0 to 255");
            values.into_iter().map(|value| u8::try_from(value).map_err(|_| wrong(value))).collect()
        }
        (_, Values::Floats(values)) => {
            let byte = |value: f32| match value {
                0.0..=1.0 => Ok((value * 255.0).round() as u8),
                _ => Err(format!("{value} is no brightness: numbers with a fraction are from 0 to 1")),
            };
            values.into_iter().map(byte).collect()
        }
    }
}
