//! Images in TFRecord files.
//!
//! A record is a `tf.train.Example`. Its image is a JPEG or PNG file, or bare pixels whose height, width and depth are
//! features beside it; those become a PNM image.

use super::config::RecordsConfig;
use super::index::Entry;
use super::labels::Marks;
use super::sharded::{Place, ShardReader};
use crate::format::example::{Example, Feature};
use crate::format::tfrecord::{self, RecordPlace, TfRecordReader};
use crate::format::{FormatError, StoredFile, pnm};

/// Names of the image's feature: TensorFlow's conversion of ImageNet and its models, and what tutorials use.
const IMAGES: [&str; 7] = ["image/encoded", "image_raw", "image", "jpg", "jpeg", "png", "image_bytes"];

/// Names of the label's feature.
const LABELS: [&str; 8] = ["image/class/label", "label", "cls", "class", "labels", "image/class/text", "target", "y"];

/// Names of the height, width and depth of bare pixels.
const HEIGHTS: [&str; 3] = ["height", "image/height", "rows"];
const WIDTHS: [&str; 3] = ["width", "image/width", "cols"];
const DEPTHS: [&str; 4] = ["depth", "image/depth", "channels", "image/channels"];

/// Reads TFRecord files.
#[derive(Debug)]
pub(crate) struct TfRecords {
    image: Option<String>,
    label: Option<String>,
}

impl TfRecords {
    pub(crate) fn new(config: &RecordsConfig) -> TfRecords {
        TfRecords { image: config.image.clone(), label: config.label.clone() }
    }

    fn image<'a>(&self, example: &Example<'a>) -> Result<&'a [u8], String> {
        match named(example, self.image.as_deref(), &IMAGES) {
            Some((_, Feature::Bytes(values))) if values.len() == 1 => Ok(values[0]),
            Some((name, _)) => Err(format!("the feature `{name}` is no single image")),
            None => {
                let there = example.names().collect::<Vec<_>>().join(", ");
                let sought = self.image.as_deref().unwrap_or("image/encoded");
                Err(format!("there is no image: no feature {sought} among {there}; say how it is called"))
            }
        }
    }

    fn marks(&self, example: &Example<'_>) -> Result<Marks, String> {
        match named(example, self.label.as_deref(), &LABELS) {
            None => Ok(Marks::Nothing),
            Some((_, Feature::Ints(values))) => Ok(Marks::Ints(values.clone())),
            Some((_, Feature::Floats(values))) => Ok(Marks::Floats(values.clone())),
            Some((name, Feature::Bytes(values))) => {
                let text = |bytes: &&[u8]| String::from_utf8(bytes.to_vec());
                let texts = values.iter().map(text).collect::<Result<Vec<_>, _>>();
                texts.map(Marks::Names).map_err(|_| format!("the label `{name}` is not written in UTF-8"))
            }
        }
    }
}

impl ShardReader for TfRecords {
    fn format(&self) -> &'static str {
        "TFRecord"
    }

    fn sought(&self) -> String {
        format!("TFRecord {:?} {:?}", self.image, self.label)
    }

    fn scan(&self, _number: usize, shard: &StoredFile) -> Result<Vec<Entry>, FormatError> {
        let mut entries = Vec::new();
        let mut reader = TfRecordReader::new(shard);
        while let Some((place, data)) = reader.next()? {
            let RecordPlace { offset, bytes } = place;
            let example = decoded(shard, place, data)?;
            self.image(&example).map_err(|cause| shard.error(offset, cause))?;
            let marks = self.marks(&example).map_err(|cause| shard.error(offset, cause))?;
            entries.push(Entry { offset, bytes, key: None, marks });
        }
        Ok(entries)
    }

    fn read(&self, _number: usize, shard: &StoredFile, place: Place, encoded: &mut Vec<u8>) -> Result<(), FormatError> {
        let place = RecordPlace { offset: place.offset, bytes: place.bytes };
        let data = tfrecord::read(shard, place, encoded)?;
        let example = decoded(shard, place, &encoded[data.clone()])?;
        let image = self.image(&example).map_err(|cause| shard.error(place.offset, cause))?;
        if crate::format::image_ending(image).is_none()
            && let Some(pixels) = bare(&example, image)
        {
            *encoded = pixels;
            return Ok(());
        }
        // The image is a part of the buffer, which becomes the whole of it.
        let begin = image.as_ptr().addr() - encoded.as_ptr().addr();
        let length = image.len();
        encoded.copy_within(begin..begin + length, 0);
        encoded.truncate(length);
        Ok(())
    }
}

fn decoded<'a>(shard: &StoredFile, place: RecordPlace, data: &'a [u8]) -> Result<Example<'a>, FormatError> {
    Example::decode(data).map_err(|error| {
        shard.error(
            place.offset,
            format!("the record is no tf.train.Example: at its byte {}, {}", error.at, error.cause),
        )
    })
}

/// The feature of a given name, or of the first usual one.
fn named<'n, 'e, 'a>(
    example: &'e Example<'a>,
    given: Option<&'n str>,
    usual: &[&'n str],
) -> Option<(&'n str, &'e Feature<'a>)> {
    let usual = if given.is_none() { usual } else { &[] };
    given.into_iter().chain(usual.iter().copied()).find_map(|name| Some((name, example.get(name)?)))
}

/// Bare pixels as an image, if the example says how many there are and that is how many it has.
fn bare(example: &Example<'_>, pixels: &[u8]) -> Option<Vec<u8>> {
    let side = |names: &[&'static str]| match named(example, None, names)?.1 {
        Feature::Ints(values) => usize::try_from(*values.first()?).ok(),
        _ => None,
    };
    let (height, width) = (side(&HEIGHTS)?, side(&WIDTHS)?);
    let depth = side(&DEPTHS).or_else(|| pixels.len().checked_div(height.checked_mul(width)?))?;
    pnm::encode(height, width, depth, pixels)
}
