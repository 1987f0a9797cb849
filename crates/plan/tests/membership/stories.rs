//! Some stories that matter, told step by step.
