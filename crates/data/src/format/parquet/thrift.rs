//! Checks what Parquet's headers claim before the `parquet` crate allocates for it.
//!
//! Headers are structures of Thrift's compact protocol. [`Reader`] steps over values and returns the few that matter.
//! [`check_footer`] follows the whole footer: each list has the elements that it claims, the schema is a tree of
//! limited depth, and the memory of its parts stays within the limit.
//!
//! The `parquet` crate reads a field that it knows as the format defines it, whatever kind the file gives it. Where the
//! two differ, it would read other values than were checked here, so [`Reader::structure`] refuses such fields.
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
pub(super) const BOOL: u8 = 2;
const BYTE: u8 = 3;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
pub(super) const BINARY: u8 = 8;
const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;

/// Kinds of the first fields of a footer: the version and the schema.
const FOOTER: [u8; 2] = [I32, LIST];

/// Kinds of the fields of an element of the schema. The last one is its logical type.
const ELEMENT: [u8; 10] = [I32, I32, I32, BINARY, I32, I32, I32, I32, I32, STRUCT];

/// Logical types with fields, and the kinds of these. The structure in a time is its unit.
const LOGICAL_TYPES: [(i16, &[u8]); 7] = [
    (5, &[I32, I32]),
    (7, &[BOOL, STRUCT]),
    (8, &[BOOL, STRUCT]),
    (10, &[BYTE, BOOL]),
    (16, &[BYTE]),
    (17, &[BINARY]),
    (18, &[BINARY, I32]),
];

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

    /// Reads the fields of a structure. Those with a number from 1 on must have these kinds.
    pub(super) fn structure(
        &mut self,
        kinds: &[u8],
        mut each: impl FnMut(&mut Reader<R>, Field) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut last = 0;
        while let Some(field) = self.field(&mut last)? {
            let known = usize::try_from(field.id).ok().and_then(|id| kinds.get(id.checked_sub(1)?));
            // A truth value is its own kind.
            let kind = if field.kind == 1 { BOOL } else { field.kind };
            if known.is_some_and(|known| *known != kind) {
                return Err(damaged("a field is not of the kind that the format defines"));
            }
            each(self, field)?;
        }
        Ok(())
    }

    /// Steps over a union: one field, which is a structure. A structure in that is a union again, of empty ones.
    fn skip_union(&mut self, variants: &[(i16, &[u8])]) -> io::Result<()> {
        let mut last = 0;
        let Some(Field { id, kind: STRUCT }) = self.field(&mut last)? else {
            return Err(damaged("a union has no structure"));
        };
        let kinds = variants.iter().find(|(variant, _)| *variant == id).map_or(&[][..], |(_, kinds)| kinds);
        self.structure(kinds, |reader, field| match field.kind {
            STRUCT if !kinds.is_empty() => reader.skip_union(&[]),
            _ => reader.skip(field),
        })?;
        if self.field(&mut last)?.is_some() { Err(damaged("a union has several fields")) } else { Ok(()) }
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
        if matches!(kind, 1 | 2) {
            // The `parquet` crate steps over them as if they had no bytes.
            return Err(damaged("a header has a list of truth values"));
        }
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
        let (mut children, mut name_bytes) = (0, 0);
        self.structure(&ELEMENT, |reader, field| {
            match field.id {
                4 => name_bytes = reader.skip_binary()?,
                5 => {
                    children = u64::try_from(reader.number()?)
                        .map_err(|_| damaged("a group has a negative number of children"))?;
                }
                10 => reader.skip_union(&LOGICAL_TYPES)?,
                _ => reader.skip(field)?,
            }
            Ok(())
        })?;
        Ok((children, name_bytes))
    }
}

/// Follows a footer to its end.
///
/// # Errors
/// If it is damaged, or needs more memory than the limit allows.
pub(super) fn check_footer(footer: &[u8], limit: Limit) -> io::Result<()> {
    let mut has_schema = false;
    Reader::new(footer, limit).structure(&FOOTER, |reader, field| match field.id {
        2 => {
            has_schema = true;
            reader.schema()
        }
        1 => reader.skip(field),
        // What comes before the schema could be read in another way than here, and so could the schema.
        _ if !has_schema => Err(damaged("the schema is not at its beginning")),
        _ => reader.skip(field),
    })
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
        // No schema, then field 4, a list of 2^60 empty structures, and no bytes of them.
        let mut bytes = vec![0x29, 0x0c, 0x29, 0xfc];
        put(&mut bytes, 1 << 60);
        assert_eq!(check_footer(&bytes, LIMIT).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        bytes.extend([0; 5_000]);
        assert!(check_footer(&bytes, LIMIT).unwrap_err().to_string().contains("are allowed"));
        // Structures in structures.
        let nested = [&[0x29, 0x0c][..], &[0x1c; 10_000]].concat();
        let error = check_footer(&nested, LIMIT).unwrap_err();
        assert!(error.to_string().contains("nested too deeply"), "{error}");
    }

    /// The `parquet` crate read the number of children from a field that claimed to be of another kind, and reserved
    /// 10 GB for them.
    #[test]
    fn a_field_of_another_kind_than_the_format_defines_is_refused() {
        let good = footer(&[1, 0]);
        check_footer(&good, LIMIT).unwrap();
        let place = good.iter().position(|byte| *byte == 0x15).unwrap();
        for kind in [1, 3, 4, 6, 7, 8, 9, 12] {
            let mut bytes = good.clone();
            bytes[place] = 0x10 | kind;
            let error = check_footer(&bytes, LIMIT).unwrap_err();
            assert!(error.to_string().contains("kind that the format defines"), "{kind}: {error}");
        }
        // Something before the schema, and a list of truth values, which has no bytes in the eyes of the crate.
        assert!(check_footer(&[0x39, 0x0c, 0], LIMIT).is_err());
        assert!(check_footer(&[0x29, 0x0c, 0x79, 0x21, 0, 0], LIMIT).is_err());
    }

    #[test]
    fn logical_types_have_the_fields_that_the_format_defines() {
        // An element with the name "a" and a logical type of these bytes.
        let with = |logical: &[u8]| {
            let bytes = [&[0x29, 0x1c, 0x48, 1, b'a', 0x6c][..], logical, &[0, 0]].concat();
            check_footer(&bytes, LIMIT)
        };
        // A text; a decimal of two numbers; a time in milliseconds; a whole number.
        for logical in [&[0x1c, 0, 0][..], &[0x5c, 0x15, 4, 0x15, 18, 0, 0], &[0x7c, 0x11, 0x1c, 0x1c, 0, 0, 0, 0]] {
            with(logical).unwrap();
        }
        with(&[0xac, 0x13, 8, 0x11, 0, 0]).unwrap();
        // A truth value for a number, a unit that is no structure, a union of nothing, one of two.
        for logical in [&[0x5c, 0x11, 0, 0][..], &[0x7c, 0x11, 0x1c, 0x11, 0, 0, 0], &[0], &[0x1c, 0, 0x1c, 0, 0]] {
            with(logical).unwrap_err();
        }
    }
}
