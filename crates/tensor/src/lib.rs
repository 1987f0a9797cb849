//! Tensor memory: regions that someone else owns, and the arithmetic on them.
