//! Ranks that meant to have different devices and have the same: [`SharingWatch`].
//!
//! Nothing goes wrong where several ranks use one device, and it may be meant. But a script that forgets to choose its
//! device puts all ranks of a host on the first one, and nobody notices that the others idle. So the setting
//! `ranks_per_gpu` says how many ranks were meant to share one; where more do, one rank says so, once: the lowest of
//! those that share the first such device. Only the world is watched: process sets have the same ranks.

use farandole_device::{Info, Uuid};
use farandole_plan::Rank;
use farandole_transport::shm::Windows;

use super::DevicePlane;
use super::posting::Told;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct SharingWatch {
    /// How many ranks were meant to have the same device; zero: nobody knows, or it has been looked at.
    ranks_each: usize,
}

impl SharingWatch {
    /// Watches ranks of which so many were meant to have the same device; zero: nobody knows.
    pub(super) fn new(ranks_each: u64) -> SharingWatch {
        SharingWatch { ranks_each: usize::try_from(ranks_each).unwrap_or(usize::MAX) }
    }

    /// The places of those that share a device with too many others, if it is `me` who has to say so. `devices` has the
    /// device of every rank, or nothing for one that has no memory in the bucket. Looks once.
    fn crowd(&mut self, devices: &[Option<Uuid>], me: usize) -> Option<Vec<usize>> {
        let limit = std::mem::take(&mut self.ranks_each);
        let sharing = |place: usize| -> Vec<usize> {
            (0..devices.len()).filter(|&other| devices[other].is_some() && devices[other] == devices[place]).collect()
        };
        let first = (0..devices.len()).map(sharing).find(|sharing| limit > 0 && sharing.len() > limit)?;
        (first[0] == me).then_some(first)
    }
}

impl DevicePlane {
    /// Warns if more ranks of this host use a device than were meant to.
    pub(super) fn watch_sharing(&mut self, ordinal: u32, told: &[Told], windows: &Windows) {
        let limit = self.sharing_watch.ranks_each;
        // A rank that has joined tells of nothing: then the next bucket shows more.
        if limit == 0 || told.iter().any(|told| told.exports.is_empty()) {
            return;
        }
        let devices: Vec<Option<Uuid>> = told.iter().map(|told| Some(told.exports[0].device)).collect();
        let Some(crowd) = self.sharing_watch.crowd(&devices, windows.me()) else { return };
        let Ok(opened) = self.opened(ordinal) else { return };
        let ranks: Vec<Rank> = crowd.into_iter().map(|local_rank| windows.rank(local_rank)).collect();
        log::warn!("{}", warning(&ranks, opened.device.info(), limit));
    }
}

fn warning(ranks: &[Rank], device: &Info, limit: usize) -> String {
    let listed: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    let meant = match limit {
        1 => "though there is a GPU for each".to_owned(),
        limit => format!("though {limit} at most were meant to"),
    };
    format!(
        "ranks {} use the same GPU ({}, {}), {meant}: is torch.cuda.set_device(hvd.local_rank()), or the like, missing in \
         the program? docs/gpu.md says how ranks get their GPUs",
        listed.join(", "),
        device.name,
        device.uuid
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(ranks_each: u64, devices: &str, me: usize) -> Option<Vec<usize>> {
        let uuid = |letter| (letter != '-').then_some(Uuid([letter as u8; 16]));
        SharingWatch::new(ranks_each).crowd(&devices.chars().map(uuid).collect::<Vec<_>>(), me)
    }

    #[test]
    fn the_lowest_of_the_first_that_are_too_many_speaks() {
        assert_eq!(crowd(1, "aabb", 0), Some(vec![0, 1]));
        assert!((1..4).all(|me| crowd(1, "aabb", me).is_none()));
        assert_eq!(crowd(2, "abbab", 1), Some(vec![1, 2, 4]));
        assert_eq!(crowd(1, "abcd", 0), None);
        assert_eq!(crowd(2, "aabb", 0), None);
        assert_eq!(crowd(0, "aaaa", 0), None, "nobody knows what was meant");
        assert_eq!(crowd(1, "--a", 2), None, "ranks without memory use nothing");
    }

    #[test]
    fn it_is_said_once() {
        let mut watch = SharingWatch::new(1);
        let devices = [Some(Uuid([1; 16])); 2];
        assert!(watch.crowd(&devices, 0).is_some() && watch.crowd(&devices, 0).is_none());
    }

    #[test]
    fn ranks_device_and_cause_are_named() {
        let (uuid, name) = (Uuid([1; 16]), "NVIDIA H200".to_owned());
        let device =
            Info { ordinal: 0, uuid, name, memory_bytes: 1, driver: "13.0".into(), runs_processes_at_once: false };
        let words = warning(&[Rank(0), Rank(3)], &device, 1);
        assert!(words.starts_with("ranks 0, 3 use the same GPU (NVIDIA H200, GPU-01010101-"), "{words}");
        assert!(words.contains("a GPU for each: is torch.cuda.set_device(hvd.local_rank())"), "{words}");
        assert!(warning(&[Rank(0)], &device, 2).contains("though 2 at most were meant to"));
    }
}
