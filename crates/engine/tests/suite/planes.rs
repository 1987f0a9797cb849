//! A plane that is added gets agreement, fusion, factors, deadlines, aborts and faults with the seam. That results are
//! the same bits as on the other planes is `programs`' and `same_bits`' to show.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farandole_engine::connector::Medium;
use farandole_engine::plane::{GroupSeat, Offer, Plane, PlaneGroup, PlaneRun};
use farandole_engine::{Config, Error, Hooks};
use farandole_plan::{Dtype, ErrorClass, Rank, ReduceOp};
use farandole_tensor::Fold;
use farandole_transport::{Progress, Result};

use crate::harness::named_strikes::{What, strike_with};
use crate::harness::strikes::strike_all;
use crate::harness::toy_plane::ToyPlane;
use crate::harness::{Transport, config, meetings, request, result, run_hooked, sum};

/// Counts what begins on it.
#[derive(Default)]
struct Counted {
    plane: ToyPlane,
    begun: Arc<AtomicUsize>,
}

struct CountedGroup(Box<dyn PlaneGroup>, Arc<AtomicUsize>);

impl Plane for Counted {
    fn offer(&self) -> Offer {
        self.plane.offer()
    }

    fn join(&self, seat: GroupSeat<'_>) -> Result<Box<dyn PlaneGroup>> {
        Ok(Box::new(CountedGroup(self.plane.join(seat)?, Arc::clone(&self.begun))))
    }
}

impl PlaneGroup for CountedGroup {
    fn begin(&mut self, operation: u64, elems: u64, dtype: Dtype) -> Box<dyn PlaneRun> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.begin(operation, elems, dtype)
    }
}

fn hooks(plane: &Arc<impl Plane + 'static>) -> Hooks {
    Hooks { planes: vec![Arc::clone(plane) as Arc<dyn Plane>], ..Hooks::default() }
}

#[test]
fn what_the_offer_carries_takes_the_plane_and_the_rest_does_not() {
    for transport in [Transport::Memory, Transport::Shm] {
        let plane = Arc::new(Counted::default());
        run_hooked(
            meetings(3, transport),
            config(),
            |_| hooks(&plane),
            |engine| {
                let rank = engine.rank().0 as f32;
                for round in 0..4 {
                    assert_eq!(
                        result::<f32>(&engine, sum("large", vec![rank; 1000])),
                        vec![3.0; 1000],
                        "round {round}"
                    );
                    assert_eq!(result::<f32>(&engine, sum("tiny", vec![rank])), [3.0]);
                    assert_eq!(result::<u8>(&engine, sum("bytes", vec![1u8; 100])), [3; 100]);
                }
            },
        );
        assert_eq!(plane.begun.load(Ordering::Relaxed), 3 * 4, "{transport:?}: once for each rank and round");
    }
}

#[test]
fn half_precision_is_rounded_once_and_groups_have_planes_of_their_own() {
    let plane = Arc::new(Counted::default());
    run_hooked(
        meetings(3, Transport::Memory),
        config(),
        |_| hooks(&plane),
        |engine| {
            let group = engine.add_group(&[Rank(0), Rank(2)]).unwrap();
            if engine.rank() == Rank(1) {
                return;
            }
            // The mean, 2049, is no f16: rounded before the factor it would be 2048, and the result 6144.
            let own = if engine.rank() == Rank(0) { 2048.0 } else { 2050.0 };
            let data = vec![half::f16::from_f32(own); 64];
            let average =
                farandole_plan::Collective::Allreduce { op: ReduceOp::Average, prescale: 1.0, postscale: 3.0 };
            let submission = farandole_engine::Submission::new(
                request("halves", average, Dtype::F16, &[64]),
                farandole_tensor::Region::from_vec(data),
            );
            let mean = result::<half::f16>(&engine, submission.in_group(group));
            assert!(mean.iter().all(|mean| mean.to_f32() == 6148.0), "{mean:?}");
        },
    );
    assert_eq!(plane.begun.load(Ordering::Relaxed), 2);
}

/// Never done, and never fails.
#[derive(Debug)]
struct Stuck;

impl Plane for Stuck {
    fn offer(&self) -> Offer {
        ToyPlane::default().offer()
    }

    fn join(&self, _seat: GroupSeat<'_>) -> Result<Box<dyn PlaneGroup>> {
        Ok(Box::new(Stuck))
    }
}

impl PlaneGroup for Stuck {
    fn begin(&mut self, _operation: u64, _elems: u64, _dtype: Dtype) -> Box<dyn PlaneRun> {
        Box::new(Stuck)
    }
}

impl PlaneRun for Stuck {
    fn advance(&mut self, _work: &mut [u8], _fold: &Fold) -> Result<Progress> {
        Ok(Progress::Pending)
    }

    fn waiting_for(&self) -> Option<Rank> {
        Some(Rank(1))
    }
}

#[test]
fn a_plane_that_is_stuck_ends_by_the_deadline_and_the_peer_is_named() {
    let config = Config { deadline: Duration::from_millis(300), ..config() };
    let errors = run_hooked(
        meetings(2, Transport::Memory),
        config,
        |_| hooks(&Arc::new(Stuck)),
        |engine| engine.run(sum("gradient", vec![1f32; 100])).map(drop).unwrap_err().to_string(),
    );
    assert!(errors.iter().any(|error| error.contains("rank 1") && error.contains("gradient")), "{errors:?}");
}

#[test]
fn a_plane_that_is_stuck_can_be_aborted() {
    let errors = run_hooked(
        meetings(2, Transport::Memory),
        config(),
        |_| hooks(&Arc::new(Stuck)),
        |engine| {
            let ticket = engine.submit(sum("gradient", vec![1f32; 100])).unwrap();
            if engine.rank() == Rank(0) {
                farandole_testing::lapse("the plane, which is stuck", Duration::from_millis(50));
                engine.abort_handle().abort(Some(Rank(1)), ErrorClass::RankLost, "rank 1 was stopped".to_owned());
            }
            ticket.wait().map(drop).unwrap_err().to_string()
        },
    );
    assert!(errors.iter().all(|error| error.contains("rank 1 was stopped")), "{errors:?}");
}

#[test]
fn ranks_with_different_planes_fail_and_do_not_hang() {
    let errors = run_hooked(
        meetings(2, Transport::Shm),
        config(),
        |rank| if rank == 0 { hooks(&Arc::new(Counted::default())) } else { Hooks::default() },
        |engine| engine.run(sum("gradient", vec![1f32; 100])).map(drop),
    );
    assert!(errors.iter().all(|error| matches!(error, Err(Error::Failed(_)))), "{errors:?}");
}

#[test]
fn faults_on_an_added_plane_are_named() {
    let strike = |what| strike_with(what, [2, 3], Medium::Windows, 3, ToyPlane::add);
    strike_all(&[What::Allreduce(100)], 50, strike);
}
