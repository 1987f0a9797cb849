//! The page is one well-formed document with all its pictures, whatever a job is like.

mod jobs;

use farandole_insight::generations::{Departure, Generation, Generations, Recovery};
use farandole_insight::history::{History, TimeWindow};
use farandole_insight::report::page::page;
use farandole_insight::verdict::Verdict;
use jobs::Sketch;

fn rendered(history: &History) -> String {
    page(&Verdict::of(history, &TimeWindow::Whole, None), history)
}

/// Every tag is closed in its order, and every attribute has its quotes. Panics at the first that is not.
fn well_formed(document: &str) -> Vec<String> {
    let (mut open, mut seen) = (Vec::new(), Vec::new());
    let mut rest = document.strip_prefix("<!DOCTYPE html>").expect("a document type");
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag that ends");
        let tag = &rest[start + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        let name: String = tag.chars().take_while(|c| c.is_alphanumeric() || *c == '/').collect();
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "</{closed}>");
        } else {
            seen.push(tag.to_owned());
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        rest = &rest[end + 1..];
        if open.last().map(String::as_str) == Some("style") {
            rest = &rest[rest.find("</style>").expect("the end of the style sheet")..];
        }
    }
    assert_eq!(open, [""; 0]);
    seen
}

#[test]
fn generations_of_an_elastic_job_are_a_section_of_their_own() {
    let (_, history) = jobs::all().into_iter().next().expect("a job");
    let mut verdict = Verdict::of(&history, &TimeWindow::Whole, None);
    let left = vec![Departure { member: 1, cause: Some("killed <by> \"somebody\"".to_owned()) }];
    let recovery = Some(Recovery::default());
    let list = vec![Generation::default(), Generation { number: 2, left, recovery, ..Generation::default() }];
    verdict.generations = Some(Generations { list, total_ns: 1, shown: 2 });
    let page = page(&verdict, &history);
    let tags = well_formed(&page);
    assert!(tags.iter().any(|tag| tag == "section id=\"generations\""));
    assert!(page.contains("killed &lt;by&gt;") && page.contains("<th scope=\"col\">synchronising</th>"), "{page}");
    assert!(!rendered(&history).contains("section id=\"generations\""));
}

#[test]
fn every_job_has_a_well_formed_page_with_all_its_pictures() {
    for (name, history) in jobs::all() {
        let page = rendered(&history);
        let tags = well_formed(&page);
        for section in ["losses", "advice", "strips", "timeline", "messages", "efficiencies"] {
            assert!(tags.iter().any(|tag| *tag == format!("section id=\"{section}\"")), "{name}: {section}");
        }
        let devices = tags.iter().any(|tag| tag == "section id=\"devices\"");
        assert_eq!(devices, history.ranks.iter().any(|rank| rank.device.watched), "{name}");
        let strips = tags.iter().filter(|tag| tag.contains("class=\"bar strip\"")).count();
        assert_eq!(strips, history.recorded_size(), "{name}");
        let alarmed = tags.iter().any(|tag| tag.contains("class=\"alarm\""));
        assert_eq!(alarmed, !history.gaps.is_empty(), "{name}");
        assert!(tags.iter().any(|tag| tag.contains("class=\"bar overview\"")), "{name}");
        assert!(tags.iter().any(|tag| tag.contains("class=\"bar double\"")), "{name}");
        // Every paint that is used has its pattern.
        for used in page.split("url(#").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(page.contains(&format!("<pattern id=\"{used}\"")), "{name}: {used}");
        }
    }
}

#[test]
fn a_page_refers_to_nothing_outside() {
    let page = rendered(&jobs::everything());
    for reference in ["http:", "https:", "src=", "<link", "<script", "@import"] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn names_cannot_become_markup() {
    let page = rendered(&jobs::everything());
    assert!(page.contains("evaluation &lt;b&gt;") && !page.contains("evaluation <b>"));
}

#[test]
fn nothing_at_all_has_a_page_too() {
    well_formed(&rendered(&Sketch::new(1).finish()));
    well_formed(&rendered(&History::default()));
}

#[test]
fn a_thousand_ranks_make_a_page_of_bearable_size() {
    let mut sketch = Sketch::new(1000);
    for number in 0..20 {
        sketch.iteration(number, 0);
        (0..1000).for_each(|rank| sketch.compute(rank, jobs::MS * (10 + (rank as u64 * 7 + number * 13) % 11)));
        sketch.allreduce(1 << 20, jobs::EXCHANGE);
    }
    let page = rendered(&sketch.finish());
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
}
