//! Unsafe code lives in few modules, and each use of it explains itself.
//!
//! The list of them is here and nowhere else. A new entry is a decision: it widens what valgrind, Miri and the model
//! checker must cover.

use super::Complaint;
use super::code::{Lines, word_positions};
use super::tree::File;

/// Files and folders that may hold unsafe code.
const MODULES: [&str; 39] = [
    "bindings/c/src/direct.rs",
    "bindings/c/src/export.rs",
    "bindings/c/src/fork_handler.rs",
    "bindings/c/src/horovod.rs",
    "bindings/c/src/lifecycle.rs",
    "bindings/c/src/marks.rs",
    "bindings/c/src/other_library.rs",
    "bindings/c/src/pointer.rs",
    "bindings/c/src/request.rs",
    "bindings/c/src/sets.rs",
    "bindings/c/src/ticket.rs",
    "bindings/python/src/dlpack.rs",
    "bindings/python/src/jax/",
    "bindings/python/src/lent_memory.rs",
    "bindings/python/src/library.rs",
    "bindings/python/src/mxnet/",
    "bindings/python/src/tensorflow/",
    "bindings/python/src/torch_tensor.rs",
    "bindings/python/src/xla_ffi/",
    "crates/device/src/allocation.rs",
    "crates/device/src/cuda/",
    "crates/device/src/nccl/",
    "crates/device/src/pinned.rs",
    "crates/device/src/pretend/memory.rs",
    "crates/device/src/stand_in.rs",
    "crates/tensor/src/element.rs",
    "crates/tensor/src/owned.rs",
    "crates/tensor/src/region.rs",
    "crates/tensor/src/simd.rs",
    "crates/tensor/src/simd/",
    "crates/trace/src/tsc.rs",
    "crates/transport/src/credentials.rs",
    "crates/transport/src/shm/",
    "crates/cluster/tests/fork.rs",
    "crates/cluster/tests/membership.rs",
    "crates/data/tests/memory/counting.rs",
    "crates/engine/tests/suite/fork.rs",
    "crates/cli/src/doctor/library.rs",
    "crates/cli/src/peer/mpi.rs",
];

/// Roots of crates that have such a module: they deny unsafe code and allow it module by module. All other roots forbid
/// it.
const ROOTS_WITH_MODULES: [&str; 7] = [
    "bindings/c/src/lib.rs",
    "bindings/python/src/lib.rs",
    "crates/device/src/lib.rs",
    "crates/tensor/src/lib.rs",
    "crates/trace/src/lib.rs",
    "crates/transport/src/lib.rs",
    "crates/cli/src/main.rs",
];

/// How far above an unsafe word its explanation may begin.
const EXPLANATION_LINES: usize = 16;

/// Complaints about unsafe code in this file.
pub(super) fn check(file: &File) -> Vec<Complaint> {
    let lines = Lines::of(&file.text);
    let mut complaints: Vec<Complaint> = root_complaint(file, &lines).into_iter().collect();
    for (index, code) in lines.code.iter().enumerate() {
        for at in word_positions(code, "unsafe") {
            let use_ = Use::at(&lines, index, at);
            let Some(wanted) = use_.explanation() else { continue };
            if !MODULES.iter().any(|module| file.path.starts_with(module)) {
                let what = "unsafe code outside its modules (the list is in xtask/src/tidy/unsafe_code.rs)";
                complaints.push(Complaint::fault(&file.path, index + 1, what));
            } else if !explained(&lines, index, wanted) {
                let what = format!("unsafe code without `{wanted}` in the comment directly above it");
                complaints.push(Complaint::fault(&file.path, index + 1, what));
            }
        }
    }
    complaints
}

/// What the word `unsafe` introduces.
#[derive(Debug, PartialEq)]
enum Use {
    /// A block, an implementation, an extern block or an attribute: somebody vouches for something.
    Vouches,
    /// A function or trait for others, which asks them to vouch.
    Asks,
    /// A type such as `unsafe fn(u8)`, or a function that does not leave its module or inherits its words from a trait:
    /// whoever calls it must explain the call.
    Silent,
}

impl Use {
    fn at(lines: &Lines, index: usize, at: usize) -> Use {
        let mut rest = lines.code[index][at + "unsafe".len()..].to_owned();
        // The next word may stand on the next line.
        rest.push(' ');
        rest.push_str(lines.code.get(index + 1).map_or("", String::as_str));
        let rest = rest.trim_start().trim_start_matches("extern").trim_start().trim_start_matches("\"\"").trim_start();
        let public = !word_positions(&lines.code[index][..at], "pub").is_empty();
        let declares = rest.starts_with("fn") || rest.starts_with("trait");
        let names_a_type = rest.strip_prefix("fn").is_some_and(|after| after.trim_start().starts_with(['(', '<']));
        match (declares, public && !names_a_type) {
            (false, _) => Use::Vouches,
            (true, true) => Use::Asks,
            (true, false) => Use::Silent,
        }
    }

    /// The words that the comment above must hold.
    fn explanation(&self) -> Option<&'static str> {
        match self {
            Use::Vouches => Some("SAFETY:"),
            Use::Asks => Some("# Safety"),
            Use::Silent => None,
        }
    }
}

/// Whether the comment directly above this line, or on it, holds these words. Attributes and earlier lines of the same
/// statement may stand between.
fn explained(lines: &Lines, index: usize, wanted: &str) -> bool {
    let holds = |at: usize| lines.comment[at].contains(wanted);
    if holds(index) {
        return true;
    }
    for above in (index.saturating_sub(EXPLANATION_LINES)..index).rev() {
        if holds(above) {
            return true;
        }
        let code = lines.code[above].trim();
        let has_comment = !lines.comment[above].is_empty();
        let attribute = code.starts_with("#[") || code.starts_with("#![");
        let ends_statement = code.ends_with([';', '{', '}', ',']) && !attribute;
        if ends_statement || (code.is_empty() && !has_comment) {
            return false;
        }
    }
    false
}

/// A root of a crate that does not say where it stands.
fn root_complaint(file: &File, lines: &Lines) -> Option<Complaint> {
    let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
    if !is_root {
        return None;
    }
    let level = if ROOTS_WITH_MODULES.contains(&file.path.as_str()) { "deny" } else { "forbid" };
    let (wanted, stricter) = (format!("#![{level}(unsafe_code)]"), "#![forbid(unsafe_code)]");
    let says = lines.code.iter().any(|code| code.contains(&wanted) || code.contains(stricter));
    (!says).then(|| Complaint::fault(&file.path, 0, format!("the root of the crate lacks `{wanted}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        check(&file).into_iter().map(|complaint| (complaint.line, complaint.what)).collect()
    }

    const MODULE: &str = "crates/transport/src/shm/map.rs";

    #[test]
    fn outside_the_modules_there_is_no_unsafe_code() {
        let found = complaints("crates/plan/src/ring.rs", "// SAFETY: none\nunsafe { x() }\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].1.contains("outside its modules"));
    }

    #[test]
    fn a_block_needs_its_explanation() {
        assert_eq!(complaints(MODULE, "fn a() {\n    unsafe { x() }\n}\n").len(), 1);
        assert_eq!(complaints(MODULE, "fn a() {\n    // SAFETY: x is fine.\n    unsafe { x() }\n}\n"), []);
        assert_eq!(complaints(MODULE, "// SAFETY: long\n// story.\nlet a =\n    unsafe { x() };\n"), []);
    }

    #[test]
    fn an_explanation_serves_one_statement() {
        let text = "// SAFETY: x.\nunsafe { x() };\nunsafe { y() };\n";
        assert_eq!(complaints(MODULE, text).into_iter().map(|(line, _)| line).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn functions_say_what_they_ask_and_types_say_nothing() {
        assert_eq!(complaints(MODULE, "/// X.\n///\n/// # Safety\n/// Y.\n#[inline]\npub unsafe fn a() {}\n"), []);
        assert_eq!(complaints(MODULE, "/// X.\npub unsafe fn a() {}\n").len(), 1);
        assert_eq!(complaints(MODULE, "/// X.\nunsafe fn a() {}\n"), []);
        assert_eq!(complaints(MODULE, "type F = unsafe extern \"C\" fn(u8);\n"), []);
    }

    #[test]
    fn words_in_comments_and_texts_are_no_code() {
        assert_eq!(complaints("crates/plan/src/a.rs", "// unsafe { }\nlet x = \"unsafe {\";\n"), []);
    }

    #[test]
    fn roots_say_where_they_stand() {
        assert_eq!(complaints("crates/plan/src/lib.rs", "//! X.\n").len(), 1);
        assert_eq!(complaints("crates/plan/src/lib.rs", "//! X.\n#![forbid(unsafe_code)]\n"), []);
        assert_eq!(complaints("crates/plan/src/lib.rs", "//! X.\n#![deny(unsafe_code)]\n").len(), 1);
        assert_eq!(complaints("crates/transport/src/lib.rs", "//! X.\n#![deny(unsafe_code)]\n"), []);
    }
}
