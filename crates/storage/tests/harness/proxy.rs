//! An HTTP proxy for tests, with or without TLS: it opens tunnels (CONNECT) and passes on requests with whole URLs.
//!
//! Names of the domain `.example` stand for loopback. Requests without the credentials get 407. It ends with the
//! process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// `me:pass`, by `printf 'me:pass' | base64`.
const AUTHORIZATION: &str = "Proxy-Authorization: Basic bWU6cGFzcw==";

pub(crate) struct Proxy {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// A proxy that is spoken to without TLS.
    pub(crate) fn start() -> Proxy {
        Proxy::serve(None)
    }

    /// A proxy with the certificate of `localhost`.
    pub(crate) fn start_with_tls() -> Proxy {
        Proxy::serve(Some(crate::harness::tls::server_config()))
    }

    /// The first lines of all requests that had the credentials.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn serve(tls: Option<Arc<ServerConfig>>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::default();
        let kept = Arc::clone(&requests);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (tls, kept) = (tls.clone(), Arc::clone(&kept));
                    // A client that leaves early is not an error of the proxy.
                    tokio::spawn(async move {
                        let _ = match tls {
                            None => pass(stream, &kept).await,
                            Some(tls) => match TlsAcceptor::from(tls).accept(stream).await {
                                Ok(stream) => pass(stream, &kept).await,
                                Err(error) => Err(error),
                            },
                        };
                    });
                }
            });
        });
        Proxy { port, requests }
    }
}

/// Serves one request, or a tunnel.
async fn pass(mut client: impl AsyncRead + AsyncWrite + Unpin, kept: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    if !head.lines().any(|line| line.eq_ignore_ascii_case(AUTHORIZATION)) {
        return client.write_all(b"HTTP/1.1 407 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    }
    let first = head.lines().next().unwrap();
    kept.lock().unwrap().push(first.to_owned());
    let [method, target, _] = first.split(' ').collect::<Vec<&str>>()[..] else { panic!("{first}") };
    let authority = target.strip_prefix("http://").unwrap_or(target).split('/').next().unwrap();
    let (host, port) = authority.rsplit_once(':').unwrap();
    assert!(host == "localhost" || host.ends_with(".example"), "{first}");
    let mut server = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().unwrap()))).await?;
    if method == "CONNECT" {
        client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
        copy_bidirectional(&mut client, &mut server).await?;
    } else {
        let path = target.split_once(authority).unwrap().1;
        let lines = head.lines().skip(1).filter(|line| !line.eq_ignore_ascii_case(AUTHORIZATION));
        let rest: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        server.write_all(format!("{method} {path} HTTP/1.1\r\n{}\r\n\r\n", rest.join("\r\n")).as_bytes()).await?;
        // The server closes its side after the answer to the last request.
        server.shutdown().await?;
        tokio::io::copy(&mut server, &mut client).await?;
    }
    client.shutdown().await
}
