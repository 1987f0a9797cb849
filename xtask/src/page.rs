//! The page of `farandole report` in a real browser: Debian's chromium, without a screen.
//!
//! Tests hold the page to be one well-formed document that refers to nothing outside; what a browser makes of it only a
//! browser knows. The chore has the pages of some jobs drawn in two widths, a telephone's and a laptop's, in light and
//! in dark, and lets the browser itself look: everything has its place, nothing is wider than the screen, every bar has
//! an extent, text stands out from the page, and nobody complains in the console.
//!
//! No leg of continuous integration: a browser is three hundred megabytes, and the page has no script that could go
//! wrong.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::shell::Shell;
use crate::{no_words, tools};

/// Jobs whose pages are looked at: one with every loss, one with ranks that are missing, one with nothing lost.
const JOBS: [&str; 3] = ["everything", "two-of-four-recorded", "perfect"];

/// Draws the page in frames of both widths, and puts what is wrong into the title.
const LOOK: &str = r#"<script>
onload = () => {
  const complaints = [];
  for (const frame of document.querySelectorAll('iframe')) {
    const page = frame.contentDocument, root = page.documentElement, width = frame.clientWidth;
    const wrong = (what) => complaints.push(width + ' px: ' + what);
    if (root.scrollWidth > width) wrong('the page is ' + root.scrollWidth + ' px wide');
    for (const id of ['losses', 'advice', 'strips', 'timeline', 'messages', 'efficiencies']) {
      const box = page.getElementById(id)?.getBoundingClientRect();
      if (!box || box.height < 20) wrong('there is no section ' + id);
    }
    const bars = [...page.querySelectorAll('svg.bar')];
    if (bars.length < 3) wrong('only ' + bars.length + ' bars');
    for (const bar of bars) {
      const box = bar.getBoundingClientRect();
      if (box.width < 60 || box.height < 10) wrong('a bar of ' + box.width + ' by ' + box.height);
    }
    const style = frame.contentWindow.getComputedStyle(page.body);
    const light = (colour) => colour.match(/\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0);
    if (Math.abs(light(style.color) - light(style.backgroundColor)) < 380) wrong('text hardly stands out');
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    if (dark !== light(style.backgroundColor) < 380) wrong('the colours are not those of the reader');
  }
  document.title = complaints.length ? complaints.join('; ') : 'looks right';
};
</script>"#;

/// `cargo xtask page`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    no_words("page", words)?;
    tools::need_packages(&[tools::CHROMIUM])?;
    let folder = tools::target_dir().join("pages");
    let place = folder.to_string_lossy().into_owned();
    Shell::cargo(&["run", "--package", "farandole-insight", "--example", "pages", "--", &place]).run()?;
    for job in JOBS {
        let page = folder.join(format!("{job}.html"));
        let frames = frames(&page)?;
        for (scheme, number) in [("dark", 0), ("light", 1)] {
            let file = folder.join(format!("look-{job}.html"));
            std::fs::write(&file, &frames).with_context(|| format!("writing {}", file.display()))?;
            let said = look(&file, number)?;
            if said != "looks right" {
                bail!("{} in {scheme}: {said}", page.display());
            }
            println!("{job}, {scheme}, on a telephone and on a laptop: {said}");
        }
    }
    Ok(())
}

/// A document that shows a page in both widths.
fn frames(page: &Path) -> Result<String> {
    let text = std::fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let quoted = text.replace('&', "&amp;").replace('"', "&quot;");
    let frame = |width: u32| {
        format!("<iframe width=\"{width}\" height=\"844\" frameborder=\"0\" srcdoc=\"{quoted}\"></iframe>")
    };
    Ok(format!("<!DOCTYPE html><title>not looked at</title>{}{}{LOOK}", frame(390), frame(1280)))
}

/// What the browser says of a document, where the reader prefers these colours.
fn look(file: &Path, scheme: u8) -> Result<String> {
    let address = format!("file://{}", file.display());
    let colours = format!("--blink-settings=preferredColorScheme={scheme}");
    // The console is told of on standard error.
    let words = ["-c", "exec timeout 60 chromium \"$@\" 2>&1", "look", "--headless", "--no-sandbox", "--disable-gpu"];
    let shell = Shell::new("sh").words(&words).words(&["--window-size=1400,1000", "--enable-logging=stderr", &colours]);
    let said = shell.words(&["--dump-dom", &address]).read()?;
    if let Some(line) = said.lines().find(|line| line.contains(":CONSOLE")) {
        bail!("{}: the browser complains: {line}", file.display());
    }
    let title = said.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    title.map(str::to_owned).with_context(|| format!("{}: the browser has shown nothing", file.display()))
}
