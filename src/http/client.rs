//! Asks a running service, as the commands do: one request, one answer, at the address where the settings say it listens.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::settings::{HttpSettings, Secret};

/// How long the service may take to let us in, and to answer. It answers however busy its actors are.
const PATIENCE: Duration = Duration::from_secs(5);
/// What an answer may hold.
const LARGEST: u64 = 64 << 20;

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// Nobody listens there.
    #[error(
        "no service answers at {listen}, where STRANDLINE_HTTP__LISTEN says that it listens ({why}): is it running, and on \
         this machine?"
    )]
    Nobody {
        /// The address.
        listen: String,
        /// What the system says.
        why: String,
    },
    /// The service is not to be asked.
    #[error("STRANDLINE_HTTP__LISTEN is off, so a running service cannot be asked")]
    Off,
    /// Whoever answers there is no Strandline.
    #[error(
        "what answers at {listen}, where STRANDLINE_HTTP__LISTEN says that the service listens, is no Strandline: {why}"
    )]
    Other {
        /// The address.
        listen: String,
        /// What is wrong with it.
        why: String,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Its code.
    pub(crate) status: u16,
    /// What it says.
    pub(crate) body: String,
}

/// A service that may be running.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    listen: String,
    token: Option<Secret>,
}

impl Client {
    /// The service that runs with these settings.
    pub(crate) fn new(settings: &HttpSettings) -> Self {
        Self { listen: settings.listen.clone(), token: settings.token.clone() }
    }

    /// Asks for what a path shows.
    pub(crate) fn get(&self, path: &str) -> Result<Answer, AskError> {
        self.ask("GET", path)
    }

    /// Asks for a change.
    pub(crate) fn post(&self, path: &str) -> Result<Answer, AskError> {
        self.ask("POST", path)
    }

    fn ask(&self, method: &str, path: &str) -> Result<Answer, AskError> {
        if self.listen == "off" {
            return Err(AskError::Off);
        }
        let nobody = |why: String| AskError::Nobody { listen: self.listen.clone(), why };
        let addresses = self.listen.to_socket_addrs().map_err(|error| nobody(error.to_string()))?;
        let (mut stream, mut why) = (None, "the name has no address".to_owned());
        for address in addresses.map(reachable) {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(connected) => {
                    stream = Some((connected, address));
                    break;
                }
                Err(error) => why = error.to_string(),
            }
        }
        let Some((mut stream, address)) = stream else { return Err(nobody(why)) };
        let asked = || -> std::io::Result<Vec<u8>> {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            // Where anything is changed the token goes along, and nowhere else.
            let token = match &self.token {
                Some(token) if method != "GET" => format!("Authorization: Bearer {}\r\n", token.expose()),
                _ => String::new(),
            };
            let length = if method == "GET" { "" } else { "Content-Length: 0\r\n" };
            write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{token}{length}\r\n")?;
            let mut answer = Vec::new();
            (&mut stream).take(LARGEST).read_to_end(&mut answer)?;
            Ok(answer)
        };
        let mut asked = asked;
        match asked() {
            Ok(answer) => {
                read(&answer).map_err(|why| AskError::Other { listen: self.listen.clone(), why: why.to_owned() })
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(nobody(format!("no answer within {PATIENCE:?}")))
            }
            Err(error) => Err(nobody(error.to_string())),
        }
    }
}

/// A service that listens everywhere is asked on this machine.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Takes an answer apart that ends with its connection.
fn read(answer: &[u8]) -> Result<Answer, &'static str> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("the answer has no end of its head")?;
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or("it does not speak HTTP")?;
    let chunked = head.lines().any(|line| line.to_ascii_lowercase().starts_with("transfer-encoding:"));
    if chunked {
        return Err("its answer comes in pieces");
    }
    Ok(Answer { status, body: body.to_owned() })
}

/// A part of a path, with everything escaped that could mean something else there.
pub(crate) fn escaped(part: &str) -> String {
    part.bytes().fold(String::new(), |mut text, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_answer_is_taken_apart() {
        let answer = read(b"HTTP/1.1 409 Conflict\r\nContent-Length: 3\r\n\r\nno\n").unwrap();
        assert_eq!(answer, Answer { status: 409, body: "no\n".into() });
        for foreign in [&b"SSH-2.0-OpenSSH_9.2\r\n\r\n"[..], b"", b"HTTP/1.1\r\n\r\n"] {
            assert!(read(foreign).is_err());
        }
    }

    #[test]
    fn a_service_that_listens_everywhere_is_asked_on_this_machine() {
        let of = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(of("0.0.0.0:8080"), "127.0.0.1:8080");
        assert_eq!(of("[::]:8080"), "[::1]:8080");
        assert_eq!(of("10.0.0.7:8080"), "10.0.0.7:8080");
    }

    #[test]
    fn names_of_topics_cannot_lead_elsewhere() {
        assert_eq!(escaped("orders.v1-x_y"), "orders.v1-x_y");
        assert_eq!(escaped("a/b?c d"), "a%2Fb%3Fc%20d");
    }
}
