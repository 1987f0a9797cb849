//! Documents are true: links resolve, and ARCHITECTURE.md names what exists.
//!
//! Links of all documents are followed if they are relative; the part after `#` must be a heading of the document it
//! points to. ARCHITECTURE.md must name every crate, and what it names in backticks as a path must be there. What a
//! file does stands in the file.

use super::Complaint;
use super::tree::{File, Tree};

/// The document that holds the map.
const MAP: &str = "ARCHITECTURE.md";

/// Complaints about links of this document that lead nowhere.
pub(super) fn check_links(file: &File, tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (index, line) in prose(&file.text) {
        for link in links(line) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
            let target = if path.is_empty() { file.path.clone() } else { join(&file.path, path) };
            if !tree.exists(&target) {
                complaints.push(Complaint::fault(&file.path, index + 1, format!("the link to {link} leads nowhere")));
            } else if let (Some(heading), Some(text)) = (heading, tree.text(&target))
                && !prose(text).filter_map(|(_, line)| anchor(line)).any(|anchor| anchor == heading)
            {
                let what = format!("{target} has no heading #{heading}");
                complaints.push(Complaint::fault(&file.path, index + 1, what));
            }
        }
    }
    complaints
}

/// Complaints about the map: crates it does not name, paths it names that are not there.
pub(super) fn check_map(tree: &Tree) -> Vec<Complaint> {
    let Some(map) = tree.text(MAP) else { return vec![Complaint::fault(MAP, 0, "there is no map")] };
    let mut complaints = Vec::new();
    for krate in crates(tree) {
        if !map.contains(&format!("`{krate}`")) {
            complaints.push(Complaint::fault(MAP, 0, format!("nothing names `{krate}`")));
        }
    }
    for (index, line) in prose(map) {
        for path in line.split('`').skip(1).step_by(2).filter(|span| is_path(span)) {
            if !tree.exists(path) {
                complaints.push(Complaint::fault(MAP, index + 1, format!("`{path}` is not there")));
            }
        }
    }
    complaints
}

/// The folders under `crates/`.
fn crates(tree: &Tree) -> Vec<String> {
    let manifests = tree.files.iter().filter_map(|file| file.path.strip_suffix("/Cargo.toml"));
    manifests.filter(|folder| folder.starts_with("crates/")).map(str::to_owned).collect()
}

/// Whether a code span is meant as a path of this tree.
fn is_path(span: &str) -> bool {
    let roots = ["crates/", "xtask/", "docs/", "fuzz/", "examples/", "bindings/", ".ci/", ".config/"];
    roots.iter().any(|root| span.starts_with(root)) && !span.contains(['*', '<', '{', ' ', '…'])
}

/// The lines outside code blocks, with their numbers from zero.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_block ^= fence;
        !in_block && !fence
    })
}

/// The targets of `[text](target)` on this line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, _)| {
        let rest = &line[at + 2..];
        rest.find(')').map(|end| &rest[..end])
    })
}

/// How a link names this line, if it is a heading.
fn anchor(line: &str) -> Option<String> {
    let title = line.trim_start_matches('#');
    if title.len() == line.len() || !title.starts_with(' ') {
        return None;
    }
    let kept = title.trim().to_lowercase().replace(' ', "-");
    Some(kept.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect())
}

/// A path as seen from a file, made relative to the root.
fn join(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn tree(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        Tree { files: files.iter().map(file).collect() }
    }

    fn link_complaints(text: &str) -> Vec<usize> {
        let tree = tree(&[("docs/a.md", text), ("docs/b.md", "# One heading: `x`\n"), ("README.md", "# R\n")]);
        check_links(&tree.files[0], &tree).into_iter().map(|complaint| complaint.line).collect()
    }

    #[test]
    fn links_lead_somewhere() {
        assert_eq!(link_complaints("[a](b.md) [b](../README.md) [c](https://x.y/z)\n"), NONE);
        assert_eq!(link_complaints("\n[a](nowhere.md)\n"), [2]);
        assert_eq!(link_complaints("```\n[a](nowhere.md)\n```\n"), NONE);
    }

    #[test]
    fn headings_that_links_name_are_there() {
        assert_eq!(link_complaints("[a](b.md#one-heading-x)\n"), NONE);
        assert_eq!(link_complaints("[a](b.md#two)\n"), [1]);
        assert_eq!(link_complaints("## Mine\n[a](#mine) [b](#yours)\n"), [2]);
    }

    fn map_complaints(map: &str) -> Vec<String> {
        let files =
            [(MAP, map), ("crates/x/Cargo.toml", ""), ("crates/x/src/lib.rs", ""), ("crates/x/src/ring.rs", "")];
        let tree = tree(&files);
        check_map(&tree).into_iter().map(|complaint| complaint.what).collect()
    }

    #[test]
    fn the_map_names_every_crate() {
        assert_eq!(map_complaints("# Map\n- `crates/x`: rings\n"), [""; 0]);
        assert_eq!(map_complaints("# Map\n"), ["nothing names `crates/x`"]);
    }

    #[test]
    fn the_map_shows_nothing_that_is_not_there() {
        let found = map_complaints("### `crates/x`\n`ring.rs` and `crates/x/src/tree.rs`\n");
        assert_eq!(found, ["`crates/x/src/tree.rs` is not there"]);
    }
}
