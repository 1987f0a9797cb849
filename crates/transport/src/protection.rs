//! How tensors are protected on their way between hosts: one word for the two mechanisms that [`Options`] has.
//!
//! The control lines between hosts are always encrypted; this is about data. All ranks of a job must use the same
//! protection. Data between ranks of one host never leaves the machine and is never protected.

use crate::connect::Options;
use crate::frame::Checksum;
use crate::hello::Seal;

/// How tensors are protected between hosts.
///
/// Not `#[non_exhaustive]`: the doctor matches every variant, and the compiler must find that match when one is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Nothing beyond TCP's own 16-bit checksum. Peers have proved that they hold the job's key.
    #[default]
    Off,
    /// CRC32C over every stripe: finds accidental damage, hides nothing.
    Checksum,
    /// AES-256-GCM: nobody else can read the data or change it unnoticed, so a checksum would add nothing.
    Encrypt,
}

impl Protection {
    /// All of them, the weakest first.
    pub const ALL: [Protection; 3] = [Protection::Off, Protection::Checksum, Protection::Encrypt];

    /// The word by which users know it.
    pub const fn word(self) -> &'static str {
        match self {
            Protection::Off => "off",
            Protection::Checksum => "checksum",
            Protection::Encrypt => "encrypt",
        }
    }

    /// The protection that a word means, if it is one.
    pub fn from_word(word: &str) -> Option<Protection> {
        Protection::ALL.into_iter().find(|protection| word.eq_ignore_ascii_case(protection.word()))
    }
}

impl std::fmt::Display for Protection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

impl Options {
    /// These options with this protection.
    pub fn with_protection(mut self, protection: Protection) -> Options {
        (self.seal, self.shape.checksum) = match protection {
            Protection::Off => (Seal::Off, Checksum::Off),
            Protection::Checksum => (Seal::Off, Checksum::Crc32c),
            Protection::Encrypt => (Seal::On, Checksum::Off),
        };
        self
    }

    /// The protection that these options give.
    pub fn protection(&self) -> Protection {
        match (self.seal, self.shape.checksum) {
            (Seal::On, _) => Protection::Encrypt,
            (Seal::Off, Checksum::Crc32c) => Protection::Checksum,
            (Seal::Off, Checksum::Off) => Protection::Off,
        }
    }
}

impl farandole_settings::SettingValue for Protection {
    fn parse(text: &str) -> Option<Protection> {
        Protection::from_word(text)
    }
    fn show(&self) -> String {
        self.word().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_options_lead_back_to_their_protection() {
        assert_eq!(Options::default().protection(), Protection::Off);
        for protection in Protection::ALL {
            assert_eq!(Protection::from_word(protection.word()), Some(protection));
            // Whatever the options said before.
            for before in Protection::ALL {
                let options = Options::default().with_protection(before).with_protection(protection);
                assert_eq!(options.protection(), protection);
            }
        }
        assert_eq!(Protection::from_word("Encrypt"), Some(Protection::Encrypt));
        assert_eq!(Protection::from_word("on"), None);
    }
}
