//! Tensor memory and the arithmetic on it: regions that somebody else owns, reduction, scaling, conversion.
//!
//! Everything works on bytes and a [`Dtype`](farandole_plan::Dtype): front ends know Rust or Python types, the wire
//! knows bytes, and this crate converts between the two. Invariants:
//!
//! - **The same bits everywhere.** Portable code and every SIMD level give identical results, so ranks on different
//!   machines may fold the same contributions and agree. Nothing is contracted into fused multiply-adds, and every
//!   result that is not a number is the one canonical NaN of its type.
//! - **Any alignment.** Byte slices may start anywhere, as callers' tensors do. In a bucket of several tensors each
//!   starts at a multiple of 64 bytes (`farandole_plan::fuse`); this is for speed only.
//! - **Half precision is added in single precision** and rounded once per fold, however many contributions there are.
//!
//! Entry points:
//!
//! - [`Region`]: memory that is lent to the engine; [`OwnedBytes`]: memory of our own.
//! - [`Fold`]: reduces contributions; [`Finish`]: scales or averages in the same pass; [`adasum`]: adaptive summation.
//! - [`copy_finished`]: copies a tensor into a bucket or out of it; [`cast`]: converts between float types.
//! - [`digest`]: numbers that tell memory apart.
//! - [`Level`]: the SIMD levels of this processor.
//!
//! There is no I/O and no thread, and hot paths allocate nothing. Unsafe code is in `element`, `owned`, `region` and
//! `simd`; what they export is safe, except [`Region::from_raw_parts`], which takes foreign memory.
//!
//! Not here: what is reduced when (`farandole-plan`), and shared memory (`farandole-transport`).

#![deny(unsafe_code)]

pub mod adasum;
pub mod cast;
pub mod digest;
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
pub use region::{OnDevice, Region, SharedOwner};
pub use simd::Level;
