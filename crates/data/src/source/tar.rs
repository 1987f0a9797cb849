//! Samples of WebDataset: files of a tar archive that share a key.
//!
//! The key of a file is its path up to the first dot of its last part; what follows says what it is. Files of one
//! sample lie one after another.
//!
//! ```text
//! train/0001.jpg   the image: jpg, jpeg, png, pgm or ppm
//! train/0001.cls   the number or name of its class
//! train/0001.json  {"label": 3}, {"label": "cat"} or {"labels": [1, 5]}, where there is no .cls
//! train/0001.txt   a name, where there is neither
//! ```

use super::config::RecordsConfig;
use super::index::Entry;
use super::labels::Marks;
use super::sharded::{Place, ShardReader};
use crate::format::tar::{TarEntry, TarReader};
use crate::format::{FormatError, PIECE_BYTES, StoredFile};

/// Endings of images.
const IMAGES: [&str; 5] = ["jpg", "jpeg", "png", "ppm", "pgm"];

/// Endings of what is known, the one that counts most first.
const LABELS: [&str; 3] = ["cls", "json", "txt"];

/// Names in a JSON file that hold the label.
const MEMBERS: [&str; 5] = ["label", "labels", "cls", "class", "class_id"];

/// Bytes of a file that says what is known, at most: it is a number, a name or a few lines of JSON.
const MAX_LABEL_BYTES: u64 = 1 << 20;

/// Bytes of a read on this machine: images are stepped over, so a header and a label are all that is wanted.
const LOCAL_PIECE_BYTES: usize = 4 << 10;

/// Reads shards of WebDataset.
#[derive(Debug)]
pub(crate) struct TarSamples {
    image: Option<String>,
    label: Option<String>,
}

/// What of a sample was found so far.
struct Sample {
    key: String,
    header: u64,
    image: Option<TarEntry>,
    /// How much it counts (see [`LABELS`]), and what it says.
    label: Option<(usize, Marks)>,
}

impl TarSamples {
    pub(crate) fn new(config: &RecordsConfig) -> TarSamples {
        let ending = |given: &Option<String>| given.as_ref().map(|text| text.trim_start_matches('.').to_lowercase());
        // A name in a JSON file keeps its capitals.
        TarSamples { image: ending(&config.image), label: config.label.clone() }
    }

    fn is_image(&self, ending: &str) -> bool {
        // `0001.seg.png` beside `0001.jpg` is something else: all that follows the first dot must be right.
        self.image.as_deref().map_or_else(|| IMAGES.contains(&ending), |given| given == ending)
    }

    /// How much a label of this ending counts, if it is one. A given name may also be a member of JSON files.
    fn label_rank(&self, ending: &str) -> Option<usize> {
        match self.label.as_deref() {
            Some(given) if is_ending(given, ending) => Some(0),
            Some(_) => (ending == "json").then_some(1),
            None => LABELS.iter().position(|known| *known == ending),
        }
    }

    fn marks(&self, ending: &str, contents: &[u8]) -> Result<Marks, String> {
        let is_json = ending.rsplit('.').next() == Some("json");
        if !is_json {
            let text = std::str::from_utf8(contents).map_err(|_| "it is not written in UTF-8")?;
            return Ok(Marks::of_text(text));
        }
        let json: serde_json::Value = serde_json::from_slice(contents).map_err(|error| format!("no JSON: {error}"))?;
        let member = match self.label.as_deref().filter(|given| !is_ending(given, ending)) {
            Some(given) => json.get(given),
            None => MEMBERS.iter().find_map(|name| json.get(name)).or((!json.is_object()).then_some(&json)),
        };
        member.map_or(Ok(Marks::Nothing), marks_of_json)
    }

    fn complete(&self, shard: &StoredFile, sample: Sample) -> Result<Entry, FormatError> {
        let Sample { key, header, image, label } = sample;
        let Some(image) = image else {
            let wanted = self.image.as_deref().unwrap_or("jpg, .jpeg or .png");
            return Err(shard.error(header, format!("the sample {key} has no image: no file {key}.{wanted}")));
        };
        let marks = label.map(|(_, marks)| marks).unwrap_or_default();
        Ok(Entry { offset: image.offset, bytes: image.bytes, key: Some(key), marks })
    }

    /// Adds a file to its sample.
    fn add(
        &self,
        shard: &StoredFile,
        reader: &mut TarReader<'_>,
        sample: &mut Sample,
        ending: &str,
        entry: TarEntry,
    ) -> Result<(), FormatError> {
        if self.is_image(ending) {
            if sample.image.is_some() {
                let cause = format!("{} is the second image of its sample: say which one is meant", entry.name);
                return Err(shard.error(entry.header, cause));
            }
            sample.image = Some(entry);
        } else if let Some(rank) = self.label_rank(ending)
            && sample.label.as_ref().is_none_or(|(before, marks)| rank < *before || *marks == Marks::Nothing)
        {
            if entry.bytes > MAX_LABEL_BYTES {
                let cause = format!("{} has {} bytes, which is too much for a label", entry.name, entry.bytes);
                return Err(shard.error(entry.header, cause));
            }
            let marks = self.marks(ending, reader.contents(&entry)?);
            let marks = marks.map_err(|cause| shard.error(entry.offset, format!("{}: {cause}", entry.name)))?;
            sample.label = Some((rank, marks));
        }
        Ok(())
    }
}

impl ShardReader for TarSamples {
    fn format(&self) -> &'static str {
        "WebDataset"
    }

    fn sought(&self) -> String {
        format!("tar {:?} {:?}", self.image, self.label)
    }

    fn scan(&self, _number: usize, shard: &StoredFile) -> Result<Vec<Entry>, FormatError> {
        // Stepping over images saves reading on a disk; a store answers slowly, so there everything is read at once.
        let is_local = shard.storage().local_path(shard.path()).is_some();
        let mut reader = TarReader::new(shard, if is_local { LOCAL_PIECE_BYTES } else { 4 * PIECE_BYTES });
        let (mut entries, mut current): (Vec<Entry>, Option<Sample>) = (Vec::new(), None);
        while let Some(entry) = reader.next()? {
            let Some((key, ending)) = split(&entry.name) else { continue };
            let ending = ending.to_lowercase();
            if current.as_ref().is_some_and(|sample| sample.key != key)
                && let Some(sample) = current.take()
            {
                entries.push(self.complete(shard, sample)?);
            }
            let (key, header) = (key.to_owned(), entry.header);
            let sample = current.get_or_insert(Sample { key, header, image: None, label: None });
            self.add(shard, &mut reader, sample, &ending, entry)?;
        }
        if let Some(sample) = current {
            entries.push(self.complete(shard, sample)?);
        }
        Ok(entries)
    }

    fn read(&self, _number: usize, shard: &StoredFile, place: Place, encoded: &mut Vec<u8>) -> Result<(), FormatError> {
        encoded.resize(place.bytes as usize, 0);
        shard.read_at(place.offset, encoded)
    }
}

/// Whether a name that was given is the ending of a file.
fn is_ending(given: &str, ending: &str) -> bool {
    given.trim_start_matches('.').eq_ignore_ascii_case(ending)
}

/// The key and the ending of a file; nothing for those that belong to no sample: hidden ones, and those about all.
fn split(name: &str) -> Option<(&str, &str)> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].find('.')?;
    let (key, ending) = (&name[..dot], &name[dot + 1..]);
    let file = &key[base..];
    let about_all = file.starts_with("__") && file.ends_with("__");
    (!file.is_empty() && !about_all).then_some((key, ending))
}

/// A number, a name, or a list of one of them.
fn marks_of_json(value: &serde_json::Value) -> Result<Marks, String> {
    use serde_json::Value;
    let wrong = || format!("{value} is no label: a number, a name or a list of them is");
    let values = match value {
        Value::Null => return Ok(Marks::Nothing),
        Value::Array(values) => values.as_slice(),
        one => std::slice::from_ref(one),
    };
    if values.iter().all(Value::is_i64) {
        return Ok(Marks::Ints(values.iter().filter_map(Value::as_i64).collect()));
    }
    if values.iter().all(Value::is_number) {
        return Ok(Marks::Floats(values.iter().filter_map(Value::as_f64).map(|value| value as f32).collect()));
    }
    let names = values.iter().map(|value| value.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
    names.map(Marks::Names).ok_or_else(wrong)
}
