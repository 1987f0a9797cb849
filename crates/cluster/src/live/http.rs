//! As much of HTTP as a page of metrics needs: one request on a connection, one answer, and the end.
//!
//! Of a request the first line is understood, and that only when all its headers have come; more than [`MOST_BYTES`] or
//! longer than [`PATIENCE`] is nobody's request. Whatever comes, the answer is an answer of HTTP or a closed
//! connection.

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

/// Answers the request of one visitor with `page`, if that is what it wants.
pub(super) fn answer(mut stream: TcpStream, page: impl FnOnce() -> String) {
    let answer = match read_request(&mut stream) {
        Ok(request) => respond(&request, page),
        Err(Refusal::Silent) => return,
        Err(Refusal::TooLong) => text("431 Request Header Fields Too Large", "", "the request is too long\n"),
        Err(Refusal::TooSlow) => text("408 Request Timeout", "", "the request took too long\n"),
    };
    let _ = write_within(&mut stream, answer.as_bytes(), PATIENCE, TcpStream::set_write_timeout);
    // What was not read would turn the end of the connection into a reset, which takes the answer back.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let _ = stream.read(&mut [0; MOST_BYTES]);
}

enum Refusal {
    /// It said nothing.
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

/// The answer to a request.
fn respond(request: &[u8], page: impl FnOnce() -> String) -> String {
    let line = request.split(|byte| matches!(byte, b'\r' | b'\n')).next().and_then(|line| str::from_utf8(line).ok());
    let words: Vec<&str> = line.map_or(Vec::new(), |line| line.split(' ').collect());
    let [method, target, version] = words[..] else {
        return text("400 Bad Request", "", "this is no request of HTTP\n");
    };
    if !version.starts_with("HTTP/1.") {
        return text("400 Bad Request", "", "this is no request of HTTP/1.1\n");
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    match (method, path) {
        ("GET", "/metrics") => with_type("200 OK", "", super::metrics::CONTENT_TYPE, &page()),
        ("HEAD", "/metrics") => {
            let whole = with_type("200 OK", "", super::metrics::CONTENT_TYPE, &page());
            whole.split_inclusive("\r\n\r\n").next().unwrap_or_default().to_owned()
        }
        ("GET" | "HEAD", "/") => text("200 OK", "", "metrics of a job of farandole are at /metrics\n"),
        ("GET" | "HEAD", _) => text("404 Not FoundJob", "", "there is only /metrics here\n"),
        _ => text("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "metrics can only be read\n"),
    }
}

fn text(status: &str, headers: &str, body: &str) -> String {
    with_type(status, headers, "text/plain; charset=utf-8", body)
}

fn with_type(status: &str, headers: &str, content_type: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\n{headers}Connection: close\r\n\r\n{body}",
        body.len()
    )
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
    fn an_answer_says_how_long_it_is_and_a_head_has_no_body() {
        let whole = respond(b"GET /metrics HTTP/1.1\r\n\r\n", || "page\n".to_owned());
        assert!(whole.contains("Content-Length: 5\r\n") && whole.ends_with("\r\n\r\npage\n"), "{whole}");
        let head = respond(b"HEAD /metrics HTTP/1.1\r\n\r\n", || "page\n".to_owned());
        assert!(head.contains("Content-Length: 5\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }
}
