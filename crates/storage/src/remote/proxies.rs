//! Which proxy a request goes through: [`Proxies`].
//!
//! `HTTP_PROXY` is for `http` URLs, `HTTPS_PROXY` for `https`, `ALL_PROXY` for both; `NO_PROXY` lists exceptions:
//! names, endings of names, addresses, networks as `10.0.0.0/8`, and `*`. Small letters come first. `hyper-util` parses
//! and matches them, by curl's rules.
//!
//! **Invariant:** a request for which a variable is set goes through the proxy of this variable, is excepted by
//! `NO_PROXY`, or fails with the variable's name. Metadata servers are part of the machine and are reached directly.
//!
//! Left out: SOCKS. Its URLs are refused.

use http::Uri;
use http::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;

use super::super::open::StorageVariables;
use super::connect::is_metadata;
use super::trouble::Trouble;

/// The proxies that the environment names.
#[derive(Debug)]
pub(super) struct Proxies {
    http: Option<Setting>,
    https: Option<Setting>,
}

/// A variable, with the exceptions of `NO_PROXY`. Its value may have a password, so it is in no message.
#[derive(Debug)]
struct Setting {
    variable: &'static str,
    matcher: Matcher,
    /// What is wrong with the variable.
    fault: Option<&'static str>,
}

/// A proxy that speaks HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) host: String,
    pub(super) port: u16,
    /// Whether the connection to the proxy is encrypted.
    pub(super) is_tls: bool,
    /// The header `Proxy-Authorization`.
    pub(super) authorization: Option<HeaderValue>,
}

impl Proxies {
    pub(super) fn new(variables: &StorageVariables) -> Proxies {
        let get = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, variables.get(name)?)));
        // Web servers set HTTP_PROXY to a client's header, so curl ignores it in capitals. A training job does not
        // serve the web.
        let all = get(["all_proxy", "ALL_PROXY"]);
        let (http, https) = (get(["http_proxy", "HTTP_PROXY"]), get(["https_proxy", "HTTPS_PROXY"]));
        let except = get(["no_proxy", "NO_PROXY"]).map_or("", |(_, except)| except);
        let setting = |(variable, value)| Setting::new(variable, value, except);
        Proxies { http: http.or(all).map(setting), https: https.or(all).map(setting) }
    }

    /// The proxy for a URL.
    pub(super) fn find(&self, uri: &Uri) -> Result<Option<Proxy>, Trouble> {
        let is_tls = uri.scheme_str() == Some("https");
        let setting = if is_tls { &self.https } else { &self.http };
        match setting {
            Some(setting) if !is_metadata(uri) => setting.find(uri),
            _ => Ok(None),
        }
    }
}

impl Setting {
    fn new(variable: &'static str, value: &str, except: &str) -> Setting {
        let url = if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
        let unlimited = Matcher::builder().all(url.clone()).build();
        let found = unlimited.intercept(&Uri::from_static("http://any.invalid/"));
        let place = found.as_ref().map(|found| found.uri()).filter(|place| has_port_or_none(place));
        let fault = match place.and_then(|place| place.scheme_str()) {
            Some("http" | "https") => None,
            Some(_) => Some("SOCKS proxies are not supported; set it to a proxy http://HOST:PORT or https://HOST:PORT"),
            None => {
                Some("not the URL of a proxy; expected http://USER:PASSWORD@HOST:PORT, with %40 for @ in a password")
            }
        };
        // Entries may also be separated by white space, and `*.name` means `.name`.
        let except: Vec<&str> = except
            .split(|letter: char| letter == ',' || letter.is_whitespace())
            .map(|entry| if entry.starts_with("*.") { &entry[1..] } else { entry })
            .collect();
        // A proxy that cannot be used still says to which hosts the variable applies.
        let url = if fault.is_some() { "http://any.invalid".to_owned() } else { url };
        Setting { variable, matcher: Matcher::builder().all(url).no(except.join(",")).build(), fault }
    }

    fn find(&self, uri: &Uri) -> Result<Option<Proxy>, Trouble> {
        let Some(found) = self.matcher.intercept(uri) else { return Ok(None) };
        if let Some(fault) = self.fault {
            let host = uri.host().unwrap_or_default();
            return Err(Trouble::ProxySetting(format!("{}: {fault}, or add {host} to NO_PROXY", self.variable)));
        }
        let is_tls = found.uri().scheme_str() == Some("https");
        Ok(Some(Proxy {
            host: found.uri().host().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: found.uri().port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            is_tls,
            authorization: found.basic_auth().cloned(),
        }))
    }
}

/// Whether a URL has a host, and behind it nothing or a valid port.
fn has_port_or_none(place: &Uri) -> bool {
    let host = place.host().unwrap_or_default();
    !host.is_empty() && (place.port_u16().is_some() || place.authority().is_some_and(|all| all.as_str() == host))
}

impl Proxy {
    /// Its address, for messages.
    pub(super) fn shown(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(pairs: &[(&str, &str)]) -> Proxies {
        Proxies::new(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    fn found(proxies: &Proxies, url: &str) -> Option<String> {
        proxies.find(&url.parse().unwrap()).unwrap().map(|proxy| proxy.shown())
    }

    fn refusal(proxies: &Proxies, url: &str) -> String {
        proxies.find(&url.parse().unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn proxies_are_those_of_the_environment_but_for_exceptions() {
        let proxies = proxies(&[
            ("HTTPS_PROXY", "http://me:p%40ss@proxy.example:3128/"),
            ("http_proxy", "plain:8080"),
            ("ALL_PROXY", "unused:1"),
            ("NO_PROXY", "localhost, .internal *.lab,10.0.0.1,10.1.0.0/16,fd00::/8"),
        ]);
        assert_eq!(found(&proxies, "https://s3.amazonaws.com/x").as_deref(), Some("proxy.example:3128"));
        assert_eq!(found(&proxies, "http://s3.amazonaws.com/x").as_deref(), Some("plain:8080"));
        for host in [
            "localhost:99",
            "a.internal",
            "internal",
            "b.lab",
            "10.0.0.1",
            "10.1.255.3",
            "[fd00::1]",
            "169.254.169.254",
        ] {
            assert_eq!(found(&proxies, &format!("https://{host}/x")), None, "{host}");
        }
        for host in ["notinternal", "10.0.0.2", "10.2.0.0", "[fe00::1]"] {
            assert!(found(&proxies, &format!("https://{host}/x")).is_some(), "{host}");
        }
        let proxy = proxies.find(&Uri::from_static("https://far/")).unwrap().unwrap();
        // "me:p@ss", by `printf 'me:p@ss' | base64`.
        assert_eq!(proxy.authorization.as_ref().unwrap(), "Basic bWU6cEBzcw==");
        let shown = format!("{proxies:?} {proxy:?}");
        assert!(!shown.contains("bWU6") && !shown.contains("p%40ss") && !shown.contains("p@ss"), "{shown}");
    }

    #[test]
    fn the_setting_for_all_is_used_where_there_is_no_other() {
        let proxies = proxies(&[("all_proxy", "https://tls.example")]);
        for url in ["http://far/", "https://far/"] {
            let proxy = proxies.find(&url.parse().unwrap()).unwrap().unwrap();
            assert_eq!((proxy.shown().as_str(), proxy.is_tls), ("tls.example:443", true));
        }
        assert_eq!(found(&Proxies::new(&StorageVariables::default()), "https://far/"), None);
    }

    #[test]
    fn proxies_that_cannot_be_used_are_refused_by_name_and_never_passed_by() {
        for value in ["socks5://me:secret@proxy:1080", "socks5h://proxy", "socks4://proxy:1"] {
            let refused = refusal(&proxies(&[("HTTPS_PROXY", value)]), "https://far/");
            assert!(refused.starts_with("HTTPS_PROXY: SOCKS proxies are not supported"), "{refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
        for value in ["ftp://proxy:1", "http://", "http://me:s@cret@proxy", "proxy:99999", "http://a b"] {
            let refused = refusal(&proxies(&[("ALL_PROXY", value)]), "http://far/");
            assert!(refused.starts_with("ALL_PROXY: not the URL of a proxy") && !refused.contains("cret"), "{refused}");
        }
        // URLs that it does not apply to are reached directly.
        let other = proxies(&[("HTTPS_PROXY", "socks5://proxy"), ("NO_PROXY", "near")]);
        assert_eq!(found(&other, "http://far/"), None);
        assert_eq!(found(&other, "https://near/"), None);
    }
}
