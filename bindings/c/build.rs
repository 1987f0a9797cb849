//! Tells the linker under which name programs look for the library: the crate's own name is not the library's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfarandole.so");
}
