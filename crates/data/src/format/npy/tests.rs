//! Arrays as NumPy writes them, and otherwise. Archives that NumPy has written are in `tests/foreign`.

use farandole_testing::Folder;
use proptest::prelude::*;

use super::*;
use crate::storage::LocalFiles;

fn stored(folder: &Folder, bytes: &[u8]) -> StoredFile {
    std::fs::write(folder.join("a.npy"), bytes).unwrap();
    StoredFile::open(Arc::new(LocalFiles::new(&**folder)), "a.npy").unwrap()
}

#[test]
fn rows_of_every_type_come_back() {
    let folder = Folder::new();
    let cases: [(&str, Vec<u8>, Values); 8] = [
        ("|u1", vec![1, 255], Values::Ints(vec![1, 255])),
        ("|i1", vec![1, 255], Values::Ints(vec![1, -1])),
        ("|b1", vec![0, 2], Values::Ints(vec![0, 1])),
        ("<i2", [5i16, -2].iter().flat_map(|it| it.to_le_bytes()).collect(), Values::Ints(vec![5, -2])),
        ("<u4", [5u32, u32::MAX].iter().flat_map(|it| it.to_le_bytes()).collect(), Values::Ints(vec![5, 4294967295])),
        ("<i8", [5i64, i64::MIN].iter().flat_map(|it| it.to_le_bytes()).collect(), Values::Ints(vec![5, i64::MIN])),
        ("<f2", [0x3c00u16, 0xc000].iter().flat_map(|it| it.to_le_bytes()).collect(), Values::Floats(vec![1.0, -2.0])),
        ("<f8", [0.5f64, -8.0].iter().flat_map(|it| it.to_le_bytes()).collect(), Values::Floats(vec![0.5, -8.0])),
    ];
    for (descr, elements, values) in cases {
        let file = stored(&folder, &encode(descr, &[2, 2], &[vec![0; elements.len()], elements].concat()));
        let array = Array::open(&file).unwrap();
        assert_eq!((array.rows(), array.row_shape()), (2, [2].as_slice()));
        let mut buffer = Vec::new();
        assert_eq!(array.values(1, &mut buffer).unwrap(), values, "{descr}");
        assert!(array.values(2, &mut buffer).unwrap_err().cause.contains("no row 2"));
    }
}

#[test]
fn what_is_not_read_is_named() {
    let folder = Folder::new();
    let error = |bytes: &[u8]| Array::open(&stored(&folder, bytes)).unwrap_err().cause;
    assert!(error(&encode(">f4", &[1], &[0; 4])).contains(">f4"));
    assert!(error(&encode("<U5", &[1], &[0; 20])).contains("<U5"));
    let fortran = String::from_utf8_lossy(&encode("|u1", &[1], &[0])[10..]).replace("False", "True ");
    let mut bytes = encode("|u1", &[1], &[0]);
    bytes.splice(10.., fortran.bytes());
    assert!(error(&bytes).contains("Fortran"));
    assert!(error(&encode("|u1", &[3], &[0])).contains("does not fit"));
    assert!(error(&encode("|u1", &[u64::MAX, u64::MAX], &[0])).contains("does not fit"));
    let mut version = encode("|u1", &[1], &[0]);
    version[6] = 9;
    assert!(error(&version).contains("version 9"));
    assert!(members(&stored(&folder, b"PK no archive at all")).is_err());
}

#[test]
fn an_array_that_ends_too_early_is_an_error_at_every_byte() {
    let folder = Folder::new();
    let bytes = encode("<f4", &[2, 3], &[1; 24]);
    assert_eq!(Array::open(&stored(&folder, &bytes)).unwrap().rows(), 2);
    for end in 0..bytes.len() {
        assert!(Array::open(&stored(&folder, &bytes[..end])).is_err(), "{end}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn garbage_ends(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "[{}(),:' 0-9a-z<|]{0,80}") {
        let folder = Folder::new();
        let _ = members(&stored(&folder, &bytes));
        bytes.splice(0..0, b"\x93NUMPY\x01\0".iter().copied().chain((text.len() as u16).to_le_bytes()).chain(text.bytes()));
        let _ = Array::open(&stored(&folder, &bytes));
        let _ = parse_header(text.as_bytes());
    }

    #[test]
    fn a_damaged_archive_ends(at in 0usize..2_000, byte: u8) {
        let mut bytes = include_bytes!("../../../tests/foreign/packed.npz").to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        let folder = Folder::new();
        let file = stored(&folder, &bytes);
        for member in members(&file).into_iter().flatten() {
            if let Ok(unpacked) = unpacked(&file, &member) {
                let _ = Array::within(&file, ArrayBytes::Unpacked(Arc::new(unpacked)));
            }
        }
    }
}
