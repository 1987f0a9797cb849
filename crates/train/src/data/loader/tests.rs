//! What must hold for batches.
