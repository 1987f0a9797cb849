//! Direct collectives of a world: on slices, on the caller's thread, in the caller's order.
//!
//! Every rank makes the same calls in the same order, as in MPI. Where ranks may bring different amounts, they tell
//! each other how much before (one more message); [`World::communicator`] has the calls for those who know already.

use farandole_plan::{Rank, ReduceOp};
use farandole_tensor::Element;

use crate::error::{Error, Result};
use crate::world::World;

impl World {
    /// Combines the data of all ranks in place. All ranks make this call together.
    ///
    /// ```
    /// # use farandole::ReduceOp;
    /// let mut world = farandole::init()?;
    /// let mut losses = [0.25f32, 0.5];
    /// world.allreduce(&mut losses, ReduceOp::Average)?;
    /// # assert_eq!(losses, [0.25, 0.5]);
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn allreduce<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.communicator().allreduce(data, op).map_err(|error| self.report(error))
    }

    /// Gives all ranks the root's data. All ranks make this call together, with slices of the same length.
    ///
    /// ```
    /// let mut world = farandole::init()?;
    /// let mut seed = [world.rank() as u64 + 17];
    /// world.broadcast(&mut seed, 0)?;
    /// assert_eq!(seed, [17]);
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<()> {
        self.communicator().broadcast(data, Rank::from(root)).map_err(|error| self.report(error))
    }

    /// Gives all ranks the root's parameters, one slice after the other. All ranks make this call together, with the
    /// same number of slices of the same lengths: once before training, so that all start from the same point.
    ///
    /// ```
    /// let mut world = farandole::init()?;
    /// let (mut weights, mut bias) = (vec![0.5f32; 12], vec![0.0f32; 3]);
    /// world.broadcast_parameters([&mut weights[..], &mut bias[..]], 0)?;
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn broadcast_parameters<'a, T: Element>(
        &mut self,
        parameters: impl IntoIterator<Item = &'a mut [T]>,
        root: usize,
    ) -> Result<()> {
        parameters.into_iter().try_for_each(|parameter| self.broadcast(parameter, root))
    }

    /// Gives all ranks what the root has, whatever its length; what the others pass is dropped. All ranks make this
    /// call together.
    ///
    /// ```
    /// let mut world = farandole::init()?;
    /// let text = if world.rank() == 0 { b"settings".to_vec() } else { Vec::new() };
    /// assert_eq!(world.broadcast_vec(text, 0)?, b"settings");
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn broadcast_vec<T: Element + Default>(&mut self, data: Vec<T>, root: usize) -> Result<Vec<T>> {
        let mut length = [data.len() as u64];
        self.broadcast(&mut length, root)?;
        let mut data = if self.rank() == root { data } else { vec![T::default(); length[0] as usize] };
        self.broadcast(&mut data, root)?;
        Ok(data)
    }

    /// Gives all ranks the data of all, one after the other in the order of the ranks; each brings as much as it likes.
    /// All ranks make this call together.
    ///
    /// ```
    /// let mut world = farandole::init()?;
    /// let own = vec![world.rank() as u32; world.rank() + 1];
    /// let all = world.allgather(&own)?;
    /// assert_eq!(all.len(), world.size() * (world.size() + 1) / 2);
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn allgather<T: Element + Default>(&mut self, own: &[T]) -> Result<Vec<T>> {
        self.allgather_counted(own).map(|(all, _)| all)
    }

    /// As [`World::allgather`], and how many elements came from each rank.
    pub fn allgather_counted<T: Element + Default>(&mut self, own: &[T]) -> Result<(Vec<T>, Vec<usize>)> {
        let ones = vec![1; self.size()];
        let mut counts = vec![0u64; self.size()];
        let gathered = self.communicator().allgather(&[own.len() as u64], &ones, &mut counts);
        gathered.map_err(|error| self.report(error))?;
        let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
        let mut all = vec![T::default(); counts.iter().sum()];
        self.communicator().allgather(own, &counts, &mut all).map_err(|error| self.report(error))?;
        Ok((all, counts))
    }

    /// Combines the data of all ranks and gives each rank its part of the result: rank after rank, the first ones one
    /// element more where it does not come out even. All ranks make this call together, with slices of the same length.
    ///
    /// ```
    /// # use farandole::ReduceOp;
    /// let mut world = farandole::init()?;
    /// let part = world.reduce_scatter(&vec![1.0f32; 4 * world.size()], ReduceOp::Sum)?;
    /// assert_eq!(part, [world.size() as f32; 4]);
    /// # Ok::<(), farandole::Error>(())
    /// ```
    pub fn reduce_scatter<T: Element + Default>(&mut self, data: &[T], op: ReduceOp) -> Result<Vec<T>> {
        let counts = shares(data.len(), self.size());
        let mut own = vec![T::default(); counts[self.rank()]];
        self.communicator().reduce_scatter(data, &counts, &mut own, op).map_err(|error| self.report(error))?;
        Ok(own)
    }

    /// Sends each rank an equal part of the data and gets one from each, in the order of the ranks. All ranks make this
    /// call together.
    ///
    /// ```
    /// let mut world = farandole::init()?;
    /// let to_each: Vec<i32> = (0..world.size() as i32).collect();
    /// let from_each = world.alltoall(&to_each)?;
    /// assert_eq!(from_each, vec![world.rank() as i32; world.size()]);
    /// # Ok::<(), farandole::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parts`] if the data cannot be divided by the number of ranks.
    pub fn alltoall<T: Element + Default>(&mut self, data: &[T]) -> Result<Vec<T>> {
        if !data.len().is_multiple_of(self.size()) {
            let (elements, ranks) = (data.len(), self.size());
            return Err(Error::Parts(format!("{elements} elements cannot be sent to {ranks} ranks in equal parts")));
        }
        let counts = vec![data.len() / self.size(); self.size()];
        self.alltoallv(data, &counts).map(|(received, _)| received)
    }

    /// Sends `counts[r]` elements to each rank `r`. Gives back what came, in the order of the ranks, and how much from
    /// each. All ranks make this call together.
    ///
    /// ```
    /// let mut world = farandole::init()?;
    /// let mut counts = vec![0; world.size()];
    /// counts[0] = 2;                                            // everything to rank 0
    /// let (received, from_each) = world.alltoallv(&[1.0f64, 2.0], &counts)?;
    /// assert_eq!(received.len(), from_each.iter().sum::<usize>());
    /// # Ok::<(), farandole::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parts`] if the counts do not fit the data or the number of ranks.
    pub fn alltoallv<T: Element + Default>(&mut self, data: &[T], counts: &[usize]) -> Result<(Vec<T>, Vec<usize>)> {
        if counts.len() != self.size() || counts.iter().sum::<usize>() != data.len() {
            let (ranks, elements) = (self.size(), data.len());
            return Err(Error::Parts(format!("{counts:?} does not say how {elements} elements go to {ranks} ranks")));
        }
        let ones = vec![1; self.size()];
        let sent: Vec<u64> = counts.iter().map(|&count| count as u64).collect();
        let mut coming = vec![0u64; self.size()];
        self.communicator().alltoall(&sent, &ones, &mut coming, &ones).map_err(|error| self.report(error))?;
        let coming: Vec<usize> = coming.into_iter().map(|count| count as usize).collect();
        let mut received = vec![T::default(); coming.iter().sum()];
        let done = self.communicator().alltoall(data, counts, &mut received, &coming);
        done.map_err(|error| self.report(error))?;
        Ok((received, coming))
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&mut self) -> Result<()> {
        self.communicator().barrier().map_err(|error| self.report(error))
    }
}

/// Elements for each rank, as even as can be.
fn shares(elements: usize, ranks: usize) -> Vec<usize> {
    (0..ranks).map(|rank| elements / ranks + usize::from(rank < elements % ranks)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_complete() {
        assert_eq!(shares(7, 3), [3, 2, 2]);
        assert_eq!(shares(2, 3), [1, 1, 0]);
    }

    #[test]
    fn parts_that_do_not_fit_are_refused_before_anybody_waits() {
        let mut world = crate::init().expect("a world of one");
        let error = world.alltoallv(&[1u8, 2], &[1]).expect_err("one is missing");
        assert_eq!(error.to_string(), "[1] does not say how 2 elements go to 1 ranks");
    }
}
