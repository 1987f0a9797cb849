//! Requests that were submitted and are not done, with their memory.

use std::sync::Arc;

use farandole_plan::agree::RequestId;
use farandole_tensor::Region;

use crate::error::Error;
use crate::owed::Owed;
use crate::record::group::Mark;
use crate::submission::Returned;

/// A request that has been submitted and is not done.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) name: Arc<str>,
    pub(crate) mark: Mark,
    pub(crate) promise: Owed,
    pub(crate) input: Option<Region>,
    pub(crate) output: Option<Region>,
}

impl Pending {
    /// Tells the ticket that the request is not carried out, and hands its memory back.
    pub(crate) fn fail(self, error: Error) {
        let Pending { promise, input, output, .. } = self;
        promise.fulfil(Err(Box::new(Returned { error, input, output })));
    }

    pub(crate) fn input(&self) -> &[u8] {
        self.input.as_ref().expect("invariant: a collective on tensors has an input").as_bytes()
    }

    /// Where an in-place collective works: the output if there is one, else the input.
    pub(crate) fn target(&mut self) -> &mut [u8] {
        let region = self.output.as_mut().or(self.input.as_mut());
        region.expect("invariant: a collective on tensors has an input").as_bytes_mut()
    }

    /// The target, and the input where that is other memory.
    pub(crate) fn apart(&mut self) -> (Option<&[u8]>, &mut [u8]) {
        let input = self.input.as_mut().expect("invariant: a collective on tensors has an input");
        match &mut self.output {
            Some(output) => (Some(input.as_bytes()), output.as_bytes_mut()),
            None => (None, input.as_bytes_mut()),
        }
    }
}

/// The requests of a group, by their ids.
#[derive(Debug, Default)]
pub(crate) struct PendingTable {
    places: Vec<Option<Pending>>,
    taken: usize,
}

impl PendingTable {
    /// Enters a request.
    pub(crate) fn put(&mut self, id: RequestId, pending: Pending) {
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
        }
        let here = &mut self.places[id.index()];
        assert!(here.is_none(), "invariant: an id belongs to one request at a time");
        *here = Some(pending);
        self.taken += 1;
    }

    /// Whether no request is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// How many requests are under way.
    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    /// The names of requests under way, in no particular order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.places.iter().flatten().map(|pending| &pending.name)
    }

    /// Takes a request out.
    pub(crate) fn take(&mut self, id: RequestId) -> Pending {
        self.taken -= 1;
        self.places[id.index()].take().expect("invariant: an agreed id is in the table")
    }

    /// Takes all requests out.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Pending> + '_ {
        self.taken = 0;
        self.places.drain(..).flatten()
    }

    /// The input of a request.
    pub(crate) fn input(&self, id: RequestId) -> &[u8] {
        self.get(id).input()
    }

    /// A request.
    pub(crate) fn get(&self, id: RequestId) -> &Pending {
        self.places[id.index()].as_ref().expect("invariant: an agreed id is in the table")
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> &mut Pending {
        self.places[id.index()].as_mut().expect("invariant: an agreed id is in the table")
    }
}
