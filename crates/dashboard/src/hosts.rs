//! Requests of foreign web pages, which a browser sends to any address that it reaches: they are told by their headers.

use http::header::{self, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, Request, StatusCode};
use std::fmt;
use std::net::IpAddr;

/// The names under which a service is reached, to refuse requests of foreign web pages.
///
/// A page of any site can make the browser of a visitor send requests to the addresses that this browser reaches, those
/// of the loopback interface included. Two headers, which pages cannot change, tell such requests:
///
/// - `Host`: a site whose name resolves to the address of the service (DNS rebinding) may read its answers, because the
///   browser takes both for one site. Such a request has the name of the site. So only known names are accepted:
///   `localhost`, any IP address, since no name is resolved there, and the names that are [added](Self::and).
/// - `Origin`: the site of the page, with requests that are more than the load of an image or a link. It has to be the
///   service's own.
///
/// Requests without these headers come from programs, and are accepted.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    names: Vec<String>,
    is_any: bool,
}

/// Why a request is refused: a browser sent it for the page of another site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// The header `Host` has no name of the service.
    Host,
    /// The header `Origin` names another site.
    Origin,
}

impl Foreign {
    /// Returns the status of the answer: 421 for a host, and 403 for an origin.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => {
                "the header Host names no host of this service; use localhost or an IP address, or add the name to the \
                 service's hosts"
            }
            Self::Origin => {
                "the header Origin names another site; only pages of this service may send such requests"
            }
        })
    }
}

impl std::error::Error for Foreign {}

impl Hosts {
    /// Accepts `localhost` and IP addresses, as the default does.
    pub fn local() -> Self {
        Self::default()
    }

    /// Accepts any name, for a service that checks the header `Host` itself. Origins are checked still.
    pub fn any() -> Self {
        Self {
            names: Vec::new(),
            is_any: true,
        }
    }

    /// Accepts a further name, without a port.
    #[must_use]
    pub fn and(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Checks the headers of a request.
    ///
    /// # Errors
    /// Returns the header that shows that the request is of another site's page.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), Foreign> {
        let headers = request.headers();
        let host = only(headers, &header::HOST).map_err(|_| Foreign::Host)?;
        let host = host.map(authority).transpose();
        let host = host.map_err(|_| Foreign::Host)?;
        let target = request.uri().authority();
        let mut named = target.into_iter().chain(host.as_ref());
        if !named.all(|authority| self.accepts(authority)) {
            return Err(Foreign::Host);
        }
        match only(headers, &header::ORIGIN) {
            Ok(None) => Ok(()),
            Ok(Some(origin)) if self.is_own(origin, target.or(host.as_ref())) => Ok(()),
            _ => Err(Foreign::Origin),
        }
    }

    fn accepts(&self, authority: &Authority) -> bool {
        // A name before an `@` is none of the host, and browsers send none.
        if authority.as_str().contains('@') {
            return false;
        }
        let name = name(authority);
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        self.is_any || is_address || name.eq_ignore_ascii_case("localhost") || self.knows(name)
    }

    fn knows(&self, name: &str) -> bool {
        let mut names = self.names.iter();
        names.any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Returns whether an origin is the service's own: the host of the request, or a name that was added, because a proxy
    /// may have replaced the header `Host`.
    fn is_own(&self, origin: &HeaderValue, host: Option<&Authority>) -> bool {
        let origin = origin.to_str().ok().and_then(|origin| {
            let (scheme, rest) = origin.split_once("://")?;
            let port = match scheme {
                "http" => 80,
                "https" => 443,
                _ => return None,
            };
            Some((rest.parse::<Authority>().ok()?, port))
        });
        let Some((origin, port)) = origin else {
            return false;
        };
        let port_of = |authority: &Authority| authority.port_u16().unwrap_or(port);
        let is_host = |host: &Authority| {
            name(host).eq_ignore_ascii_case(name(&origin)) && port_of(host) == port_of(&origin)
        };
        host.is_some_and(is_host) || self.knows(name(&origin))
    }
}

/// Returns the host, without the point that a name may end with.
fn name(authority: &Authority) -> &str {
    let host = authority.host();
    host.strip_suffix('.').unwrap_or(host)
}

fn authority(value: &HeaderValue) -> Result<Authority, http::uri::InvalidUri> {
    Authority::try_from(value.as_bytes())
}

/// Returns the only value of a header.
///
/// # Errors
/// Returns an error if there are several.
fn only<'a>(
    headers: &'a HeaderMap,
    name: &header::HeaderName,
) -> Result<Option<&'a HeaderValue>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &Hosts, target: &str, headers: &[(&str, &str)]) -> Result<(), Foreign> {
        let request = Request::get(target);
        let add = |request: http::request::Builder, header: &(&str, &str)| {
            request.header(header.0, header.1)
        };
        let request = headers.iter().fold(request, add);
        hosts.check(&request.body(()).unwrap())
    }

    #[test]
    fn hosts_are_localhost_addresses_and_added_names() {
        let hosts = Hosts::local().and("pool.example.com");
        for host in [
            "localhost",
            "LocalHost:8080",
            "localhost.",
            "127.0.0.1:1",
            "[::1]:8080",
            "[::1]",
            "10.2.3.4",
            "pool.example.com",
            "POOL.example.com:443",
        ] {
            assert_eq!(check(&hosts, "/", &[("host", host)]), Ok(()), "{host}");
            let target = format!("http://{host}/");
            assert_eq!(check(&hosts, &target, &[]), Ok(()), "{target}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "example.com",
            "a.pool.example.com",
            "127.0.0.1.evil.example",
            "user@localhost",
            "",
            "127.1",
        ] {
            let refused = check(&hosts, "/", &[("host", host)]);
            assert_eq!(refused, Err(Foreign::Host), "{host}");
        }
        // Programs without the header are no browsers.
        assert_eq!(check(&hosts, "/", &[]), Ok(()));
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check(&hosts, "/", &two), Err(Foreign::Host));
        let both = check(&hosts, "http://evil.example/", &[("host", "localhost")]);
        assert_eq!(both, Err(Foreign::Host));
        assert_eq!(
            check(&Hosts::any(), "/", &[("host", "evil.example")]),
            Ok(())
        );
    }

    #[test]
    fn origin_is_the_services_own() {
        let hosts = Hosts::local().and("pool.example.com");
        let of = |host, origin| check(&hosts, "/", &[("host", host), ("origin", origin)]);
        for (host, origin) in [
            ("localhost:8080", "http://localhost:8080"),
            ("localhost", "http://localhost:80"),
            ("[::1]:8080", "http://[::1]:8080"),
            ("pool.example.com", "https://pool.example.com"),
            // Behind a proxy that replaced the host.
            ("127.0.0.1:8080", "https://pool.example.com"),
        ] {
            assert_eq!(of(host, origin), Ok(()), "{host} {origin}");
        }
        for (host, origin) in [
            ("localhost:8080", "http://localhost:3000"),
            ("localhost:8080", "https://localhost"),
            ("localhost:8080", "http://127.0.0.1:8080"),
            ("localhost:8080", "http://evil.example"),
            ("localhost:8080", "null"),
            ("localhost:8080", "file://"),
            ("localhost:8080", ""),
        ] {
            assert_eq!(of(host, origin), Err(Foreign::Origin), "{host} {origin}");
        }
        let alone = check(&hosts, "/", &[("origin", "http://localhost")]);
        assert_eq!(alone, Err(Foreign::Origin));
    }
}
