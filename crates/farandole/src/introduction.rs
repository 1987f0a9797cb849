//! What a rank tells all others at the rendezvous: where it is reached, and its values of the settings that must be
//! the same on all.
//!
//! ```text
//! u8 format 5 · u8 devices · u32 version of NCCL (0: none) · why there is none · u8 settings · each: name, value ·
//! where it streams its state · where it gives blocks · contact (the rest); texts, and where something is, are a u16
//! length and bytes
//! ```
//! Numbers are little-endian. All ranks get all introductions, so a difference between settings ends `init` on every
//! rank, with the same words, before any of them connects to another. Decoding is total: any bytes give an
//! introduction or nothing.

use farandole_device::nccl::Version;
use farandole_engine::Config;
use farandole_plan::topology::host_names;
use farandole_settings::{self as settings, SettingValue as _};
use farandole_transport::contact::Contact;

use crate::error::{Error, Result};

const FORMAT: u8 = 5;

/// One rank, as it introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// Variables and values, in the same order on all ranks.
    settings: Vec<(String, String)>,
    pub(crate) contact: Contact,
    /// Whether it can open devices; they are used if all ranks can.
    pub(crate) has_devices: bool,
    /// The version of its NCCL, or why it has none.
    pub(crate) nccl: std::result::Result<Version, String>,
    /// Where it sends its state to processes that join; empty if it does not.
    pub(crate) stream: Vec<u8>,
    /// Where it gives blocks of data sets to other ranks; empty if it does not.
    pub(crate) blocks: Vec<u8>,
}

/// What a rank knows of all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduced {
    /// In rank order.
    pub(crate) contacts: Vec<Contact>,
    /// Where each rank gives blocks of data sets.
    pub(crate) blocks: Vec<Vec<u8>>,
    pub(crate) all_have_devices: bool,
    /// Whether all ranks have the same NCCL, or which of them has none, and why.
    pub(crate) nccl: std::result::Result<(), String>,
}

impl Introduction {
    pub(crate) fn new(
        contact: Contact,
        config: &Config,
        has_devices: bool,
        nccl: std::result::Result<Version, String>,
    ) -> Introduction {
        let settings = [
            (settings::WIRE_PROTECTION.name, config.wire_protection.show()),
            (settings::HIERARCHICAL_ALLREDUCE.name, config.hierarchical_allreduce.show()),
            (settings::DISABLE_GROUP_FUSION.name, config.disable_group_fusion.show()),
            (settings::PLANE.name, config.plane.show()),
            (settings::CHECK_PARAMETERS.name, config.check_parameters.show()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).into();
        Introduction { settings, contact, has_devices, nccl, stream: Vec::new(), blocks: Vec::new() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT, u8::from(self.has_devices)];
        let (version, why) = match &self.nccl {
            Ok(Version(version)) => (*version, ""),
            Err(why) => (0, why.as_str()),
        };
        bytes.extend_from_slice(&version.to_le_bytes());
        put_text(&mut bytes, why);
        bytes.push(self.settings.len() as u8);
        for text in self.settings.iter().flat_map(|(name, value)| [name, value]) {
            put_text(&mut bytes, text);
        }
        for place in [&self.stream, &self.blocks] {
            bytes.extend_from_slice(&(place.len() as u16).to_le_bytes());
            bytes.extend_from_slice(place);
        }
        bytes.extend_from_slice(&self.contact.encode());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Introduction> {
        let (&[format, has_devices], rest) = bytes.split_first_chunk()?;
        if format != FORMAT {
            return None;
        }
        let (&version, mut rest) = rest.split_first_chunk()?;
        let why = take_text(&mut rest)?;
        let nccl = match u32::from_le_bytes(version) {
            0 => Err(why),
            version => Ok(Version(version)),
        };
        let (&count, mut rest) = rest.split_first()?;
        let mut setting = || Some((take_text(&mut rest)?, take_text(&mut rest)?));
        let settings = (0..count).map(|_| setting()).collect::<Option<Vec<_>>>()?;
        let (stream, blocks) = (take_bytes(&mut rest)?.to_vec(), take_bytes(&mut rest)?.to_vec());
        let contact = Contact::decode(rest)?;
        Some(Introduction { settings, contact, has_devices: has_devices != 0, nccl, stream, blocks })
    }
}

/// Texts are short; a longer one is cut off.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let length = text.floor_char_boundary(u16::MAX.into());
    bytes.extend_from_slice(&(length as u16).to_le_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..length]);
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    String::from_utf8(take_bytes(rest)?.to_vec()).ok()
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk()?;
    let (bytes, behind) = behind.split_at_checked(u16::from_le_bytes(*length).into())?;
    *rest = behind;
    Some(bytes)
}

/// What is known of all ranks, by what each has said at the rendezvous.
///
/// # Errors
/// If a rank said something else, or ranks differ in a setting; the text names the ranks and both values.
pub(crate) fn read_all(blobs: &[Vec<u8>]) -> Result<Introduced> {
    let read = |(rank, blob): (usize, &Vec<u8>)| {
        Introduction::decode(blob).ok_or_else(|| {
            Error::Rendezvous(format!(
                "rank {rank} came to the rendezvous with something that is not an address: does it run the same \
                 version of farandole?"
            ))
        })
    };
    let ranks = blobs.iter().enumerate().map(read).collect::<Result<Vec<_>>>()?;
    compare(&ranks)?;
    Ok(summary(ranks))
}

/// What all ranks have together.
pub(crate) fn summary(ranks: Vec<Introduction>) -> Introduced {
    let all_have_devices = ranks.iter().all(|rank| rank.has_devices);
    let nccl = same_nccl(&ranks);
    let (contacts, blocks) = ranks.into_iter().map(|rank| (rank.contact, rank.blocks)).unzip();
    Introduced { contacts, blocks, all_have_devices, nccl }
}

/// Fails if a rank has no NCCL, or another one than rank 0: communicators are for one version.
fn same_nccl(ranks: &[Introduction]) -> std::result::Result<(), String> {
    let hosts: Vec<String> = ranks.iter().map(|rank| rank.contact.host.clone()).collect();
    for ((number, rank), host) in ranks.iter().enumerate().zip(host_names(&hosts)) {
        match (&rank.nccl, &ranks[0].nccl) {
            (Err(why), _) => return Err(format!("rank {number} on {host} has none: {why}")),
            (Ok(theirs), Ok(ours)) if theirs != ours => {
                return Err(format!("rank 0 has NCCL {ours}, rank {number} on {host} has {theirs}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Fails if a rank has other settings than rank 0.
fn compare(ranks: &[Introduction]) -> Result<()> {
    let Some(first) = ranks.first() else { return Ok(()) };
    let other = ranks.iter().enumerate().find(|(_, rank)| rank.settings != first.settings);
    let Some((number, other)) = other else { return Ok(()) };
    let differing = first.settings.iter().zip(&other.settings).find(|(ours, theirs)| ours != theirs);
    Err(Error::Settings(match differing {
        Some(((name, ours), (theirs_name, theirs))) if name == theirs_name => format!(
            "the ranks differ in {name}: {ours} on rank 0, {theirs} on rank {number}; it must be the same on all ranks \
             (farandole run sets it for all of them)"
        ),
        _ => format!("rank {number} has other settings than rank 0: does it run the same version of farandole?"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farandole_transport::Protection;

    fn introduction(protection: Protection) -> Introduction {
        let contact = Contact {
            host: "h".to_owned(),
            unix: Some("u".to_owned()),
            addresses: vec!["10.0.0.1:7".parse().expect("an address")],
            connections: 2,
            process: farandole_transport::ProcessId { pid: 7, namespace: 9, start_time: 11 },
        };
        let config = Config { wire_protection: protection, ..Config::default() };
        Introduction::new(contact, &config, true, Ok(Version(23_007)))
    }

    #[test]
    fn nccl_is_there_if_all_ranks_have_the_same() {
        let with = |nccl| Introduction { nccl, ..introduction(Protection::Off) };
        let whole = with(Err("no library".to_owned()));
        assert_eq!(Introduction::decode(&whole.encode()), Some(whole.clone()));
        let of = |second| read_all(&[with(Ok(Version(23_007))).encode(), with(second).encode()]).expect("ranks").nccl;
        assert_eq!(of(Ok(Version(23_007))), Ok(()));
        assert_eq!(of(Err("no library".to_owned())), Err("rank 1 on h has none: no library".to_owned()));
        assert_eq!(of(Ok(Version(22_809))), Err("rank 0 has NCCL 2.30.7, rank 1 on h has 2.28.9".to_owned()));
    }

    #[test]
    fn an_introduction_survives_the_rendezvous_and_no_part_of_it_does() {
        let whole = Introduction { stream: vec![7; 90], blocks: vec![9; 70], ..introduction(Protection::Encrypt) };
        let bytes = whole.encode();
        assert_eq!(Introduction::decode(&bytes), Some(whole));
        assert!((0..bytes.len()).all(|end| Introduction::decode(&bytes[..end]).is_none()));
    }

    #[test]
    fn ranks_with_different_settings_are_told_which() {
        let blob = |protection| introduction(protection).encode();
        let alike = [blob(Protection::Encrypt), blob(Protection::Encrypt)];
        assert_eq!(read_all(&alike).expect("the same settings").contacts.len(), 2);
        let mixed = [blob(Protection::Encrypt), blob(Protection::Encrypt), blob(Protection::Off)];
        let error = read_all(&mixed).expect_err("different settings").to_string();
        assert!(
            error.starts_with("the ranks differ in FARANDOLE_WIRE_PROTECTION: encrypt on rank 0, off on rank 2;"),
            "{error}"
        );
        let error = read_all(&[blob(Protection::Off), vec![9]]).expect_err("garbage").to_string();
        assert!(error.starts_with("rank 1 came to the rendezvous with something"), "{error}");
    }
}
