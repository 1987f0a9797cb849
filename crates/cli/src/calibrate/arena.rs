//! The memory on which ways are measured, and how each way is run on it.

use anyhow::{Result, ensure};
use farandole::{Communicator, Rank, ReduceOp};
use farandole_plan::table::{Form, Way};
use farandole_study::calibration::contest::{Contest, ELEM_BYTES};

/// The memory of one size, and how each way is run on it.
pub(super) struct Arena {
    own: Vec<f32>,
    all: Vec<f32>,
}

impl Arena {
    /// Memory for operations of this size.
    pub(super) fn new(bytes: u64, contests: &[Contest]) -> Arena {
        let gathers = contests.iter().any(|contest| contest.ways.contains(&Way::Allgather(Form::FewSteps)));
        let elems = (bytes / ELEM_BYTES) as usize;
        Arena { own: vec![0.0; elems], all: vec![0.0; if gathers { elems } else { 0 }] }
    }

    /// Runs one operation. The communicator has agreed on a table that takes this way.
    pub(super) fn run(&mut self, communicator: &mut Communicator, way: Way) -> Result<()> {
        match way {
            Way::Allreduce(_) => communicator.allreduce(&mut self.own, ReduceOp::Sum)?,
            Way::OnDevices(_) => unreachable!("device memory is measured through the engine"),
            Way::Broadcast(_) => communicator.broadcast(&mut self.own, Rank(0))?,
            Way::Allgather(_) => {
                let counts = self.counts(communicator.size());
                let own = counts[communicator.rank().index()];
                communicator.allgather(&self.own[..own], &counts, &mut self.all)?;
            }
        }
        Ok(())
    }

    /// Runs one operation on known data and refuses a wrong result: the fastest way to be wrong must not win. Leaves
    /// zeros behind, on which arithmetic is equally fast however often it is repeated.
    pub(super) fn check(&mut self, communicator: &mut Communicator, way: Way) -> Result<()> {
        let (rank, size) = (communicator.rank().index(), communicator.size());
        self.own.fill(rank as f32 + 1.0);
        communicator.barrier()?;
        self.run(communicator, way)?;
        let sum = (size * (size + 1)) as f32 / 2.0;
        let right = match way {
            Way::Allreduce(_) | Way::OnDevices(_) => self.own.iter().all(|&x| x == sum),
            Way::Broadcast(_) => self.own.iter().all(|&x| x == 1.0),
            Way::Allgather(_) => {
                let owners = self.counts(size).into_iter().enumerate();
                let expected = owners.flat_map(|(owner, count)| std::iter::repeat_n(owner as f32 + 1.0, count));
                self.all.iter().zip(expected).all(|(&x, expected)| x == expected)
            }
        };
        ensure!(right, "{way} gave a wrong result for {} elements on rank {rank}: nothing is kept", self.own.len());
        communicator.barrier()?;
        self.own.fill(0.0);
        Ok(())
    }

    /// Elements that come from each rank in an allgather.
    fn counts(&self, ranks: usize) -> Vec<usize> {
        let elems = self.own.len();
        (0..ranks).map(|rank| elems * (rank + 1) / ranks - elems * rank / ranks).collect()
    }
}
