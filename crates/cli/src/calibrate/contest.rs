//! What competes with what: for each collective that has a choice here, the ways that can run.
//!
//! Allreduce has several everywhere. On one host that is on memory of the caller's; requests that travel together in
//! the engine's mapped buffer keep their built-in choice, because what that costs begins with the packing: measured
//! without it, the mapped algorithm seemed twice as fast at 16 KB, and through the engine it was slower. Allgather and
//! broadcast have a choice between hosts alone, and only from three ranks on; with two their forms are the same
//! messages. Reducescatter, alltoall and barrier have one way each. In device memory an allreduce has two, which are
//! measured apart (`on_devices`).

use anyhow::{Result, ensure};
use farandole::{Algorithm, Communicator, Dtype, Rank, ReduceOp};
use farandole_plan::choose::{AlgorithmLimits, Choices, Formed, Means};
use farandole_plan::table::{Class, DeviceWay, Form, Measurement, Table, Way};
use farandole_plan::{Topology, Tuning};

/// One collective with several ways.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contest {
    /// What it is about, for people.
    pub(super) title: &'static str,
    /// What takes part.
    pub(super) ways: Vec<Way>,
    stake: Stake,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stake {
    Direct,
    Formed(Formed),
    /// With what is taken where nothing was measured.
    OnDevices(DeviceWay),
}

impl Contest {
    /// That of allreduces in device memory, on one host or several.
    pub(super) fn on_devices(one_host: bool) -> Contest {
        let ways = DEVICE_WAYS.map(Way::OnDevices).to_vec();
        let built_in = if one_host { DeviceWay::Own } else { DeviceWay::Nccl };
        Contest { title: "allreduce in device memory", ways, stake: Stake::OnDevices(built_in) }
    }

    /// The contests on this placement. The same on all ranks.
    pub(super) fn all(communicator: &Communicator) -> Vec<Contest> {
        let topology = communicator.topology();
        let class = Class::of(topology);
        let one_host = communicator.is_one_host();
        // Where hosts share windows, the built-in choice for large tensors is the hierarchical one through them.
        let windows = one_host || communicator.algorithm_for(usize::MAX >> 1).needs_windows();
        let useful = |algorithm: &Algorithm| !algorithm.is_hierarchical() || class.smallest > 1;
        let allowed = |means: Means| -> Vec<Way> {
            let all = Algorithm::ALL.into_iter().filter(|algorithm| means.allow(*algorithm, topology));
            all.filter(useful).map(Way::Allreduce).collect()
        };
        let mut contests =
            vec![Contest { title: "allreduce", ways: allowed(Means { windows, mapped: false }), stake: Stake::Direct }];
        if !one_host && class.ranks > 2 {
            for (title, formed) in [("allgather", Formed::Allgather), ("broadcast", Formed::Broadcast)] {
                let ways = [Form::FewSteps, Form::FewBytes].map(|form| formed.way(form)).to_vec();
                contests.push(Contest { title, ways, stake: Stake::Formed(formed) });
            }
        }
        contests
    }

    /// What is chosen at a size by these choices; `direct` answers for direct calls.
    fn chosen(&self, bytes: u64, choices: &Choices, direct: impl Fn(usize) -> Algorithm) -> Way {
        match self.stake {
            Stake::Direct => Way::Allreduce(direct(bytes as usize)),
            Stake::Formed(formed) => {
                let elems = bytes / ELEM_BYTES;
                let tuning = choices.tuned(formed, bytes, Tuning::for_dtype(Dtype::F32));
                formed.way(if elems <= tuning.small_elems { Form::FewSteps } else { Form::FewBytes })
            }
            Stake::OnDevices(built_in) => Way::OnDevices(choices.on_devices(bytes).unwrap_or(built_in)),
        }
    }

    /// What the communicator chooses now at a size, and an engine with the same table would.
    pub(super) fn chosen_now(&self, bytes: u64, communicator: &Communicator) -> Way {
        let choices = Choices::new(communicator.table().cloned(), communicator.topology(), AlgorithmLimits::default());
        self.chosen(bytes, &choices, |bytes| communicator.algorithm_for(bytes))
    }
}

/// The ways of allreduces in device memory.
pub(super) const DEVICE_WAYS: [DeviceWay; 2] = [DeviceWay::Own, DeviceWay::Nccl];

/// Elements are float32, which most gradients are.
const ELEM_BYTES: u64 = 4;

/// The sizes, rounded down to whole elements for each rank.
pub(super) fn whole_elements(sizes: &[u64], ranks: usize) -> Vec<u64> {
    let unit = ELEM_BYTES * ranks as u64;
    let mut whole: Vec<u64> =
        sizes.iter().map(|size| if *size < unit { ELEM_BYTES } else { size / unit * unit }).collect();
    whole.sort_unstable();
    whole.dedup();
    whole
}

/// A table by which nothing but one way has ever been measured, so that this way is taken at every size.
pub(super) fn only(way: Way, topology: &Topology) -> Table {
    let mut table = Table::new(Class::of(topology));
    let mut enter = |way, time_us| table.insert(Measurement { way, bytes: 1, time_us });
    enter(way, 1.0);
    match way {
        Way::Allreduce(_) | Way::OnDevices(_) => {}
        Way::Allgather(Form::FewSteps) => enter(Way::Allgather(Form::FewBytes), 2.0),
        Way::Allgather(Form::FewBytes) => enter(Way::Allgather(Form::FewSteps), 2.0),
        Way::Broadcast(Form::FewSteps) => enter(Way::Broadcast(Form::FewBytes), 2.0),
        Way::Broadcast(Form::FewBytes) => enter(Way::Broadcast(Form::FewSteps), 2.0),
    }
    table
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_elements_and_none_comes_twice() {
        assert_eq!(whole_elements(&[4, 5, 16, 1000], 3), [4, 12, 996]);
    }

    #[test]
    fn a_table_of_one_way_takes_it_at_every_size() {
        let topology = Topology::all_apart(3);
        for way in [Way::Allreduce(Algorithm::Tree), Way::Allgather(Form::FewBytes), Way::Broadcast(Form::FewSteps)] {
            let choices = Choices::new(Some(only(way, &topology).into()), &topology, AlgorithmLimits::default());
            for bytes in [4, 64 << 10, 1 << 30] {
                let stake = match way {
                    Way::Allreduce(_) => Stake::Direct,
                    Way::Allgather(_) => Stake::Formed(Formed::Allgather),
                    Way::Broadcast(_) => Stake::Formed(Formed::Broadcast),
                    Way::OnDevices(way) => Stake::OnDevices(way),
                };
                let contest = Contest { title: "", ways: vec![way], stake };
                let direct = |bytes: usize| choices.allreduce(bytes as u64, Means::default());
                assert_eq!(contest.chosen(bytes, &choices, direct), way);
            }
        }
    }
}
