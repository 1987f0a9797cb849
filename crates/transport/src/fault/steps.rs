//! Faults in windows: a [`Gate`] that counts each point as an event of its rank.
//!
//! A delay is taken on the spot: whoever is slow in shared memory is slow with its own thread. Nobody but the driver of
//! a test is ever delayed, so the rule that nothing blocks stays one of the product.

use farandole_plan::Rank;

use super::{AllEnds, FaultAction, Faults, lock};
use crate::error::Result;
use crate::shm::{Gate, Pass, Point};

/// Strikes one rank's way through its windows.
pub(super) struct FaultyGate {
    faults: Faults,
    me: Rank,
    ends: AllEnds,
    operation: u64,
    /// The points of this operation that the rank has come to, and the answers: a point is one event however often it
    /// is tried.
    passed: Vec<(Point, Pass)>,
}

impl FaultyGate {
    pub(super) fn new(faults: Faults, me: Rank, ends: AllEnds) -> FaultyGate {
        FaultyGate { faults, me, ends, operation: 0, passed: Vec::new() }
    }

    fn strike(&self, action: FaultAction) -> Pass {
        match action {
            FaultAction::Drop => return Pass::Shut,
            FaultAction::Delay(time) => std::thread::sleep(time),
            FaultAction::Cut => {
                let ends = lock(&self.ends);
                // All peers but this rank, in order: the next rank has this rank's own number there.
                if let Some(next) = ends.get(self.me.index()).or(ends.first()) {
                    lock(next).close();
                }
            }
            // There is nothing between two ranks that share memory which could damage it.
            FaultAction::Corrupt => {}
            FaultAction::Kill => self.faults.kill(self.me, &self.ends),
        }
        Pass::Open
    }
}

impl Gate for FaultyGate {
    fn pass(&mut self, operation: u64, point: Point) -> Result<Pass> {
        if self.operation != operation {
            self.operation = operation;
            self.passed.clear();
        }
        let known = self.passed.iter().find(|(passed, _)| *passed == point).map(|(_, pass)| *pass);
        let pass = known.unwrap_or_else(|| {
            let action = self.faults.step(self.me, operation);
            let pass = action.map_or(Pass::Open, |action| self.strike(action));
            self.passed.push((point, pass));
            pass
        });
        if self.faults.is_killed(self.me) { Err(self.faults.gone(self.me, self.me)) } else { Ok(pass) }
    }
}

impl std::fmt::Debug for FaultyGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyGate").field("me", &self.me).field("operation", &self.operation).finish_non_exhaustive()
    }
}
