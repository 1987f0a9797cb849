//! Checks what Parquet's headers claim before the `parquet` crate allocates for it.
//!
//! Headers are structures of Thrift's compact protocol. [`Reader`] steps over values and returns the few that matter.
//! [`check_footer`] follows the whole footer: each list has the elements that it claims, the schema is a tree of
//! limited depth, and the memory of its parts stays within the limit.
//!
//! What is deliberately not here: the meaning of headers. The `parquet` crate decodes them afterwards.

use std::io::{self, Read};

use crate::limit::{Budget, Limit};

/// Levels of nested values, and of nested groups in a schema. Deeper recursion could exhaust the stack of a thread.
const MAX_DEPTH: usize = 64;

/// Memory that the `parquet` crate takes for a structure, at most.
const STRUCT_BYTES: u64 = 1 << 10;

/// Memory that the `parquet` crate takes for another element of a list, at most.
const ELEMENT_BYTES: u64 = 32;

/// Kinds of values, as the protocol numbers them.
pub(super) const I32: u8 = 5;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Reads values of the compact protocol.
pub(super) struct Reader<R> {
    from: R,
    /// Bytes that were read.
    pub(super) bytes: u64,
    /// What the values may take in memory.
    budget: Budget,
}

/// A field of a structure: its number and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) id: i16,
    pub(super) kind: u8,
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a header is damaged: {what}"))
}

impl<R: Read> Reader<R> {
    pub(super) fn new(from: R, limit: Limit) -> Reader<R> {
        Reader { from, bytes: 0, budget: limit.budget() }
    }

    fn charge(&mut self, bytes: u64) -> io::Result<()> {
        self.budget.take(bytes).map_err(io::Error::other)
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.from.read_exact(&mut byte)?;
        self.bytes += 1;
        Ok(byte[0])
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut value = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged("a number does not end"))
    }

    /// A whole number with a sign.
    pub(super) fn number(&mut self) -> io::Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The next field of a structure; nothing at its end. `last` is the number of the field before.
    pub(super) fn field(&mut self, last: &mut i16) -> io::Result<Option<Field>> {
        let head = self.byte()?;
        let kind = head & 15;
        if kind == 0 {
            return Ok(None);
        }
        let wrong = || damaged("a field has a number out of range");
        let id = match i16::from(head >> 4) {
            0 => i16::try_from(self.number()?).map_err(|_| wrong())?,
            step => last.checked_add(step).ok_or_else(wrong)?,
        };
        *last = id;
        Ok(Some(Field { id, kind }))
    }

    /// The kind and number of the elements of a list.
    fn list(&mut self) -> io::Result<(u8, u64)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        Ok((head & 15, count))
    }

    /// Steps over bytes, and returns how many there are.
    fn skip_binary(&mut self) -> io::Result<u64> {
        let count = self.varint()?;
        self.skip_bytes(count)?;
        Ok(count)
    }

    fn skip_bytes(&mut self, count: u64) -> io::Result<()> {
        if io::copy(&mut self.from.by_ref().take(count), &mut io::sink())? != count {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes += count;
        self.charge(count)
    }

    /// Steps over the value of a field.
    pub(super) fn skip(&mut self, field: Field) -> io::Result<()> {
        // Truth values of fields are a part of the kind.
        if matches!(field.kind, 1 | 2) { Ok(()) } else { self.skip_value(field.kind, 0) }
    }

    fn skip_value(&mut self, kind: u8, depth: usize) -> io::Result<()> {
        if depth == MAX_DEPTH {
            return Err(damaged("values are nested too deeply"));
        }
        match kind {
            1..=3 => self.byte().map(|_| ()),
            4..=6 => self.varint().map(|_| ()),
            7 => self.skip_bytes(8),
            BINARY => self.skip_binary().map(|_| ()),
            // A list, and a set.
            LIST | 10 => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth))
            }
            11 => {
                let count = self.varint()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })
            }
            STRUCT => {
                self.charge(STRUCT_BYTES)?;
                let mut last = 0;
                while let Some(field) = self.field(&mut last)? {
                    if !matches!(field.kind, 1 | 2) {
                        self.skip_value(field.kind, depth + 1)?;
                    }
                }
                Ok(())
            }
            13 => self.skip_bytes(16),
            _ => Err(damaged("a value is of an unknown kind")),
        }
    }

    fn skip_element(&mut self, kind: u8, depth: usize) -> io::Result<()> {
        self.charge(ELEMENT_BYTES)?;
        self.skip_value(kind, depth + 1)
    }

    /// Follows the list of a schema: groups, each followed by as many children as it claims.
    fn schema(&mut self) -> io::Result<()> {
        let (kind, count) = self.list()?;
        if kind != STRUCT {
            return Err(damaged("the schema is not a list of structures"));
        }
        // Of each open group: its children that are still to come, and the bytes of its path.
        let mut open: Vec<(u64, u64)> = Vec::new();
        for number in 0..count {
            self.charge(STRUCT_BYTES)?;
            let (children, name_bytes) = self.schema_element()?;
            let path_bytes = open.last().map_or(0, |(_, path)| *path) + name_bytes + ELEMENT_BYTES;
            if let Some((left, _)) = open.last_mut() {
                *left -= 1;
            }
            if children > 0 {
                if children > count - number - 1 {
                    return Err(damaged("a group of the schema claims more children than follow"));
                }
                if open.len() == MAX_DEPTH {
                    return Err(damaged("groups of the schema are nested too deeply"));
                }
                open.push((children, path_bytes));
            } else {
                // Each column has a copy of its path.
                self.charge(2 * path_bytes)?;
            }
            while open.last().is_some_and(|(left, _)| *left == 0) {
                open.pop();
            }
        }
        Ok(())
    }

    /// The number of children of an element, and the bytes of its name.
    fn schema_element(&mut self) -> io::Result<(u64, u64)> {
        let (mut children, mut name_bytes, mut last) = (0, 0, 0);
        while let Some(field) = self.field(&mut last)? {
            match field {
                Field { id: 4, kind: BINARY } => name_bytes = self.skip_binary()?,
                Field { id: 5, kind: I32 } => {
                    children = u64::try_from(self.number()?)
                        .map_err(|_| damaged("a group has a negative number of children"))?;
                }
                field => self.skip(field)?,
            }
        }
        Ok((children, name_bytes))
    }
}

/// Follows a footer to its end.
///
/// # Errors
/// If it is damaged, or needs more memory than the limit allows.
pub(super) fn check_footer(footer: &[u8], limit: Limit) -> io::Result<()> {
    let mut reader = Reader::new(footer, limit);
    let mut last = 0;
    while let Some(field) = reader.field(&mut last)? {
        match field {
            Field { id: 2, kind: LIST } => reader.schema()?,
            field => reader.skip(field)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit::of(1 << 20);

    /// A footer with a schema of these elements: the number of children of each.
    fn footer(children: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0x29, 0xfc];
        put(&mut bytes, children.len() as u64);
        for count in children {
            bytes.extend([0x48, 1, b'a', 0x15]);
            put(&mut bytes, u64::from(*count) << 1);
            bytes.push(0);
        }
        bytes.push(0);
        bytes
    }

    fn put(bytes: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    }

    #[test]
    fn a_schema_is_a_tree_of_the_elements_that_follow() {
        check_footer(&footer(&[2, 0, 1, 0]), LIMIT).unwrap();
        let error = check_footer(&footer(&[2, 0, 0x7fff_ffff, 0]), LIMIT).unwrap_err();
        assert!(error.to_string().contains("more children than follow"), "{error}");
        let deep: Vec<u32> = (0..500).map(|number| u32::from(number < 499)).collect();
        let error = check_footer(&footer(&deep), LIMIT).unwrap_err();
        assert!(error.to_string().contains("nested too deeply"), "{error}");
        let wide: Vec<u32> = (0..2_000).map(|number| if number == 0 { 1_999 } else { 0 }).collect();
        let error = check_footer(&footer(&wide), LIMIT).unwrap_err();
        assert!(error.to_string().contains("1048576 are allowed"), "{error}");
    }

    #[test]
    fn a_list_that_claims_more_than_follows_is_refused() {
        // Field 4, a list of 2^60 empty structures, and no bytes of them.
        let mut bytes = vec![0x49, 0xfc];
        put(&mut bytes, 1 << 60);
        assert_eq!(check_footer(&bytes, LIMIT).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        bytes.extend([0; 5_000]);
        assert!(check_footer(&bytes, LIMIT).unwrap_err().to_string().contains("are allowed"));
        // Structures in structures.
        let error = check_footer(&[0x1c; 10_000], LIMIT).unwrap_err();
        assert!(error.to_string().contains("nested too deeply"), "{error}");
    }
}
