//! The farandole command.
fn main() {}
