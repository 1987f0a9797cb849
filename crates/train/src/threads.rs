//! How many threads a rank computes with.

/// From now on this process computes with so many threads. To be called before anything is computed; later it has no
/// effect.
pub fn limit(count: usize) {
    // Somebody else has made the threads already: then there are as many as that one wanted.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(count.max(1)).build_global();
}
