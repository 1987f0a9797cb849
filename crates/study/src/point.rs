//! One configuration that is measured: who computes, with how much at a time, and what.
//!
//! A point has a name that is good for files and the same in every session, so that results can be found again. It also
//! knows the words by which a user's command refers to it: `{ranks}` stands for the number of ranks, and so on.

use serde::{Deserialize, Serialize};

use super::input::InputPoint;

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyPoint {
    /// Which network; for a user's command whatever the user calls it.
    pub model: String,
    /// Processes.
    pub ranks: usize,
    /// Threads of each process.
    pub threads: usize,
    /// Samples of each rank in one step.
    pub batch: usize,
    /// How gradients travel.
    pub precision: String,
    /// Where tensors on GPUs are reduced, in a study of that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plane: String,
    /// What is read, and by whom, in a study of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputPoint>,
}

/// Words in braces that a command may hold, and what they stand for.
const PLACEHOLDERS: [&str; 7] = ["model", "ranks", "threads", "batch", "total_batch", "precision", "plane"];

impl StudyPoint {
    /// Samples of all ranks in one step.
    pub fn total_batch(&self) -> usize {
        self.ranks * self.batch
    }

    /// Its name in files.
    pub fn name(&self) -> String {
        let StudyPoint { model, ranks, threads, batch, precision, plane, input } = self;
        let plane = if plane.is_empty() { String::new() } else { format!("-{}", plain(plane)) };
        let input = input.as_ref().map_or_else(String::new, |input| {
            let InputPoint { name, workers, prefetch, cache, .. } = input;
            // Names of files have 255 bytes at most, and two sources may differ in what cannot be in one.
            let short: String = plain(name).chars().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect();
            format!("-{short}-{:08x}-w{workers}-p{prefetch}-{}", fnv(name), cache.word())
        });
        format!("{}-r{ranks}-t{threads}-b{batch}-{}{plane}{input}", plain(model), plain(precision))
    }

    /// What a placeholder stands for.
    fn value(&self, placeholder: &str) -> Option<String> {
        Some(match placeholder {
            "model" => self.model.clone(),
            "ranks" => self.ranks.to_string(),
            "threads" => self.threads.to_string(),
            "batch" => self.batch.to_string(),
            "total_batch" => self.total_batch().to_string(),
            "precision" => self.precision.clone(),
            "plane" => self.plane.clone(),
            _ => return None,
        })
    }

    /// The user's command for this point. Braces that hold no word of ours are the command's own (`${HOME}`,
    /// `awk '{print}'`).
    pub fn fill(&self, command: &str) -> String {
        PLACEHOLDERS.iter().fold(command.to_owned(), |filled, placeholder| {
            let value = self.value(placeholder).unwrap_or_default();
            filled.replace(&format!("{{{placeholder}}}"), &value)
        })
    }

    /// The same for programs that would rather read variables.
    pub fn variables(&self) -> Vec<String> {
        let mut variables: Vec<String> = PLACEHOLDERS
            .iter()
            .map(|name| format!("FARANDOLE_STUDY_{}={}", name.to_uppercase(), self.value(name).unwrap_or_default()))
            .collect();
        for name in ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"] {
            variables.push(format!("{name}={}", self.threads));
        }
        variables
    }
}

/// FNV-1a: the same for the same text in every session.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Letters, digits and dots; everything else becomes an underscore.
fn plain(text: &str) -> String {
    let keep = |character: char| if character.is_ascii_alphanumeric() || character == '.' { character } else { '_' };
    text.chars().map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> StudyPoint {
        let (model, precision, plane) = ("resnet20".into(), "bf16-wire".into(), String::new());
        StudyPoint { model, ranks: 2, threads: 3, batch: 32, precision, plane, input: None }
    }

    #[test]
    fn a_command_gets_the_numbers_of_its_point_and_keeps_its_own_braces() {
        let filled = point().fill("train.py --b {batch} --all={total_batch} -np {ranks} ${HOME} {print} {precision}");
        assert_eq!(filled, "train.py --b 32 --all=64 -np 2 ${HOME} {print} bf16-wire");
    }

    #[test]
    fn names_of_points_are_good_for_files() {
        assert_eq!(point().name(), "resnet20-r2-t3-b32-bf16_wire");
        assert_eq!(StudyPoint { model: "../a b".into(), ..point() }.name(), ".._a_b-r2-t3-b32-bf16_wire");
        assert_eq!(StudyPoint { plane: "own+mps".into(), ..point() }.name(), "resnet20-r2-t3-b32-bf16_wire-own_mps");
    }

    #[test]
    fn programs_find_the_point_in_variables_too() {
        let variables = point().variables();
        assert!(variables.contains(&"FARANDOLE_STUDY_TOTAL_BATCH=64".to_owned()), "{variables:?}");
        assert!(variables.contains(&"OMP_NUM_THREADS=3".to_owned()), "{variables:?}");
    }
}
