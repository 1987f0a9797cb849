//! Tells the linker under which name programs look for the library, because the crate's own name is another; and to
//! bind calls between its functions within it: the Python module has functions of the same names, and whichever was
//! loaded first would otherwise be called by both.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfarandole.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
