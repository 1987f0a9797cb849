//! Writes Parquet files with an image in each row.
//!
//! ```text
//! image.bytes  the encoded image        label   INT64, for classes
//! image.path   its name                 labels  a list of INT64, for labels; value  FLOAT, for numbers
//! ```
//!
//! This is how Hugging Face keeps images, and the file says so in the words that its library looks for. Row groups have
//! about 64 MB and are not compressed: JPEG does not get smaller.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FloatType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use crate::DataError;
use crate::format::write::{Said, image_ending, said};
use crate::format::{NewFile, NewRecord, ShardWriter};

/// Bytes of a row group, about. They are in memory until it is written.
const GROUP_BYTES: u64 = 64 << 20;

/// Bytes of a page, about: one that fits into the cache of a core.
const PAGE_BYTES: usize = 256 << 10;

/// A Parquet file that is being written. What labels are, the first record decides.
pub struct ParquetShard {
    /// The file before the first record.
    out: Option<NewFile>,
    writer: Option<SerializedFileWriter<NewFile>>,
    class_names: Vec<String>,
    path: String,
    images: Vec<ByteArray>,
    names: Vec<ByteArray>,
    labels: Labels,
    group_bytes: u64,
    bytes: u64,
}

enum Labels {
    Classes(Vec<i64>),
    Values(Vec<f32>),
    Lists(Vec<Vec<i64>>),
}

impl ParquetShard {
    /// Begins a file. Names of classes, if there are any, are written beside the schema.
    pub fn create(path: &Path, class_names: &[String]) -> Result<ParquetShard, DataError> {
        Ok(ParquetShard {
            out: Some(NewFile::create(path)?),
            writer: None,
            class_names: class_names.to_vec(),
            path: path.display().to_string(),
            images: Vec::new(),
            names: Vec::new(),
            labels: Labels::Classes(Vec::new()),
            group_bytes: 0,
            bytes: 0,
        })
    }

    fn begin(&mut self) -> Result<(), DataError> {
        let Some(out) = self.out.take() else { return Ok(()) };
        let (column, about) = match &self.labels {
            Labels::Classes(_) if self.class_names.is_empty() => {
                ("REQUIRED INT64 label;", serde_json::json!({ "dtype": "int64", "_type": "Value" }))
            }
            Labels::Classes(_) => {
                ("REQUIRED INT64 label;", serde_json::json!({ "names": self.class_names, "_type": "ClassLabel" }))
            }
            Labels::Values(_) => ("REQUIRED FLOAT value;", serde_json::json!({ "dtype": "float32", "_type": "Value" })),
            Labels::Lists(_) => (
                "REQUIRED group labels (LIST) { REPEATED group list { REQUIRED INT64 element; } }",
                serde_json::json!({ "feature": { "dtype": "int64", "_type": "Value" }, "_type": "Sequence" }),
            ),
        };
        let name = match &self.labels {
            Labels::Classes(_) => "label",
            Labels::Values(_) => "value",
            Labels::Lists(_) => "labels",
        };
        let schema = format!(
            "message schema {{ REQUIRED group image {{ REQUIRED BYTE_ARRAY bytes; \
             REQUIRED BYTE_ARRAY path (STRING); }} {column} }}"
        );
        let schema = parse_message_type(&schema).expect("invariant: the schema above is one");
        let features = serde_json::json!({ "info": { "features": { "image": { "_type": "Image" }, name: about } } });
        let properties = WriterProperties::builder()
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            // The smallest and the largest image would be written into every page.
            .set_statistics_enabled(EnabledStatistics::None)
            .set_data_page_size_limit(PAGE_BYTES)
            // The limit is looked at after so many values.
            .set_write_batch_size(1)
            .set_key_value_metadata(Some(vec![KeyValue::new("huggingface".to_owned(), features.to_string())]))
            .build();
        let writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties));
        self.writer = Some(writer.map_err(|error| self.failed(&error))?);
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), DataError> {
        self.begin()?;
        if self.images.is_empty() {
            return Ok(());
        }
        let writer = self.writer.as_mut().expect("invariant: the file was begun above");
        let written = write_columns(writer, &self.images, &self.names, &self.labels);
        written.map_err(|error| self.failed(&error))?;
        self.images.clear();
        self.names.clear();
        match &mut self.labels {
            Labels::Classes(all) => all.clear(),
            Labels::Values(all) => all.clear(),
            Labels::Lists(all) => all.clear(),
        }
        self.group_bytes = 0;
        Ok(())
    }

    fn failed(&self, error: &ParquetError) -> DataError {
        // What the file itself has said already names it.
        match error {
            ParquetError::External(cause) => DataError(cause.to_string()),
            _ => DataError(format!("{} cannot be written: {error}", self.path)),
        }
    }
}

impl ShardWriter for ParquetShard {
    fn write(&mut self, record: &NewRecord<'_>) -> Result<(), DataError> {
        if image_ending(record.encoded).is_none() {
            return Err(DataError(format!("{} is neither a JPEG nor a PNG or PNM image", record.name)));
        }
        let said = said(record)?;
        let is_first = self.writer.is_none() && self.images.is_empty();
        match (&mut self.labels, said) {
            (Labels::Classes(all), Said::Class(class)) => all.push(class),
            (Labels::Values(all), Said::Value(value)) => all.push(value),
            (Labels::Lists(all), Said::Labels(labels)) => all.push(labels),
            (labels, Said::Value(value)) if is_first => *labels = Labels::Values(vec![value]),
            (labels, Said::Labels(list)) if is_first => *labels = Labels::Lists(vec![list]),
            _ => return Err(DataError(format!("{} has a label of another kind than those before it", record.name))),
        }
        self.images.push(ByteArray::from(record.encoded));
        self.names.push(ByteArray::from(record.name));
        let bytes = (record.encoded.len() + record.name.len()) as u64;
        self.group_bytes += bytes;
        self.bytes += bytes;
        if self.group_bytes >= GROUP_BYTES { self.write_group() } else { Ok(()) }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(mut self: Box<Self>) -> Result<(), DataError> {
        self.write_group()?;
        let writer = self.writer.take().expect("invariant: the last group has begun the file");
        let out = writer.into_inner().map_err(|error| self.failed(&error))?;
        out.finish()
    }
}

fn write_columns(
    writer: &mut SerializedFileWriter<NewFile>,
    images: &[ByteArray],
    names: &[ByteArray],
    labels: &Labels,
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    write_column::<ByteArrayType>(&mut group, images, None)?;
    write_column::<ByteArrayType>(&mut group, names, None)?;
    match labels {
        Labels::Classes(classes) => write_column::<Int64Type>(&mut group, classes, None)?,
        Labels::Values(values) => write_column::<FloatType>(&mut group, values, None)?,
        Labels::Lists(lists) => {
            let (mut values, mut defs, mut reps) = (Vec::new(), Vec::new(), Vec::new());
            for list in lists {
                // An empty list has one pair of levels and no value.
                defs.extend(std::iter::repeat_n(i16::from(!list.is_empty()), list.len().max(1)));
                reps.extend((0..list.len().max(1)).map(|place| i16::from(place > 0)));
                values.extend_from_slice(list);
            }
            write_column::<Int64Type>(&mut group, &values, Some((&defs, &reps)))?;
        }
    }
    group.close()?;
    Ok(())
}

fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, NewFile>,
    values: &[T::T],
    levels: Option<(&[i16], &[i16])>,
) -> Result<(), ParquetError> {
    let mut column = group.next_column()?.expect("invariant: the schema has as many columns as are written");
    column.typed::<T>().write_batch(values, levels.map(|(defs, _)| defs), levels.map(|(_, reps)| reps))?;
    column.close()
}
