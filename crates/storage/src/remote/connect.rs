//! Connections: addresses, proxies, TLS.
//!
//! A [`Dialer`] connects to the server of a URL: directly, or through a proxy of the environment (`proxies`), to which
//! the connection may be encrypted as well. `https` is always end to end, through a tunnel (CONNECT) that the proxy
//! opens; `http` requests are sent to the proxy, which reads them. Certificates are checked against the system's roots
//! (`SSL_CERT_FILE`, `SSL_CERT_DIR` name others).
//!
//! **Invariant:** every step has a time limit.
//!
//! What is deliberately not here: what is sent through a connection (`client`).

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Uri;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::super::open::StorageVariables;
use super::proxies::{Proxies, Proxy};
use super::trouble::Trouble;

/// Long enough for a virtual machine's own metadata server, short for somebody who has forgotten the credentials.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// A proxy's answer to CONNECT has a status line and some headers.
const MAX_PROXY_ANSWER_BYTES: usize = 16 << 10;

/// What a connection is.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<W: AsyncRead + AsyncWrite + Send + Unpin> Wire for W {}

/// Makes connections. See the module's text.
#[derive(Debug)]
pub(super) struct Dialer {
    connect_timeout: Duration,
    silence_timeout: Duration,
    proxies: Proxies,
    tls: OnceLock<Result<Arc<rustls::ClientConfig>, String>>,
}

/// A connection, and how requests are written on it.
pub(super) struct Connection {
    pub(super) wire: Box<dyn Wire>,
    pub(super) reader: Reader,
}

/// Which program reads the requests on a connection.
#[derive(Clone, Debug)]
pub(super) enum Reader {
    /// The server.
    Server,
    /// A proxy, which needs the whole URL.
    Proxy(Proxy),
}

impl Dialer {
    pub(super) fn new(connect_timeout: Duration, silence_timeout: Duration, variables: &StorageVariables) -> Dialer {
        Dialer { connect_timeout, silence_timeout, proxies: Proxies::new(variables), tls: OnceLock::new() }
    }

    /// The error of a proxy that refuses a request to this URL.
    pub(super) fn refused_by_proxy(&self, uri: &Uri) -> Option<Trouble> {
        let proxy = self.proxies.find(uri).ok()??.shown();
        Some(Trouble::Proxy {
            proxy,
            cause: "it answers 407: it needs a user name and a password".to_owned(),
            again: false,
        })
    }

    /// Connects to the server of a URL.
    pub(super) async fn dial(&self, uri: &Uri) -> Result<Connection, Trouble> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let Some(proxy) = self.proxies.find(uri)? else {
            let stream = self.connect(&host, port, is_metadata(uri)).await?;
            let wire = if is_tls { self.secure(stream, &host).await? } else { Box::new(stream) };
            return Ok(Connection { wire, reader: Reader::Server });
        };
        let mut wire = self.connect_to_proxy(&proxy).await.map_err(|trouble| Trouble::Proxy {
            proxy: proxy.shown(),
            cause: trouble.to_string(),
            again: trouble.may_pass(),
        })?;
        if !is_tls {
            return Ok(Connection { wire, reader: Reader::Proxy(proxy) });
        }
        self.tunnel(&mut wire, &proxy, &host, port).await?;
        Ok(Connection { wire: self.secure(wire, &host).await?, reader: Reader::Server })
    }

    async fn connect_to_proxy(&self, proxy: &Proxy) -> Result<Box<dyn Wire>, Trouble> {
        let stream = self.connect(&proxy.host, proxy.port, false).await?;
        if proxy.is_tls { self.secure(stream, &proxy.host).await } else { Ok(Box::new(stream)) }
    }

    /// Tries all addresses of a host, one after the other.
    async fn connect(&self, host: &str, port: u16, is_metadata: bool) -> Result<TcpStream, Trouble> {
        let limit = if is_metadata { METADATA_TIMEOUT } else { self.connect_timeout };
        let place = format!("{host}:{port}");
        let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => match timeout(limit, tokio::net::lookup_host((host, port))).await {
                Ok(Ok(found)) => found.collect(),
                Ok(Err(error)) => return Err(Trouble::NoAddress(format!("{host}: {error}"))),
                Err(_) => return Err(Trouble::NoAddress(format!("{host} within {limit:?}"))),
            },
        };
        let mut trouble = Trouble::NoAddress(host.to_owned());
        for address in addresses {
            match timeout(limit, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Requests are short and wait for their answer; on a socket that refuses, they are merely slower.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => trouble = Trouble::Connect(format!("{place} ({address}): {error}")),
                Err(_) => trouble = Trouble::Connect(format!("{place} ({address}) within {limit:?}")),
            }
        }
        Err(trouble)
    }

    /// Asks a proxy to pass everything on to a server.
    async fn tunnel(&self, wire: &mut impl Wire, proxy: &Proxy, host: &str, port: u16) -> Result<(), Trouble> {
        let trouble = |cause: String, again: bool| Trouble::Proxy { proxy: proxy.shown(), cause, again };
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut ask = format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n").into_bytes();
        if let Some(authorization) = &proxy.authorization {
            ask.extend([b"Proxy-Authorization: ", authorization.as_bytes(), b"\r\n"].concat());
        }
        ask.extend(b"\r\n");
        let talk = async {
            wire.write_all(&ask).await?;
            wire.flush().await?;
            let mut answer = Vec::new();
            // Byte by byte: what follows the answer belongs to TLS.
            while !answer.ends_with(b"\r\n\r\n") && answer.len() < MAX_PROXY_ANSWER_BYTES {
                answer.push(wire.read_u8().await?);
            }
            Ok::<_, std::io::Error>(answer)
        };
        let answer = match timeout(self.silence_timeout, talk).await {
            Ok(Ok(answer)) => String::from_utf8_lossy(&answer).into_owned(),
            Ok(Err(error)) => return Err(trouble(error.to_string(), true)),
            Err(_) => return Err(trouble(format!("it was silent for {:?}", self.silence_timeout), true)),
        };
        let status = answer.lines().next().unwrap_or_default().to_owned();
        match status.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()) {
            Some(200..=299) => Ok(()),
            code => Err(trouble(format!("it answers `{status}`"), code.is_some_and(|code| code >= 500))),
        }
    }

    async fn secure(&self, wire: impl Wire + 'static, host: &str) -> Result<Box<dyn Wire>, Trouble> {
        let trouble = |cause: String| Trouble::Tls(format!("{host}: {cause}"));
        let config = self.tls.get_or_init(tls_config).clone().map_err(trouble)?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| trouble(error.to_string()))?;
        match timeout(self.silence_timeout, TlsConnector::from(config).connect(name, wire)).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            // A certificate that is refused will be refused again; a connection that breaks may not break again.
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => Err(trouble(error.to_string())),
            Ok(Err(error)) => Err(Trouble::Broken(format!("{host}, while TLS began: {error}"))),
            Err(_) => Err(Trouble::Silent(self.silence_timeout)),
        }
    }
}

/// Whether a URL is one of those from which machines of a cloud have their credentials.
pub(super) fn is_metadata(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    host.starts_with("169.254.") || host == "metadata.google.internal" || host == "metadata"
}

/// TLS 1.2 and 1.3 with the roots of this machine.
fn tls_config() -> Result<Arc<rustls::ClientConfig>, String> {
    super::crypto::check_processor()?;
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        return Err(format!(
            "this machine has no root certificates to check the server's against; install the package ca-certificates, \
             or name a file of them in SSL_CERT_FILE ({})",
            errors.join("; ")
        ));
    }
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_metadata_are_known() {
        assert!(is_metadata(&Uri::from_static("http://169.254.169.254/latest/api/token")));
        assert!(is_metadata(&Uri::from_static("http://metadata.google.internal/x")));
        assert!(!is_metadata(&Uri::from_static("https://s3.amazonaws.com/x")));
    }
}
