//! The page is whole, refers to nothing outside, and holds what was found.

use super::*;
use crate::findings::Findings;
use crate::run::{Measured, Run, RunOutcome};
use crate::sweep::{self, Axes};

fn findings() -> Findings {
    let axes = Axes {
        kind: StudyKind::Weak,
        models: vec!["<net> & co".into()],
        ranks: vec![1, 2, 4],
        threads: 1,
        batches: vec![8],
        total_batch: 8,
        precisions: vec!["f32".into()],
        planes: vec!["staged".into(), "own".into(), "nccl".into()],
        cores: 4,
        baseline: None,
        input: None,
    };
    let points = sweep::points(&axes).unwrap();
    let run = |position: usize, repeat: usize, per_s: f64| Run {
        point: points[position].clone(),
        repeat,
        seconds: 1.0,
        outcome: RunOutcome::Measured(Measured {
            per_s,
            unit: "samples".into(),
            phases: vec![("forward".into(), 0.01), ("backward".into(), 0.02)],
            split: vec![("work".into(), 90.0), ("transfer".into(), 10.0)],
            messages: Vec::new(),
            input: None,
        }),
    };
    let runs = [run(0, 0, 100.0), run(0, 1, 104.0), run(1, 0, 180.0), run(2, 0, 300.0)];
    Findings::of(&axes, &points, &runs).unwrap()
}

#[test]
fn the_page_holds_charts_tables_and_sentences_and_needs_nothing_else() {
    let page = page(&findings(), "weak scaling of <net>");
    for id in ["throughput", "speed-up", "efficiency", "phases", "causes", "table", "sentences"] {
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id} is missing");
    }
    assert_eq!(page.matches("class=\"chart\"").count(), 3);
    assert!(page.contains("Gustafson"));
    assert!(!page.contains("<net>"), "text must not become markup");
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn every_element_that_is_opened_is_closed() {
    let page = page(&findings(), "subject");
    for tag in
        ["svg", "section", "table", "tr", "td", "th", "div", "g", "text", "p", "ul", "li", "main", "body", "html"]
    {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}
