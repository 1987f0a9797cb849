//! How errors reach C: a status for the program, a text for people.
//!
//! The text of the last error of a thread stays in that thread until its next call that fails. The numbers are part of
//! the ABI; they are never given to anything else.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use farandole::{EngineError, Error};

use crate::job::BeginError;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $meaning:literal;)*) => {
        /// What a call came to. The header has the same names in capitals.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub(crate) enum Status { $($(#[$doc])* $name = $number,)* }

        /// All of them, for the comparison with the header.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, Status)] = &[$((stringify!($name), Status::$name),)*];

        /// What the status of this number means, in a few words.
        pub(crate) fn meaning(status: i32) -> &'static CStr {
            match status {
                $($number => $meaning,)*
                _ => c"unknown status",
            }
        }
    };
}

statuses! {
    /// Done.
    Ok = 0, c"done";
    /// An argument is wrong; nothing was sent.
    InvalidArgument = 1, c"an argument is wrong";
    /// `farandole_init` has not been called, or `farandole_shutdown` has.
    NotInitialized = 2, c"this process is not a rank";
    /// The ranks did not find each other, or a setting is wrong.
    StartFailed = 3, c"the ranks did not find each other, or a setting is wrong";
    /// The job ended while the request was under way.
    ShutDown = 4, c"the job has ended in good order";
    /// There is no such process set.
    UnknownProcessSet = 5, c"there is no such process set";
    /// This rank is not a member of the process set.
    NotAMember = 6, c"this rank is not a member of the process set";
    /// There is a process set of exactly these ranks.
    ExistingProcessSet = 7, c"there is a process set of exactly these ranks";
    /// A request of this name is under way.
    DuplicateName = 8, c"a request of this name is in flight";
    /// The ranks do not ask for the same thing.
    Refused = 9, c"the ranks do not ask for the same thing";
    /// The time is up; the request is still under way.
    TimedOut = 10, c"the time is up; the request is in flight";
    /// A rank was lost; the job cannot go on.
    Failed = 11, c"a rank was lost, or has aborted the job";
    /// There is no such ticket, or it was freed.
    UnknownTicket = 12, c"there is no such ticket";
    /// The request is not done yet.
    NotDone = 13, c"the request is in flight";
    /// The place for an answer is too small.
    TooSmall = 14, c"the array for the answer is too small";
    /// This process was forked from a rank.
    Forked = 15, c"this process was forked from a rank";
    /// Another copy of the library has a job in this process.
    OtherLibrary = 16, c"another copy of the library has a job in this process";
    /// A file cannot be written.
    File = 17, c"a file cannot be written";
    /// A defect of the library.
    Internal = 18, c"a defect of the library";
}

/// Why a call did not do what it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) status: Status,
    pub(crate) text: CString,
}

impl Fault {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Fault {
        let text: String = text.into();
        // C's texts end at the first zero; a name that holds one is cut there.
        let text = text.split('\0').next().unwrap_or_default();
        Fault { status, text: CString::new(text).unwrap_or_default() }
    }

    /// An argument is wrong.
    pub(crate) fn argument(text: impl Into<String>) -> Fault {
        Fault::new(Status::InvalidArgument, text)
    }

    pub(crate) fn not_initialized() -> Fault {
        Fault::new(Status::NotInitialized, "this process is no rank: call farandole_init first")
    }

    pub(crate) fn forked() -> Fault {
        Fault::new(
            Status::Forked,
            "this process was forked from a rank and is not a rank itself: it may ask for ranks and sizes, and start \
             another program",
        )
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Fault {
        let status = match &error {
            EngineError::ShutDown => {
                return Fault::new(
                    Status::ShutDown,
                    "the job has ended by farandole_shutdown; call farandole_init to go on",
                );
            }
            EngineError::PeerLeft(left) => return Fault::new(Status::ShutDown, left.to_string()),
            EngineError::UnknownGroup(group) => {
                return Fault::new(Status::UnknownProcessSet, format!("there is no process set {group}"));
            }
            EngineError::ForeignGroup(group) => {
                return Fault::new(Status::NotAMember, format!("this rank is not a member of the process set {group}"));
            }
            EngineError::ExistingGroup(group) => {
                let text = format!("a process set of exactly these ranks exists already: {group}");
                return Fault::new(Status::ExistingProcessSet, text);
            }
            EngineError::Forked => return Fault::forked(),
            EngineError::InvalidGroup(_) | EngineError::WrongMemory { .. } => Status::InvalidArgument,
            EngineError::Duplicate { .. } => Status::DuplicateName,
            EngineError::Refused { .. } => Status::Refused,
            EngineError::TimedOut { .. } => Status::TimedOut,
            EngineError::Setting(_) => Status::StartFailed,
            EngineError::Failed(_) => Status::Failed,
            _ => Status::Internal,
        };
        Fault::new(status, error.to_string())
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        match error {
            Error::Engine(error) => error.into(),
            other => Fault::new(Status::StartFailed, other.to_string()),
        }
    }
}

impl From<BeginError> for Fault {
    fn from(error: BeginError) -> Fault {
        match error {
            BeginError::Forked => Fault::forked(),
            BeginError::OtherLibrary(text) => Fault::new(Status::OtherLibrary, text),
            BeginError::Library(error) => error.into(),
        }
    }
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Carries out a call that has a status. A panic is a defect of ours: it must not unwind into C.
pub(crate) fn carry_out(call: impl FnOnce() -> Result<(), Fault>) -> i32 {
    match guarded(call) {
        Ok(()) => Status::Ok as i32,
        Err(fault) => note(fault) as i32,
    }
}

/// Carries out a call that answers with a value, and with `otherwise` where it fails.
pub(crate) fn answer<T>(otherwise: T, call: impl FnOnce() -> Result<T, Fault>) -> T {
    guarded(call).unwrap_or_else(|fault| {
        note(fault);
        otherwise
    })
}

fn guarded<T>(call: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let words =
            panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("farandole has a defect: {}", words.unwrap_or("it panicked"));
        Err(Fault::new(Status::Internal, text))
    })
}

/// Keeps the text for [`last`].
fn note(fault: Fault) -> Status {
    // A thread whose own variables are gone has no use for a text.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(fault.text));
    fault.status
}

/// The text of this thread's last error; empty without one. It stays until the thread's next error.
pub(crate) fn last() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_deref().unwrap_or(NONE).as_ptr()).unwrap_or(NONE.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_text() -> String {
        LAST.with(|last| last.borrow().clone().unwrap_or_default().into_string().expect("UTF-8"))
    }

    #[test]
    fn a_fault_leaves_its_status_and_its_text() {
        assert_eq!(carry_out(|| Err(Fault::argument("the name is empty"))), 1);
        assert_eq!(last_text(), "the name is empty");
        assert_eq!(carry_out(|| Ok(())), 0);
        assert_eq!(last_text(), "the name is empty", "a call that succeeds leaves the text alone");
        assert_eq!(answer(-1, || Err(Fault::not_initialized())), -1);
        assert!(last_text().contains("farandole_init"));
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(carry_out(|| panic!("index {} of 3", 7)), Status::Internal as i32);
        assert_eq!(last_text(), "farandole has a defect: index 7 of 3");
    }

    #[test]
    fn errors_of_the_engine_keep_their_kind_and_their_words() {
        let fault = Fault::from(EngineError::Duplicate { name: "w".into(), group: farandole::GroupId::WORLD });
        assert_eq!(fault.status, Status::DuplicateName);
        assert!(fault.text.to_str().expect("UTF-8").contains("\"w\""), "{fault:?}");
        let fault = Fault::from(EngineError::ForeignGroup(farandole::GroupId(3)));
        assert_eq!(fault.status, Status::NotAMember);
        assert_eq!(fault.text.to_str().expect("UTF-8"), "this rank is not a member of the process set 3");
    }

    #[test]
    fn the_header_has_the_same_numbers() {
        for (name, status) in ALL {
            let mut word = String::from("FARANDOLE");
            for letter in name.chars() {
                if letter.is_uppercase() {
                    word.push('_');
                }
                word.push(letter.to_ascii_uppercase());
            }
            let line = format!("    {word} = {},", *status as i32);
            assert!(crate::HEADER.contains(&line), "the header lacks `{line}`");
            assert_ne!(meaning(*status as i32), meaning(-1), "{name} has a meaning");
        }
    }
}
