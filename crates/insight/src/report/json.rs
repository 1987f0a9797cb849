//! A verdict for programs. `docs/report.schema.json` is the contract: names stay, new ones may come.

use serde_json::{Value, json};

use crate::efficiency::Scaling;
use crate::generations::{Departure, Generation, Generations, PHASES, Recovery};
use crate::history::{Gap, Lack};
use crate::loss::{Interval, LossCause};
use crate::report::wording::{Wording, wording};
use crate::trouble::{Trouble, Waits};
use crate::verdict::{CacheRate, DeviceUse, Devices, Finding, Gain, Topic, Verdict};

/// What the document calls itself. Another number would mean that something old has changed.
pub const SCHEMA: &str = "farandole-report/1";

/// The whole report.
pub fn report(verdict: &Verdict) -> Value {
    let split = &verdict.split;
    let losses: Vec<Value> = split
        .losses
        .iter()
        .map(|loss| {
            let (rank, phase) = responsible(&loss.cause, &loss.responsible);
            json!({
                "cause": loss.cause.key(),
                "name": loss.name(),
                "rank": rank,
                "ranks": loss.responsible,
                "phase": phase,
                "ns": loss.ns,
                "percent": split.percent(loss.ns),
            })
        })
        .collect();
    let efficiencies: serde_json::Map<String, Value> =
        verdict.efficiencies.named().iter().map(|(name, value)| (name.replace('-', "_"), json!(value))).collect();
    let reference = verdict.against.map(|(scaling, against)| {
        json!({
            "scaling": match scaling { Scaling::Strong => "strong", Scaling::Weak => "weak" },
            "computation_scaling": against.computation_scaling,
            "global_efficiency": against.global,
            "speedup": against.speedup,
        })
    });
    let mut report = json!({
        "schema": SCHEMA,
        "headline": verdict.headline,
        "window": verdict.window.to_string(),
        "ranks": verdict.size,
        "hosts": verdict.hosts,
        "iterations": verdict.iterations,
        "ns": verdict.end_ns,
        "clock_error_ns": verdict.clock_error_ns,
        "records_dropped": verdict.dropped,
        "complete": verdict.gaps.is_empty(),
        "ranks_recorded": verdict.recorded,
        "gaps": verdict.gaps.iter().map(gap).collect::<Vec<Value>>(),
        "efficiencies": efficiencies,
        "reference": reference,
        "split": {
            "total_ns": split.total_ns,
            "useful_ns": split.useful_ns,
            "exposed_communication_ns": split.exposed_ns(),
            "overlapped_communication_ns": split.overlapped_ns,
            "losses": losses,
        },
        "findings": verdict.findings.iter().map(finding).collect::<Vec<Value>>(),
    });
    if let (Value::Object(fields), false) = (&mut report, verdict.devices.is_empty()) {
        fields.insert("devices".to_owned(), devices(&verdict.devices));
    }
    if let (Value::Object(fields), Some(of)) = (&mut report, &verdict.generations) {
        fields.insert("elastic".to_owned(), elastic(of));
    }
    if let (Value::Object(fields), Some(of)) = (&mut report, &verdict.trouble) {
        fields.insert("trouble".to_owned(), trouble(of));
    }
    report
}

fn trouble(of: &Trouble) -> Value {
    let waits = |waits: &Waits| json!({ "for": waits.name, "more": waits.more, "ns": waits.ns, "rank": waits.rank });
    let ranks = of.ranks.iter().map(|rank| {
        json!({
            "rank": rank.rank,
            "host": rank.host,
            "waits": rank.waits.as_ref().map(waits),
            "text": rank.to_string(),
        })
    });
    json!({
        "occasion": of.occasion.word(),
        "text": of.text,
        "ranks": ranks.collect::<Vec<Value>>(),
    })
}

fn elastic(of: &Generations) -> Value {
    let recovery = |recovery: &Recovery| {
        let phases = PHASES.iter().zip(recovery.phases_ns).map(|(name, ns)| (format!("{name}_ns"), json!(ns)));
        let mut fields: serde_json::Map<String, Value> = phases.collect();
        fields.insert("ns".to_owned(), json!(recovery.ns()));
        fields.insert("lost_ns".to_owned(), json!(recovery.lost_ns));
        fields.insert("first_step_ns".to_owned(), json!(recovery.first_step_ns));
        fields.insert("step".to_owned(), json!(recovery.step.map(|fate| fate.word())));
        fields.insert("ranks_before".to_owned(), json!(recovery.from_size));
        Value::Object(fields)
    };
    let generation = |generation: &Generation| {
        json!({
            "number": generation.number,
            "ranks": generation.size,
            "from_ns": generation.from_ns,
            "to_ns": generation.to_ns,
            "parallel_efficiency": generation.efficiency,
            "joined": generation.joined,
            "left": generation.left.iter().map(departure).collect::<Vec<Value>>(),
            "recovery": generation.recovery.as_ref().map(recovery),
        })
    };
    json!({
        "generations": of.list.iter().map(generation).collect::<Vec<Value>>(),
        "shown": of.shown,
        "recoveries": of.recoveries(),
        "total_ns": of.total_ns,
        "lost_ns": of.lost_ns(),
        "lost_percent": of.lost_percent(),
    })
}

fn departure(Departure { member, cause }: &Departure) -> Value {
    json!({ "member": member, "cause": cause })
}

fn devices(devices: &Devices) -> Value {
    let rank = |of: &DeviceUse| {
        let [(_, packing_ns), (_, folding_ns), (_, unpacking_ns)] = of.steps_ns;
        json!({
            "rank": of.rank,
            "busy_ns": of.busy_ns,
            "communication_ns": of.communication_ns,
            "idle_ns": of.idle_ns,
            "idle_percent": of.percent(of.idle_ns),
            "hidden_input_ns": of.hidden_input_ns,
            "packing_ns": packing_ns,
            "folding_ns": folding_ns,
            "unpacking_ns": unpacking_ns,
        })
    };
    let cache = |of: &CacheRate| {
        json!({
            "cache": of.cache.word(),
            "hits": of.hits,
            "misses": of.misses,
            "hit_percent": of.hit_percent(),
        })
    };
    json!({
        "ranks": devices.ranks.iter().map(rank).collect::<Vec<Value>>(),
        "caches": devices.caches.iter().map(cache).collect::<Vec<Value>>(),
    })
}

/// Hot spots in the report; further ones have little time each.
const PLACES: usize = 10;

fn gap(gap: &Gap) -> Value {
    let until_ns = match gap.lack {
        Lack::Everything => None,
        Lack::After(at_ns) => Some(at_ns),
    };
    json!({ "rank": gap.rank, "recorded_until_ns": until_ns, "text": gap.to_string() })
}

/// The rank that a cause is about, if it is about one, and the phase.
fn responsible<'a>(cause: &'a LossCause, responsible: &[usize]) -> (Option<usize>, Option<&'a str>) {
    match (cause, responsible) {
        (LossCause::Late(rank), _) => (Some(*rank), None),
        (LossCause::Sequential(phase), _) => (None, Some(phase)),
        (_, [rank]) => (Some(*rank), None),
        _ => (None, None),
    }
}

fn finding(finding: &Finding) -> Value {
    let (rank, phase) = match &finding.topic {
        Topic::Cause(cause) => responsible(cause, &finding.responsible),
        Topic::LateByTurns => (None, None),
    };
    let advice: Vec<Value> = finding
        .advice
        .iter()
        .map(|advice| {
            let Wording { change, how, caution } = wording(&advice.recommendation);
            json!({
                "rule": advice.rule,
                "change": change,
                "how": how,
                "gain": advice.gain.map(|gain| saved(&gain)),
                "caution": caution,
            })
        })
        .collect();
    let place = |(place, percent): (&str, f64)| json!({ "place": place, "percent": percent });
    let hot_spots: Vec<Value> = finding.hot_spots.shares().take(PLACES).map(place).collect();
    json!({
        "cause": finding.topic.key(),
        "title": finding.title,
        "rank": rank,
        "ranks": finding.responsible,
        "phase": phase.or(finding.phase.as_deref()),
        "lost_ns": finding.lost_ns,
        "lost_percent": finding.lost_percent,
        "evidence": {
            "by_rank_ns": finding.evidence.by_rank_ns,
            "iterations_hit": finding.evidence.iterations_hit,
            "iterations": finding.evidence.iterations,
            "intervals": finding.evidence.intervals,
            "longest": finding.evidence.longest.iter().map(interval).collect::<Vec<Value>>(),
            "samples": finding.hot_spots.samples,
            "places": hot_spots,
            "text": finding.sentences.join(" "),
        },
        "without": finding.without.map(|gain| saved(&gain)),
        "advice": advice,
    })
}

fn saved(gain: &Gain) -> Value {
    json!({ "time_saved_percent": gain.time_saved_percent, "speedup": gain.speedup })
}

fn interval(interval: &Interval) -> Value {
    json!({
        "rank": interval.rank,
        "from_ns": interval.from_ns,
        "to_ns": interval.to_ns,
        "iteration": interval.iteration,
    })
}
