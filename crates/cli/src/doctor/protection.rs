//! How tensors would be protected between hosts, what that costs, and whether this processor has instructions for it.
//!
//! Costs are those of docs/run.md, measured there; the doctor measures nothing.

use farandole_transport::Protection;

use super::finding::{Finding, Group};

/// What the processor has for encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aes {
    /// Instructions for AES and for the multiplication that GCM needs.
    Instructions,
    /// Neither, or one of them: encryption is done in software.
    Software,
}

impl Aes {
    /// That of this processor.
    pub(super) fn of_this_processor() -> Aes {
        #[cfg(target_arch = "x86_64")]
        let found = std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let found = std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let found = false;
        if found { Aes::Instructions } else { Aes::Software }
    }
}

pub(super) fn finding(protection: Protection, aes: Aes) -> Finding {
    let processor = match aes {
        Aes::Instructions => "this processor has AES instructions",
        Aes::Software => "this processor has no AES instructions, so encryption is slow",
    };
    let found = match protection {
        Protection::Off => format!("off: tensors travel in the clear between hosts; {processor}"),
        Protection::Checksum => format!("checksum: CRC32C finds damage, nothing is hidden; {processor}"),
        Protection::Encrypt => format!("encrypt: AES-256-GCM between hosts; {processor}"),
    };
    let why = "FARANDOLE_WIRE_PROTECTION (farandole run --wire-protection) protects tensors between hosts. A checksum \
               and, far more, encryption take processor time on both sides (docs/run.md has measurements). Within a host \
               nothing is protected or slowed down; control messages are always encrypted.";
    match (protection, aes) {
        (Protection::Encrypt, Aes::Software) => Finding::note(Group::Job, "protection", found, why)
            .with_fix("use hosts with AES instructions, or a network that needs no encryption."),
        _ => Finding::ok(Group::Job, "protection", found, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn encryption_in_software_is_noted_and_all_else_is_well() {
        for protection in Protection::ALL {
            for aes in [Aes::Instructions, Aes::Software] {
                let finding = finding(protection, aes);
                let slow = protection == Protection::Encrypt && aes == Aes::Software;
                assert_eq!(finding.state, if slow { State::Note } else { State::Ok });
                assert!(finding.found.starts_with(protection.word()), "{}", finding.found);
                assert_eq!(finding.found.contains("has no AES"), aes == Aes::Software);
            }
        }
    }
}
