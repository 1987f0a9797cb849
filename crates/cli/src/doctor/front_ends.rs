//! Which front ends of the Python package can be used with a Python, and why the others cannot: [`standings`].
//!
//! Everything is judged by versions that installers have left behind; nothing is imported. Keras is special: it
//! computes with another framework, its backend, and Keras 2 comes in a package of its own (`tf-keras`) beside Keras 3.

use super::python::Known;

/// A framework that Farandole has a front end for.
pub(crate) struct Framework {
    /// As Horovod's table names it.
    pub(crate) name: &'static str,
    /// As its package, and the front end, is called.
    pub(crate) package: &'static str,
    /// The oldest version that the front end works with.
    pub(crate) least: &'static str,
}

/// All of them, in the order of Horovod's table. The versions are those of bindings/python/pyproject.toml.
pub(crate) const FRAMEWORKS: [Framework; 5] = [
    Framework { name: "TensorFlow", package: "tensorflow", least: "2.12" },
    Framework { name: "PyTorch", package: "torch", least: "2.1" },
    Framework { name: "MXNet", package: "mxnet", least: "1.9" },
    Framework { name: "Keras", package: "keras", least: "2.12" },
    Framework { name: "JAX", package: "jax", least: "0.10" },
];

/// What Keras can compute with.
const BACKENDS: [&str; 3] = ["tensorflow", "torch", "jax"];

/// Whether a front end can be used, and what there is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It can: the framework's version, and what to import, with the backend where there is a choice.
    Usable(String, String),
    /// The framework is there, and something is missing that the user can help: why, and what to do.
    Fixable(String, String),
    /// It cannot: why.
    Unusable(String),
}

impl Standing {
    pub(crate) fn is_usable(&self) -> bool {
        matches!(self, Standing::Usable(..))
    }

    pub(crate) fn remark(&self) -> String {
        match self {
            Standing::Usable(version, front_end) => format!("{version}, {front_end}"),
            Standing::Fixable(reason, _) | Standing::Unusable(reason) => reason.clone(),
        }
    }
}

/// Where every framework stands in this Python, or without one.
pub(crate) fn standings(known: Option<&Known>) -> impl Iterator<Item = (&'static Framework, Standing)> {
    FRAMEWORKS.iter().map(move |framework| {
        let without_python = || Standing::Unusable("there is no Python here".to_owned());
        (framework, known.map_or_else(without_python, |known| standing(framework, known)))
    })
}

fn standing(framework: &Framework, known: &Known) -> Standing {
    let Framework { package, least, .. } = framework;
    let standing = match known.packages.get(*package) {
        None if *package == "keras" => keras_2_alone(known),
        None => Standing::Unusable(format!("not installed in {}", known.executable)),
        Some(version) if is_older(version, least) => {
            Standing::Fixable(format!("too old: {version} < {least}"), format!("`pip install '{package}>={least}'`."))
        }
        Some(version) if *package == "keras" => keras(known, version),
        Some(version) if *package == "mxnet" => mxnet(known, version),
        Some(version) => Standing::Usable(version.clone(), format!("farandole.{package}")),
    };
    match standing {
        Standing::Usable(version, _) if !known.packages.contains_key("farandole") => {
            let remark = format!("{version}; this Python has no farandole: pip install farandole");
            Standing::Fixable(remark, "`pip install farandole`.".to_owned())
        }
        standing => standing,
    }
}

/// Keras of this version: with its backend, and others that it could be given.
fn keras(known: &Known, version: &str) -> Standing {
    let is_there = |backend: &str| known.packages.contains_key(backend);
    let backend = if is_older(version, "3") { "tensorflow" } else { known.keras_backend.as_str() };
    if !BACKENDS.contains(&backend) {
        let remark = format!("{version}; there is no front end for its backend {backend}");
        return Standing::Fixable(remark, format!("`KERAS_BACKEND={}`.", BACKENDS.join("|")));
    }
    let others: Vec<&str> = BACKENDS.into_iter().filter(|other| *other != backend && is_there(other)).collect();
    let others = if is_older(version, "3") { Vec::new() } else { others };
    match (is_there(backend), others.as_slice()) {
        (true, []) => Standing::Usable(version.to_owned(), format!("farandole.keras on {backend}")),
        (true, others) => {
            let front_end = format!("farandole.keras on {backend} (or {})", others.join(", "));
            Standing::Usable(version.to_owned(), front_end)
        }
        (false, []) => {
            let remark = format!("{version}; its backend {backend} is not installed");
            Standing::Fixable(remark, format!("`pip install {backend}`."))
        }
        (false, others) => {
            let remark = format!("{version}; its backend {backend} is not installed, {} is", others.join(", "));
            Standing::Fixable(remark, format!("`KERAS_BACKEND={}`.", others[0]))
        }
    }
}

/// Keras 2 without Keras 3: `tf.keras` and `tf_keras`.
fn keras_2_alone(known: &Known) -> Standing {
    match known.packages.get("tf_keras") {
        Some(version) if known.packages.contains_key("tensorflow") => {
            let version = format!("tf-keras {version} (TF_USE_LEGACY_KERAS=1)");
            Standing::Usable(version, "farandole.tensorflow.keras".to_owned())
        }
        _ => Standing::Unusable(format!("not installed in {}", known.executable)),
    }
}

/// MXNet of this version: its last release cannot be imported where NumPy is newer than it knows.
fn mxnet(known: &Known, version: &str) -> Standing {
    match known.packages.get("numpy") {
        Some(numpy) if !is_older(numpy, "1.24") => {
            let remark = format!("{version}; it cannot be imported with numpy {numpy}");
            Standing::Fixable(remark, "`pip install 'numpy<1.24'`, with Python 3.11 or older.".to_owned())
        }
        _ => Standing::Usable(version.to_owned(), "farandole.mxnet".to_owned()),
    }
}

/// Whether a version is older than another, by the numbers that both have at their beginning.
fn is_older(version: &str, least: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>();
        text.split('.').map_while(|part| digits(part).parse().ok()).collect()
    };
    let (version, least) = (numbers(version), numbers(least));
    // What cannot be read is not judged.
    !version.is_empty() && version < least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(backend: &str, packages: &[(&str, &str)]) -> Known {
        let packages = packages.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect();
        let (executable, keras_backend) = ("/v/bin/python".to_owned(), backend.to_owned());
        Known { executable, keras_backend, packages, ..Known::default() }
    }

    fn of(package: &str, known: &Known) -> Standing {
        standings(Some(known)).find(|(framework, _)| framework.package == package).unwrap().1
    }

    #[test]
    fn a_framework_is_usable_where_it_and_the_package_are_installed() {
        let with = |packages: &[(&str, &str)]| of("torch", &known("tensorflow", packages));
        assert_eq!(with(&[]), Standing::Unusable("not installed in /v/bin/python".to_owned()));
        let without = with(&[("torch", "2.6.0")]);
        assert!(matches!(&without, Standing::Fixable(why, _) if why.contains("pip install farandole")), "{without:?}");
        let both = with(&[("torch", "2.6.0"), ("farandole", "0.1.0")]);
        assert_eq!(both, Standing::Usable("2.6.0".to_owned(), "farandole.torch".to_owned()));
        assert!(standings(None).all(|(_, standing)| !standing.is_usable()));
    }

    #[test]
    fn a_framework_that_is_too_old_is_told_so_with_both_versions() {
        let with = |version| of("tensorflow", &known("", &[("tensorflow", version), ("farandole", "0.1.0")]));
        let old = with("2.9.1");
        assert_eq!(old.remark(), "too old: 2.9.1 < 2.12");
        assert!(matches!(old, Standing::Fixable(_, fix) if fix == "`pip install 'tensorflow>=2.12'`."));
        assert!(with("2.12.0").is_usable() && with("2.21.0+nv25.1").is_usable() && with("3").is_usable());
        assert!(with("2.100.0-rc1").is_usable());
        assert!(!with("1.15.5").is_usable() && !with("2").is_usable());
        assert!(with("nightly").is_usable(), "what cannot be read is not judged");
    }

    #[test]
    fn keras_is_told_with_its_backend_and_those_that_it_could_have() {
        let own = ("farandole", "0.1.0");
        let (tensorflow, torch, jax) = (("tensorflow", "2.21.0"), ("torch", "2.15.0"), ("jax", "0.10.2"));
        let of = |backend, packages: &[(&str, &str)]| of("keras", &known(backend, packages)).remark();
        let keras = ("keras", "3.15.1");
        assert_eq!(of("tensorflow", &[keras, tensorflow, own]), "3.15.1, farandole.keras on tensorflow");
        let all = of("torch", &[keras, tensorflow, torch, jax, own]);
        assert_eq!(all, "3.15.1, farandole.keras on torch (or tensorflow, jax)");
        let missing = of("tensorflow", &[keras, torch, own]);
        assert_eq!(missing, "3.15.1; its backend tensorflow is not installed, torch is");
        assert_eq!(of("jax", &[keras, own]), "3.15.1; its backend jax is not installed");
        assert_eq!(of("openvino", &[keras, own]), "3.15.1; there is no front end for its backend openvino");
        let second = of("torch", &[("keras", "2.15.0"), ("tensorflow", "2.15.1"), torch, own]);
        assert_eq!(second, "2.15.0, farandole.keras on tensorflow", "Keras 2 has no other backend");
        let alone = of("tensorflow", &[("tf_keras", "2.21.0"), tensorflow, own]);
        assert_eq!(alone, "tf-keras 2.21.0 (TF_USE_LEGACY_KERAS=1), farandole.tensorflow.keras");
    }

    #[test]
    fn mxnet_needs_an_old_numpy() {
        let of = |numpy| of("mxnet", &known("", &[("mxnet", "1.9.1"), ("numpy", numpy), ("farandole", "0.1.0")]));
        assert_eq!(of("1.23.5").remark(), "1.9.1, farandole.mxnet");
        assert_eq!(of("2.1.0").remark(), "1.9.1; it cannot be imported with numpy 2.1.0");
        assert!(matches!(of("1.24.0"), Standing::Fixable(_, fix) if fix.contains("numpy<1.24")));
    }

    #[test]
    fn every_front_end_of_the_python_package_is_known_with_the_version_it_asks_for() {
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings/python");
        let project = std::fs::read_to_string(format!("{package}/pyproject.toml")).unwrap();
        for Framework { package: name, least, .. } in &FRAMEWORKS {
            let file = format!("{package}/farandole/{name}/__init__.py");
            assert!(std::path::Path::new(&file).exists(), "{name}");
            assert!(project.contains(&format!("\"{name}>={least}\"")), "{name}>={least} is not in pyproject.toml");
        }
    }
}
