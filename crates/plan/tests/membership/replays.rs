//! What members were told gives their decisions once more.

use farandole_plan::membership::{GenerationHistory, Replay};

use super::random::Random;
use super::sim::World;
use super::weather::{Weather, plan};

#[test]
fn members_that_are_told_the_same_again_decide_the_same() {
    for weather in [Weather::Deaths, Weather::Stops, Weather::Resets, Weather::Cuts] {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let plan = plan(weather, &mut random);
            let until = plan.quiet_from;
            let mut world = World::new(plan, random);
            world.is_recorded = true;
            while world.now < until {
                world.step_well();
            }
            let mut history = GenerationHistory::default();
            for node in &world.nodes {
                let (at, start) = node.start.clone();
                let mut replay = Replay::begin(start, at, &mut history).unwrap();
                for (at, input, effects) in &node.told {
                    let again = replay.take(input.clone(), *at, &mut history).unwrap();
                    assert_eq!(&again, effects, "{weather:?} {seed}: {input:?} at {at:?}");
                }
                assert_eq!(replay.machine().generation(), node.machine.generation());
            }
            assert!(history.generations().len() >= world.watch.history.generations().len());
        }
    }
}
