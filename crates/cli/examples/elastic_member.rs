//! A member of an elastic job that only meets the others: the program that tests of the elastic launcher start.
//!
//! It enters the rendezvous, says whether it founds the job or joins it, says whom it hears to be lost, and ends well
//! when the file that its first word names is there. One that joins tells a generation of its own, as if it had been
//! let in: the seeds' place is not its business.

#![allow(clippy::print_stdout, reason = "what a member says is how it is heard")]

use std::path::Path;
use std::time::{Duration, Instant};

use farandole_cluster::{Entry, Environment};

/// How long the job may take to begin.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let until = std::env::args().nth(1).ok_or("the file that ends me is not named")?;
    let environment = Environment::from_process()?;
    let member = environment.elastic.ok_or("this is no elastic job")?;
    let access = environment.open(Instant::now() + PATIENCE)?;
    let rendezvous = access.rendezvous.as_ref().ok_or("there is nobody to meet")?;
    let number = member.number;
    let (entry, lifeline) = rendezvous.enter(number, number.to_string().as_bytes(), Instant::now() + PATIENCE)?;
    match entry {
        Entry::Founding(generation) => {
            let numbers: Vec<String> = generation.members.iter().map(|(number, _)| number.to_string()).collect();
            println!("{number} founds {}", numbers.join(" "));
        }
        Entry::Joining { seeds } => {
            let seeds: Vec<String> = seeds.iter().map(|seed| String::from_utf8_lossy(seed).into_owned()).collect();
            println!("{number} joins {}", seeds.join(" "));
            lifeline.tell_generation(100 + number, vec![(number, number.to_string().into_bytes())]);
        }
    }
    lifeline.on_loss(move |lost, notice, _| println!("{number} has lost {lost}: {notice}"));
    let until = Path::new(&until);
    // A folder that is gone means that whoever started this has given up.
    while !until.exists() && until.parent().is_some_and(Path::exists) {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(lifeline);
    Ok(())
}
