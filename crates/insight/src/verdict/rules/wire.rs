//! Bytes on their way: fewer of them, a better way, a shorter one.

use super::super::{Case, Finding};
use super::Saying;
use crate::replay::Change;

/// Mean size from which on time goes into bytes rather than into start-up.
const LARGE_BYTES: u64 = 256 << 10;

/// Transfer below this share of the time is not worth the minute that measuring takes, in percent.
const WORTH_MEASURING_PERCENT: f64 = 5.0;

/// Rounding what ranks tell each other is rounding what the model learns from.
const ROUNDED: &str = "gradients are rounded to 16 bits: compare the loss of a few hundred iterations with and without it, and \
                       prefer bfloat16 or loss scaling where small gradients matter";

fn large(case: &Case<'_>) -> bool {
    let traffic = case.traffic();
    traffic.calls > 0 && traffic.bytes / traffic.calls >= LARGE_BYTES
}

pub(super) fn narrow(case: &Case<'_>, _: &Finding) -> Option<Saying> {
    large(case).then(|| {
        let change = "Send gradients with 16 bits instead of 32, which halves the bytes; or train in mixed precision, which halves them as well \
                      and makes the work itself cheaper.";
        let how = [
            "hvd.DistributedOptimizer(…, compression=hvd.Compression.fp16)   # or hvd.Compression.bf16",
            "mixed precision: torch.autocast(device_type, dtype=torch.bfloat16) around the forward pass",
        ];
        Saying::new(change, &how).gaining(case.gain(&[Change::Transfer(0.5)])).careful(ROUNDED)
    })
}

pub(super) fn narrow_copies(case: &Case<'_>, _: &Finding) -> Option<Saying> {
    let copying_ns = case.copying_ns();
    (2 * copying_ns > case.split.lost_ns("packing")).then(|| {
        let change = "Ranks wait for gradients on their way from the device to the host. Halve them with 16 bits, which are rounded on the device; or \
                      exchange less often, by accumulating gradients.";
        let how = [
            "hvd.DistributedOptimizer(…, compression=hvd.Compression.fp16)   # or hvd.Compression.bf16",
            "hvd.DistributedOptimizer(…, backward_passes_per_step=2)",
        ];
        Saying::new(change, &how).gaining(case.gain(&[Change::Copies(0.5), Change::Transfer(0.5)])).careful(ROUNDED)
    })
}

pub(super) fn calibrate(case: &Case<'_>, finding: &Finding) -> Option<Saying> {
    (case.history.size() > 2 && finding.lost_percent >= WORTH_MEASURING_PERCENT).then(|| {
        let hosts = case.history.hosts();
        let change = if hosts > 1 && case.history.size() > hosts {
            "Measure once which algorithm suits these hosts (ring, halving, tree, or hierarchical: within the hosts first, then between \
             them); jobs of this shape use the table from then on."
        } else {
            "Measure once which algorithm suits this machine; jobs of this shape use the table from then on."
        };
        let (size, word) = (case.history.size(), "farandole calibrate");
        let how = match hosts {
            1 => format!("{word} -np {size}"),
            // Inside a job it measures between the job's hosts.
            _ => format!("farandole run -np {size} -H {} {word}", case.host_list()),
        };
        Saying::new(change, &[&how])
    })
}

pub(super) fn one_switch(case: &Case<'_>, _: &Finding) -> Option<Saying> {
    (case.history.hosts() > 1 && large(case)).then(|| {
        let change = "Place the hosts on one switch, where no other traffic gets in the way, and see that the fast interface is used.";
        let how = ["srun --switches=1 …", "farandole run --network-interface ib0 …"];
        Saying::new(change, &how)
    })
}
