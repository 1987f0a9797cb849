//! Seeds of the fuzz targets: made by code, kept as files, replayed by ordinary tests.
//!
//! Tests of the crates that own a decoder include this file. The *made* seeds are written in the test, one for each
//! form that the decoder knows and for typical garbage; each lies in `fuzz/corpus/<target>` under its name, byte for
//! byte. So an encoding that changes by accident fails a test, and one that changes on purpose is written anew with
//! `FARANDOLE_WRITE_SEEDS=1` (and raises the protocol's version). Files that no test makes are finds of the fuzzer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;

/// A seed and the name of its file.
pub(crate) type Seed = (&'static str, Vec<u8>);

/// Compares the made seeds with the files, then checks every file of the target.
pub(crate) fn replay(target: &str, made: &[Seed], check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let write = std::env::var_os("FARANDOLE_WRITE_SEEDS").is_some();
    for (name, bytes) in made {
        let file = folder.join(name);
        if write {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&file, bytes).unwrap();
        }
        let kept = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(kept == *bytes, "the encoding of {target}/{name} has changed; if on purpose, see fuzz/seeds.rs");
    }
    for file in fs::read_dir(&folder).unwrap() {
        check(&fs::read(file.unwrap().path()).unwrap());
    }
}
