//! What `--dry-run` shows: the job spec.
//!
//! Values of variables that look like secrets are never shown; a dry run ends up in bug reports.

use std::ffi::OsString;
use std::fmt::Write;

use farandole_cluster::launch::{ElasticSpec, Gpus, HostSource, JobSpec, Mps, Verbose, variables};
use farandole_plan::Rank;

use super::job_spec::shown_value;

/// The job spec as text; `environment` is what variables for other hosts are taken from.
pub(super) fn show(spec: &JobSpec, environment: impl IntoIterator<Item = (OsString, OsString)>) -> String {
    let placement = &spec.placement;
    let hosts = placement.hosts();
    let mut text = format!("{} on {}\n\n", count(placement.size(), "rank"), count(hosts.len(), "host"));
    let width = hosts.iter().map(|host| host.name.len()).max().unwrap_or(0).max("host".len());
    line(&mut text, &format!("rank  {:width$}  local     cross", "host"));
    for rank in (0..placement.size()).map(Rank::from) {
        let place = placement.place(rank);
        let local = format!("{} of {}", place.local_rank, place.local_size);
        let cross = format!("{} of {}", place.cross_rank, place.cross_size);
        let (rank, name) = (rank.to_string(), &hosts[place.host].name);
        line(&mut text, format!("{rank:>4}  {name:width$}  {local:8}  {cross}").trim_end());
    }

    line(&mut text, "\nvariables for every rank:");
    for (name, value) in &spec.set {
        line(&mut text, &format!("  {name}={}", shown_value(name, value)));
    }
    if spec.set.is_empty() {
        line(&mut text, "  none");
    }
    if (0..hosts.len()).any(|host| !placement.is_local(host)) {
        let mut names: Vec<String> = variables::travelling(&spec.pass, environment)
            .into_iter()
            .map(|(name, _)| name.display().to_string())
            .collect();
        names.sort();
        line(&mut text, &format!("variables that go to other hosts:\n  {}", names.join(" ")));
    }
    settings(&mut text, spec);
    text
}

fn settings(text: &mut String, spec: &JobSpec) {
    let silence = match spec.silence {
        time if time.is_zero() => "never".to_owned(),
        time => format!("after {} s of silence", time.as_secs_f64()),
    };
    line(
        text,
        &format!(
            "\nto start: {} s; dead: {silence}; to end: {} s",
            spec.start_timeout.as_secs_f64(),
            spec.grace.as_secs_f64()
        ),
    );
    if spec.gpus != Gpus::default() {
        line(text, &format!("GPUs: {}", gpus(spec.gpus)));
    }
    if let Some(elastic) = &spec.elastic {
        line(text, &format!("elastic: {}", described(elastic)));
    }
    if spec.restarts > 0 {
        line(text, &format!("restarts of the whole job: {}", spec.restarts));
    }
    if !spec.network.is_empty() {
        line(text, &format!("networks: {}", spec.network.join(" ")));
    }
    if let Some(directory) = &spec.output.directory {
        line(text, &format!("output also to: {}", directory.display()));
    }
    if spec.verbose == Verbose::Yes {
        line(text, &format!("output: {:?}\nssh: {:?}", spec.output, spec.ssh));
    }
    let words: Vec<String> = spec.command.iter().map(|word| quoted(&word.display().to_string())).collect();
    line(text, &format!("in {}:\n  {}", spec.working_dir.display(), words.join(" ")));
}

fn gpus(gpus: Gpus) -> String {
    let each = gpus.ranks_each.map(|each| match each {
        1 => "a rank on each".to_owned(),
        each => format!("{each} ranks on each, which see no other; the first {each} of a host on its first"),
    });
    let mps = (gpus.mps == Mps::OfTheJob).then(|| "an MPS daemon of the job's own on each host".to_owned());
    each.into_iter().chain(mps).collect::<Vec<_>>().join("; ")
}

fn described(elastic: &ElasticSpec) -> String {
    let most = elastic.max_np.map_or("any number of".to_owned(), |most| most.to_string());
    let spares = if elastic.spares > 0 { format!(" and {}", count(elastic.spares, "spare")) } else { String::new() };
    let hosts = match &elastic.source {
        HostSource::Fixed => "the hosts above".to_owned(),
        HostSource::Script { command, .. } => format!("hosts that {command} names"),
        HostSource::File(path) => format!("hosts that {} names", path.display()),
        HostSource::Slurm { nodes, .. } => format!("nodes of the Slurm allocation {nodes} that are up"),
    };
    let (least, timeout) = (elastic.min_np, elastic.timeout.as_secs_f64());
    let slow = elastic.replace_slow.map_or_else(String::new, |iterations| {
        format!("; ranks that are slow over {iterations} iterations are replaced")
    });
    format!("{least} to {most} ranks{spares} on {hosts}; with fewer it waits {timeout} s{slow}")
}

/// A word as a shell would take it back.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn line(text: &mut String, content: &str) {
    writeln!(text, "{content}").expect("invariant: a text takes what is written to it");
}
