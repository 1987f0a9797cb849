//! A verdict for people and programs: as text, as JSON, and as a page.
//!
//! All three say the same, made from the same values; none of them computes anything.

mod generations;
pub mod json;
pub mod page;
pub mod table;
pub mod text;
pub mod wording;
