//! Recomputes the signature of a request as AWS describes it (Signature Version 4).

use graviola::hashing::hmac::Hmac;
use graviola::hashing::{Hash as _, Sha256};

use super::{Asked, KEY_ID, SECRET, TOKEN};

/// Whether a request is signed with the key of the tests; if not, what S3 calls it.
pub(super) fn check(asked: &Asked) -> Result<(), &'static str> {
    let authorization = asked.headers.get("authorization").ok_or("AccessDenied")?;
    let rest = authorization.strip_prefix("AWS4-HMAC-SHA256 ").ok_or("AccessDenied")?;
    let part = |name: &str| {
        let found = rest.split(", ").find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        found.ok_or("AuthorizationHeaderMalformed")
    };
    let scope: Vec<&str> = part("Credential")?.split('/').collect();
    let [key_id, date, region, service, last] = scope[..] else { return Err("AuthorizationHeaderMalformed") };
    if key_id != KEY_ID {
        return Err("InvalidAccessKeyId");
    }
    if asked.headers.get("x-amz-security-token").map(String::as_str) != Some(TOKEN) {
        return Err("InvalidToken");
    }
    let names = part("SignedHeaders")?;
    let headers: String =
        names.split(';').map(|name| format!("{name}:{}\n", asked.headers.get(name).map_or("", |it| it))).collect();
    let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
    // A space is a plus in a query, but not where it is signed.
    let query = query.replace('+', "%20");
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_unstable();
    let payload = asked.headers.get("x-amz-content-sha256").ok_or("AccessDenied")?;
    let canonical = format!("{}\n{path}\n{}\n{headers}\n{names}\n{payload}", asked.method, pairs.join("&"));
    let time = asked.headers.get("x-amz-date").ok_or("AccessDenied")?;
    let hash = hex(Sha256::hash(canonical.as_bytes()).as_ref());
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{date}/{region}/{service}/{last}\n{hash}");
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for step in [date, region, service, last, &text] {
        let mut code = Hmac::<Sha256>::new(&key);
        code.update(step.as_bytes());
        key = code.finish().as_ref().to_vec();
    }
    if hex(&key) == part("Signature")? { Ok(()) } else { Err("SignatureDoesNotMatch") }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
