//! How far the slices of a shard have come on their way to other hosts and back: [`Pipeline`].
//!
//! Every slice is copied to the host, travels, and is copied back to the device; one behind another, so five counts say
//! it all. While a slice travels, the next [`AHEAD`] are copied to the host and those before it are copied back. The
//! invariant: no slice is ahead of the one before it, and none travels before it is on the host or is copied back
//! before it has travelled.
//!
//! Pure: who copies and who sends is `exchange`.

/// How many slices are on the host, or on their way there, beyond the one that travels. One would do if copies took
/// equally long; a second one covers a device that is busy with something else for a moment. More would only put copies
/// to the host before what else the device has to do.
const AHEAD: usize = 2;

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pipeline {
    slices: usize,
    /// Slices whose copy to the host was begun, and is done.
    fetched: usize,
    on_host: usize,
    /// Slices that have travelled.
    across: usize,
    /// Slices whose copy to the device was begun, and is done.
    returned: usize,
    back: usize,
}

impl Pipeline {
    /// So many slices on the device.
    pub(super) fn new(slices: usize) -> Pipeline {
        Pipeline { slices, fetched: 0, on_host: 0, across: 0, returned: 0, back: 0 }
    }

    /// All of them are on the host without a copy.
    pub(super) fn begin_on_host(&mut self) {
        (self.fetched, self.on_host) = (self.slices, self.slices);
    }

    /// The slice whose copy to the host is to be begun now, if it is time for one.
    pub(super) fn next_to_host(&mut self) -> Option<usize> {
        let is_due = self.fetched < self.slices && self.fetched <= self.across + AHEAD;
        is_due.then(|| next(&mut self.fetched))
    }

    /// So many copies to the host are not done.
    pub(super) fn note_on_host(&mut self, under_way: usize) {
        self.on_host = self.fetched - under_way;
    }

    /// How many slices are on the host or have been there: these may travel.
    pub(super) fn on_host(&self) -> usize {
        self.on_host
    }

    /// So many slices have travelled.
    pub(super) fn note_across(&mut self, across: usize) {
        assert!(across <= self.on_host, "invariant: only slices that are on the host travel");
        self.across = across;
    }

    /// Whether all have travelled.
    pub(super) fn are_all_across(&self) -> bool {
        self.across == self.slices
    }

    /// The slice whose copy to the device is to be begun now, if there is one.
    pub(super) fn next_to_device(&mut self) -> Option<usize> {
        (self.returned < self.across).then(|| next(&mut self.returned))
    }

    /// So many copies to the device are not done.
    pub(super) fn note_back(&mut self, under_way: usize) {
        self.back = self.returned - under_way;
    }

    /// Whether all slices are back.
    pub(super) fn is_over(&self) -> bool {
        self.back == self.slices
    }
}

/// Counts one more, and gives its number.
fn next(count: &mut usize) -> usize {
    *count += 1;
    *count - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(mut take: impl FnMut() -> Option<usize>) -> Vec<usize> {
        std::iter::from_fn(&mut take).collect()
    }

    #[test]
    fn one_slice_goes_there_and_back() {
        let mut pipeline = Pipeline::new(1);
        assert_eq!(drain(|| pipeline.next_to_host()), [0]);
        pipeline.note_on_host(1);
        assert_eq!((pipeline.on_host(), pipeline.next_to_device()), (0, None));
        pipeline.note_on_host(0);
        assert_eq!((pipeline.on_host(), pipeline.next_to_device()), (1, None));
        pipeline.note_across(1);
        assert_eq!(drain(|| pipeline.next_to_device()), [0]);
        pipeline.note_back(1);
        assert!(pipeline.are_all_across() && !pipeline.is_over());
        pipeline.note_back(0);
        assert!(pipeline.is_over());
    }

    #[test]
    fn while_a_slice_travels_the_next_come_and_those_before_go_back() {
        let mut pipeline = Pipeline::new(9);
        assert_eq!(drain(|| pipeline.next_to_host()), [0, 1, 2]);
        pipeline.note_on_host(1);
        pipeline.note_across(1);
        assert_eq!(drain(|| pipeline.next_to_device()), [0]);
        assert_eq!(drain(|| pipeline.next_to_host()), [3], "one more than before may come");
        pipeline.note_on_host(0);
        pipeline.note_across(4);
        assert_eq!(drain(|| pipeline.next_to_device()), [1, 2, 3]);
        assert_eq!(drain(|| pipeline.next_to_host()), [4, 5, 6]);
        pipeline.note_back(2);
        assert!(!pipeline.are_all_across() && !pipeline.is_over());
    }

    #[test]
    fn nothing_is_over_at_once_and_what_is_on_the_host_is_not_fetched() {
        let mut none = Pipeline::new(0);
        assert!(none.is_over() && none.next_to_host().is_none());
        let mut pipeline = Pipeline::new(3);
        pipeline.begin_on_host();
        assert_eq!((pipeline.on_host(), pipeline.next_to_host()), (3, None));
    }

    #[test]
    #[should_panic(expected = "only slices that are on the host travel")]
    fn what_is_not_on_the_host_does_not_travel() {
        let mut pipeline = Pipeline::new(2);
        pipeline.next_to_host();
        pipeline.note_on_host(1);
        pipeline.note_across(1);
    }
}
