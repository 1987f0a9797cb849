//! Requests whose data a device still computes: [`Computing`].
//!
//! A program submits a tensor on a device long before the device has computed it. To the ranks, a request is there when
//! its data are: it is held back here until then. So agreement, lateness, stalls and records see tensors on devices as
//! they see those in host memory, and a bucket begins when its data are there. Requests of programs that *run ahead*
//! are not held back: devices wait for their data (`exec::device::ordered`), and ranks are late when they submit late.

use farandole_device::Event;
use farandole_plan::{Device, Request};

use crate::exec::device::DevicePlane;
use crate::pending::Pending;

/// See the module's text. In the order of submission.
#[derive(Debug, Default)]
pub(super) struct Computing {
    held: Vec<Held>,
    /// The event that was last seen to have happened. Kept, so that no other gets its handle.
    happened: Option<Event>,
}

#[derive(Debug)]
struct Held {
    request: Request,
    pending: Pending,
    computed: Event,
    /// Whether the device was asked to wake the driver.
    rings: bool,
}

impl Computing {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Holds a request back if its data are not there yet; otherwise gives it back.
    pub(super) fn hold(&mut self, request: Request, mut pending: Pending) -> Option<(Request, Pending)> {
        if pending.runs_ahead {
            return Some((request, pending));
        }
        let Some(computed) = pending.ready.take() else { return Some((request, pending)) };
        if self.is_computed(&computed) {
            self.happened = Some(computed);
            return Some((request, pending));
        }
        // It counts from when the data are there.
        pending.mark.time_ns = None;
        self.held.push(Held { request, pending, computed, rings: false });
        None
    }

    /// Whether an event has happened. Requests that were submitted together share one, and a look takes microseconds:
    /// what was known of it for the request before is known for this one.
    fn is_computed(&self, computed: &Event) -> bool {
        let is_it = |known: &Event| known.handle() == computed.handle();
        if self.happened.as_ref().is_some_and(is_it) {
            return true;
        }
        let held_before = self.held.last().is_some_and(|held| is_it(&held.computed));
        !held_before && has_happened(computed)
    }

    /// The requests whose data are there now.
    pub(super) fn take_computed(&mut self) -> Vec<(Request, Pending)> {
        if self.held.is_empty() {
            return Vec::new();
        }
        // Requests that were submitted together share an event, and looks at one cost.
        let mut last = None;
        let is_computed = |held: &mut Held| {
            let handle = held.computed.handle();
            match last {
                Some((known, happened)) if known == handle => happened,
                _ => last.insert((handle, has_happened(&held.computed))).1,
            }
        };
        let computed = self.held.extract_if(.., is_computed);
        computed.map(|held| (held.request, held.pending)).collect()
    }

    /// All requests: nobody will work on them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Pending> + '_ {
        self.held.drain(..).map(|held| held.pending)
    }

    /// The driver is about to sleep: the devices must wake it.
    pub(super) fn fall_asleep(&mut self, plane: &mut DevicePlane) {
        let mut asked = None;
        for held in self.held.iter_mut().filter(|held| !held.rings) {
            let (handle, ordinal) = (held.computed.handle(), ordinal_of(&held.request));
            // A device that cannot ring has an error for whoever works on it.
            held.rings = asked == Some(handle) || plane.ring_after(ordinal, &held.computed).is_ok();
            asked = Some(handle);
        }
    }
}

/// A device that has failed computes nothing more; whoever works on its memory finds out why.
fn has_happened(event: &Event) -> bool {
    event.has_happened().unwrap_or(true)
}

fn ordinal_of(request: &Request) -> u32 {
    match request.device {
        Device::Gpu(ordinal) => ordinal,
        _ => 0,
    }
}
