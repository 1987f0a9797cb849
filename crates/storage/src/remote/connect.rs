//! Connections: addresses, proxies, TLS.
//!
//! A [`Dialer`] makes a connection to a server as a URL names it: directly, or through the proxy that `HTTPS_PROXY`,
//! `HTTP_PROXY` or `ALL_PROXY` name and `NO_PROXY` does not except; with TLS for `https`, and then only to a server
//! whose certificate one of the system's roots vouches for (`SSL_CERT_FILE`, `SSL_CERT_DIR` name others).
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
    /// Whether requests name the whole URL, because a proxy reads them.
    pub(super) is_proxied: bool,
}

impl Dialer {
    pub(super) fn new(connect_timeout: Duration, silence_timeout: Duration, variables: &StorageVariables) -> Dialer {
        Dialer { connect_timeout, silence_timeout, proxies: Proxies::new(variables), tls: OnceLock::new() }
    }

    /// Connects to the server of a URL.
    pub(super) async fn dial(&self, uri: &Uri) -> Result<Connection, Trouble> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let proxy = self.proxies.find(is_tls, &host);
        let (first_host, first_port) = proxy.map_or((host.as_str(), port), |proxy| (proxy.host.as_str(), proxy.port));
        let connected = self.connect(first_host, first_port, is_metadata(uri)).await;
        let mut stream = match (connected, proxy) {
            (Err(trouble), Some(proxy)) => {
                return Err(Trouble::Proxy { proxy: proxy.shown(), cause: trouble.to_string(), again: true });
            }
            (connected, _) => connected?,
        };
        if !is_tls {
            return Ok(Connection { wire: Box::new(stream), is_proxied: proxy.is_some() });
        }
        if let Some(proxy) = proxy {
            self.tunnel(&mut stream, proxy, &host, port).await?;
        }
        let wire = self.secure(stream, &host).await?;
        Ok(Connection { wire, is_proxied: false })
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
    async fn tunnel(&self, stream: &mut TcpStream, proxy: &Proxy, host: &str, port: u16) -> Result<(), Trouble> {
        let trouble = |cause: String, again: bool| Trouble::Proxy { proxy: proxy.shown(), cause, again };
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let authorization =
            proxy.basic.as_ref().map(|basic| format!("Proxy-Authorization: Basic {basic}\r\n")).unwrap_or_default();
        let ask = format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n{authorization}\r\n");
        let talk = async {
            stream.write_all(ask.as_bytes()).await?;
            let mut answer = Vec::new();
            // Byte by byte: what follows the answer belongs to TLS.
            while !answer.ends_with(b"\r\n\r\n") && answer.len() < MAX_PROXY_ANSWER_BYTES {
                answer.push(stream.read_u8().await?);
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

    async fn secure(&self, stream: TcpStream, host: &str) -> Result<Box<dyn Wire>, Trouble> {
        let trouble = |cause: String| Trouble::Tls(format!("{host}: {cause}"));
        let config = self.tls.get_or_init(tls_config).clone().map_err(trouble)?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| trouble(error.to_string()))?;
        match timeout(self.silence_timeout, TlsConnector::from(config).connect(name, stream)).await {
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

/// The proxies that the environment names.
#[derive(Debug)]
struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    /// Hosts that are reached directly: names, endings of names, addresses; `*` is all.
    except: Vec<String>,
}

struct Proxy {
    host: String,
    port: u16,
    /// User name and password, as HTTP wants them.
    basic: Option<String>,
}

impl Proxies {
    fn new(variables: &StorageVariables) -> Proxies {
        let get = |names: [&str; 2]| names.iter().find_map(|name| variables.get(name)).map(str::to_owned);
        let all = get(["all_proxy", "ALL_PROXY"]);
        // Programs on the web have `HTTP_PROXY` set by whoever asks them something, so curl reads the small letters
        // alone; a training job is no such program, and people write both.
        let http = get(["http_proxy", "HTTP_PROXY"]).or_else(|| all.clone());
        let https = get(["https_proxy", "HTTPS_PROXY"]).or(all);
        let except = get(["no_proxy", "NO_PROXY"]).unwrap_or_default();
        Proxies {
            http: http.as_deref().and_then(Proxy::parse),
            https: https.as_deref().and_then(Proxy::parse),
            except: except.split(',').map(|name| name.trim().trim_start_matches('.').to_owned()).collect(),
        }
    }

    fn find(&self, is_tls: bool, host: &str) -> Option<&Proxy> {
        let is_excepted = self.except.iter().filter(|name| !name.is_empty()).any(|name| {
            name == "*" || name == host || host.strip_suffix(name.as_str()).is_some_and(|begin| begin.ends_with('.'))
        });
        let is_link_local = host.starts_with("169.254.");
        let proxy = if is_tls { self.https.as_ref() } else { self.http.as_ref() };
        proxy.filter(|_| !is_excepted && !is_link_local)
    }
}

impl Proxy {
    /// `http://user:password@host:port`, of which only the host must be there.
    fn parse(text: &str) -> Option<Proxy> {
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let rest = rest.split('/').next().filter(|rest| !rest.is_empty())?;
        let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !host.ends_with(':') => (host, port.parse().ok()?),
            _ => (place, 80),
        };
        let basic = user.map(|user| super::crypto::base64(&super::place::percent_decoded(user)));
        Some(Proxy { host: host.trim_matches(['[', ']']).to_owned(), port, basic })
    }

    fn shown(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> StorageVariables {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn proxies_are_those_of_the_environment_but_for_exceptions() {
        let set = variables(&[
            ("HTTPS_PROXY", "http://me:p%40ss@proxy.example:3128/"),
            ("http_proxy", "plain:8080"),
            ("NO_PROXY", "localhost, .internal,10.0.0.1"),
        ]);
        let proxies = Proxies::new(&set);
        let found = |is_tls, host| proxies.find(is_tls, host).map(Proxy::shown);
        assert_eq!(found(true, "s3.amazonaws.com").as_deref(), Some("proxy.example:3128"));
        assert_eq!(found(false, "s3.amazonaws.com").as_deref(), Some("plain:8080"));
        for excepted in ["localhost", "a.internal", "10.0.0.1", "169.254.169.254"] {
            assert_eq!(found(true, excepted), None, "{excepted}");
        }
        assert!(found(true, "notinternal").is_some());
        // "me:p@ss", by `printf 'me:p@ss' | base64`.
        assert_eq!(proxies.https.as_ref().unwrap().basic.as_deref(), Some("bWU6cEBzcw=="));
        assert!(!format!("{proxies:?}").contains("bWU6"));
        assert!(Proxies::new(&variables(&[])).find(true, "host").is_none());
    }

    #[test]
    fn addresses_of_metadata_are_known() {
        assert!(is_metadata(&Uri::from_static("http://169.254.169.254/latest/api/token")));
        assert!(is_metadata(&Uri::from_static("http://metadata.google.internal/x")));
        assert!(!is_metadata(&Uri::from_static("https://s3.amazonaws.com/x")));
    }
}
