//! What can go wrong between us and a server, as a type: [`Trouble`].
//!
//! Connections make it; it travels through `object_store` as the innermost cause of its errors, and is found there
//! again. So `object_store`'s own texts, which show URLs with their queries and answers of servers in full, reach
//! nobody.
//!
//! **Invariant:** of what a server answers, only its code, its message and the region it names are kept: answers may
//! repeat tokens.
//!
//! What is deliberately not here: what the user can do about it (`explain`).

use std::error::Error;
use std::fmt;
use std::time::Duration;

use http::StatusCode;

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A host name has no address.
    NoAddress(String),
    /// No connection to an address.
    Connect(String),
    /// No TLS on a connection.
    Tls(String),
    /// A proxy does not let us through.
    Proxy { proxy: String, cause: String, again: bool },
    /// A variable names a proxy that cannot be used.
    ProxySetting(String),
    /// Nothing arrived for so long.
    Silent(Duration),
    /// A connection broke within a request.
    Broken(String),
    /// There are no credentials: the address that machines of the cloud have them from does not answer.
    NoCredentials(String),
    /// The server answered, but not with what was asked for.
    Refused(Refusal),
    /// The server sends all of an object where a part was asked for.
    NoRanges,
}

/// An answer that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The status.
    pub(super) status: u16,
    /// What stores call it: `NoSuchKey`, `SlowDown`; empty where there is no such word.
    pub(super) code: String,
    /// What they say about it.
    pub(super) message: String,
    /// The region that the bucket is in, where the answer says so.
    pub(super) region: String,
    /// The time by the server's clock.
    pub(super) date: String,
    /// Whether it was a question for credentials, and not for an object.
    pub(super) is_metadata: bool,
}

impl Trouble {
    /// The trouble at the bottom of an error.
    pub(super) fn within<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Trouble> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(trouble) = error.downcast_ref::<Trouble>() {
                return Some(trouble);
            }
            next = error.source();
        }
        None
    }

    /// Whether the same request may succeed a moment later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Trouble::NoAddress(_) | Trouble::Connect(_) | Trouble::Silent(_) | Trouble::Broken(_) => true,
            Trouble::Proxy { again, .. } => *again,
            Trouble::Refused(refusal) => refusal.may_pass(),
            Trouble::Tls(_) | Trouble::ProxySetting(_) | Trouble::NoCredentials(_) | Trouble::NoRanges => false,
        }
    }
}

impl Refusal {
    /// Servers that are overloaded or restarted say so by their status; S3 has `RequestTimeout` and `SlowDown` also
    /// under others.
    fn may_pass(&self) -> bool {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let is_busy = ["SlowDown", "RequestTimeout", "InternalError", "ServerBusy"].contains(&self.code.as_str());
        (status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED)
            || status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::REQUEST_TIMEOUT
            || is_busy
    }

    /// Reads an answer's text: XML of S3 and Azure, JSON of Google, or whatever a web server says.
    pub(super) fn read(status: StatusCode, headers: &http::HeaderMap, body: &str, is_metadata: bool) -> Refusal {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let first = |found: [String; 2]| found.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        let short = |text: String| text.chars().filter(|letter| !letter.is_control()).take(300).collect();
        let region = first([header("x-amz-bucket-region").to_owned(), element(body, "Region")]);
        Refusal {
            status: status.as_u16(),
            code: short(first([element(body, "Code"), header("x-ms-error-code").to_owned()])),
            message: short(first([element(body, "Message"), json_text(body, "message")])),
            region: short(region),
            date: short(header("date").to_owned()),
            is_metadata,
        }
    }
}

/// The text of the first XML element of this name; nothing where there is none.
fn element(body: &str, name: &str) -> String {
    let found = body.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once('<'));
    found.map(|(text, _)| text.trim().to_owned()).unwrap_or_default()
}

/// The text of the first JSON member of this name; nothing where there is none.
fn json_text(body: &str, name: &str) -> String {
    let found = body.split_once(&format!("\"{name}\"")).and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    let found = found.and_then(|rest| rest.trim_start().strip_prefix('"')).and_then(|rest| rest.split_once('"'));
    found.map(|(text, _)| text.to_owned()).unwrap_or_default()
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::NoAddress(cause) => write!(f, "no address is known for {cause}"),
            Trouble::Connect(cause) => write!(f, "no connection to {cause}"),
            Trouble::Tls(cause) => write!(f, "no TLS with {cause}"),
            Trouble::Proxy { proxy, cause, .. } => write!(f, "the proxy {proxy} does not let us through: {cause}"),
            Trouble::ProxySetting(cause) => f.write_str(cause),
            Trouble::Silent(limit) => write!(f, "the server was silent for {} seconds", limit.as_secs_f32()),
            Trouble::Broken(cause) => write!(f, "the connection broke: {cause}"),
            Trouble::NoCredentials(cause) => write!(f, "no credentials were found; {cause}"),
            Trouble::Refused(refusal) => refusal.fmt(f),
            Trouble::NoRanges => f.write_str("the server sends whole objects only"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = StatusCode::from_u16(self.status).ok().and_then(|status| status.canonical_reason());
        write!(f, "the server answers {} {}", self.status, reason.unwrap_or_default())?;
        if !self.code.is_empty() {
            write!(f, " ({})", self.code)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message.trim_end_matches('.'))?;
        }
        Ok(())
    }
}

impl Error for Trouble {}

#[cfg(test)]
mod tests {
    use object_store::client::{HttpError, HttpErrorKind};

    use super::*;

    fn refusal(status: u16, body: &str) -> Refusal {
        Refusal::read(StatusCode::from_u16(status).unwrap(), &http::HeaderMap::new(), body, false)
    }

    #[test]
    fn answers_are_reduced_to_code_and_message() {
        let body = "<Error><Code>InvalidToken</Code><Message>Bad token.</Message><Token-0>secret</Token-0></Error>";
        let shown = Trouble::Refused(refusal(400, body)).to_string();
        assert_eq!(shown, "the server answers 400 Bad Request (InvalidToken): Bad token");
        let google = "{ \"error\": { \"code\": 403, \"message\" : \"no access\" } }";
        assert_eq!(refusal(403, google).message, "no access");
        assert_eq!(refusal(404, "<html>").to_string(), "the server answers 404 Not Found");
        assert_eq!(refusal(400, "<Code>A</Code><Region>eu-west-3</Region>").region, "eu-west-3");
    }

    #[test]
    fn overload_passes_and_missing_rights_do_not() {
        for (status, body, passes) in [
            (500, "", true),
            (503, "<Code>SlowDown</Code>", true),
            (200, "<Code>SlowDown</Code>", true),
            (400, "<Code>RequestTimeout</Code>", true),
            (429, "", true),
            (501, "", false),
            (403, "", false),
            (404, "", false),
        ] {
            assert_eq!(Trouble::Refused(refusal(status, body)).may_pass(), passes, "{status} {body}");
        }
    }

    #[test]
    fn trouble_is_found_below_other_errors() {
        let http = HttpError::new(HttpErrorKind::Timeout, Trouble::Silent(Duration::from_secs(3)));
        let outer = object_store::Error::Generic { store: "S3", source: Box::new(http) };
        assert_eq!(Trouble::within(&outer), Some(&Trouble::Silent(Duration::from_secs(3))));
        assert_eq!(Trouble::within(&std::io::Error::other("words")), None);
    }
}
