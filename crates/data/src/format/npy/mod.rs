//! Arrays of NumPy: `.npy` files, and `.npz` archives of them.
//!
//! An array is a header (the type of its elements, its shape) and its elements in a row. Rows, by its first axis, are
//! read one by one: nothing is read that was not asked for. Of an archive (`zip`) that holds for stored members, as
//! `numpy.savez` writes them; compressed ones are unpacked as a whole and kept in memory.
//!
//! **Invariant:** the elements that a header claims lie within the file; that was compared before anything is read.
//!
//! What is deliberately not here: Fortran order, big endian, texts and structures.

mod zip;

pub use zip::{ZipMember, members, unpacked};

use std::sync::Arc;

use half::f16;

use super::{FormatError, StoredFile};
use crate::limit::Limit;

/// Bytes of a header, at most: it is a line of text.
const MAX_HEADER_BYTES: u64 = 64 << 10;

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Truth values.
    Bool,
    /// Whole numbers without a sign, of so many bytes.
    Unsigned(usize),
    /// Whole numbers with a sign, of so many bytes.
    Signed(usize),
    /// Numbers with a fraction, of so many bytes.
    Float(usize),
}

impl Element {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Element::Bool => 1,
            Element::Unsigned(bytes) | Element::Signed(bytes) | Element::Float(bytes) => bytes,
        }
    }

    fn parse(text: &str) -> Result<Element, String> {
        let wrong = || format!("elements of type {text} are not read: bool, integers and floats, little endian, are");
        let (order, rest) = text.split_at_checked(1).ok_or_else(wrong)?;
        let (kind, bytes) = rest.split_at_checked(1).ok_or_else(wrong)?;
        let bytes: usize = bytes.parse().map_err(|_| wrong())?;
        match (order, kind, bytes) {
            ("|" | "<", "b", 1) => Ok(Element::Bool),
            ("|" | "<", "u", 1) | ("<", "u", 2 | 4 | 8) => Ok(Element::Unsigned(bytes)),
            ("|" | "<", "i", 1) | ("<", "i", 2 | 4 | 8) => Ok(Element::Signed(bytes)),
            ("<", "f", 2 | 4 | 8) => Ok(Element::Float(bytes)),
            _ => Err(wrong()),
        }
    }

    /// Elements out of their bytes.
    pub fn values(self, bytes: &[u8]) -> Values {
        match self {
            Element::Float(_) => Values::Floats(self.floats(bytes)),
            _ => Values::Ints(self.ints(bytes)),
        }
    }

    /// Whole numbers. Floats are none.
    fn ints(self, bytes: &[u8]) -> Vec<i64> {
        let each = bytes.chunks_exact(self.bytes());
        match self {
            Element::Bool => each.map(|bytes| i64::from(bytes[0] != 0)).collect(),
            Element::Unsigned(_) => each.map(|bytes| padded(bytes, 0) as i64).collect(),
            Element::Signed(_) => each
                .map(|bytes| padded(bytes, if bytes[bytes.len() - 1] & 0x80 == 0 { 0 } else { 0xff }) as i64)
                .collect(),
            Element::Float(_) => Vec::new(),
        }
    }

    /// Numbers with a fraction. Whole numbers are none.
    fn floats(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Element::Float(2) => bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
            Element::Float(4) => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            Element::Float(_) => bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect(),
            _ => Vec::new(),
        }
    }
}

/// Up to eight bytes, little endian, filled up.
fn padded(bytes: &[u8], fill: u8) -> u64 {
    let mut all = [fill; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// Where the bytes of an array are.
#[derive(Clone, Debug)]
pub enum ArrayBytes {
    /// A part of a file.
    Stored {
        /// Where it begins.
        offset: u64,
        /// How many bytes it has.
        bytes: u64,
    },
    /// Unpacked.
    Unpacked(Arc<Vec<u8>>),
}

/// Elements of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Whole numbers.
    Ints(Vec<i64>),
    /// Numbers with a fraction.
    Floats(Vec<f32>),
}

/// An array.
#[derive(Clone, Debug)]
pub struct Array {
    file: StoredFile,
    bytes: ArrayBytes,
    element: Element,
    shape: Vec<u64>,
    /// Where the first element is.
    data: u64,
}

impl Array {
    /// The array of a `.npy` file.
    pub fn open(file: &StoredFile) -> Result<Array, FormatError> {
        Array::within(file, ArrayBytes::Stored { offset: 0, bytes: file.bytes() })
    }

    /// The array in a part of a file.
    pub fn within(file: &StoredFile, bytes: ArrayBytes) -> Result<Array, FormatError> {
        let mut array = Array { file: file.clone(), bytes, element: Element::Bool, shape: Vec::new(), data: 0 };
        let start = array.start();
        let fail = |cause: String| file.error(start, cause);
        let mut head = [0; 10];
        array.read_at(0, &mut head)?;
        let (length, begin) = match head {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, low, high] => (u64::from(u16::from_le_bytes([low, high])), 10),
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, ..] => {
                let mut length = [0; 4];
                array.read_at(8, &mut length)?;
                (u64::from(u32::from_le_bytes(length)), 12)
            }
            [0x93, b'N', b'U', b'M', b'P', b'Y', version, ..] => {
                return Err(fail(format!("version {version} of the format is not read; 1 to 3 are")));
            }
            _ => return Err(fail("this is no array of NumPy".to_owned())),
        };
        if length > MAX_HEADER_BYTES {
            return Err(fail(format!("the header should have {length} bytes; {MAX_HEADER_BYTES} are read at most")));
        }
        let mut text = vec![0; length as usize];
        array.read_at(begin, &mut text)?;
        (array.element, array.shape) = parse_header(&text).map_err(fail)?;
        array.data = begin + length;
        let row = array.row_elements().and_then(|count| count.checked_mul(array.element.bytes() as u64));
        let all = row.and_then(|row| row.checked_mul(array.rows()));
        let there = array.len() - array.data;
        match (row, all) {
            // An array of empty rows may have any number of them.
            (Some(0), _) if array.rows() > 0 => {
                Err(fail(format!("rows of the shape {:?} are empty", array.row_shape())))
            }
            (Some(row), Some(all)) if all <= there => {
                Limit::of_process().check(row).map_err(|error| fail(format!("a row: {error}")))?;
                Ok(array)
            }
            _ => {
                let shape = &array.shape;
                Err(fail(format!("an array of the shape {shape:?} does not fit into the {there} bytes that follow")))
            }
        }
    }

    /// The file that it is in.
    pub fn file(&self) -> &StoredFile {
        &self.file
    }

    /// How many rows there are: the first axis.
    pub fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// The other axes.
    pub fn row_shape(&self) -> &[u64] {
        self.shape.get(1..).unwrap_or_default()
    }

    /// What its elements are.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Replaces what is in the buffer by the bytes of a row.
    pub fn read_row(&self, row: u64, buffer: &mut Vec<u8>) -> Result<(), FormatError> {
        if row >= self.rows() {
            return Err(self.file.error(self.start(), format!("there is no row {row}: there are {}", self.rows())));
        }
        // The products were computed when the array was opened.
        let bytes = self.row_elements().unwrap_or(0) * self.element.bytes() as u64;
        buffer.resize(bytes as usize, 0);
        self.read_at(self.data + row * bytes, buffer)
    }

    /// The elements of a row.
    pub fn values(&self, row: u64, buffer: &mut Vec<u8>) -> Result<Values, FormatError> {
        self.read_row(row, buffer)?;
        Ok(self.element.values(buffer))
    }

    fn row_elements(&self) -> Option<u64> {
        self.row_shape().iter().try_fold(1u64, |all, axis| all.checked_mul(*axis))
    }

    fn len(&self) -> u64 {
        match &self.bytes {
            ArrayBytes::Stored { bytes, .. } => *bytes,
            ArrayBytes::Unpacked(bytes) => bytes.len() as u64,
        }
    }

    /// Where it begins in its file, as far as it lies there.
    fn start(&self) -> u64 {
        match &self.bytes {
            ArrayBytes::Stored { offset, .. } => *offset,
            ArrayBytes::Unpacked(_) => 0,
        }
    }

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Result<(), FormatError> {
        let end = at.checked_add(buffer.len() as u64).filter(|end| *end <= self.len());
        let Some(end) = end else {
            return Err(self.file.error(self.start(), "the array ends too early: the file was cut off"));
        };
        match &self.bytes {
            ArrayBytes::Stored { offset, .. } => self.file.read_at(offset + at, buffer),
            ArrayBytes::Unpacked(bytes) => {
                buffer.copy_from_slice(&bytes[at as usize..end as usize]);
                Ok(())
            }
        }
    }
}

/// The type and shape that a header says: `{'descr': '|u1', 'fortran_order': False, 'shape': (60000, 28, 28), }`.
fn parse_header(text: &[u8]) -> Result<(Element, Vec<u64>), String> {
    let text = std::str::from_utf8(text).map_err(|_| "the header is not written in UTF-8")?;
    let after = |key: &str| -> Result<&str, String> {
        let at = text.find(key).ok_or_else(|| format!("the header says nothing about {key}"))?;
        Ok(text[at + key.len()..].trim_start_matches([':', ' ']))
    };
    let descr = after("'descr'")?;
    let quoted = descr.strip_prefix('\'').and_then(|rest| rest.split_once('\'')).map(|(text, _)| text);
    let element = Element::parse(quoted.ok_or("elements are structures, which are not read")?)?;
    if after("'fortran_order'")?.starts_with("True") {
        return Err("the array is in Fortran order: save it with numpy.ascontiguousarray".to_owned());
    }
    let shape = after("'shape'")?;
    let inner = shape.strip_prefix('(').and_then(|rest| rest.split_once(')')).ok_or("the header has no shape")?.0;
    let axes = inner.split(',').map(str::trim).filter(|axis| !axis.is_empty());
    let shape = axes.map(str::parse).collect::<Result<Vec<u64>, _>>().map_err(|_| "the shape is made of no numbers")?;
    Ok((element, shape))
}

/// The header and elements of an array, as NumPy writes them.
pub fn encode(descr: &str, shape: &[u64], elements: &[u8]) -> Vec<u8> {
    let axes: String = shape.iter().map(|axis| format!("{axis}, ")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axes}), }}");
    // Elements begin at a multiple of 64 bytes, and the header ends with its line.
    let filled = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header = format!("{header:width$}\n", width = filled - 1);
    [b"\x93NUMPY\x01\0".as_slice(), &(header.len() as u16).to_le_bytes(), header.as_bytes(), elements].concat()
}

#[cfg(test)]
mod tests;
