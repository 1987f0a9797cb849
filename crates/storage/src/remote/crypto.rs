//! Hashes and signatures for requests, by graviola, which is also beneath TLS: one library, and nothing but Rust.
//!
//! What is deliberately not here: TLS (`connect`).

use graviola::hashing::hmac::Hmac;
use graviola::hashing::{Hash, HashContext, HashOutput, Sha256};
use graviola::signing::rsa::SigningKey;
use object_store::client::{CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm};
use object_store::{Error, Result};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;

/// The functions that `object_store` signs requests with.
#[derive(Debug)]
pub(super) struct Crypto;

impl CryptoProvider for Crypto {
    fn digest(&self, algorithm: DigestAlgorithm) -> Result<Box<dyn DigestContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Sum::new(Sha256::new()))),
            other => Err(unknown(&format!("{other:?}"))),
        }
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Sum::new(Hmac::<Sha256>::new(secret)))),
            other => Err(unknown(&format!("{other:?}"))),
        }
    }

    fn sign(&self, algorithm: SigningAlgorithm, pem: &[u8]) -> Result<Box<dyn Signer>> {
        match algorithm {
            SigningAlgorithm::RS256 => Ok(Box::new(RsaKey::from_pem(pem)?)),
            other => Err(unknown(&format!("{other:?}"))),
        }
    }
}

/// An error if the processor lacks what graviola cannot do without.
pub(super) fn check_processor() -> Result<(), String> {
    #[cfg(target_arch = "x86_64")]
    let missing: Vec<&str> = [
        ("aes", std::arch::is_x86_feature_detected!("aes")),
        ("pclmulqdq", std::arch::is_x86_feature_detected!("pclmulqdq")),
        ("bmi1", std::arch::is_x86_feature_detected!("bmi1")),
        ("bmi2", std::arch::is_x86_feature_detected!("bmi2")),
        ("adx", std::arch::is_x86_feature_detected!("adx")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
    ]
    .into_iter()
    .filter_map(|(name, is_there)| (!is_there).then_some(name))
    .collect();
    #[cfg(target_arch = "aarch64")]
    let missing: Vec<&str> = [
        ("aes", std::arch::is_aarch64_feature_detected!("aes")),
        ("sha2", std::arch::is_aarch64_feature_detected!("sha2")),
        ("pmull", std::arch::is_aarch64_feature_detected!("pmull")),
    ]
    .into_iter()
    .filter_map(|(name, is_there)| (!is_there).then_some(name))
    .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("encryption needs a processor with {}; copy the data to local files", missing.join(", ")))
}

/// A hash or a code that bytes are added to, and what came out in the end.
struct Sum<C> {
    context: Option<C>,
    output: Option<HashOutput>,
}

impl<C> Sum<C> {
    fn new(context: C) -> Sum<C> {
        Sum { context: Some(context), output: None }
    }

    fn end(&mut self, end: impl FnOnce(C) -> HashOutput) -> Result<&[u8]> {
        let output = self.context.take().map(end).ok_or_else(|| failed("a hash was finished twice"))?;
        Ok(HashOutput::as_ref(self.output.insert(output)))
    }
}

impl DigestContext for Sum<<Sha256 as Hash>::Context> {
    fn update(&mut self, data: &[u8]) {
        if let Some(context) = &mut self.context {
            context.update(data);
        }
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.end(HashContext::finish)
    }
}

impl HmacContext for Sum<Hmac<Sha256>> {
    fn update(&mut self, data: &[u8]) {
        if let Some(context) = &mut self.context {
            context.update(data);
        }
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.end(Hmac::finish)
    }
}

/// The key of a Google service account.
struct RsaKey(SigningKey);

impl RsaKey {
    fn from_pem(pem: &[u8]) -> Result<RsaKey> {
        let key = match PrivateKeyDer::from_pem_slice(pem) {
            Ok(PrivateKeyDer::Pkcs8(key)) => SigningKey::from_pkcs8_der(key.secret_pkcs8_der()),
            Ok(PrivateKeyDer::Pkcs1(key)) => SigningKey::from_pkcs1_der(key.secret_pkcs1_der()),
            _ => return Err(failed("the service account has no RSA key in PEM form")),
        };
        key.map(RsaKey).map_err(|_| failed("the service account's RSA key cannot be used"))
    }
}

impl Signer for RsaKey {
    fn sign(&self, string_to_sign: &[u8]) -> Result<Vec<u8>> {
        let mut signature = vec![0; self.0.modulus_len_bytes()];
        match self.0.sign_pkcs1_sha256(&mut signature, string_to_sign) {
            Ok(signature) => Ok(signature.to_vec()),
            Err(_) => Err(failed("signing with the service account's RSA key failed")),
        }
    }
}

fn failed(cause: &'static str) -> Error {
    Error::Generic { store: "crypto", source: cause.into() }
}

fn unknown(algorithm: &str) -> Error {
    Error::Generic { store: "crypto", source: format!("{algorithm} is not known here").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn hashes_and_codes_are_those_of_the_standards() {
        let mut digest = Crypto.digest(DigestAlgorithm::Sha256).unwrap();
        digest.update(b"a");
        digest.update(b"bc");
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(digest.finish().unwrap()), expected);
        // RFC 4231, test case 2.
        let mut code = Crypto.hmac(DigestAlgorithm::Sha256, b"Jefe").unwrap();
        code.update(b"what do ya want for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(code.finish().unwrap()), expected);
        assert!(code.finish().is_err());
    }

    /// Bytes as base64 with padding.
    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for group in bytes.chunks(3) {
            let [a, b, c] = [0, 1, 2].map(|at| u32::from(group.get(at).copied().unwrap_or(0)));
            let bits = a << 16 | b << 8 | c;
            for at in 0..4 {
                let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
                text.push(if at <= group.len() { letter as char } else { '=' });
            }
        }
        text
    }

    #[test]
    fn a_service_account_signs_and_garbage_is_refused() {
        let key = SigningKey::generate(graviola::signing::rsa::KeySize::Rsa2048).unwrap();
        let mut der = vec![0; 4096];
        let der = key.to_pkcs8_der(&mut der).unwrap();
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", base64(der));
        let signature = Crypto.sign(SigningAlgorithm::RS256, pem.as_bytes()).unwrap().sign(b"words").unwrap();
        key.public_key().verify_pkcs1_sha256(&signature, b"words").unwrap();
        assert!(Crypto.sign(SigningAlgorithm::RS256, b"garbage").is_err());
    }
}
