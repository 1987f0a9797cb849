//! Phases in which only some ranks work while the others wait.

use super::super::{Case, Finding, Topic};
use super::Saying;
use crate::loss::Cause;
use crate::replay::Change;

fn phase(finding: &Finding) -> Option<&str> {
    if let Topic::Cause(Cause::Sequential(name)) = &finding.topic { Some(name) } else { None }
}

pub(super) fn share(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    let name = phase(finding)?;
    let change = format!("Let all ranks take part in “{name}”: each a part of the data, and the results are averaged.");
    let how = [
        "torch:      DataLoader(test_set, sampler=DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False))",
        "tensorflow: model.evaluate(test_set.shard(hvd.size(), hvd.rank())), or the same share in a loop of your own",
        "both:       metric = hvd.allreduce(metric, name=\"test_metric\")",
    ];
    Some(Saying::new(change, &how).gaining(case.gain(&[Change::Shared(name.to_owned())])))
}

pub(super) fn move_away(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    let name = phase(finding)?;
    let change = format!("Or leave “{name}” to a job of its own, on one host, that reads the checkpoints.");
    Some(Saying::new(change, &[]).gaining(case.gain(&[Change::Moved(name.to_owned())])))
}
