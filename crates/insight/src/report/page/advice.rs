//! The findings with their evidence and advice.

use super::markup::escaped;
use crate::report::text::{capitalised, gain_text, without_text};
use crate::report::wording::{Wording, wording};
use crate::verdict::{Advice, Finding, Verdict, percent_text};

/// All findings, largest first.
pub(super) fn list(verdict: &Verdict) -> String {
    if verdict.findings.is_empty() {
        return "<p>Nothing: no loss is worth a sentence.</p>\n".to_owned();
    }
    let findings: String = verdict.findings.iter().map(finding).collect();
    format!("<ol class=\"findings\">\n{findings}</ol>\n")
}

fn finding(finding: &Finding) -> String {
    let title = format!("{} is lost to {}", percent_text(finding.lost_percent), finding.title);
    let advice: String = finding.advice.iter().map(advice).collect();
    let without = without_text(finding).map_or(String::new(), |text| format!("<p>{}</p>\n", escaped(&text)));
    format!(
        "<li><h3>{}</h3>\n<p class=\"evidence\">{}</p>\n{without}{advice}</li>\n",
        escaped(&capitalised(&title)),
        escaped(&finding.sentences.join(" "))
    )
}

fn advice(advice: &Advice) -> String {
    let Wording { change, how, caution } = wording(&advice.recommendation);
    let how = if how.is_empty() { String::new() } else { format!("<pre>{}</pre>\n", escaped(&how.join("\n"))) };
    let gain = gain_text(advice).map_or(String::new(), |gain| format!("<p class=\"gain\">{}</p>\n", escaped(&gain)));
    let caution = caution.map_or(String::new(), |caution| {
        format!("<p class=\"caution\"><strong>Careful:</strong> {}.</p>\n", escaped(caution))
    });
    format!("<div class=\"advice\">\n<p>{}</p>\n{how}{gain}{caution}</div>\n", escaped(&change))
}
