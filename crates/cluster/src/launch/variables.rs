//! Which variables of this host's environment go along to another host.
//!
//! Ranks on this host have the launcher's environment, as any child has. A rank on another host starts with what its
//! login there gives it, plus what travels: the variables that an allow-list names, because a training job depends on
//! them, and those that the user names. Everything else stays, and so does everything that could be a secret, unless
//! the user has named exactly that: an environment is full of things that nobody meant to send. Variables travel over
//! the job's encrypted channel, never on a command line.

use std::ffi::{OsStr, OsString};

/// Names and patterns (ending in `*`) of what travels by itself.
///
/// Deliberately not here: `HOME`, `USER`, `TMPDIR` and the like, which are the other host's own;
/// `CUDA_VISIBLE_DEVICES`, which counts the devices of one host (refused by name although `CUDA_*` travels);
/// `LD_PRELOAD`, which breaks a host that lacks the file.
pub const ALLOWED: &[&str] = &[
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHON*",
    "VIRTUAL_ENV",
    "CONDA_*",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "OMP_*",
    "KMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "FARANDOLE_*",
    "HOROVOD_*",
    "RUST_*",
    "NCCL_*",
    "CUDA_*",
    "NVIDIA_*",
    "UCX_*",
    "TF_*",
    "KERAS_*",
    "JAX_*",
    "XLA_*",
    "TORCH_*",
    "PYTORCH_*",
    "MXNET_*",
    "HF_HOME",
    "HF_HUB_*",
    "HF_DATASETS_*",
];

/// What no pattern takes along, because it is true of one host or one rank only.
const OWN: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "PYTHONUSERBASE",
    "FARANDOLE_RANK",
    "FARANDOLE_SIZE",
    "FARANDOLE_LOCAL_*",
    "FARANDOLE_CROSS_*",
    "FARANDOLE_RENDEZVOUS",
    farandole_settings::RANKS_PER_GPU.name,
    farandole_settings::HOST.name,
    "FARANDOLE_TORCH_STORE",
    "FARANDOLE_TASK_FD",
    "FARANDOLE_RESULT_FD",
    farandole_settings::ELASTIC.name,
    crate::environment::ELASTIC_MEMBER,
    crate::environment::ELASTIC_MIN_NP,
    crate::environment::ELASTIC_MAX_NP,
    crate::environment::VOTES_FD,
    crate::environment::RESTART,
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_*",
    "HOROVOD_CROSS_*",
    "HOROVOD_HOSTNAME",
    "HOROVOD_GLOO_RENDEZVOUS_*",
];

/// Words that make a name look like that of a secret.
const SECRET: &[&str] = &["TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "KEY", "AUTH"];

/// What of an environment goes to another host. `pass` holds names, which go whatever they are, and patterns, which
/// take nothing along that looks like a secret or is one host's own. Plain names of [`ALLOWED`] are no secrets.
pub fn travelling(
    pass: &[String],
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    environment.into_iter().filter(|(name, _)| travels(pass, name)).collect()
}

fn travels(pass: &[String], name: &OsStr) -> bool {
    // A name that is no text matches no pattern that is.
    let Some(name) = name.to_str() else { return false };
    pass.iter().any(|wanted| {
        wanted == name || wanted.ends_with('*') && matches(wanted, name) && !looks_secret(name) && !is_own(name)
    })
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

fn is_own(name: &str) -> bool {
    OWN.iter().any(|pattern| matches(pattern, name))
}

/// Whether a name sounds as if its value should stay here.
pub fn looks_secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    SECRET.iter().any(|word| upper.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn travels_with(also: &[&str], name: &str) -> bool {
        let pass: Vec<String> = ALLOWED.iter().chain(also).map(|&name| name.to_owned()).collect();
        !travelling(&pass, [(OsString::from(name), OsString::from("value"))]).is_empty()
    }

    #[test]
    fn what_a_training_job_depends_on_travels() {
        for name in [
            "PATH",
            "LD_LIBRARY_PATH",
            "PYTHONPATH",
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
            "LANG",
            "LC_ALL",
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "FARANDOLE_FUSION_THRESHOLD",
            "HOROVOD_LOG_LEVEL",
            "NCCL_DEBUG",
            "CUDA_HOME",
            "TF_CPP_MIN_LOG_LEVEL",
            "JAX_PLATFORMS",
            "XLA_FLAGS",
            "TORCH_HOME",
        ] {
            assert!(travels_with(&[], name), "{name}");
        }
    }

    #[test]
    fn what_is_this_hosts_own_or_could_be_a_secret_stays_unless_it_is_named() {
        for name in [
            "HOME",
            "USER",
            "SSH_AUTH_SOCK",
            "AWS_SECRET_ACCESS_KEY",
            "LD_PRELOAD",
            "CUDA_VISIBLE_DEVICES",
            "FARANDOLE_KEY",
            "FARANDOLE_KEY_FD",
            "FARANDOLE_RANK",
            "FARANDOLE_LOCAL_RANK",
            "FARANDOLE_ELASTIC",
            "FARANDOLE_ELASTIC_MEMBER",
            "_HOROVOD_SECRET_KEY",
            "HOROVOD_RANK",
            "HF_HUB_TOKEN",
            "CONDA_TOKEN",
            "TF_password_file",
            "BASH_FUNC_ls%%",
            "PATHOLOGY",
        ] {
            assert!(!travels_with(&[], name), "{name}");
            assert!(travels_with(&[name], name), "{name}, named");
        }
    }

    #[test]
    fn a_users_pattern_takes_no_secret_along() {
        assert!(travels_with(&["WANDB_*"], "WANDB_PROJECT"));
        assert!(!travels_with(&["WANDB_*"], "WANDB_API_KEY"));
    }

    #[test]
    fn names_that_are_no_text_stay() {
        use std::os::unix::ffi::OsStringExt;
        let name = OsString::from_vec(b"PATH\xff".to_vec());
        assert!(travelling(&["PATH*".to_owned()], [(name, OsString::new())]).is_empty());
    }
}
