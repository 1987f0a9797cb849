//! A verdict as one page: headline, losses, strips of all ranks, timeline, messages, efficiencies, advice.
//!
//! One self-contained file, so that it can be sent and kept. Every picture consists of rectangles with positions in
//! percent of the width, and all text is HTML text, so it is readable on a telephone. A cause has a colour and a
//! pattern (`paint.rs`), and every picture has its numbers beside it; nothing depends on colours.
//!
//! No script: the page shows, and the terminal and JSON answer further questions.

mod advice;
mod bars;
mod markup;
mod paint;
mod strips;
mod style;

use crate::efficiency::{Efficiencies, Scaling};
use crate::history::History;
use crate::profile::{DEFAULT_BOUNDS_BYTES, Filter, Profile, ProfileView};
use crate::report::generations::{self, Table};
use crate::report::text::{alarm, capitalised, device_notes, gaps, notes, subject};
use crate::verdict::{DeviceUse, Verdict};

pub use markup::escaped;

/// The whole page.
pub fn page(verdict: &Verdict, history: &History) -> String {
    let profile = Profile::of(history, ProfileView::Fused, Filter::default(), &DEFAULT_BOUNDS_BYTES);
    let notes: String =
        notes(verdict).iter().map(|note| format!("<p class=\"note\">{}</p>\n", escaped(note))).collect();
    let sections = [
        generation_section(verdict),
        section("Where the time of all ranks went", "losses", &bars::waterfall(&verdict.split)),
        section("What to change", "advice", &advice::list(verdict)),
        section("Every rank", "strips", &strips::ranks(history, &verdict.split)),
        section("Over time, all ranks together", "timeline", &strips::overview(history, &verdict.split)),
        devices(verdict),
        section("Messages by size", "messages", &bars::messages(&profile)),
        section("Efficiencies", "efficiencies", &efficiencies(verdict)),
    ];
    let body = format!(
        "{patterns}\n<main>\n<header>\n<p class=\"subject\">{subject}</p>\n<h1>{headline}</h1>\n</header>\n\
         {incomplete}{sections}{notes}</main>\n",
        patterns = paint::patterns(),
        subject = escaped(&subject(verdict)),
        headline = escaped(&capitalised(&verdict.headline)),
        incomplete = incomplete(verdict),
        sections = sections.concat(),
    );
    document(&verdict.headline, "", &body)
}

/// A whole file around the body of a page, with the style of all our pages and what is to be added to it.
pub fn document(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<title>{title}</title>\n<style>{STYLE}{style}</style>\n</head>\n\
         <body>\n{body}</body>\n</html>\n",
        title = escaped(title),
        STYLE = style::STYLE,
    )
}

/// A conspicuous box, where traces are missing.
fn incomplete(verdict: &Verdict) -> String {
    let Some(alarm) = alarm(verdict) else { return String::new() };
    let lines: String = gaps(verdict).iter().map(|gap| format!("<li>{}</li>\n", escaped(gap))).collect();
    let alarm = escaped(&alarm);
    format!(
        "<div class=\"alarm\" role=\"alert\">\n<p><strong>Incomplete:</strong> {alarm}</p>\n<ul>\n{lines}</ul>\n</div>\n"
    )
}

/// A part of a page with its title.
pub fn section(title: &str, id: &str, content: &str) -> String {
    format!("<section id=\"{id}\">\n<h2>{}</h2>\n{content}</section>\n", escaped(title))
}

/// What became of an elastic job.
fn generation_section(verdict: &Verdict) -> String {
    let Some(of) = &verdict.generations else { return String::new() };
    let mut content =
        format!("<p>{}</p>\n{}", escaped(&generations::sentence(of)), table(&generations::generations(of)));
    if let Some(recoveries) = generations::recoveries(of) {
        content += &format!("<h3>Recoveries</h3>\n{}", table(&recoveries));
        content += &format!("<p class=\"note\">{}</p>\n", escaped(generations::RECOVERY_NOTE));
    }
    content += &format!("<p>{}</p>\n", escaped(&generations::scope(of)));
    section("Generations", "generations", &content)
}

/// A table whose last column is text.
fn table(Table { head, rows }: &Table) -> String {
    let head: String = head.iter().map(|title| format!("<th scope=\"col\">{}</th>", escaped(title))).collect();
    let row = |cells: &Vec<String>| {
        let last = cells.len() - 1;
        let cell = |(column, cell): (usize, &String)| match column {
            0 => format!("<th scope=\"row\">{}</th>", escaped(cell)),
            column if column == last => format!("<td class=\"words\">{}</td>", escaped(cell)),
            _ => format!("<td>{}</td>", escaped(cell)),
        };
        format!("<tr>{}</tr>\n", cells.iter().enumerate().map(cell).collect::<String>())
    };
    let rows: String = rows.iter().map(row).collect();
    format!("<div class=\"scroll\"><table>\n<tr>{head}</tr>\n{rows}</table></div>\n")
}

/// What the devices did, where ranks have some.
fn devices(verdict: &Verdict) -> String {
    let devices = &verdict.devices;
    if devices.is_empty() {
        return String::new();
    }
    let cell = |of: &DeviceUse, ns: u64| format!("<td>{:.1} %</td>", of.percent(ns));
    let row = |of: &DeviceUse| {
        let [busy, communication, idle] = [of.busy_ns, of.communication_ns, of.idle_ns].map(|ns| cell(of, ns));
        format!("<tr><th scope=\"row\">rank {}</th>{busy}{communication}{idle}</tr>\n", of.rank)
    };
    let rows: String = devices.ranks.iter().map(row).collect();
    let head = ["", "busy", "communication", "idle"].map(|name| format!("<th scope=\"col\">{name}</th>")).concat();
    let table = if rows.is_empty() {
        String::new()
    } else {
        format!("<div class=\"scroll\"><table>\n<tr>{head}</tr>\n{rows}</table></div>\n")
    };
    let notes: String =
        device_notes(devices).iter().map(|note| format!("<p class=\"note\">{}</p>\n", escaped(note))).collect();
    section("GPUs", "devices", &(table + &notes))
}

fn efficiencies(verdict: &Verdict) -> String {
    let mut rows: Vec<(String, String, usize)> = verdict
        .efficiencies
        .named()
        .into_iter()
        .zip(Efficiencies::DEPTHS)
        .map(|((name, value), depth)| (name.replace('-', " "), format!("{value:.3}"), depth))
        .collect();
    if let Some((scaling, against)) = &verdict.against {
        let kind = match scaling {
            Scaling::Strong => "strong",
            Scaling::Weak => "weak",
        };
        rows.push((format!("computation scaling ({kind})"), format!("{:.3}", against.computation_scaling), 0));
        rows.push(("global efficiency".to_owned(), format!("{:.3}", against.global), 0));
        rows.push(("speed-up".to_owned(), format!("{:.2}×", against.speedup), 0));
    }
    let rows: String = rows
        .iter()
        .map(|(name, value, depth)| {
            format!("<tr><th scope=\"row\" class=\"depth{depth}\">{}</th><td>{value}</td></tr>\n", escaped(name))
        })
        .collect();
    format!(
        "<table>\n{rows}</table>\n<p class=\"note\">The multiplicative model of the POP project: parallel = load balance × \
         communication, communication = serialisation × transfer. It knows work and everything else; what else it is stands above.</p>\n"
    )
}
