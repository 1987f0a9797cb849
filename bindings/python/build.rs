//! Tells the linker to bind calls between the C functions of this module within it: `libfarandole.so` has functions of
//! the same names, and a program that embeds Python may have loaded it first.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
