//! TLS in front of a server of the tests: each request is passed on, and its answer passed back.
//!
//! The certificate in `tests/tls` is for `localhost`, from an authority of the tests' own. Its key is no secret.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The authority's certificate.
pub(crate) const AUTHORITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../storage/tests/tls/authority.pem");

/// A server with the certificate of `localhost`.
pub(crate) fn server_config() -> Arc<ServerConfig> {
    let provider = Arc::new(rustls_graviola::default_provider());
    let certificate = CertificateDer::from_pem_slice(include_bytes!("../tls/server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../tls/server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap())
}

/// Listens with TLS for a server of the tests. Returns the port.
pub(crate) fn in_front_of(address: &str) -> u16 {
    let config = server_config();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = address.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (config, address) = (Arc::clone(&config), address.clone());
            std::thread::spawn(move || {
                let session = ServerConnection::new(config).unwrap();
                // A client that refuses the certificate goes away: nothing more is to be done.
                pass(StreamOwned::new(session, stream), &TcpStream::connect(address).unwrap())
            });
        }
    });
    port
}

/// Passes requests without a body and answers of a given length.
fn pass(tls: StreamOwned<ServerConnection, TcpStream>, mut plain: &TcpStream) -> std::io::Result<()> {
    let mut tls = BufReader::new(tls);
    let mut answers = BufReader::new(plain);
    loop {
        let (request, is_head) = match head(&mut tls)? {
            head if head.is_empty() => return Ok(()),
            head => (head.clone(), head.starts_with("HEAD ")),
        };
        plain.write_all(request.as_bytes())?;
        let answer = head(&mut answers)?;
        let length = answer.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap_or("0");
        let mut body = vec![0; if is_head { 0 } else { length.parse().unwrap() }];
        answers.read_exact(&mut body)?;
        tls.get_mut().write_all(answer.as_bytes())?;
        tls.get_mut().write_all(&body)?;
        tls.get_mut().flush()?;
    }
}

/// Everything up to an empty line; nothing at the end of the stream.
fn head(reader: &mut impl std::io::BufRead) -> std::io::Result<String> {
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        if reader.read_line(&mut text)? == 0 {
            return Ok(String::new());
        }
    }
    Ok(text)
}
