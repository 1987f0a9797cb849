//! One shard: written, then read back and compared.
//!
//! While records are written, a checksum of each image and its label are kept. When the shard has its name it is opened
//! as any reader would open it, and every record is compared. A shard that is not what was written is removed, so that
//! it is not taken for a complete one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ImageChange, TargetFormat, Work, is_there};
use crate::decode::{self, Image};
use crate::format::{FolderWriter, NewRecord, ParquetShard, ShardWriter, TarShard, TfRecordShard, class_folder, pnm};
use crate::sample::{Label, Task};
use crate::source::{self, IndexPlace, LabelKind, Records, RecordsConfig};
use crate::storage::LocalFiles;
use crate::transform::decode_reduced;
use crate::{DataError, SampleError};

/// What was written of a record.
struct Written {
    checksum: u32,
    label: Label,
}

impl Work<'_> {
    /// Writes a shard unless it is there. One that is stopped on the way leaves nothing behind.
    pub(super) fn write_shard(&self, number: usize) -> Result<(), DataError> {
        let (path, positions) = (self.path(number), self.positions(number));
        let is_folder = self.conversion.to == TargetFormat::Folder;
        if !is_folder && is_there(&path) {
            self.note(|done| {
                done.progress.records += positions.len();
                done.sums.kept_shards += 1;
            });
            return Ok(());
        }
        let mut writer = self.writer(&path)?;
        let mut written = Vec::with_capacity(positions.len());
        let mut encoded = Vec::new();
        for position in positions {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let index = self.order.at(position);
            match self.changed(index, &mut encoded) {
                Ok((label, image)) => {
                    let image = image.as_deref().unwrap_or(&encoded);
                    let name = plain_name(&self.records.name(index), position);
                    writer.write(&NewRecord { name: &name, encoded: image, label: &label })?;
                    self.note(|done| {
                        done.progress.records += 1;
                        done.progress.bytes += image.len() as u64;
                        done.sums.records += 1;
                        done.sums.read_bytes += encoded.len() as u64;
                        done.sums.written_bytes += image.len() as u64;
                    });
                    written.push(Written { checksum: crc_fast::crc32_iscsi(image), label });
                }
                Err(error) if self.conversion.leave_out_broken => self.note(|done| {
                    done.progress.records += 1;
                    done.left_out.push((position, error.to_string()));
                }),
                Err(error) => return Err(DataError(format!("{error}; broken records can be left out"))),
            }
        }
        if written.is_empty() {
            return Err(DataError(format!("{}: none of its records can be read", path.display())));
        }
        writer.finish()?;
        self.compare(&path, &written).inspect_err(|_| {
            if !is_folder {
                // What is left of it would be taken for complete; why it is wrong is said in any case.
                let _ = std::fs::remove_file(&path);
            }
        })?;
        self.note(|done| done.sums.shards += 1);
        Ok(())
    }

    fn writer(&self, path: &Path) -> Result<Box<dyn ShardWriter>, DataError> {
        let names = self.records.class_names();
        Ok(match self.conversion.to {
            TargetFormat::TfRecord => Box::new(TfRecordShard::create(path, names)?),
            TargetFormat::Tar => Box::new(TarShard::create(path)?),
            TargetFormat::Parquet => Box::new(ParquetShard::create(path, names)?),
            TargetFormat::Folder => Box::new(FolderWriter::create(path, names)?),
        })
    }

    /// Reads a record, and changes its image if that is wanted. Nothing for an image that stays as it was read.
    fn changed(&self, index: usize, encoded: &mut Vec<u8>) -> Result<(Label, Option<Vec<u8>>), SampleError> {
        let label = self.records.read(index, encoded)?;
        let changed = match self.conversion.change {
            ImageChange::Nothing => Ok(None),
            ImageChange::Reduce { shorter_side, quality } => reduced_jpeg(encoded, shorter_side, quality),
            ImageChange::Decode { shorter_side } => {
                decode_reduced(encoded, shorter_side.unwrap_or(usize::MAX)).map(|image| {
                    let Image { height, width, bands, bytes } = image;
                    pnm::encode(height, width, bands, &bytes)
                })
            }
        };
        match changed {
            Ok(image) => Ok((label, image)),
            Err(cause) => Err(SampleError { sample: self.records.name(index), cause }),
        }
    }

    /// Reads everything back.
    fn compare(&self, path: &Path, written: &[Written]) -> Result<(), DataError> {
        let wrong = |what: String| DataError(format!("{} is not what was written: {what}", path.display()));
        let (folder, name) = match self.conversion.to {
            TargetFormat::Folder => (path, ""),
            _ => {
                (path.parent().unwrap_or(Path::new(".")), path.file_name().and_then(|name| name.to_str()).unwrap_or(""))
            }
        };
        let back = source::open(Arc::new(LocalFiles::new(folder)), name, &self.config())?;
        if back.len() != written.len() {
            return Err(wrong(format!("{} records instead of {}", back.len(), written.len())));
        }
        if self.conversion.to == TargetFormat::Folder {
            return self.compare_files(&*back, written).map_err(wrong);
        }
        let mut encoded = Vec::new();
        for (index, one) in written.iter().enumerate() {
            let label = back.read(index, &mut encoded).map_err(|error| DataError(error.to_string()))?;
            if crc_fast::crc32_iscsi(&encoded) != one.checksum || label != one.label {
                return Err(wrong(back.name(index)));
            }
        }
        Ok(())
    }

    /// Files come in the order of their names, and classes may be numbered in another order: as many of each image are
    /// there in each class as were written.
    fn compare_files(&self, back: &dyn Records, written: &[Written]) -> Result<(), String> {
        let named = |names: &[String], label: &Label| match label {
            Label::Class(class) => {
                let name = names.get(*class as usize).cloned().unwrap_or_else(|| format!("{class:06}"));
                class_folder(&name).unwrap_or(name)
            }
            other => format!("{other:?}"),
        };
        let mut counts: BTreeMap<(u32, String), i64> = BTreeMap::new();
        for one in written {
            *counts.entry((one.checksum, named(self.records.class_names(), &one.label))).or_default() += 1;
        }
        let mut encoded = Vec::new();
        for index in 0..back.len() {
            let label = back.read(index, &mut encoded).map_err(|error| error.to_string())?;
            let key = (crc_fast::crc32_iscsi(&encoded), named(back.class_names(), &label));
            let count = counts.get_mut(&key).filter(|count| **count > 0);
            *count.ok_or_else(|| back.name(index))? -= 1;
        }
        Ok(())
    }

    /// One shard alone does not tell how many classes there are.
    fn config(&self) -> RecordsConfig {
        let (kind, classes) = match self.records.task() {
            Task::SingleLabel { classes } => (LabelKind::Class, Some(classes)),
            Task::MultiLabel { labels } => (LabelKind::MultiLabel, Some(labels)),
            Task::Regression => (LabelKind::Value, None),
            Task::SuperResolution { .. } => (LabelKind::Nothing, None),
        };
        match self.conversion.to {
            TargetFormat::Folder => RecordsConfig { index: IndexPlace::Nowhere, ..RecordsConfig::default() },
            _ => RecordsConfig { kind, classes, index: IndexPlace::Nowhere, ..RecordsConfig::default() },
        }
    }
}

/// An image reduced to a shorter side and encoded as JPEG anew; nothing if it is small enough as it is. The error is
/// the cause alone.
pub fn reduced_jpeg(encoded: &[u8], shorter_side: usize, quality: u8) -> Result<Option<Vec<u8>>, String> {
    let (height, width) = decode::size(encoded)?;
    if height.min(width) <= shorter_side {
        return Ok(None);
    }
    let image = decode_reduced(encoded, shorter_side)?;
    let mut jpeg = Vec::new();
    let (Ok(width), Ok(height)) = (u16::try_from(image.width), u16::try_from(image.height)) else {
        return Err(format!("{} x {} pixels are too many for a JPEG", image.width, image.height));
    };
    jpeg_encoder::Encoder::new(&mut jpeg, quality)
        .encode(&image.bytes, width, height, jpeg_encoder::ColorType::Rgb)
        .map_err(|error| format!("it cannot be encoded: {error}"))?;
    Ok(Some(jpeg))
}

/// Letters of a record's name that are kept.
const MAX_NAME_LETTERS: usize = 50;

/// The name of a record without where it comes from: the last two parts of a path. The position makes it unique where
/// names are not.
pub(super) fn plain_name(name: &str, position: usize) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    let word: String = file
        .chars()
        .map(|letter| if letter.is_alphanumeric() || "._-".contains(letter) { letter } else { '-' })
        .collect();
    // The end, with the ending: a file system allows 255 bytes, and a letter has four at most.
    let more = word.chars().count().saturating_sub(MAX_NAME_LETTERS);
    format!("{position:08}-{}", word.chars().skip(more).collect::<String>())
}
