//! What the driver does when something goes wrong: a group fails, somebody aborts, or the driver itself panics.

use crate::driver::Driver;
use crate::error::{Error, Failure};
use crate::group::{GroupError, TurnInput};
use crate::pending::take_orphans;
use crate::submission::Returned;
use farandole_plan::stall::DirectWait;
use farandole_plan::{ErrorClass, GroupId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

impl Driver {
    /// Ends everything after a panic. Every request gets an answer that names it: those in the groups, and those that
    /// unwinding has dropped. Orders that were not taken yet are taken in the next turn, and find their groups ended.
    pub(crate) fn survive(&mut self, what: &str) {
        let orphans = take_orphans();
        let ended = catch_unwind(AssertUnwindSafe(|| self.fail_all(GroupError::Panicked(what.to_owned()))));
        let error = self.tensor_table.ended(GroupId::WORLD).unwrap_or_else(|| {
            let what = what.to_owned();
            Error::from(Failure { what, class: ErrorClass::Other, rank: None, tensor: None, elapsed: None })
        });
        if ended.is_err() {
            // Whatever state the groups are in, the requests are there.
            self.tensor_table.end_all(&error);
            let now = self.start.elapsed();
            self.groups.iter_mut().for_each(|group| group.fail_requests(&error, now));
        }
        for recipient in orphans.into_iter().chain(take_orphans()) {
            recipient.answer(Err(Returned::without_memory(error.clone())));
        }
    }

    /// Ends all groups if the abort handle has rung. Says whether it is news.
    pub(crate) fn check_abort(&mut self) -> bool {
        let Some(abort) = self.abort.aborted().filter(|_| !self.aborted).cloned() else { return false };
        self.aborted = true;
        let lost = abort.peer;
        if let Some(peer) = lost {
            self.groups.iter_mut().for_each(|group| group.expect_nothing_of(peer));
        }
        self.fail_all(GroupError::Aborted(abort));
        if lost.is_none() {
            let now = self.now();
            self.groups.iter_mut().for_each(|group| group.expect_little(now));
        }
        true
    }

    /// A group is in error.
    pub(crate) fn fail(&mut self, index: usize, group_error: GroupError) {
        if self.check_abort() {
            return;
        }
        let now = self.now();
        let failure = self.groups[index].first_cause(group_error, &self.waiter, now);
        // Finding the cause may have taken a while.
        if self.check_abort() {
            return;
        }
        match self.groups[index].id() {
            GroupId::WORLD => self.end_all(failure),
            _ => {
                let turn = TurnInput { now: self.now(), tensor_table: &self.tensor_table, on_stall: &*self.on_stall };
                self.groups[index].fail(&Error::from(failure), &turn);
            }
        }
    }

    /// All groups are in the same error.
    pub(crate) fn fail_all(&mut self, group_error: GroupError) {
        let now = self.now();
        let failure = match self.groups.first_mut() {
            Some(group) => group.first_cause(group_error, &self.waiter, now),
            None => return,
        };
        self.end_all(failure);
    }

    pub(crate) fn end_all(&mut self, failure: Failure) {
        let error = Error::from(failure);
        self.tensor_table.end_all(&error);
        let now = self.now();
        for group in &mut self.groups {
            let turn = TurnInput { now, tensor_table: &self.tensor_table, on_stall: &*self.on_stall };
            group.fail(&error, &turn);
        }
    }

    /// A direct call of this rank waits. The world looks into it.
    pub(crate) fn tell_of_direct_call(&mut self, wait: DirectWait, now: Duration) {
        let turn = TurnInput { now, tensor_table: &self.tensor_table, on_stall: &*self.on_stall };
        let Some(world) = self.groups.first_mut().filter(|world| world.id() == GroupId::WORLD) else { return };
        if let Err(group_error) = world.tell_of_direct_call(wait, &turn) {
            self.fail(0, group_error);
        }
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}
