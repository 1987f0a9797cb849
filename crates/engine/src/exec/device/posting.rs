//! What a rank tells the others of its host about a bucket in device memory: [`Posting`].
//!
//! It lies in the rank's small slot, which peers read when the rank has begun the operation:
//!
//! ```text
//! form and flags: u32 | exports: u32 | exports, EXPORT_BYTES each | shard: a place | places, each (export: u64, address: u64)
//! ```
//!
//! The *shard* is where this rank's share of an allreduce between hosts is collected (`hosts`), if there is one.
//! The *form* says which places follow: none (a rank that has joined has no tensors), the inputs, which the results
//! replace, the input and output of each tensor, or one for all: where a fusion buffer begins in which they are packed
//! ([`packed`]). Tensors without elements lie nowhere. Addresses are the teller's own. How large each tensor is follows
//! from the bucket, so decoding is total, and whoever tells of memory beyond an allocation is named. Flags say
//! whether the devices may order the bucket's steps among themselves (`ordered`), as far as this rank goes, and whether
//! its device runs kernels of several processes at once.

use std::collections::HashMap;

use farandole_device::{EXPORT_BYTES, Export};
use farandole_plan::Dtype;
use farandole_plan::device::Ends;

use super::tensors::{Stretch, Tensor};

/// Bytes of the two numbers in front, and of the shard's place.
const HEAD_BYTES: usize = 8 + PLACE_BYTES;
/// Bytes of a place.
const PLACE_BYTES: usize = 16;
/// The export of a tensor that lies nowhere.
const NOWHERE: u64 = u64::MAX;
/// Set beside the form by who lets devices order the steps.
const ORDERED: u32 = 1 << 8;
/// Set by whose device runs kernels of several processes at once.
const AT_ONCE: u32 = 1 << 9;
/// Where tensors begin in a fusion buffer, as frameworks' allocators place them.
const PACKED_ALIGN_BYTES: u64 = 512;

/// An export, by its place in a posting, and an address in it.
type Place = Option<(usize, u64)>;

/// Which places a posting has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    #[default]
    Nothing = 0,
    InPlace = 1,
    Apart = 2,
    Packed = 3,
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(super) struct Posting {
    form: Form,
    pub(super) is_ordered: bool,
    pub(super) at_once: bool,
    exports: Vec<Export>,
    shard: Place,
    places: Vec<Place>,
    /// Where the export of an allocation is.
    known: HashMap<u64, usize>,
}

/// Bytes of a tensor's input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndBytes {
    pub(super) input: u64,
    pub(super) output: u64,
}

impl EndBytes {
    /// Those of a rank's tensors.
    pub(super) fn of(ends: &[Ends], dtype: Dtype) -> Vec<EndBytes> {
        let elem_bytes = dtype.size_bytes() as u64;
        ends.iter().map(|ends| EndBytes { input: ends.input * elem_bytes, output: ends.output * elem_bytes }).collect()
    }
}

/// What another rank has told: where the inputs and outputs of its tensors lie.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Told {
    pub(super) is_ordered: bool,
    pub(super) at_once: bool,
    pub(super) exports: Vec<Export>,
    pub(super) shard: Place,
    /// For each tensor; none if the rank has joined.
    pub(super) places: Vec<(Place, Place)>,
}

impl Posting {
    /// Tensors that lie where these exports say.
    ///
    /// # Errors
    /// What `export` says of a tensor that others cannot map.
    pub(super) fn of<E>(
        tensors: &[Tensor],
        mut export: impl FnMut(Stretch) -> Result<Export, E>,
    ) -> Result<Posting, E> {
        let in_place = tensors.iter().all(|tensor| tensor.output.bytes == 0 || tensor.output == tensor.input);
        let form = match (tensors.is_empty(), in_place) {
            (true, _) => Form::Nothing,
            (_, true) => Form::InPlace,
            _ => Form::Apart,
        };
        let mut posting = Posting { form, ..Posting::default() };
        for tensor in tensors {
            let input = posting.place(tensor.input, &mut export)?;
            posting.places.push(input);
            if form == Form::Apart {
                let output = posting.place(tensor.output, &mut export)?;
                posting.places.push(output);
            }
        }
        Ok(posting)
    }

    /// Tensors that are packed from an address on.
    pub(super) fn packed(export: Export, address: u64) -> Posting {
        let known = HashMap::from([(export.allocation, 0)]);
        Posting {
            form: Form::Packed,
            is_ordered: false,
            at_once: false,
            exports: vec![export],
            shard: None,
            places: vec![Some((0, address))],
            known,
        }
    }

    /// The same with a shard.
    ///
    /// # Errors
    /// What `export` says if others cannot map it.
    pub(super) fn with_shard<E>(
        mut self,
        shard: Stretch,
        mut export: impl FnMut(Stretch) -> Result<Export, E>,
    ) -> Result<Posting, E> {
        self.shard = self.place(shard, &mut export)?;
        Ok(self)
    }

    fn place<E>(
        &mut self,
        stretch: Stretch,
        export: &mut impl FnMut(Stretch) -> Result<Export, E>,
    ) -> Result<Place, E> {
        if stretch.bytes == 0 {
            return Ok(None);
        }
        let export = export(stretch)?;
        let index = *self.known.entry(export.allocation).or_insert(self.exports.len());
        if index == self.exports.len() {
            self.exports.push(export);
        }
        Ok(Some((index, stretch.address)))
    }

    /// Bytes that it takes.
    pub(super) fn len_bytes(&self) -> usize {
        HEAD_BYTES + self.exports.len() * EXPORT_BYTES + self.places.len() * PLACE_BYTES
    }

    /// Writes it to the front of a slot, which is large enough.
    pub(super) fn write(&self, slot: &mut [u8]) {
        let mut rest = &mut slot[..self.len_bytes()];
        let mut put = |bytes: &[u8]| {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = after;
        };
        let flags = [(self.is_ordered, ORDERED), (self.at_once, AT_ONCE)];
        let flags: u32 = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        put(&(self.form as u32 | flags).to_le_bytes());
        put(&(self.exports.len() as u32).to_le_bytes());
        self.exports.iter().for_each(|export| put(&export.encode()));
        for place in std::iter::once(&self.shard).chain(&self.places) {
            let (export, address) = place.map_or((NOWHERE, 0), |(export, address)| (export as u64, address));
            put(&export.to_le_bytes());
            put(&address.to_le_bytes());
        }
    }
}

impl Told {
    /// Reads what a peer has written of a shard and of tensors of these sizes. `replaces` says that results replace
    /// inputs where tensors are packed.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(slot: &[u8], sizes: &[EndBytes], shard_bytes: u64, replaces: bool) -> Result<Told, String> {
        let mut rest = slot;
        let mut take = |len: usize| {
            let (here, after) = rest.split_at_checked(len).ok_or("more places than there is room for")?;
            rest = after;
            Ok::<&[u8], &str>(here)
        };
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let (head, count) = (number(take(4)?), number(take(4)?) as usize);
        let has = |flag: u32| head & u64::from(flag) != 0;
        let (form, is_ordered, at_once) = (head & !u64::from(ORDERED | AT_ONCE), has(ORDERED), has(AT_ONCE));
        let mut exports = Vec::new();
        for _ in 0..count {
            let bytes = take(EXPORT_BYTES)?.try_into().map_err(|_| "half an export")?;
            exports.push(Export::decode(bytes).ok_or("an export of an impossible process or range")?);
        }
        let mut next = |bytes: u64| {
            let (export, address) = (number(take(8)?), number(take(8)?));
            check(&exports, export, address, bytes)
        };
        let shard = next(shard_bytes)?;
        let mut places = Vec::new();
        match form {
            0 => {}
            1 => {
                for size in sizes {
                    let input = next(size.input.max(size.output))?;
                    places.push((input, input.filter(|_| size.output > 0)));
                }
            }
            2 => {
                for size in sizes {
                    places.push((next(size.input)?, next(size.output)?));
                }
            }
            3 => {
                let (offsets, total) = packed(sizes, replaces);
                let (export, start) = next(total)?.ok_or("nothing is packed")?;
                let place = |bytes: u64, offset: u64| (bytes > 0).then_some((export, start + offset));
                places = (sizes.iter().zip(offsets))
                    .map(|(size, (input, output))| (place(size.input, input), place(size.output, output)))
                    .collect();
            }
            other => return Err(format!("a posting of the unknown form {other}")),
        }
        Ok(Told { is_ordered, at_once, exports, shard, places })
    }
}

/// Where tensors of these sizes begin in a fusion buffer: inputs and outputs, and how long it is.
pub(super) fn packed(sizes: &[EndBytes], replaces: bool) -> (Vec<(u64, u64)>, u64) {
    let mut end = 0_u64;
    let mut next = |bytes: u64| {
        let start = end;
        end = (end + bytes).next_multiple_of(PACKED_ALIGN_BYTES);
        start
    };
    let offsets = (sizes.iter())
        .map(|size| match replaces {
            true => {
                let both = next(size.input);
                (both, both)
            }
            false => (next(size.input), next(size.output)),
        })
        .collect();
    (offsets, end)
}

/// A place, if so many bytes lie there.
fn check(exports: &[Export], export: u64, address: u64, bytes: u64) -> Result<Place, String> {
    if bytes == 0 {
        return Ok(None);
    }
    let place = exports.get(export as usize).filter(|export| export.contains(address, bytes));
    match place {
        Some(_) => Ok(Some((export as usize, address))),
        None => Err(format!("{bytes} bytes at {address:#x}, which lie in no allocation that it told of")),
    }
}

#[cfg(test)]
mod tests {
    use farandole_device::Uuid;
    use farandole_transport::ProcessId;

    use super::*;

    fn export(stretch: Stretch) -> Result<Export, String> {
        let base = stretch.address / 10_000 * 10_000;
        let process = ProcessId { pid: 7, namespace: 1, start_time: 1 };
        Ok(Export { process, device: Uuid([1; 16]), allocation: base, base, bytes: 1000, handle: [2; 64] })
    }

    fn stretch(address: u64, bytes: u64) -> Stretch {
        Stretch { address, bytes }
    }

    fn sizes(tensors: &[Tensor]) -> Vec<EndBytes> {
        tensors.iter().map(|tensor| EndBytes { input: tensor.input.bytes, output: tensor.output.bytes }).collect()
    }

    fn tensors() -> Vec<Tensor> {
        let in_place = |address, bytes| Tensor {
            input: stretch(address, bytes),
            output: stretch(address, bytes),
            dtype: Dtype::F32,
        };
        vec![in_place(0, 600), in_place(50_100, 900), in_place(600, 400)]
    }

    fn written(posting: &Posting) -> Vec<u8> {
        let mut slot = vec![0xff; 1024];
        posting.write(&mut slot);
        slot
    }

    #[test]
    fn what_is_written_is_read() {
        let mut tensors = tensors();
        let in_place = Posting::of(&tensors, export).unwrap();
        let told = Told::read(&written(&in_place), &sizes(&tensors), 0, true).unwrap();
        assert_eq!((told.exports.len(), told.places[1]), (2, (Some((1, 50_100)), Some((1, 50_100)))));
        // A root's result, and an input without elements.
        tensors[0].output = stretch(90_000, 64);
        tensors[1].input.bytes = 0;
        tensors[2].output.bytes = 0;
        let apart = Posting::of(&tensors, export).unwrap();
        let told = Told::read(&written(&apart), &sizes(&tensors), 0, false).unwrap();
        let expected = [(Some((0, 0)), Some((1, 90_000))), (None, Some((2, 50_100))), (Some((0, 600)), None)];
        assert_eq!(told.places, expected);
    }

    #[test]
    fn packed_tensors_lie_one_behind_another() {
        let sizes = [EndBytes { input: 100, output: 10 }, EndBytes { input: 0, output: 200 }];
        assert_eq!(packed(&sizes, false), (vec![(0, 512), (1024, 1024)], 1536));
        let whole = Export { bytes: 2000, ..export(stretch(20_000, 1)).unwrap() };
        let told = Told::read(&written(&Posting::packed(whole, 20_100)), &sizes, 0, false).unwrap();
        assert_eq!(told.places, [(Some((0, 20_100)), Some((0, 20_612))), (None, Some((0, 21_124)))]);
    }

    #[test]
    fn a_shard_is_told_beside_tensors_of_any_form() {
        let tensors = tensors();
        for posting in [Posting::default(), Posting::of(&tensors, export).unwrap()] {
            let posting = posting.with_shard(stretch(70_100, 64), export).unwrap();
            let told = Told::read(&written(&posting), &sizes(&tensors), 64, true).unwrap();
            assert_eq!(told.shard.map(|(_, address)| address), Some(70_100));
            assert!(Told::read(&written(&posting), &sizes(&tensors), 901, true).is_err(), "beyond its allocation");
        }
    }

    #[test]
    fn nothing_is_told_by_who_has_nothing() {
        let told = Told::read(&written(&Posting::default()), &[EndBytes { input: 4, output: 4 }], 0, true).unwrap();
        assert_eq!(told, Told::default());
    }

    #[test]
    fn nonsense_is_named() {
        let (tensors, posting) = (tensors(), Posting::of(&tensors(), export).unwrap());
        let (slot, mut larger) = (written(&posting), sizes(&tensors));
        larger[1] = EndBytes { input: 901, output: 901 };
        assert!(Told::read(&slot, &larger, 0, true).unwrap_err().contains("lie in no allocation"));
        assert!(Told::read(&slot[..100], &sizes(&tensors), 0, true).unwrap_err().contains("room"));
        for garbage in [&[][..], &[1, 2, 3], &[255; 64], &[9, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(Told::read(garbage, &larger, 0, false).is_err());
        }
    }
}
