//! As much of HTTP as a page of metrics needs: one request on a connection, one answer, and the end.
//!
//! Only the first line of a request is parsed, after all headers have arrived. A head of more than [`MOST_BYTES`] gets
//! status 431, one that takes longer than [`PATIENCE`] status 408. Any input leads to an HTTP answer or a closed
//! connection. How many connections are served at once is bounded by `endpoint`.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A scraper's request takes some hundred bytes.
const MOST_BYTES: usize = 4096;

/// A visitor gets this long for its request and to take the answer, each.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Reads `PORT`, `ADDRESS:PORT` or `[ADDRESS]:PORT`. A port alone is one of loopback.
///
/// # Errors
/// If it is none of these, with words that say what would be right.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse::<u16>().ok()) {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| {
        format!(
            "'{text}' is no address for metrics: write a port (9400, for this machine alone), or an address of this host \
             with one (10.0.0.1:9400, [fd00::1]:9400; 0.0.0.0:9400 for all)"
        )
    })
}

/// Answers the request of one visitor with `page`, if that is its target.
pub(super) fn answer(mut stream: TcpStream, page: impl FnOnce() -> String) {
    let answer = match read_request(&mut stream) {
        Ok(request) => respond(&request, page),
        Err(Refusal::Silent) => return,
        Err(Refusal::TooLong) => {
            Answer::text("431 Request Header Fields Too Large", "the request is too long\n").whole()
        }
        Err(Refusal::TooSlow) => Answer::text("408 Request Timeout", "the request took too long\n").whole(),
    };
    let _ = write_within(&mut stream, answer.as_bytes(), PATIENCE, TcpStream::set_write_timeout);
    // Unread input would turn the end of the connection into a reset, which discards the answer.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let _ = stream.read(&mut [0; MOST_BYTES]);
}

enum Refusal {
    /// It sent nothing.
    Silent,
    TooLong,
    TooSlow,
}

/// The head of a request.
fn read_request(stream: &mut TcpStream) -> Result<Vec<u8>, Refusal> {
    let deadline = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(Refusal::TooSlow);
        }
        match stream.read(&mut buffer) {
            Ok(0) if request.is_empty() => return Err(Refusal::Silent),
            Ok(0) => return Ok(request),
            Ok(count) => request.extend(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(Refusal::TooSlow);
            }
            Err(_) => return Err(Refusal::Silent),
        }
        if request.windows(4).any(|end| end == b"\r\n\r\n") || request.windows(2).any(|end| end == b"\n\n") {
            return Ok(request);
        }
        if request.len() > MOST_BYTES {
            return Err(Refusal::TooLong);
        }
    }
}

/// The answer to a request, as it is written.
fn respond(request: &[u8], page: impl FnOnce() -> String) -> String {
    let line = request.split(|byte| matches!(byte, b'\r' | b'\n')).next().and_then(|line| str::from_utf8(line).ok());
    let words: Vec<&str> = line.map_or(Vec::new(), |line| line.split(' ').collect());
    let [method, target, version] = words[..] else {
        return Answer::text("400 Bad Request", "not an HTTP request\n").whole();
    };
    if !version.starts_with("HTTP/1.") {
        return Answer::text("400 Bad Request", "only HTTP/1.1 is supported\n").whole();
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let answer = match (method, path) {
        ("GET" | "HEAD", "/metrics") => {
            Answer { content_type: super::metrics::CONTENT_TYPE, ..Answer::of("200 OK", page()) }
        }
        ("GET" | "HEAD", "/") => Answer::text("200 OK", "metrics of a job of farandole are at /metrics\n"),
        ("GET" | "HEAD", _) => Answer::text("404 Not Found", "there is only /metrics here\n"),
        _ => Answer {
            headers: "Allow: GET, HEAD\r\n",
            ..Answer::text("405 Method Not Allowed", "metrics can only be read\n")
        },
    };
    // A body after the answer to HEAD would be taken for the next answer (RFC 9110, 9.3.2).
    if method == "HEAD" { answer.head() } else { answer.whole() }
}

/// An answer before it is written.
struct Answer {
    /// Code and reason.
    status: &'static str,
    /// Headers beside the usual ones, each with its line ending.
    headers: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    fn of(status: &'static str, body: String) -> Answer {
        Answer { status, headers: "", content_type: "text/plain; charset=utf-8", body }
    }

    fn text(status: &'static str, body: &str) -> Answer {
        Answer::of(status, body.to_owned())
    }

    /// Status line and headers, with the length of the body that is left out.
    fn head(&self) -> String {
        let Answer { status, headers, content_type, body } = self;
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\n{headers}Connection: close\r\n\r\n",
            body.len()
        )
    }

    fn whole(&self) -> String {
        self.head() + &self.body
    }
}

/// Writes all bytes, or gives up after a time, however little by little they are taken.
pub(super) fn write_within<S: Write>(
    stream: &mut S,
    mut bytes: &[u8],
    patience: Duration,
    set_timeout: impl Fn(&S, Option<Duration>) -> io::Result<()>,
) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        set_timeout(stream, Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> String {
        let answer = respond(request.as_bytes(), || "page\n".to_owned());
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    #[test]
    fn a_port_alone_is_one_of_this_machine() {
        let read = |text: &str| parse_address(text).map(|address| address.to_string());
        assert_eq!(read("9400").unwrap(), "127.0.0.1:9400");
        assert_eq!(read(" localhost:9400 ").unwrap(), "127.0.0.1:9400");
        assert_eq!(read("0.0.0.0:9400").unwrap(), "0.0.0.0:9400");
        assert_eq!(read("[::1]:9400").unwrap(), "[::1]:9400");
        for wrong in ["", ":9400", "70000", "gpu1:9400", "10.0.0.1", "9400/metrics", "-1"] {
            let words = read(wrong).unwrap_err();
            assert!(words.contains(&format!("'{wrong}'")) && words.contains("0.0.0.0:9400"), "{words}");
        }
    }

    #[test]
    fn what_is_asked_for_is_answered() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), "200");
        assert_eq!(status("GET /metrics?debug=1 HTTP/1.0\r\n\r\n"), "200");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "200");
        assert_eq!(status("GET /../etc/passwd HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status("GET /metrics HTTP/2\r\n\r\n"), "400");
        for garbage in ["", "\r\n\r\n", "GET\r\n\r\n", "\u{16}\u{3}\u{1}", "GET /metrics HTTP/1.1 x\r\n\r\n"] {
            assert_eq!(status(garbage), "400", "{garbage:?}");
        }
    }

    #[test]
    fn answers_to_head_have_the_headers_of_get_and_no_body() {
        let answer = |method: &str, path: &str| {
            respond(format!("{method} {path} HTTP/1.1\r\n\r\n").as_bytes(), || "page\n".to_owned())
        };
        assert!(answer("GET", "/metrics").contains("Content-Length: 5\r\n"));
        for path in ["/metrics", "/", "/none"] {
            let (get, head) = (answer("GET", path), answer("HEAD", path));
            let (headers, body) = get.split_once("\r\n\r\n").unwrap();
            assert!(!body.is_empty(), "{get}");
            assert_eq!(head, format!("{headers}\r\n\r\n"));
        }
    }

    #[test]
    fn reasons_are_those_of_the_standard() {
        let reason = |request: &str| {
            let answer = respond(request.as_bytes(), String::new);
            answer.lines().next().unwrap().to_owned()
        };
        assert_eq!(reason("GET /none HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(reason("PUT /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(reason("none"), "HTTP/1.1 400 Bad Request");
        assert_eq!(reason("HEAD / HTTP/1.0\r\n\r\n"), "HTTP/1.1 200 OK");
    }
}
