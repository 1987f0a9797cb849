//! Bands of satellites: a folder of patches, each a folder with a TIFF file for every band, as BigEarthNet has them.
//!
//! ```text
//! patches/S2A_…_42_17/S2A_…_42_17_B01.tif … _B12.tif     16 bits; 20, 60 or 120 pixels wide, by wave length
//! patches/S2A_…_42_17/S2A_…_42_17_labels_metadata.json   {"labels": ["Pastures", "Broad-leaved forest"], …}
//! ```
//!
//! Bands are brought to one size, and are samples of a [`DataSet`] at once: twelve bands are no image that others could
//! decode. Strips may be plain, deflated or LZW. Reflectance is a number times 10,000.
//!
//! **Invariant:** every patch has every band; one without is an error of that sample.
//!
//! What is deliberately not here: coordinates, and HDF5, in which some keep the same bands. Readers of pure Rust exist
//! (`hdf5-pure`, `hdf5-reader`, `rust-hdf5`), all of them before a first stable version; the established crate binds
//! the C library, which would have to be compiled or installed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;

use super::{FormatError, StoredFile};
use crate::chance::{Chance, StreamPurpose};
use crate::limit::Limit;
use crate::sample::{ImageShape, Label, Sample, Split, Task, normalised};
use crate::source::split::{NOTHING, drawn_evenly, drawn_for_tests, hash};
use crate::storage::{Object, Storage};
use crate::transform::resample::{Grid, resample};
use crate::{DataError, DataSet, SampleError};

/// The bands of Sentinel-2 that BigEarthNet has, by wave length.
pub const BANDS: [&str; 12] = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12"];

/// Rows and columns of the bands with the finest resolution.
pub const SIDE: usize = 120;

/// What reflectance is multiplied by in these files.
const FULL: f32 = 10_000.0;

/// Bytes of a file, at most: a band of 120 x 120 has 29 KB.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The end of a name with labels.
const LABELS: &str = "_labels_metadata.json";

/// One band of a patch.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Row by row, as the file has them.
    pub values: Vec<f32>,
}

/// Decodes a TIFF file with one band. The error is the cause alone.
pub fn decode_band(bytes: &[u8]) -> Result<Band, String> {
    let decoded = std::panic::catch_unwind(AssertUnwindSafe(|| {
        check_directory(bytes)?;
        let limit = Limit::of_process();
        let mut limits = Limits::default();
        limits.decoding_buffer_size = limit.bytes().min(MAX_FILE_BYTES) as usize;
        limits.intermediate_buffer_size = limits.decoding_buffer_size;
        let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(|error| error.to_string())?.with_limits(limits);
        let (width, height) = decoder.dimensions().map_err(|error| error.to_string())?;
        // The decoder makes room for a row of a tile. A tile may be larger than its image.
        let samples = decoder.find_tag_unsigned::<u16>(Tag::SamplesPerPixel).map_err(|error| error.to_string())?;
        let row_values = u64::from(decoder.chunk_dimensions().0) * u64::from(samples.unwrap_or(1));
        limit.check_all(row_values, size_of::<f64>()).map_err(|error| format!("a row of its tiles: {error}"))?;
        let values = decoder.read_image().map_err(|error| error.to_string())?;
        Ok((height as usize, width as usize, values))
    }));
    let decoded: Result<_, String> = decoded.unwrap_or_else(|_| Err("the decoder has panicked".to_owned()));
    let (height, width, values) = decoded.map_err(|cause| format!("no whole TIFF: {cause}"))?;
    let values: Vec<f32> = match values {
        DecodingResult::U8(values) => values.into_iter().map(f32::from).collect(),
        DecodingResult::U16(values) => values.into_iter().map(f32::from).collect(),
        DecodingResult::I16(values) => values.into_iter().map(f32::from).collect(),
        DecodingResult::F32(values) => values,
        _ => return Err("its numbers are of a kind that bands do not have".to_owned()),
    };
    if values.is_empty() || values.len() != height * width {
        return Err(format!("it has {} numbers for {height} x {width} pixels: one band is read", values.len()));
    }
    Ok(Band { height, width, values })
}

/// Checks that the values of all tags lie within the file: the decoder reads them before it has limits, and makes room
/// for as many as are claimed. A file whose directory is not found is left to the decoder to refuse.
fn check_directory(bytes: &[u8]) -> Result<(), String> {
    let is_little = bytes.starts_with(b"II");
    let number = |at: u64, width: u64| -> Option<u64> {
        let begin = usize::try_from(at).ok()?;
        let field = bytes.get(begin..begin.checked_add(width as usize)?)?;
        let digit = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if is_little { field.iter().rev().fold(0, digit) } else { field.iter().fold(0, digit) })
    };
    // Sizes of the larger layout (BigTIFF), and of the usual one: an offset, the number of entries, an entry.
    let is_large = number(2, 2) == Some(43);
    let (wide, count_bytes, entry_bytes) = if is_large { (8, 8, 20) } else { (4, 2, 12) };
    let Some(directory) = number(if is_large { 8 } else { 4 }, wide) else { return Ok(()) };
    let entries = number(directory, count_bytes).unwrap_or(0).min(bytes.len() as u64 / entry_bytes);
    let begin = directory.saturating_add(count_bytes);
    for at in (0..entries).map(|entry| begin.saturating_add(entry * entry_bytes)) {
        let (Some(tag), Some(kind), Some(count)) = (number(at, 2), number(at + 2, 2), number(at + 4, wide)) else {
            return Ok(());
        };
        let each = match kind {
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 | 16..=18 => 8,
            _ => 1,
        };
        if count.saturating_mul(each) > bytes.len() as u64 {
            return Err(format!("the tag {tag} claims {count} values, more than the file has"));
        }
    }
    Ok(())
}

/// Whether a file has the labels of a patch, by its name.
pub fn is_label_file(path: &str) -> bool {
    path.ends_with(LABELS)
}

/// What the paths of all files below a folder begin with.
fn within(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" => String::new(),
        folder => format!("{folder}/"),
    }
}

/// Whether a folder of this machine holds patches, right in it or in a folder of it. A few folders tell: a folder of a
/// million images shall not be read for an answer.
pub fn holds_patches(folder: &Path) -> bool {
    fn look(folder: &Path, deeper: usize) -> bool {
        let Ok(entries) = std::fs::read_dir(folder) else { return false };
        let mut folders = 0;
        for entry in entries.flatten().take(LOOKED_AT) {
            if is_label_file(&entry.file_name().to_string_lossy()) {
                return true;
            }
            if deeper > 0 && folders < LOOKED_INTO && entry.path().is_dir() {
                folders += 1;
                if look(&entry.path(), deeper - 1) {
                    return true;
                }
            }
        }
        false
    }
    look(folder, 2)
}

/// Files of a folder that are looked at: a patch has 13.
const LOOKED_AT: usize = 64;

/// Folders within a folder that are looked into: some may be of something else.
const LOOKED_INTO: usize = 4;

/// How patches are to be read.
#[derive(Clone, Debug)]
pub struct PatchesConfig {
    /// Rows and columns that all bands are brought to.
    pub side: usize,
    /// What decides which patches are for tests.
    pub seed: u64,
    /// How many of them: between 0 and 1.
    pub test_share: f32,
    /// How many patches are learned from; all of them where nothing is said.
    pub train: Option<usize>,
    /// How many patches are judged by; all of them where nothing is said.
    pub test: Option<usize>,
}

impl Default for PatchesConfig {
    fn default() -> PatchesConfig {
        PatchesConfig { side: SIDE, seed: 0, test_share: 0.2, train: None, test: None }
    }
}

/// A folder of patches. See the module's text.
#[derive(Debug)]
pub struct Patches {
    storage: Arc<dyn Storage>,
    patches: Vec<Patch>,
    train: Vec<usize>,
    test: Vec<usize>,
    names: Vec<String>,
    side: usize,
}

#[derive(Debug)]
struct Patch {
    /// The path up to the name of a band.
    stem: String,
    labels: Vec<u32>,
}

impl Patches {
    /// Finds all patches below a folder, and reads their labels.
    pub fn open(storage: Arc<dyn Storage>, path: &str, config: &PatchesConfig) -> Result<Patches, DataError> {
        if config.side == 0 || !(0.0..1.0).contains(&config.test_share) {
            return Err(DataError("patches need a side, and a share for tests from 0 up to, but not, 1".to_owned()));
        }
        Limit::check_setting()?;
        let files = storage.list(&within(path)).map_err(|error| DataError(error.to_string()))?;
        let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for file in files.iter().filter(|file| file.path.ends_with(LABELS)) {
            let stem = file.path[..file.path.len() - LABELS.len()].to_owned();
            said.insert(stem, labels(&storage, file).map_err(|error| DataError(error.to_string()))?);
        }
        if said.is_empty() {
            let path = crate::source::shown(&storage, path);
            return Err(DataError(format!("{path}: there is no patch, with a file …{LABELS} beside its bands")));
        }
        let names: BTreeSet<String> = said.values().flatten().cloned().collect();
        let names: Vec<String> = names.into_iter().collect();
        let number = |name: &String| names.binary_search(name).map_or(0, |number| number as u32);
        let patches: Vec<Patch> = said
            .into_iter()
            .map(|(stem, labels)| Patch { stem, labels: labels.iter().map(number).collect() })
            .collect();
        let draw = |patch: &Patch, purpose: StreamPurpose| {
            let name = patch.stem.rsplit('/').next().unwrap_or_default();
            Chance::new(config.seed, purpose, hash(NOTHING, name.as_bytes()), 0).bits()
        };
        let draws = patches.iter().map(|patch| draw(patch, StreamPurpose::Split));
        let for_tests = drawn_for_tests(draws, config.test_share);
        let (test, train): (Vec<usize>, Vec<usize>) = (0..patches.len()).partition(|index| for_tests[*index]);
        let limited = |part: Vec<usize>, wanted: Option<usize>, flag: &str| {
            let Some(wanted) = wanted else { return Ok(part) };
            if wanted > part.len() {
                return Err(DataError(format!("{flag} {wanted}: there are {} patches for this", part.len())));
            }
            let draws = part.iter().map(|index| draw(&patches[*index], StreamPurpose::Choice));
            let drawn = drawn_evenly(draws, |_| None, wanted);
            Ok(part.into_iter().zip(drawn).filter_map(|(index, drawn)| drawn.then_some(index)).collect())
        };
        let train = limited(train, config.train, "--samples")?;
        let test = limited(test, config.test, "--test-samples")?;
        Ok(Patches { storage, patches, train, test, names, side: config.side })
    }

    fn patch(&self, split: Split, index: usize) -> Option<&Patch> {
        let part = if split == Split::Train { &self.train } else { &self.test };
        part.get(index).map(|number| &self.patches[*number])
    }

    fn band(&self, patch: &Patch, band: &str) -> Result<Vec<f32>, FormatError> {
        let file = StoredFile::open(Arc::clone(&self.storage), &format!("{}_{band}.tif", patch.stem))?;
        if file.bytes() > MAX_FILE_BYTES {
            return Err(file.error_of_all(format!("it has {} bytes; a band has {MAX_FILE_BYTES}", file.bytes())));
        }
        Limit::of_process().check(file.bytes()).map_err(|error| file.error_of_all(error.to_string()))?;
        let bytes = file.head(MAX_FILE_BYTES as usize)?;
        let Band { height, width, values } = decode_band(&bytes).map_err(|cause| file.error_of_all(cause))?;
        let values: Vec<f32> = values.into_iter().map(|value| normalised(value / FULL)).collect();
        Ok(resample(&values, Grid { height, width }, Grid { height: self.side, width: self.side }))
    }
}

impl DataSet for Patches {
    fn shape(&self) -> ImageShape {
        ImageShape { bands: BANDS.len(), height: self.side, width: self.side }
    }

    fn task(&self) -> Task {
        Task::MultiLabel { labels: self.names.len() }
    }

    fn len(&self, split: Split) -> usize {
        if split == Split::Train { self.train.len() } else { self.test.len() }
    }

    fn sample(&self, split: Split, index: usize) -> Result<Sample, SampleError> {
        let fail = |cause: String| SampleError { sample: self.name(split, index), cause };
        let patch = self.patch(split, index).ok_or_else(|| fail("there is no such patch".to_owned()))?;
        let mut image = Vec::with_capacity(self.shape().len());
        for band in BANDS {
            image.extend(self.band(patch, band).map_err(|error| fail(error.to_string()))?);
        }
        let mut labels = vec![0.0; self.names.len()];
        patch.labels.iter().for_each(|label| labels[*label as usize] = 1.0);
        Ok(Sample { image, label: Label::Labels(labels) })
    }

    fn name(&self, split: Split, index: usize) -> String {
        let Some(patch) = self.patch(split, index) else { return format!("patch {index}") };
        let local = self.storage.local_path(&patch.stem);
        local.map_or_else(|| patch.stem.clone(), |path| path.display().to_string())
    }

    fn class_names(&self) -> &[String] {
        &self.names
    }

    fn describe(&self) -> String {
        let (train, test, labels, side) = (self.train.len(), self.test.len(), self.names.len(), self.side);
        let bands = BANDS.len();
        format!("{train} + {test} patches, brought to {bands} x {side} x {side}, any of {labels} labels")
    }

    fn fingerprint(&self) -> u64 {
        [&self.train, &self.test].into_iter().flatten().fold(NOTHING, |before, number| {
            let patch = &self.patches[*number];
            let named = hash(before, patch.stem.rsplit('/').next().unwrap_or_default().as_bytes());
            hash(named, format!("\0{:?}\0", patch.labels).as_bytes())
        })
    }
}

/// The names of the labels of a patch.
fn labels(storage: &Arc<dyn Storage>, object: &Object) -> Result<Vec<String>, FormatError> {
    let file = StoredFile::known(Arc::clone(storage), &object.path, object.bytes);
    let bytes = file.head(1 << 20)?;
    let json: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| file.error_of_all(format!("no JSON: {error}")))?;
    let list = json.get("labels").and_then(serde_json::Value::as_array);
    let names = list.and_then(|list| list.iter().map(|name| Some(name.as_str()?.to_owned())).collect());
    names.ok_or_else(|| file.error_of_all("it has no list `labels` of names"))
}

#[cfg(test)]
mod tests {
    use farandole_testing::Folder;
    use proptest::prelude::*;

    use super::*;
    use crate::storage::LocalFiles;

    const FILES: [&[u8]; 3] = [
        include_bytes!("../../tests/foreign/band-plain.tif"),
        include_bytes!("../../tests/foreign/band-deflate.tif"),
        include_bytes!("../../tests/foreign/band-lzw.tif"),
    ];

    #[test]
    fn bands_of_every_compression_are_the_same() {
        let expected: Vec<f32> = (0..400).map(|at| (at % 7 * 1000) as f32).collect();
        for file in FILES {
            let band = decode_band(file).unwrap();
            assert_eq!((band.height, band.width), (20, 20));
            assert_eq!(band.values, expected);
        }
    }

    fn place(bands: &[&str]) -> Folder {
        let folder = Folder::new();
        for (patch, labels) in [("p1", r#"["Pastures", "Forest"]"#), ("p2", r#"["Forest"]"#)] {
            std::fs::create_dir_all(folder.join(patch)).unwrap();
            for (number, band) in bands.iter().enumerate() {
                std::fs::write(folder.join(format!("{patch}/{patch}_{band}.tif")), FILES[number % 3]).unwrap();
            }
            let json = format!(r#"{{"labels": {labels}, "acquisition_date": "2017"}}"#);
            std::fs::write(folder.join(format!("{patch}/{patch}_labels_metadata.json")), json).unwrap();
        }
        folder
    }

    fn open(folder: &Folder, config: &PatchesConfig) -> Result<Patches, DataError> {
        Patches::open(Arc::new(LocalFiles::new(&**folder)), "", config)
    }

    #[test]
    fn patches_are_samples_of_twelve_bands_with_their_labels() {
        let folder = place(&BANDS);
        let patches = open(&folder, &PatchesConfig { test_share: 0.0, ..PatchesConfig::default() }).unwrap();
        assert_eq!((patches.len(Split::Train), patches.len(Split::Test)), (2, 0));
        assert_eq!(patches.class_names(), ["Forest", "Pastures"]);
        let sample = patches.sample(Split::Train, 0).unwrap();
        assert_eq!(sample.image.len(), 12 * SIDE * SIDE);
        assert_eq!(sample.label, Label::Labels(vec![1.0, 1.0]));
        assert!((sample.image[0] - normalised(0.0)).abs() < 1e-5, "{}", sample.image[0]);
        assert_eq!(patches.sample(Split::Train, 1).unwrap().label, Label::Labels(vec![1.0, 0.0]));
        assert!(patches.sample(Split::Test, 0).is_err());
        let divided = open(&folder, &PatchesConfig { test_share: 0.5, ..PatchesConfig::default() }).unwrap();
        assert_eq!((divided.len(Split::Train), divided.len(Split::Test)), (1, 1));
        assert_ne!(divided.fingerprint(), 0);
        assert!(divided.name(Split::Train, 0).starts_with(&folder.file("p")), "{}", divided.name(Split::Train, 0));
        let few = PatchesConfig { test_share: 0.0, train: Some(1), ..PatchesConfig::default() };
        assert_eq!(open(&folder, &few).unwrap().len(Split::Train), 1);
        let many = PatchesConfig { train: Some(3), ..few };
        assert!(open(&folder, &many).unwrap_err().0.contains("--samples 3"));
    }

    #[test]
    fn a_folder_of_patches_is_told_from_others() {
        let folder = place(&BANDS);
        assert!(holds_patches(&folder));
        let other = Folder::new();
        std::fs::create_dir_all(other.join("tile/patch")).unwrap();
        assert!(!holds_patches(&other));
        std::fs::write(other.join("tile/patch/patch_labels_metadata.json"), "{}").unwrap();
        assert!(holds_patches(&other));
        let error =
            crate::source::open(Arc::new(LocalFiles::new(&*folder)), "", &crate::source::RecordsConfig::default());
        assert!(error.err().unwrap().0.contains("patches of satellites"));
    }

    #[test]
    fn what_is_missing_or_damaged_is_named() {
        let folder = place(&BANDS[..11]);
        let patches = open(&folder, &PatchesConfig { test_share: 0.0, ..PatchesConfig::default() }).unwrap();
        let error = patches.sample(Split::Train, 0).unwrap_err();
        assert!(error.cause.contains("p1_B12.tif"), "{error}");
        std::fs::write(folder.join("p1/p1_labels_metadata.json"), "{}").unwrap();
        let error = open(&folder, &PatchesConfig::default()).unwrap_err();
        assert!(error.0.contains("p1_labels_metadata.json") && error.0.contains("labels"), "{error}");
        assert!(open(&Folder::new(), &PatchesConfig::default()).unwrap_err().0.contains("no patch"));
    }

    #[test]
    fn a_band_that_ends_too_early_is_no_half_band() {
        for file in FILES {
            for end in 0..file.len() {
                // Tags may lie behind the pixels, and some of them do not matter.
                if let Ok(band) = decode_band(&file[..end]) {
                    assert_eq!(band, decode_band(file).unwrap(), "{end}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn garbage_ends(bytes in proptest::collection::vec(any::<u8>(), 0..120), which in 0usize..3, at in 0usize..3_000) {
            let _ = decode_band(&bytes);
            let mut damaged = FILES[which].to_vec();
            let at = at % damaged.len();
            damaged[at] = bytes.first().copied().unwrap_or(0xff);
            let _ = decode_band(&damaged);
        }
    }
}
