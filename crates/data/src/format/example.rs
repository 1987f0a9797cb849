//! `tf.train.Example`: named lists of bytes, floats or integers, as a protocol buffer.
//!
//! ```text
//! Example  { Features features = 1 }                Feature   { BytesList = 1 | FloatList = 2 | Int64List = 3 }
//! Features { map<string, Feature> feature = 1 }     each list { repeated value = 1 }, numbers packed or not
//! ```
//!
//! Written by hand: the format is fixed, images are borrowed and not copied, and a damaged one ends with the place of
//! the damage. Fields that nobody knows are passed over, as protocol buffers want it; of several values for one name
//! the last one counts.

/// Features of an example, at most: each name is compared with all before it.
const MAX_FEATURES: usize = 4096;

/// What an example says under one name.
#[derive(Clone, Debug, PartialEq)]
pub enum Feature<'a> {
    /// Texts or encoded images.
    Bytes(Vec<&'a [u8]>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Whole numbers.
    Ints(Vec<i64>),
}

/// An example that borrows from its encoded form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example<'a> {
    features: Vec<(&'a str, Feature<'a>)>,
}

/// Why bytes are no example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleError {
    /// Where, from the first byte of the example on.
    pub at: usize,
    /// The cause.
    pub cause: &'static str,
}

impl<'a> Example<'a> {
    /// Decodes an example.
    pub fn decode(bytes: &'a [u8]) -> Result<Example<'a>, ExampleError> {
        let mut example = Example::default();
        for_each_message(Message { bytes, base: 0 }, 1, |features| {
            for_each_message(features, 1, |entry| {
                if let Some((name, feature)) = map_entry(entry)? {
                    example.set(name, feature);
                }
                if example.features.len() > MAX_FEATURES {
                    return Err(ExampleError { at: entry.base, cause: "it has more than 4096 features" });
                }
                Ok(())
            })
        })?;
        Ok(example)
    }

    /// Encodes an example.
    pub fn encode(&self) -> Vec<u8> {
        let mut features = Vec::new();
        for (name, feature) in &self.features {
            let mut entry = Vec::new();
            put_bytes(&mut entry, 1, name.as_bytes());
            put_bytes(&mut entry, 2, &encoded_feature(feature));
            put_bytes(&mut features, 1, &entry);
        }
        let mut example = Vec::with_capacity(features.len() + 12);
        put_bytes(&mut example, 1, &features);
        example
    }

    /// What is said under a name.
    pub fn get(&self, name: &str) -> Option<&Feature<'a>> {
        self.features.iter().find(|(known, _)| *known == name).map(|(_, feature)| feature)
    }

    /// Says something under a name, instead of what was said before.
    pub fn set(&mut self, name: &'a str, feature: Feature<'a>) {
        match self.features.iter_mut().find(|(known, _)| *known == name) {
            Some((_, before)) => *before = feature,
            None => self.features.push((name, feature)),
        }
    }

    /// All names, in the order of the example.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.features.iter().map(|(name, _)| *name)
    }
}

/// The bytes of a message, and where they begin in the example.
#[derive(Clone, Copy)]
struct Message<'a> {
    bytes: &'a [u8],
    base: usize,
}

/// The value of a field, as the wire has it.
enum Value<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64,
    Length(Message<'a>),
}

/// Takes fields off a message.
struct Fields<'a> {
    message: Message<'a>,
    at: usize,
}

impl<'a> Fields<'a> {
    fn of(message: Message<'a>) -> Fields<'a> {
        Fields { message, at: 0 }
    }

    fn fail<T>(&self, cause: &'static str) -> Result<T, ExampleError> {
        Err(ExampleError { at: self.message.base + self.at, cause })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], ExampleError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.message.bytes.len());
        let Some(end) = end else { return self.fail("a field is longer than its message") };
        let bytes = &self.message.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, ExampleError> {
        let mut value = 0u64;
        // Ten bytes of seven bits each hold 64.
        for place in 0..10 {
            let Some(byte) = self.message.bytes.get(self.at + place) else { break };
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                self.at += place + 1;
                return Ok(value);
            }
        }
        self.fail("a number does not end")
    }

    /// The number and value of the next field.
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, ExampleError> {
        if self.at == self.message.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let length = self.varint()?;
                let base = self.message.base + self.at;
                // A length that fits no memory fits no message, either.
                Value::Length(Message { bytes: self.take(usize::try_from(length).unwrap_or(usize::MAX))?, base })
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Fixed32(u32::from_le_bytes(bytes.try_into().expect("invariant: four bytes were taken")))
            }
            _ => return self.fail("a field of an unknown kind: this is no tf.train.Example"),
        };
        Ok(Some((tag >> 3, value)))
    }
}

/// Calls back for each message within a message that has this number.
fn for_each_message<'a>(
    message: Message<'a>,
    wanted: u64,
    mut call: impl FnMut(Message<'a>) -> Result<(), ExampleError>,
) -> Result<(), ExampleError> {
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        match value {
            Value::Length(inner) if number == wanted => call(inner)?,
            _ if number == wanted => return fields.fail("a field is no message: this is no tf.train.Example"),
            _ => {}
        }
    }
    Ok(())
}

/// A name and its feature; nothing for a feature without a kind, which says nothing.
fn map_entry(entry: Message<'_>) -> Result<Option<(&str, Feature<'_>)>, ExampleError> {
    let (mut name, mut feature) = ("", None);
    let mut fields = Fields::of(entry);
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Length(key)) => {
                let Ok(key) = std::str::from_utf8(key.bytes) else { return fields.fail("a name is not UTF-8") };
                name = key;
            }
            (2, Value::Length(message)) => feature = decoded_feature(message)?,
            (1 | 2, _) => return fields.fail("an entry of the features is neither name nor feature"),
            _ => {}
        }
    }
    Ok(feature.map(|feature| (name, feature)))
}

fn decoded_feature(message: Message<'_>) -> Result<Option<Feature<'_>>, ExampleError> {
    let mut feature = None;
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        let Value::Length(list) = value else { continue };
        match number {
            1 => feature = Some(bytes_list(list)?),
            2 => feature = Some(float_list(list)?),
            3 => feature = Some(int_list(list)?),
            _ => {}
        }
    }
    Ok(feature)
}

fn bytes_list(list: Message<'_>) -> Result<Feature<'_>, ExampleError> {
    let mut values = Vec::new();
    for_each_message(list, 1, |value| {
        values.push(value.bytes);
        Ok(())
    })?;
    Ok(Feature::Bytes(values))
}

fn float_list(list: Message<'_>) -> Result<Feature<'_>, ExampleError> {
    let mut values = Vec::new();
    let mut fields = Fields::of(list);
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Fixed32(bits)) => values.push(f32::from_bits(bits)),
            (1, Value::Length(packed)) => {
                let (floats, rest) = packed.bytes.as_chunks::<4>();
                if !rest.is_empty() {
                    return fields.fail("a list of floats has a part of one");
                }
                values.extend(floats.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
            (1, _) => return fields.fail("a list of floats holds something else"),
            _ => {}
        }
    }
    Ok(Feature::Floats(values))
}

fn int_list(list: Message<'_>) -> Result<Feature<'_>, ExampleError> {
    let mut values = Vec::new();
    let mut fields = Fields::of(list);
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Varint(bits)) => values.push(bits as i64),
            (1, Value::Length(packed)) => {
                let mut packed = Fields::of(packed);
                while packed.at < packed.message.bytes.len() {
                    values.push(packed.varint()? as i64);
                }
            }
            (1, _) => return fields.fail("a list of integers holds something else"),
            _ => {}
        }
    }
    Ok(Feature::Ints(values))
}

fn encoded_feature(feature: &Feature<'_>) -> Vec<u8> {
    let mut list = Vec::new();
    let kind = match feature {
        Feature::Bytes(values) => {
            values.iter().for_each(|value| put_bytes(&mut list, 1, value));
            1
        }
        Feature::Floats(values) => {
            let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            put_bytes(&mut list, 1, &packed);
            2
        }
        Feature::Ints(values) => {
            let mut packed = Vec::new();
            values.iter().for_each(|value| put_varint(&mut packed, *value as u64));
            put_bytes(&mut list, 1, &packed);
            3
        }
    };
    let mut feature = Vec::with_capacity(list.len() + 12);
    put_bytes(&mut feature, kind, &list);
    feature
}

fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(out, number << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> Example<'static> {
        let mut example = Example::default();
        example.set("image/encoded", Feature::Bytes(vec![b"pixels"]));
        example.set("image/class/label", Feature::Ints(vec![-1, 7, i64::MAX]));
        example.set("weights", Feature::Floats(vec![0.5, f32::MIN]));
        example
    }

    #[test]
    fn what_was_set_is_there_after_encoding() {
        let encoded = example().encode();
        let decoded = Example::decode(&encoded).unwrap();
        assert_eq!(decoded, example());
        assert_eq!(decoded.get("weights"), Some(&Feature::Floats(vec![0.5, f32::MIN])));
        assert_eq!(decoded.get("nothing"), None);
        assert_eq!(decoded.names().count(), 3);
        assert_eq!(Example::decode(b"").unwrap(), Example::default());
    }

    #[test]
    fn numbers_that_are_not_packed_are_read_as_well() {
        // One feature each, `a`: two integers, and two floats, every value with a tag of its own.
        let ints = [0x0a, 0x0d, 0x0a, 0x0b, 0x0a, 1, b'a', 0x12, 6, 0x1a, 4, 0x08, 5, 0x08, 6];
        assert_eq!(Example::decode(&ints).unwrap().get("a"), Some(&Feature::Ints(vec![5, 6])));
        let floats =
            [0x0a, 0x13, 0x0a, 0x11, 0x0a, 1, b'a', 0x12, 12, 0x12, 10, 0x0d, 0, 0, 0x80, 0x3f, 0x0d, 0, 0, 0, 0x40];
        assert_eq!(Example::decode(&floats).unwrap().get("a"), Some(&Feature::Floats(vec![1.0, 2.0])));
    }

    #[test]
    fn an_example_that_ends_too_early_is_an_error() {
        let encoded = example().encode();
        for end in 1..encoded.len() {
            let error = Example::decode(&encoded[..end]).unwrap_err();
            assert!(error.at <= end, "{end}: {error:?}");
        }
    }

    #[test]
    fn numbers_without_an_end_and_groups_are_refused() {
        assert_eq!(Example::decode(&[0xff; 20]).unwrap_err(), ExampleError { at: 0, cause: "a number does not end" });
        assert!(Example::decode(&[0x0b]).unwrap_err().cause.contains("unknown kind"));
        assert!(Example::decode(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]).unwrap_err().cause.contains("longer"));
    }

    proptest! {
        #[test]
        fn garbage_ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Err(error) = Example::decode(&bytes) {
                prop_assert!(error.at <= bytes.len());
            }
        }

        #[test]
        fn damage_in_a_good_one_ends(at in 0usize..90, byte: u8) {
            let mut encoded = example().encode();
            let at = at % encoded.len();
            encoded[at] = byte;
            let _ = Example::decode(&encoded);
        }

        #[test]
        fn every_feature_comes_back(
            bytes in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..5),
            ints in proptest::collection::vec(any::<i64>(), 0..20),
            floats in proptest::collection::vec(-1e9f32..1e9, 0..20),
            name in "[a-zé/]{0,12}",
        ) {
            let mut example = Example::default();
            example.set("-", Feature::Ints(ints));
            example.set("+", Feature::Floats(floats));
            example.set(&name, Feature::Bytes(bytes.iter().map(Vec::as_slice).collect()));
            let encoded = example.encode();
            prop_assert_eq!(Example::decode(&encoded).unwrap(), example);
        }
    }
}
