//! What must hold for every generated data set.
use super::*;
