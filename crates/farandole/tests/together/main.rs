//! What Rust programs call, by real ranks: every collective, process sets, and the adapters for tensor libraries.
//!
//! The tests start copies of their own program, which find their role in the environment and print what they computed.
//! The adapters are trained by their examples, which are taken in here as they are.

#![allow(clippy::print_stdout, reason = "what a rank says is how it is heard")]

mod collectives;
mod job;
mod leaving;

#[cfg(feature = "burn")]
mod burn;
#[cfg(feature = "candle")]
mod candle;

use job::ROLE;

/// The program of a rank.
#[test]
#[ignore = "role program: other tests start it"]
fn a_rank_plays_its_role() {
    let role = std::env::var(ROLE).expect("a test starts this, with a role");
    match role.as_str() {
        "collectives" => collectives::play(),
        "sets" => collectives::play_sets(),
        role if role.starts_with("leaving") => leaving::play(role),
        #[cfg(feature = "burn")]
        role if role.starts_with("burn") => burn::play(role),
        #[cfg(feature = "candle")]
        role if role.starts_with("candle") => candle::play(role),
        other => panic!("there is no role {other}"),
    }
    println!("role done");
}

/// The numbers that a rank has printed behind this word, to the last bit.
#[cfg(any(feature = "burn", feature = "candle"))]
fn numbers(words: &str, key: &str) -> Vec<f32> {
    let line = words.lines().find_map(|line| line.split_once(key).map(|(_, rest)| rest));
    let line = line.unwrap_or_else(|| panic!("no {key} in {words}"));
    line.split_whitespace().map(|bits| f32::from_bits(bits.parse().expect("the bits of a number"))).collect()
}

/// Prints numbers for [`numbers`].
#[cfg(any(feature = "burn", feature = "candle"))]
fn print_numbers(key: &str, numbers: &[f32]) {
    let bits: Vec<String> = numbers.iter().map(|number| number.to_bits().to_string()).collect();
    println!("{key} {}", bits.join(" "));
}

/// Asserts that numbers are the same but for rounding.
#[cfg(any(feature = "burn", feature = "candle"))]
fn assert_close(left: &[f32], right: &[f32], tolerance: f32) {
    assert_eq!(left.len(), right.len());
    assert!(!left.is_empty() && left.iter().all(|number| number.is_finite()), "{left:?}");
    for (left, right) in left.iter().zip(right) {
        assert!((left - right).abs() <= tolerance * left.abs().max(1.0), "{left} and {right}");
    }
}
