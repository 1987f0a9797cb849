//! Tensors that are reduced together again and again: [`Convoy`].
//!
//! An optimizer reduces the same parameters' gradients in every iteration; all that changes is where they lie. A convoy
//! holds what stays: names, shapes, element types and what is to be done. Each [`Convoy::send`] then brings addresses
//! and owners, in lists that Python fills as gradients come, and gets one [`Bundle`] for all of them. So a gradient
//! does not even cost a tuple of arguments, of which Python's garbage collector would take note.
//!
//! A convoy is company on the way to the engine and nothing more: every member is a request of its own, and other ranks
//! may send theirs in any other way.

use std::sync::Arc;

use farandole::{Batch, Collective, Dtype, GroupId, Request, Submission};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::bundle::Bundle;
use crate::lent::{Loan, Piece, Pieces};
use crate::request::{element_type, len_bytes, read_group, read_op, request};
use crate::{region, world};

/// What stays the same from one iteration to the next.
#[pyclass(frozen, module = "farandole._native")]
pub(crate) struct Convoy {
    group: GroupId,
    members: Vec<Member>,
}

struct Member {
    request: Request,
    len_bytes: usize,
    dtype: Dtype,
}

#[pymethods]
impl Convoy {
    /// Members by name, shape and element type, and what is to be done with all of them. With `batch`, a name that is
    /// the same on all ranks, they are reduced together.
    #[new]
    #[pyo3(signature = (members, op, prescale, postscale, group, batch))]
    fn new(
        members: Vec<(String, Vec<u64>, u8)>,
        op: u8,
        prescale: f64,
        postscale: f64,
        group: i64,
        batch: Option<&str>,
    ) -> PyResult<Convoy> {
        let collective = Collective::Allreduce { op: read_op(op)?, prescale, postscale };
        let count = u32::try_from(members.len()).map_err(|_| PyValueError::new_err("a convoy of too many members"))?;
        let batch = batch.map(|name| Batch { name: name.into(), members: count });
        let members = members.into_iter().map(|(name, shape, dtype)| {
            let dtype = element_type(dtype)?;
            let len_bytes = len_bytes(&shape, dtype)?;
            let request =
                Request { batch: batch.clone(), ..request(&Arc::from(name), collective.clone(), dtype, shape) };
            Ok(Member { request, len_bytes, dtype })
        });
        Ok(Convoy { group: read_group(group)?, members: members.collect::<PyResult<_>>()? })
    }

    /// Hands all members in, each with the memory at its address. The owners, in the same order, live until all are
    /// done.
    fn send(&self, addresses: &Bound<'_, PyList>, owners: &Bound<'_, PyTuple>) -> PyResult<Bundle> {
        let job = world::current()?;
        if addresses.len() != self.members.len() || owners.len() != self.members.len() {
            return Err(PyValueError::new_err(format!(
                "a convoy of {} members was given {} addresses and {} owners",
                self.members.len(),
                addresses.len(),
                owners.len()
            )));
        }
        let pieces = self.members.iter().zip(addresses.iter()).map(|(member, address)| {
            let name = Arc::clone(&member.request.name);
            Ok(Piece { address: address.extract()?, len_bytes: member.len_bytes, name })
        });
        // One hold on all owners, which every region shares.
        let pieces = Pieces::Many(pieces.collect::<PyResult<_>>()?);
        let loan = Loan::begin(owners.clone().into_any().unbind(), pieces);
        let submissions: Vec<Submission> = (self.members.iter().zip(loan.pieces()))
            .map(|(member, piece)| {
                let input = region::lend_piece(piece.address, piece.len_bytes, member.dtype, Arc::clone(&loan))?;
                Ok(Submission::new(member.request.clone(), input).in_group(self.group))
            })
            .collect::<PyResult<_>>()?;
        Bundle::hand_in(&job, submissions)
    }

    fn __len__(&self) -> usize {
        self.members.len()
    }
}
