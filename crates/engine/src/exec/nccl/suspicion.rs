//! Errors of NCCL's that the end of another rank may have caused: [`Suspicion`].
//!
//! NCCL does not say whose end it was, and the engine's control lines do. So such an error is held back for a while:
//! either the group ends meanwhile, with the rank's name, or it ends with what NCCL has said.

use std::time::{Duration, Instant};

use farandole_device::Error as DeviceError;
use farandole_device::nccl::NcclCommunicator;
use farandole_transport::{Error, Result};

use crate::exec::device::local;

/// How long the control lines have to name the rank whose end NCCL may have noticed first.
const SUSPECT_FOR: Duration = Duration::from_millis(800);

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    held: Option<(Error, Instant)>,
}

impl Suspicion {
    /// Whether an error is held back.
    pub(super) fn is_raised(&self) -> bool {
        self.held.is_some()
    }

    /// Whether NCCL is through with what was begun last on a communicator.
    ///
    /// # Errors
    /// If something has gone wrong; at once if it is no other rank's doing.
    pub(super) fn is_ready(&mut self, communicator: &mut NcclCommunicator, doing: &str) -> Result<bool> {
        if let Some((error, since)) = self.held.take() {
            if since.elapsed() > SUSPECT_FOR {
                return Err(error);
            }
            self.held = Some((error, since));
            return Ok(false);
        }
        match communicator.is_ready() {
            Err(error) if may_be_a_peers(&error) => {
                self.held = Some((local(doing, error), Instant::now()));
                Ok(false)
            }
            ready => ready.map_err(|error| local(doing, error)),
        }
    }
}

/// Whether an error of NCCL's may come from the end of another rank: `ncclSystemError`, `ncclInternalError`, of which
/// some versions make one when a connection breaks, and `ncclRemoteError`.
fn may_be_a_peers(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Nccl { code: 2 | 3 | 6, .. })
}
