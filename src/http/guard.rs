//! Who may change something over HTTP: pages of the same address and programs, and elsewhere than on a loopback address only
//! those that send the token. Reading is free.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::settings::Secret;

/// The rules of one server.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    token: Option<Secret>,
    loopback: bool,
}

/// Why a request may change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Another site's page sent it in the reader's name.
    Foreign,
    /// There is no token, and other machines can reach the address.
    Shut,
    /// It has no token, or another one.
    NoToken,
}

impl Guard {
    pub(super) fn new(token: Option<Secret>, address: SocketAddr) -> Self {
        Self { token, loopback: address.ip().to_canonical().is_loopback() }
    }

    /// Whether nothing can be changed at all.
    pub(super) fn shut(&self) -> bool {
        self.token.is_none() && !self.loopback
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text("host").unwrap_or_default();
        // Programs send neither header.
        let foreign = match (text("sec-fetch-site"), text("origin")) {
            (Some(site), _) if !matches!(site, "same-origin" | "none") => true,
            (_, Some(origin)) => origin.split_once("://").map_or(origin, |(_, host)| host) != host,
            _ => false,
        };
        if foreign {
            return Err(Refusal::Foreign);
        }
        let Some(token) = &self.token else {
            return match (self.loopback, local(host)) {
                (true, true) => Ok(()),
                // A page whose name was made to mean this machine.
                (true, false) => Err(Refusal::Foreign),
                (false, _) => Err(Refusal::Shut),
            };
        };
        let sent = text(header::AUTHORIZATION.as_str()).and_then(|sent| sent.split_once(' '));
        match sent {
            Some((scheme, sent)) if scheme.eq_ignore_ascii_case("bearer") && same(sent.trim(), token.expose()) => {
                Ok(())
            }
            _ => Err(Refusal::NoToken),
        }
    }
}

/// Compares in a time that does not depend on where they differ.
fn same(sent: &str, token: &str) -> bool {
    sent.len() == token.len() && openssl::memcmp::eq(sent.as_bytes(), token.as_bytes())
}

/// Whether a host is named by its address, or as this machine.
fn local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Lets through what may be done.
pub(super) async fn only_who_may(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    match guard.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(Refusal::Foreign) => {
            (StatusCode::FORBIDDEN, "this is for the page of the same address and for programs\n").into_response()
        }
        Err(Refusal::Shut) => (
            StatusCode::FORBIDDEN,
            "other machines can reach this address, so changing something needs a token: set STRANDLINE_HTTP__TOKEN for the \
             service and for whoever asks\n",
        )
            .into_response(),
        Err(Refusal::NoToken) => (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "Bearer")],
            "changing something needs the token of STRANDLINE_HTTP__TOKEN: send it as Authorization: Bearer ...\n",
        )
            .into_response(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn guard(token: bool, address: &str) -> Guard {
        Guard::new(token.then(|| TOKEN.into()), address.parse().unwrap())
    }

    fn check(guard: &Guard, headers: &[(&'static str, &str)]) -> Result<(), Refusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        guard.check(&map)
    }

    #[test]
    fn on_a_loopback_address_nothing_need_be_sent() {
        for address in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(check(&guard(false, address), &[]), Ok(()), "{address}");
        }
        for host in ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080", "10.0.0.1"] {
            assert_eq!(check(&guard(false, "127.0.0.1:80"), &[("host", host)]), Ok(()), "{host}");
        }
        // A foreign name that was made to mean this machine.
        let rebound =
            [("host", "evil.example:80"), ("origin", "http://evil.example:80"), ("sec-fetch-site", "same-origin")];
        assert_eq!(check(&guard(false, "127.0.0.1:80"), &rebound), Err(Refusal::Foreign));
    }

    #[test]
    fn elsewhere_only_the_token_lets_anything_be_changed() {
        for address in ["0.0.0.0:80", "10.1.2.3:80", "[::]:80"] {
            assert!(guard(false, address).shut());
            let sent = [("authorization", "Bearer 0123456789abcdef")];
            assert_eq!(check(&guard(false, address), &sent), Err(Refusal::Shut), "{address}");
            assert_eq!(check(&guard(true, address), &sent), Ok(()), "{address}");
            assert_eq!(check(&guard(true, address), &[]), Err(Refusal::NoToken), "{address}");
        }
    }

    #[test]
    fn a_token_that_is_set_is_asked_for_everywhere_and_compared_whole() {
        let guard = guard(true, "127.0.0.1:80");
        for wrong in
            ["Bearer 0123456789abcdeF", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Bearer ", "Bearer"]
        {
            assert_eq!(check(&guard, &[("authorization", wrong)]), Err(Refusal::NoToken), "{wrong}");
        }
        assert_eq!(check(&guard, &[("authorization", "Basic 0123456789abcdef")]), Err(Refusal::NoToken));
        assert_eq!(check(&guard, &[("authorization", "bearer  0123456789abcdef")]), Ok(()));
        let foreign = [("authorization", "Bearer 0123456789abcdef"), ("sec-fetch-site", "cross-site")];
        assert_eq!(check(&guard, &foreign), Err(Refusal::Foreign));
        assert!(!format!("{guard:?}").contains(TOKEN));
    }
}
