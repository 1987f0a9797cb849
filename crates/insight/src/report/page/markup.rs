//! The few pieces of markup that everything is made of.

/// Text that cannot be mistaken for markup.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // Control characters are not allowed in a document, whatever a tensor is called.
            character if character.is_control() && character != '\n' => safe.push('\u{fffd}'),
            character => safe.push(character),
        }
    }
    // A number and its sign stay on one line.
    safe.replace(" %", "\u{a0}%")
}

/// A rectangle of a picture; places and sizes in percent of it, so that it fits any width.
pub(super) struct Rect<'a> {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    /// Which paint it has.
    pub(super) paint: &'a str,
    /// What it says when it is pointed at.
    pub(super) title: &'a str,
}

impl Rect<'_> {
    /// Two rectangles: the colour, and the pattern over it.
    pub(super) fn svg(&self) -> String {
        let Rect { x, y, width, height, paint, title } = self;
        let place = format!("x=\"{x:.3}%\" y=\"{y:.2}%\" width=\"{width:.3}%\" height=\"{height:.2}%\"");
        format!(
            "<g><title>{}</title><rect {place} class=\"c-{paint}\"/><rect {place} fill=\"url(#p-{paint})\"/></g>\n",
            escaped(title)
        )
    }
}

/// A picture of rectangles.
pub(super) fn picture(class: &str, label: &str, rects: &str) -> String {
    format!("<svg class=\"{class}\" width=\"100%\" role=\"img\" aria-label=\"{}\">\n{rects}</svg>\n", escaped(label))
}
