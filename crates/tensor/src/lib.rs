//! Tensor memory: regions that someone else owns, and the arithmetic on them.
//!
//! Everything here works on bytes plus a [`Dtype`](farandole_plan::Dtype): the front ends know Rust or Python types,
//! the wire knows only bytes, and this crate is the one place where the two meet. It keeps three promises.
//!
//! * **The same bits everywhere.** The portable code and every SIMD level give identical results, bit for bit, so
//!   ranks on different machines may fold the same contributions and agree. Nothing is contracted into fused
//!   multiply-adds, and every calculation whose result is not a number stores the one canonical NaN of its type.
//! * **Alignment does not matter.** Byte slices may start anywhere, as tensors of callers do. In a bucket of several
//!   tensors each starts at a multiple of 64 bytes (`farandole_plan::fuse`), for speed and not because anything here
//!   needs it.
//! * **Half precision is added in single precision** and rounded once per fold, however many contributions there are.
//!
//! There is no I/O, no thread and no allocation in the hot paths. Unsafe code lives in `element`, `owned`, `region` and
//! `simd` only; what they export is safe to call, except [`Region::from_raw_parts`], where foreign memory comes in.

#![deny(unsafe_code)]

pub mod adasum;
pub mod cast;
#[allow(unsafe_code)]
pub mod element;
pub mod finish;
#[allow(unsafe_code)]
pub mod owned;
pub mod reduce;
#[allow(unsafe_code)]
pub mod region;
#[allow(unsafe_code)]
pub mod simd;
pub mod verifiable;

pub use element::Element;
pub use finish::{Finish, copy_finished, copy_scaled, scale};
pub use owned::OwnedBytes;
pub use reduce::Fold;
pub use region::Region;
pub use simd::Level;
