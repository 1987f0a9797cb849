//! A colour and a pattern for every cause, and the legend that explains them.
//!
//! The colours suit colour-blind readers, in light and dark; the patterns need no colours.
//! Colours are in the style sheet, because they depend on light and dark; patterns are drawn with the colour of the
//! page.

use super::markup::{Rect, escaped, picture};
use crate::loss::LossCause;

/// What can be painted: the cause's word, its short name, and the pattern's drawing in a square of eight by eight.
const PAINTS: [(&str, &str, &str); 10] = [
    ("work", "work", ""),
    ("input", "input wait", "<path d=\"M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4\"/>"),
    ("own", "script's own code", "<path d=\"M0,0 h4 v4 h-4 z M4,4 h4 v4 h-4 z\"/>"),
    ("late", "late rank", "<path d=\"M0,0 l8,8 M8,0 l-8,8\"/>"),
    ("sequential", "sequential phase", "<circle cx=\"4\" cy=\"4\" r=\"1.4\"/>"),
    ("checkpoint", "checkpoint", "<path d=\"M0,2 h8 M0,6 h8\"/>"),
    ("agreement", "agreement", "<path d=\"M4,0 v8\"/>"),
    ("packing", "packing", "<path d=\"M0,4 h8 M4,0 v8\"/>"),
    ("transfer", "transfer", "<path d=\"M0,0 l8,8 M-2,6 l4,4 M6,-2 l4,4\"/>"),
    ("other", "other", "<circle cx=\"2\" cy=\"2\" r=\"0.8\"/><circle cx=\"6\" cy=\"6\" r=\"0.8\"/>"),
];

/// The paint of a cause; none is work.
pub(super) fn of(cause: Option<&LossCause>) -> &'static str {
    cause.map_or("work", LossCause::key)
}

/// The patterns, once for all pictures of the page.
pub(super) fn patterns() -> String {
    let patterns: String = PAINTS
        .iter()
        .map(|(key, _, drawing)| {
            format!(
                "<pattern id=\"p-{key}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">{drawing}</pattern>\n"
            )
        })
        .collect();
    format!("<svg class=\"patterns\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>\n{patterns}</defs></svg>")
}

/// What the paints mean, as far as they are used.
pub(super) fn legend(used: &[&str]) -> String {
    let entries: String = PAINTS
        .iter()
        .filter(|(key, ..)| used.contains(key))
        .map(|(key, name, _)| {
            let rect = Rect { x: 0.0, y: 0.0, width: 100.0, height: 100.0, paint: key, title: name };
            format!("<li>{}<span>{}</span></li>\n", picture("swatch", name, &rect.svg()), escaped(name))
        })
        .collect();
    format!("<ul class=\"legend\">\n{entries}</ul>\n")
}
