//! The efficiencies of the POP project's multiplicative model.
//!
//! With `n` ranks, the time `T`, the useful time `u_r` of rank `r`, and `T_ideal`, the time on a network on which an
//! operation is done as soon as the last rank has come:
//!
//! ```text
//! load balance               = mean(u_r) / max(u_r)
//! serialisation efficiency   = max(u_r) / T_ideal
//! transfer efficiency        = T_ideal / T
//! communication efficiency   = max(u_r) / T       = serialisation × transfer
//! parallel efficiency        = mean(u_r) / T      = load balance × communication
//! own-code efficiency        = T_ideal without own code / T_ideal: a factor of the serialisation efficiency
//! ```
//!
//! The model knows work and everything else. An input pipeline that starves all ranks alike leaves the load balanced
//! and appears as communication; that is what [`loss`](crate::loss) is for. Parallel efficiency is the useful share of
//! the split there.
//!
//! Between two runs, *computation scaling* is how much useful time the reference needed for the same work, and *global
//! efficiency* its product with the parallel efficiency. What the same work is depends on the study: [`Scaling`].

use crate::history::History;
use crate::replay::{Change, IDEAL_NETWORK, predicted_ns};

/// The efficiencies of one history, each between zero and one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiencies {
    /// Load balance times communication.
    pub parallel: f64,
    /// How evenly work is spread over the ranks.
    pub load_balance: f64,
    /// Serialisation times transfer.
    pub communication: f64,
    /// What waiting for each other leaves, were the network ideal.
    pub serialisation: f64,
    /// The part of it that the script's own code leaves: one if there is none.
    pub own_code: f64,
    /// What the network leaves.
    pub transfer: f64,
}

impl Efficiencies {
    /// The efficiencies of a history.
    pub fn of(history: &History) -> Efficiencies {
        let useful_ns: Vec<u64> = history.recorded().map(|rank| history.ranks[rank].useful_ns()).collect();
        let most_ns = useful_ns.iter().copied().max().unwrap_or(0);
        let mean_ns = useful_ns.iter().sum::<u64>() as f64 / useful_ns.len().max(1) as f64;
        let ideal_ns = predicted_ns(history, &IDEAL_NETWORK).clamp(most_ns, history.end_ns.max(most_ns));
        let mut without_own = IDEAL_NETWORK.to_vec();
        without_own.push(Change::NoOwnCode);
        let without_own_ns = predicted_ns(history, &without_own).clamp(most_ns, ideal_ns);
        let communication = ratio(most_ns as f64, history.end_ns as f64);
        let load_balance = ratio(mean_ns, most_ns as f64);
        Efficiencies {
            parallel: load_balance * communication,
            load_balance,
            communication,
            serialisation: ratio(most_ns as f64, ideal_ns as f64),
            own_code: ratio(without_own_ns as f64, ideal_ns as f64),
            transfer: ratio(ideal_ns as f64, history.end_ns as f64),
        }
    }

    /// How deep the rows of [`Efficiencies::named`] lie in a table: each is a factor of the one above it that lies less
    /// deep.
    pub const DEPTHS: [usize; 6] = [0, 1, 1, 2, 3, 2];

    /// Names and values, as tables and `--fail-below` have them.
    pub fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("parallel-efficiency", self.parallel),
            ("load-balance", self.load_balance),
            ("communication-efficiency", self.communication),
            ("serialisation-efficiency", self.serialisation),
            ("own-code-efficiency", self.own_code),
            ("transfer-efficiency", self.transfer),
        ]
    }
}

/// What is kept the same when a job is given more ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// The batch of all ranks together: an iteration is the same work for any number of ranks.
    Strong,
    /// The batch of each rank: an iteration is the same work for each rank.
    Weak,
}

/// A history beside a reference, mostly one with fewer ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AgainstReference {
    /// Useful time of the reference for the same work, as a share of ours. Above one: our work has become cheaper.
    pub computation_scaling: f64,
    /// Parallel efficiency times computation scaling.
    pub global: f64,
    /// How much more work is done in the same time.
    pub speedup: f64,
}

impl AgainstReference {
    /// Sets a history beside its reference. `None` if one of them has no iterations, whose number says how much was
    /// done.
    pub fn of(history: &History, reference: &History, scaling: Scaling) -> Option<AgainstReference> {
        let useful_ns = |history: &History| -> f64 {
            // Ranks that are not recorded are taken to have worked like the others.
            let of_recorded: f64 = history.ranks.iter().map(|rank| rank.useful_ns() as f64).sum();
            let all = history.size() as f64 / history.recorded_size().max(1) as f64;
            of_recorded * all / history.iterations() as f64
        };
        if history.iterations() == 0 || reference.iterations() == 0 {
            return None;
        }
        let growth = match scaling {
            Scaling::Strong => 1.0,
            Scaling::Weak => history.size() as f64 / reference.size() as f64,
        };
        let per_iteration_ns = |history: &History| history.end_ns as f64 / history.iterations() as f64;
        let computation_scaling = ratio(useful_ns(reference) * growth, useful_ns(history));
        Some(AgainstReference {
            computation_scaling,
            global: Efficiencies::of(history).parallel * computation_scaling,
            speedup: ratio(per_iteration_ns(reference) * growth, per_iteration_ns(history)),
        })
    }
}

/// A ratio; nothing of nothing is all of it.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 1.0 } else { part / whole }
}
