//! Why a study cannot be made, or says nothing.

use std::fmt;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The text names what was asked for, what is wrong with it and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Fails with this text.
pub(crate) fn refuse<T>(why: String) -> Result<T> {
    Err(Error(why))
}
