//! The HTTP client that `object_store` sends its requests through: [`Client`].
//!
//! HTTP/1.1 on connections that are kept and used again, as many at once as the options say. A connection carries one
//! request at a time, and goes back to the others when its answer was read to the end.
//!
//! **Invariant:** whoever polls an answer gets bytes, the end, or an error within the limit for silence. An answer that
//! is none, an error of the server or a whole object where a part was asked for, is a [`Trouble`].
//!
//! What is deliberately not here: repetition (`fetch`). A request is sent again here in one case only: it was given to
//! a connection that the server had closed while it was idle.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{HOST, HeaderValue, LOCATION, PROXY_AUTHORIZATION, RANGE, USER_AGENT};
use http::{Method, StatusCode, Uri};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, timeout};

use super::super::counters::{Count, StorageCounters};
use super::connect::{Dialer, Reader, is_metadata};
use super::trouble::{Refusal, Trouble};

/// Stores close connections that are idle for some 20 seconds; younger ones are mostly still open.
const MAX_IDLE: Duration = Duration::from_secs(15);

/// Of an answer that is an error, at most this much is read: stores send less than one KiB.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Web servers send readers on to another address, and that perhaps to a third.
const MAX_REDIRECTS: usize = 5;

/// What a client needs.
#[derive(Debug)]
pub(super) struct ClientParts {
    pub(super) dialer: Dialer,
    pub(super) connections: usize,
    pub(super) silence_timeout: Duration,
    pub(super) counters: Arc<StorageCounters>,
    /// Whether a redirection is followed: by web servers it is meant, by stores it is a wrong region.
    pub(super) redirects: Redirects,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redirects {
    Follow,
    Refuse,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct Client(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    parts: ClientParts,
    slots: Arc<Semaphore>,
    /// Connections without a request, by scheme and authority. Requests take and return them; all on the one thread of
    /// the storage, but for those whose reader has dropped an answer on another.
    idle: Mutex<HashMap<String, Vec<Idle>>>,
}

struct Idle {
    sender: SendRequest<HttpRequestBody>,
    reader: Reader,
    since: Instant,
}

impl Client {
    pub(super) fn new(parts: ClientParts) -> Client {
        let slots = Arc::new(Semaphore::new(parts.connections.max(1)));
        Client(Arc::new(Shared { parts, slots, idle: Mutex::default() }))
    }
}

impl HttpConnector for Client {
    /// Everything that is asked for goes through the same connections; limits and proxies are ours.
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.0.call(request).await.map_err(failed)
    }
}

impl Shared {
    async fn call(self: &Arc<Self>, mut request: HttpRequest) -> Result<HttpResponse, Trouble> {
        let asks_for_part = request.headers().contains_key(RANGE);
        for _ in 0..=MAX_REDIRECTS {
            let is_metadata = is_metadata(request.uri());
            let permit = Arc::clone(&self.slots).acquire_owned().await;
            let permit = permit.expect("invariant: nobody closes the semaphore");
            self.parts.counters.count(Count::Request);
            let response = self.exchange(&request, permit).await.map_err(|trouble| match is_metadata {
                true => Trouble::NoCredentials(trouble.to_string()),
                false => trouble,
            })?;
            let status = response.status();
            if status == StatusCode::OK && asks_for_part && request.method() == Method::GET {
                return Err(Trouble::NoRanges);
            }
            if status.is_success() || status == StatusCode::NOT_MODIFIED {
                return Ok(response);
            }
            if status.is_redirection() && self.parts.redirects == Redirects::Follow {
                let next = response.headers().get(LOCATION).and_then(|place| resolve(request.uri(), place));
                if let Some(next) = next {
                    *request.uri_mut() = next;
                    continue;
                }
            }
            if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED
                && let Some(trouble) = self.parts.dialer.refused_by_proxy(request.uri())
            {
                return Err(trouble);
            }
            return Err(self.refusal(response, is_metadata).await);
        }
        Err(Trouble::Broken(format!("the server redirects more than {MAX_REDIRECTS} times")))
    }

    /// Sends a request on an idle connection, or on a new one.
    async fn exchange(
        self: &Arc<Self>,
        request: &HttpRequest,
        permit: OwnedSemaphorePermit,
    ) -> Result<HttpResponse, Trouble> {
        let uri = request.uri();
        let place =
            format!("{}://{}", uri.scheme_str().unwrap_or("http"), uri.authority().map_or("", |it| it.as_str()));
        while let Some(mut idle) = self.take_idle(&place) {
            if !matches!(timeout(MAX_IDLE, idle.sender.ready()).await, Ok(Ok(()))) {
                continue;
            }
            let ask = prepare(request, &idle.reader)?;
            match timeout(self.parts.silence_timeout, idle.sender.send_request(ask)).await {
                Ok(Ok(response)) => return Ok(self.wrap(response, place, idle.sender, idle.reader, permit)),
                // Closed by the server while it was idle, or with a request under way that it never looked at.
                Ok(Err(error)) if error.is_canceled() || error.is_closed() || error.is_incomplete_message() => {}
                Ok(Err(error)) => return Err(broken(&error)),
                Err(_) => return Err(Trouble::Silent(self.parts.silence_timeout)),
            }
        }
        let connection = self.parts.dialer.dial(uri).await?;
        let reader = connection.reader;
        let (mut sender, driver) =
            Builder::new().handshake(TokioIo::new(connection.wire)).await.map_err(|error| broken(&error))?;
        // Ends with the connection; its error is also that of the request.
        tokio::spawn(driver);
        let ask = prepare(request, &reader)?;
        match timeout(self.parts.silence_timeout, sender.send_request(ask)).await {
            Ok(Ok(response)) => Ok(self.wrap(response, place, sender, reader, permit)),
            Ok(Err(error)) => Err(broken(&error)),
            Err(_) => Err(Trouble::Silent(self.parts.silence_timeout)),
        }
    }

    fn take_idle(&self, place: &str) -> Option<Idle> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle.get_mut(place)?;
        kept.retain(|idle| idle.since.elapsed() < MAX_IDLE && !idle.sender.is_closed());
        kept.pop()
    }

    fn wrap(
        self: &Arc<Self>,
        response: http::Response<Incoming>,
        place: String,
        sender: SendRequest<HttpRequestBody>,
        reader: Reader,
        permit: OwnedSemaphorePermit,
    ) -> HttpResponse {
        let silence = self.parts.silence_timeout;
        let held = Held { shared: Arc::clone(self), place, sender, reader, _permit: permit };
        let (parts, body) = response.into_parts();
        let timer = Box::pin(tokio::time::sleep(silence));
        let mut answer = Answer { body, silence, timer, held: Some(held) };
        answer.finish_if_over();
        HttpResponse::from_parts(parts, HttpResponseBody::new(answer))
    }

    /// Reads an answer that is none.
    async fn refusal(&self, response: HttpResponse, is_metadata: bool) -> Trouble {
        use futures_util::StreamExt as _;
        let (parts, body) = response.into_parts();
        let mut text = Vec::new();
        let mut stream = body.bytes_stream();
        while let Some(Ok(piece)) = stream.next().await {
            text.extend_from_slice(&piece);
            if text.len() > MAX_REFUSAL_BYTES {
                break;
            }
        }
        let text = String::from_utf8_lossy(&text);
        Trouble::Refused(Refusal::read(parts.status, &parts.headers, &text, is_metadata))
    }
}

/// An answer while it is read.
struct Answer {
    body: Incoming,
    silence: Duration,
    timer: Pin<Box<Sleep>>,
    /// The connection, until the answer is over.
    held: Option<Held>,
}

struct Held {
    shared: Arc<Shared>,
    place: String,
    sender: SendRequest<HttpRequestBody>,
    reader: Reader,
    _permit: OwnedSemaphorePermit,
}

impl Answer {
    /// Gives the connection back when the answer was read to its end.
    fn finish_if_over(&mut self) {
        if !self.body.is_end_stream() {
            return;
        }
        if let Some(Held { shared, place, sender, reader, .. }) = self.held.take() {
            let mut idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.entry(place).or_default().push(Idle { sender, reader, since: Instant::now() });
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let until = tokio::time::Instant::now() + self.silence;
                self.timer.as_mut().reset(until);
                self.finish_if_over();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.held = None;
                Poll::Ready(Some(Err(failed(broken(&error)))))
            }
            Poll::Ready(None) => {
                self.finish_if_over();
                Poll::Ready(None)
            }
            Poll::Pending if self.timer.as_mut().poll(context).is_ready() => {
                self.held = None;
                Poll::Ready(Some(Err(failed(Trouble::Silent(self.silence)))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "idle for {:?}", self.since.elapsed())
    }
}

/// A request as it is written on a connection: to a server with the path alone, to a proxy with the whole URL and the
/// proxy's own credentials.
fn prepare(request: &HttpRequest, reader: &Reader) -> Result<HttpRequest, Trouble> {
    let mut ask = request.clone();
    let uri = request.uri();
    let host = uri.authority().map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default());
    let host = host.and_then(|host| HeaderValue::from_str(host).ok());
    let host = host.ok_or_else(|| Trouble::Broken("a request without a host".to_owned()))?;
    ask.headers_mut().entry(HOST).or_insert(host);
    ask.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static("farandole"));
    match reader {
        Reader::Server => {
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let path = path.parse().map_err(|error| Trouble::Broken(format!("a request without a path: {error}")))?;
            *ask.uri_mut() = path;
        }
        Reader::Proxy(proxy) => {
            if let Some(authorization) = &proxy.authorization {
                ask.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
            }
        }
    }
    Ok(ask)
}

/// Where a redirection leads: to another URL, or to another path of the same server.
fn resolve(from: &Uri, place: &HeaderValue) -> Option<Uri> {
    let place = place.to_str().ok()?;
    if place.starts_with('/') && !place.starts_with("//") {
        return format!("{}://{}{place}", from.scheme_str()?, from.authority()?).parse().ok();
    }
    let next: Uri = place.parse().ok()?;
    // From an encrypted connection nothing leads to one that is not.
    let is_safe = matches!((from.scheme_str()?, next.scheme_str()?), (_, "https") | ("http", "http"));
    is_safe.then_some(next)
}

fn broken(error: &hyper::Error) -> Trouble {
    let mut text = error.to_string();
    if let Some(cause) = std::error::Error::source(error) {
        text = format!("{text}: {cause}");
    }
    Trouble::Broken(text)
}

fn failed(trouble: Trouble) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, trouble)
}

#[cfg(test)]
mod tests {
    use super::super::proxies::Proxy;
    use super::*;

    #[test]
    fn redirections_lead_to_urls_and_paths_and_never_out_of_tls() {
        let to = |from: &'static str, place: &'static str| {
            resolve(&Uri::from_static(from), &HeaderValue::from_static(place)).map(|uri| uri.to_string())
        };
        assert_eq!(to("http://a:1/x", "/y?z").as_deref(), Some("http://a:1/y?z"));
        assert_eq!(to("http://a/x", "https://b/y").as_deref(), Some("https://b/y"));
        assert_eq!(to("https://a/x", "http://b/y"), None);
        assert_eq!(to("http://a/x", "ftp://b/y"), None);
    }

    #[test]
    fn servers_get_paths_and_proxies_get_urls() {
        let request = http::Request::get("http://host:8/a%20b?c").body(HttpRequestBody::empty()).unwrap();
        let direct = prepare(&request, &Reader::Server).unwrap();
        assert_eq!(direct.uri().to_string(), "/a%20b?c");
        assert_eq!(direct.headers()[HOST], "host:8");
        assert!(!direct.headers().contains_key(PROXY_AUTHORIZATION));
        let authorization = Some(HeaderValue::from_static("Basic eA=="));
        let proxy = Proxy { host: "proxy".to_owned(), port: 1, is_tls: false, authorization };
        let proxied = prepare(&request, &Reader::Proxy(proxy)).unwrap();
        assert_eq!(proxied.uri(), request.uri());
        assert_eq!(proxied.headers()[PROXY_AUTHORIZATION], "Basic eA==");
    }
}
