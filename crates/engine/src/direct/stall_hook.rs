//! How a direct call that waits too long comes to be looked into.
//!
//! A communicator has no thread that could ask the other ranks what they do, and its control lines carry nothing but
//! goodbyes. The engine of the same process has both. So the caller's thread, which has been asleep for the warning
//! time by then, leaves word with the engine and goes on waiting; it does so again whenever the wait has doubled. The
//! engines find out what is to be found out and report it as they report stalls of named requests (`group::stalls`).
//!
//! A call that does not wait that long does nothing for this: the clock is looked at only by a thread that is about to
//! sleep, as for the deadline. The engine is not kept alive by this; without one nothing is reported.

use std::sync::{Arc, Weak};
use std::time::Duration;

use farandole_plan::stall::DirectWait;

use super::Communicator;
use super::descriptor::Descriptor;
use crate::Engine;
use crate::driver::Command;
use crate::driver_lock::Push;
use crate::exec::Execution;
use crate::shared::Shared;

/// The report comes so long before the call fails by its deadline, where there is room for that: time for the answers
/// of ranks that take theirs, and to be read.
const BEFORE_DEADLINE: Duration = Duration::from_secs(10);

/// See the module's text.
pub(super) struct StallHook {
    engine: Weak<Shared>,
    /// How long a call waits before it is told.
    pub(super) after: Duration,
}

impl std::fmt::Debug for StallHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StallHook").field("after", &self.after).finish_non_exhaustive()
    }
}

impl Communicator {
    /// Has the engine of the same rank look into calls that wait for longer than its warning time, or than until
    /// shortly before they fail by their deadline. All ranks do this, or none.
    pub fn report_stalls_with(&mut self, engine: &Engine) {
        self.wait_limits.stall_shutdown = engine.wait_limits().stall_shutdown;
        self.stall_hook = engine.stall_warning().map(|warn_after| StallHook {
            engine: Arc::downgrade(engine.shared()),
            after: limit(warn_after, self.wait_limits.shortest()),
        });
    }

    /// Leaves word with the engine that this call waits.
    pub(super) fn report_wait(&self, descriptor: Descriptor, execution: &Execution, waited: Duration) {
        let Some(stall_hook) = &self.stall_hook else { return };
        let Some(engine) = stall_hook.engine.upgrade() else { return };
        let wait = DirectWait {
            operation: self.operation,
            call: Descriptor::describe(descriptor.word()).into(),
            waited,
            limit: stall_hook.after,
            missing: execution.missing(&self.mesh),
        };
        let _ = engine.driver_lock.push(Command::Waits(wait), Push::Ringing);
    }
}

fn limit(warn_after: Duration, deadline: Duration) -> Duration {
    warn_after.min(deadline.saturating_sub(BEFORE_DEADLINE).max(deadline / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_reported_before_it_fails() {
        let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
        assert_eq!(limit(minute, minute), 50 * second);
        assert_eq!(limit(minute, 10 * minute), minute);
        assert_eq!(limit(minute, 4 * second), 2 * second);
        assert_eq!(limit(second, minute), second);
        assert_eq!(limit(minute, Duration::MAX), minute, "a call that never fails is reported like a request");
    }
}
