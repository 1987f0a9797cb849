//! Writes the pages of jobs with one illness each into a folder, to look at them in a browser: `pages FOLDER`.

#[path = "../tests/jobs/mod.rs"]
mod jobs;

use farandole_insight::history::TimeWindow;
use farandole_insight::report::page::page;
use farandole_insight::verdict::Verdict;

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    std::fs::create_dir_all(&folder)?;
    for (name, history) in jobs::all() {
        let verdict = Verdict::of(&history, &TimeWindow::Whole, None);
        let path = format!("{folder}/{}.html", name.replace(' ', "-"));
        std::fs::write(path, page(&verdict, &history))?;
    }
    Ok(())
}
