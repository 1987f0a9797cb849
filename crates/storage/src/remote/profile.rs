//! The files of `aws configure`: `~/.aws/credentials` and `~/.aws/config`.
//!
//! `object_store` does not read them. Of a profile only what stands in the files is taken: keys, token, region and
//! endpoint. A profile that has keys made by a program, or through single sign-on, is refused with the command that
//! exports them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::open::StorageVariables;

/// Keys of a profile that mean the same as variables.
const KNOWN: [&str; 5] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region", "endpoint_url"];

/// What the chosen profile says, under the names of variables in small letters. Where no profile was chosen and none is
/// there, nothing.
pub(super) fn read(variables: &StorageVariables) -> Result<BTreeMap<String, String>, String> {
    let chosen = variables.get("AWS_PROFILE").or_else(|| variables.get("AWS_DEFAULT_PROFILE"));
    let name = chosen.unwrap_or("default");
    let file = |variable: &str, usual: &str| {
        let usual = variables.get("HOME").map(|home| PathBuf::from(home).join(usual));
        variables.get(variable).map(PathBuf::from).or(usual)
    };
    let files = [file("AWS_CONFIG_FILE", ".aws/config"), file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")];
    let mut found = BTreeMap::new();
    let mut is_there = false;
    // What stands in the file of credentials counts before what stands in the other.
    for path in files.iter().flatten() {
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        if let Some(section) = section(&text, name) {
            is_there = true;
            found.extend(section);
        }
    }
    let shown = files.iter().flatten().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" nor in ");
    if chosen.is_some() && !is_there {
        return Err(format!("AWS_PROFILE is {name}, and that profile is neither in {shown}"));
    }
    let is_elsewhere = ["sso_session", "sso_start_url", "credential_process", "source_profile"];
    if let Some(way) = is_elsewhere.iter().find(|way| found.contains_key(**way))
        && !found.contains_key("aws_access_key_id")
        && variables.get("AWS_ACCESS_KEY_ID").is_none()
    {
        return Err(format!(
            "the profile {name} has its keys by way of {way}; set them for this process with `eval \"$(aws configure \
             export-credentials --profile {name} --format env)\"`"
        ));
    }
    found.retain(|key, _| KNOWN.contains(&key.as_str()));
    // The variables have this prefix where the files have none.
    let renamed = found.into_iter().map(|(key, value)| match key.as_str() {
        "endpoint_url" => ("aws_endpoint_url".to_owned(), value),
        _ => (key, value),
    });
    Ok(renamed.collect())
}

/// The pairs of a section: `[name]`, or `[profile name]` as the file of settings has it.
fn section(text: &str, name: &str) -> Option<BTreeMap<String, String>> {
    let mut pairs = None;
    let mut is_inside = false;
    for line in text.lines() {
        // Lines that are set in belong to the key before: settings of one service.
        let is_set_in = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let title = title.trim();
            is_inside = title == name || title.strip_prefix("profile").is_some_and(|rest| rest.trim() == name);
            if is_inside {
                pairs.get_or_insert_with(BTreeMap::new);
            }
        } else if let (true, false, Some((key, value)), Some(pairs)) =
            (is_inside, is_set_in, line.split_once('='), pairs.as_mut())
        {
            pairs.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(credentials: &str, config: &str) -> farandole_testing::Folder {
        let folder = farandole_testing::Folder::new();
        std::fs::create_dir(folder.join(".aws")).unwrap();
        std::fs::write(folder.join(".aws/credentials"), credentials).unwrap();
        std::fs::write(folder.join(".aws/config"), config).unwrap();
        folder
    }

    fn read_with(folder: &farandole_testing::Folder, profile: &str) -> Result<BTreeMap<String, String>, String> {
        let pairs = [("HOME", folder.display().to_string()), ("AWS_PROFILE", profile.to_owned())];
        read(&pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    #[test]
    fn both_files_make_a_profile() {
        let folder = home(
            "[default]\naws_access_key_id = A\naws_secret_access_key=S\n[lab]\naws_access_key_id=B # no comment\n",
            "[default]\nregion = eu-west-3\noutput = json\n[profile lab]\nregion=x\ns3 =\n  region = other\n",
        );
        let found = read_with(&folder, "").unwrap();
        let expected = [("aws_access_key_id", "A"), ("aws_secret_access_key", "S"), ("region", "eu-west-3")];
        assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        let lab = read_with(&folder, "lab").unwrap();
        assert_eq!((lab["region"].as_str(), lab["aws_access_key_id"].as_str()), ("x", "B # no comment"));
        assert!(read_with(&folder, "missing").unwrap_err().contains("neither in"));
    }

    #[test]
    fn keys_that_are_elsewhere_are_named_and_no_files_are_no_error() {
        let folder = home("", "[profile me]\nsso_session = corp\n");
        assert!(read_with(&folder, "me").unwrap_err().contains("export-credentials --profile me"));
        assert!(read(&StorageVariables::default()).unwrap().is_empty());
    }
}
