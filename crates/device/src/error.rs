//! What can go wrong with a device, and what the user can do about it.

use std::fmt;

/// A result of a call of a device.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a device did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is no driver, no device, or none that can be used.
    Unavailable(String),
    /// Memory of the device is used up.
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
        /// What was free at that moment, and what there is, if the driver could tell.
        free_and_total: Option<(u64, u64)>,
    },
    /// Other processes cannot map this memory.
    NotShareable(String),
    /// The driver refused a call.
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's number and name of the error.
        code: i32,
        /// Its name.
        name: String,
        /// Its explanation.
        text: String,
    },
    /// NCCL refused a call, or found later that something has gone wrong.
    Nccl {
        /// The call.
        call: &'static str,
        /// NCCL's number of the error.
        code: i32,
        /// What that means.
        text: String,
        /// NCCL's last words about it, if it had any.
        detail: String,
    },
}

impl Error {
    /// Whether every later call fails as well, until the process ends.
    pub fn is_sticky(&self) -> bool {
        // Illegal address and instruction, launch failure and timeout, hardware errors, assertions in kernels.
        matches!(self, Error::Driver { code, .. } if STICKY.contains(code))
    }
}

/// Errors of CUDA that end a context. The numbers are those of `cuda.h`.
const STICKY: [i32; 15] = [4, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 806, 810, 999];

/// Errors of CUDA's multi-process service.
const MPS: std::ops::RangeInclusive<i32> = 805..=810;

/// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`.
const NO_PEER_ACCESS: i32 = 217;

/// What the user can do about an error of CUDA.
fn advice(code: i32) -> Option<&'static str> {
    if MPS.contains(&code) {
        Some(
            "the MPS daemon of this host is dead, or has no room for more processes: look into its log, and start it \
             anew, or run without MPS",
        )
    } else if code == NO_PEER_ACCESS {
        Some(
            "these GPUs do not reach each other's memory: FARANDOLE_PLANE=nccl or FARANDOLE_PLANE=staged works \
             without that",
        )
    } else if STICKY.contains(&code) {
        Some(
            "this error is sticky and usually comes from a kernel of the program itself, which CUDA_LAUNCH_BLOCKING=1 \
             or compute-sanitizer finds",
        )
    } else {
        None
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        match self {
            Error::Unavailable(why) => write!(f, "{why}"),
            Error::OutOfMemory { bytes, free_and_total: None } => {
                write!(f, "the device has no {:.1} MiB left", mib(*bytes as u64))
            }
            Error::OutOfMemory { bytes, free_and_total: Some((free, total)) } => write!(
                f,
                "the device has no {:.1} MiB left: {:.1} of {:.1} MiB are free",
                mib(*bytes as u64),
                mib(*free),
                mib(*total)
            ),
            Error::NotShareable(why) => write!(f, "other processes cannot map this device memory: {why}"),
            Error::Driver { call, code, name, text } => {
                write!(f, "{call} failed: {text} ({name}, {code})")?;
                match advice(*code) {
                    Some(advice) => write!(f, "; {advice}"),
                    None => Ok(()),
                }
            }
            Error::Nccl { call, code, text, detail } => {
                write!(f, "{call} failed: {text} ({code})")?;
                if !detail.is_empty() {
                    write!(f, ": {detail}")?;
                }
                if detail.contains("Duplicate GPU") {
                    return f.write_str(
                        "; NCCL lets ranks share a GPU if each has another NCCL_HOSTID; FARANDOLE_PLANE=own always \
                         does",
                    );
                }
                // Most of its texts say so themselves.
                let is_said = text.contains("NCCL_DEBUG");
                if is_said { Ok(()) } else { f.write_str("; NCCL_DEBUG=WARN makes NCCL say more") }
            }
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_cause_and_remedy() {
        let driver = |code| Error::Driver { call: "cuEventQuery", code, name: "N".into(), text: "t".into() };
        assert!(driver(700).to_string().contains("cuEventQuery failed: t (N, 700); this error is sticky"));
        assert_eq!(driver(1).to_string(), "cuEventQuery failed: t (N, 1)");
        assert!(driver(217).to_string().contains("FARANDOLE_PLANE=nccl"));
        assert!(driver(806).to_string().contains("the MPS daemon of this host is dead") && driver(806).is_sticky());
        let full = Error::OutOfMemory { bytes: 3 << 20, free_and_total: Some((1 << 20, 1 << 30)) };
        assert_eq!(full.to_string(), "the device has no 3.0 MiB left: 1.0 of 1024.0 MiB are free");
        let nccl = |detail: &str| Error::Nccl {
            call: "ncclAllReduce",
            code: 5,
            text: "invalid usage".into(),
            detail: detail.into(),
        };
        assert_eq!(
            nccl("").to_string(),
            "ncclAllReduce failed: invalid usage (5); NCCL_DEBUG=WARN makes NCCL say more"
        );
        assert!(nccl("Duplicate GPU detected").to_string().contains("another NCCL_HOSTID"));
    }
}
