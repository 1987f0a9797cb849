//! Bars with their numbers: losses as a waterfall, and messages by size.

use super::markup::{Rect, escaped, picture};
use crate::loss::TimeSplit;
use crate::profile::{Profile, ProfileRow, size_text};

/// From the whole down to work: every loss is a bar that begins where the one before it ended.
pub(super) fn waterfall(split: &TimeSplit) -> String {
    let mut left = 1000;
    let mut bars = String::new();
    let mut table = split.rows();
    // Work is what is left in the end.
    table.rotate_left(1);
    for row in &table {
        left -= row.tenths;
        bars += &bar_row(&row.name, row.key, (left, row.tenths));
    }
    let mut text = format!("<div class=\"bars\">\n{bars}</div>\n");
    if split.exposed_ns() + split.overlapped_ns > 0 {
        text += &format!(
            "<p class=\"note\">Agreement, packing and transfer: {:.1} % waited for, {:.1} % behind work, which is no loss.</p>\n",
            split.percent(split.exposed_ns()),
            split.percent(split.overlapped_ns)
        );
    }
    text
}

/// A name, a bar from one tenth of a percent over so many, and the number.
fn bar_row(name: &str, paint: &str, (from, tenths): (u64, u64)) -> String {
    let number = format!("{:.1} %", tenths as f64 / 10.0);
    let title = format!("{name}: {number}");
    let rect = Rect { x: from as f64 / 10.0, y: 0.0, width: tenths as f64 / 10.0, height: 100.0, paint, title: &title };
    labelled(name, &picture("bar", &title, &rect.svg()), &number)
}

fn labelled(name: &str, picture: &str, number: &str) -> String {
    format!(
        "<div class=\"row\"><span class=\"name\">{}</span>{picture}<span class=\"number\">{number}</span></div>\n",
        escaped(name)
    )
}

/// Messages by size: a bar for their number and one for their time, and the table.
pub(super) fn messages(profile: &Profile) -> String {
    let total = profile.total();
    if total.calls == 0 {
        return "<p class=\"note\">No message was sent.</p>\n".to_owned();
    }
    let mut named: Vec<(String, ProfileRow)> =
        profile.bins.iter().enumerate().map(|(bin, row)| (profile.label(bin), *row)).collect();
    if profile.empty.calls > 0 {
        named.insert(0, ("no bytes".to_owned(), profile.empty));
    }
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    let mut bars = String::new();
    let mut table = String::new();
    for (label, row) in named.iter().chain([&("total".to_owned(), total)]) {
        let bandwidth = row.busbw_gb_per_s().filter(|_| row.bytes > 0);
        let bandwidth = bandwidth.map_or_else(|| "–".to_owned(), |speed| format!("{speed:.2}"));
        table += &format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{:.2}</td><td>{bandwidth}</td></tr>\n",
            escaped(label),
            row.calls,
            size_text(row.bytes),
            row.ns as f64 / 1e6
        );
        if label == "total" {
            continue;
        }
        let (calls, time) = (share(row.calls, total.calls), share(row.ns, total.ns));
        let title = format!("{label}: {calls:.0} % of the messages, {time:.0} % of their time");
        let above = Rect { x: 0.0, y: 0.0, width: calls, height: 45.0, paint: "other", title: &title };
        let below = Rect { x: 0.0, y: 55.0, width: time, height: 45.0, paint: "transfer", title: &title };
        let number = format!("{calls:.0} / {time:.0} %");
        bars += &labelled(label, &picture("bar double", &title, &(above.svg() + &below.svg())), &number);
    }
    format!(
        "<div class=\"bars\">\n{bars}</div>\n<p class=\"note\">Upper bar: share of the messages. Lower bar: share of their time.</p>\n\
         <div class=\"scroll\"><table>\n<tr><th scope=\"col\">size</th><th scope=\"col\">calls</th><th scope=\"col\">bytes</th>\
         <th scope=\"col\">time (ms)</th><th scope=\"col\">bus bandwidth (GB/s)</th></tr>\n{table}</table></div>\n"
    )
}
