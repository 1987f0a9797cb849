//! Words for people: what a failure means, and what they can do about it.
//!
//! **Invariant:** texts are made of [`Trouble`] and of constants; what servers and `object_store` say beyond that, and
//! secrets, are in none of them.

use super::super::StorageErrorKind;
use super::fetch::Failure;
use super::place::{Kind, Place};
use super::trouble::{Refusal, Trouble};

/// The kind of a failure, and its cause in words.
pub(super) fn explain(failure: &Failure, place: &Place) -> (StorageErrorKind, String) {
    match failure {
        Failure::Changed => (
            StorageErrorKind::Failed,
            "the object has changed since it was first looked at; start again, and write new versions of a data set \
             under new names"
                .to_owned(),
        ),
        Failure::Ends(bytes) => (StorageErrorKind::Truncated, format!("the object has only {bytes} bytes")),
        Failure::TooLarge(bytes) => (
            StorageErrorKind::Failed,
            format!(
                "the server sends whole objects only (it does not know the header Range), and this one has {bytes} \
                 bytes: each read would fetch all of them; use a server that knows ranges, or copy the data to local \
                 files"
            ),
        ),
        Failure::Short => {
            (StorageErrorKind::Failed, "answers end before all bytes arrived, again and again".to_owned())
        }
        Failure::TimedOut => (
            StorageErrorKind::TimedOut,
            "no complete answer in time, with all attempts (FARANDOLE_STORAGE_TIMEOUT_SECONDS)".to_owned(),
        ),
        Failure::Store(error) => match Trouble::within(error) {
            Some(trouble) => explain_trouble(trouble, place),
            None => (StorageErrorKind::Failed, describe(error)),
        },
    }
}

fn explain_trouble(trouble: &Trouble, place: &Place) -> (StorageErrorKind, String) {
    match trouble {
        Trouble::Refused(refusal) => explain_refusal(refusal, place),
        Trouble::NoCredentials(_) => (StorageErrorKind::Denied, format!("{trouble}; {}", place.sources())),
        Trouble::Silent(_) => (StorageErrorKind::TimedOut, format!("{trouble}, again and again")),
        Trouble::NoAddress(_) | Trouble::Connect(_) => (
            StorageErrorKind::Failed,
            format!(
                "{trouble}; is the endpoint right{}, and does this network need a proxy (HTTPS_PROXY, HTTP_PROXY)?",
                endpoint_variable(place.kind)
            ),
        ),
        Trouble::Tls(_) => (
            StorageErrorKind::Failed,
            format!(
                "{trouble}; where the server's certificate is signed by an authority of your own, name a file with \
                 its certificate in SSL_CERT_FILE; a clock that is wrong makes certificates look expired"
            ),
        ),
        Trouble::Proxy { .. } => (
            StorageErrorKind::Failed,
            format!("{trouble}; it is set by HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, and NO_PROXY names exceptions"),
        ),
        Trouble::ProxySetting(_) | Trouble::Broken(_) | Trouble::NoRanges => {
            (StorageErrorKind::Failed, trouble.to_string())
        }
    }
}

fn explain_refusal(refusal: &Refusal, place: &Place) -> (StorageErrorKind, String) {
    let code = refusal.code.as_str();
    let is_keys =
        ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthenticationFailed"]
            .contains(&code);
    let (kind, what) = match refusal.status {
        _ if refusal.is_metadata => (StorageErrorKind::Denied, place.sources().to_owned()),
        _ if ["RequestTimeTooSkewed", "RequestExpired"].contains(&code) => (
            StorageErrorKind::Denied,
            format!("this machine's clock is wrong: the server's says {}; set it, best by NTP", refusal.date),
        ),
        _ if is_keys => (StorageErrorKind::Denied, format!("the credentials are wrong; {}", place.sources())),
        _ if place.kind == Kind::S3 && !refusal.region.is_empty() && is_other_region(refusal) => {
            (StorageErrorKind::Failed, format!("the bucket is in the region {0}: set AWS_REGION={0}", refusal.region))
        }
        300..=399 => (
            StorageErrorKind::Failed,
            "the store sends us elsewhere: the bucket is in another region; set AWS_REGION".to_owned(),
        ),
        404 if ["NoSuchBucket", "ContainerNotFound"].contains(&code) => {
            (StorageErrorKind::NotFound, format!("there is no bucket or container {}", place.authority))
        }
        404 => (StorageErrorKind::NotFound, "there is no such object".to_owned()),
        401 | 403 => (
            StorageErrorKind::Denied,
            format!("these credentials may not read it, or there are none; {}", place.sources()),
        ),
        405 | 501 if place.kind == Kind::Web => (
            StorageErrorKind::Failed,
            "the server does not list folders (WebDAV, PROPFIND); name each file by its URL".to_owned(),
        ),
        412 => return explain(&Failure::Changed, place),
        416 => (StorageErrorKind::Truncated, "the object ends before this byte".to_owned()),
        429 | 500..=599 => (StorageErrorKind::Failed, "it said so at every attempt; try again later".to_owned()),
        _ => (StorageErrorKind::Failed, "nothing is known here about this answer".to_owned()),
    };
    (kind, format!("{refusal}; {what}"))
}

/// S3 says in many ways that a bucket is elsewhere.
fn is_other_region(refusal: &Refusal) -> bool {
    let codes = [
        "PermanentRedirect",
        "TemporaryRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    ];
    (300..400).contains(&refusal.status) || codes.contains(&refusal.code.as_str()) || refusal.status == 400
}

fn endpoint_variable(kind: Kind) -> &'static str {
    match kind {
        Kind::S3 => " (AWS_ENDPOINT_URL, AWS_REGION)",
        Kind::Google => " (GOOGLE_BASE_URL)",
        Kind::Azure => " (AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ENDPOINT)",
        Kind::Web => "",
    }
}

/// An error of `object_store` that no server has made: a path or an answer that it cannot read.
fn describe(error: &object_store::Error) -> String {
    match error {
        object_store::Error::Generic { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}
