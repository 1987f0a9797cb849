//! What a caller can do about the end of its collectives, in the sense of MPI's error classes.
//!
//! The rank that notices an error first chooses the class. It travels with the cause, so all ranks report the same.
//!
//! Not here: what happened, which is in the text of the error.

/// The class of an error that other ranks have a part in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// A rank died, was cut off, or left while others needed it. A smaller world can continue.
    RankLost,
    /// The requests of the ranks differ, or ask for something that cannot be done. The program needs a change.
    Mismatch,
    /// A wait passed its limit, and no rank is known to be lost.
    Stall,
    /// Anything else: damaged data, a failed system call or device, a defect of the library.
    #[default]
    Other,
}

impl ErrorClass {
    const ALL: [ErrorClass; 4] = [ErrorClass::RankLost, ErrorClass::Mismatch, ErrorClass::Stall, ErrorClass::Other];

    /// For the wire.
    pub fn to_byte(self) -> u8 {
        match self {
            ErrorClass::RankLost => 0,
            ErrorClass::Mismatch => 1,
            ErrorClass::Stall => 2,
            ErrorClass::Other => 3,
        }
    }

    /// From the wire; `None` if the byte stands for no class.
    pub fn from_byte(byte: u8) -> Option<ErrorClass> {
        ErrorClass::ALL.into_iter().find(|class| class.to_byte() == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_survives_the_wire_and_no_other_byte_is_one() {
        let decoded: Vec<ErrorClass> = (0..=u8::MAX).filter_map(ErrorClass::from_byte).collect();
        assert_eq!(decoded, ErrorClass::ALL);
    }
}
