//! What competes with what: for each collective that has a choice here, the ways that can run.
//!
//! Allreduce has several everywhere. On one host that is on memory of the caller's; requests that travel together in
//! the engine's mapped buffer keep their built-in choice, because what that costs begins with the packing: measured
//! without it, the mapped algorithm seemed twice as fast at 16 KB, and through the engine it was slower. Allgather and
//! broadcast have a choice between hosts alone, and only from three ranks on; with two their forms are the same
//! messages. Reducescatter, alltoall and barrier have one way each. In device memory an allreduce has two, which are
//! measured apart (`on_devices`).

use farandole_plan::choose::{Choices, Formed, Means};
use farandole_plan::table::{Class, DeviceWay, Form, Measurement, Table, Way};
use farandole_plan::{Algorithm, Dtype, Topology, Tuning};

/// One collective with several ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Contest {
    /// What it is about, for people.
    pub title: &'static str,
    /// What takes part.
    pub ways: Vec<Way>,
    stake: Stake,
}

/// What decides which contests there are.
#[derive(Clone, Copy, Debug)]
pub struct CalibratedRanks<'a> {
    /// Which ranks are on which hosts.
    pub topology: &'a Topology,
    /// Whether all ranks share memory.
    pub one_host: bool,
    /// Whether direct calls have windows.
    pub windows: bool,
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
    pub fn on_devices(one_host: bool) -> Contest {
        let ways = DEVICE_WAYS.map(Way::OnDevices).to_vec();
        let built_in = if one_host { DeviceWay::Own } else { DeviceWay::Nccl };
        Contest { title: "allreduce in device memory", ways, stake: Stake::OnDevices(built_in) }
    }

    /// The contests among these ranks. The same on all of them.
    pub fn all(ranks: CalibratedRanks<'_>) -> Vec<Contest> {
        let CalibratedRanks { topology, one_host, windows } = ranks;
        let (class, means) = (Class::of(topology), Means { windows, mapped: false });
        let useful = |algorithm: &Algorithm| !algorithm.is_hierarchical() || class.smallest > 1;
        let allowed = Algorithm::ALL.into_iter().filter(|algorithm| means.allow(*algorithm, topology));
        let ways = allowed.filter(useful).map(Way::Allreduce).collect();
        let mut contests = vec![Contest { title: "allreduce", ways, stake: Stake::Direct }];
        if !one_host && class.ranks > 2 {
            for (title, formed) in [("allgather", Formed::Allgather), ("broadcast", Formed::Broadcast)] {
                let ways = [Form::FewSteps, Form::FewBytes].map(|form| formed.way(form)).to_vec();
                contests.push(Contest { title, ways, stake: Stake::Formed(formed) });
            }
        }
        contests
    }

    /// What is chosen at a size by these choices; `direct` answers for direct calls.
    pub fn chosen(&self, bytes: u64, choices: &Choices, direct: impl Fn(usize) -> Algorithm) -> Way {
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
}

/// The ways of allreduces in device memory.
pub const DEVICE_WAYS: [DeviceWay; 2] = [DeviceWay::Own, DeviceWay::Nccl];

/// Elements are float32, which most gradients are.
pub const ELEM_BYTES: u64 = 4;

/// The sizes, rounded down to whole elements for each rank.
pub fn whole_elements(sizes: &[u64], ranks: usize) -> Vec<u64> {
    let unit = ELEM_BYTES * ranks as u64;
    let mut whole: Vec<u64> =
        sizes.iter().map(|size| if *size < unit { ELEM_BYTES } else { size / unit * unit }).collect();
    whole.sort_unstable();
    whole.dedup();
    whole
}

/// A table by which nothing but one way has ever been measured, so that this way is taken at every size.
pub fn only(way: Way, topology: &Topology) -> Table {
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

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_plan::choose::AlgorithmLimits;

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
