//! Installs the libraries that benchmarks compare with.

use anyhow::Result;

/// Installs all of them.
pub(crate) fn install() -> Result<()> {
    anyhow::bail!("not written yet")
}
