//! How many descriptors meshes need, and room for them.
//!
//! A process may open as many files as its *soft* limit says, and may raise that up to its *hard* limit. The soft
//! limit is 1,024 on most systems, since programs that call `select` cannot use higher descriptors. So it is raised
//! when a mesh needs more, and no further than useful. What the hard limit does not allow is an error that names the
//! limit and the need, before the kernel refuses something in the midst of building a mesh.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Error, Result};

/// What a program and the listening thread may open while a mesh is built: data loaders, files, connections that are
/// not proved yet.
const HEADROOM: u64 = 64;

/// Descriptors of one mesh. With each rank of the host, itself among them: a control line, a segment and a bell. With
/// each rank elsewhere: a control line and `connections` for data.
pub fn of_mesh(local_ranks: usize, distant_ranks: usize, connections: u16) -> u64 {
    3 * local_ranks as u64 + (1 + u64::from(connections)) * distant_ranks as u64
}

/// How many descriptors this process may open without asking for more. `None`: any number.
pub fn soft_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Changes how many descriptors this process may open, within its hard limit.
pub fn set_soft_limit(limit: u64) -> std::io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(maximum.map_or(limit, |hard| hard.min(limit)));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).map_err(std::io::Error::from)
}

/// Makes room for `needed` descriptors beside those that are open, for something (`what`) that is about to open them.
pub fn make_room(needed: u64, what: impl FnOnce() -> String) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let Some(soft) = limit.current else { return Ok(()) };
    let open = open_descriptors();
    let wanted = open + needed + HEADROOM;
    if wanted <= soft {
        return Ok(());
    }
    let hard = limit.maximum.unwrap_or(u64::MAX);
    if open + needed > hard {
        return Err(Error::Descriptors { what: what(), needed, open, limit: hard });
    }
    // Twice as many, lest every further mesh has to ask again.
    let raised = wanted.max(soft.saturating_mul(2)).min(hard);
    let refused = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
    if refused.is_err() && open + needed > soft {
        return Err(Error::Descriptors { what: what(), needed, open, limit: soft });
    }
    Ok(())
}

/// The error for descriptors that the kernel has refused, although there was room for them before.
pub(crate) fn no_room(needed: u64, what: String) -> Error {
    Error::Descriptors { what, needed, open: open_descriptors(), limit: soft_limit().unwrap_or(u64::MAX) }
}

/// How many descriptors are open. Where the kernel does not list them, those that every process has.
fn open_descriptors() -> u64 {
    // The listing itself is one of them.
    std::fs::read_dir("/proc/self/fd").map_or(3, |open| open.count().saturating_sub(1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_when_it_is_needed_and_not_before() {
        let before = getrlimit(Resource::Nofile);
        assert!(before.maximum.is_none_or(|hard| hard >= 4096), "this test needs a hard limit of 4096 open files");
        set_soft_limit(256).unwrap();
        make_room(16, || unreachable!("there is room")).unwrap();
        assert_eq!(soft_limit(), Some(256));
        make_room(1000, || unreachable!("there is room")).unwrap();
        assert!(soft_limit().is_some_and(|limit| (1000..=2000).contains(&limit)), "{:?}", soft_limit());
        setrlimit(Resource::Nofile, before).unwrap();
    }

    #[test]
    fn a_mesh_needs_descriptors_for_every_rank() {
        assert_eq!(of_mesh(8, 0, 4), 24);
        assert_eq!(of_mesh(8, 8, 1), 24 + 16);
    }
}
