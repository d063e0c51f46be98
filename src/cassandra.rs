//! The connection to Cassandra that the state store and the table sinks share.
//!
//! Every statement reads and writes at QUORUM, and lightweight transactions agree at SERIAL, never at LOCAL_SERIAL: two
//! processes in two datacenters must not both believe that they own a shard. A conditional write is sent once. Neither
//! the driver's retries nor a second speculative request may repeat it, since whoever sent it has to know whether it was
//! applied; all other statements name their own write timestamp, so that sending them again changes nothing.

mod failure;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use openssl::error::ErrorStack;
use openssl::ssl::{SslConnector, SslConnectorBuilder, SslFiletype, SslMethod};
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{
    BrokenConnectionErrorKind, ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind, DbError,
    MetadataError, NewSessionError,
};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::{DefaultRetryPolicy, FallthroughRetryPolicy};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};

pub use crate::cassandra::failure::Failure;
use crate::cassandra::failure::{CANNOT_CHECK, with_sources};
use crate::settings::CassandraSettings;

/// The port that Cassandra listens on unless it is told otherwise.
const DEFAULT_PORT: u16 = 9042;

/// The shortest time after which silence counts as a failure: nodes that collect garbage are silent for a while, too.
const MIN_SILENCE: Duration = Duration::from_secs(2);

/// Where Linux distributions keep the authorities that the system trusts.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why there is no connection to Cassandra.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CassandraError {
    /// A setting cannot be used as it is.
    #[error("{setting}: {reason}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// No node answered. Trying again later may help.
    #[error(
        "no Cassandra node answered at {nodes}: {reason}. Check STRANDLINE_CASSANDRA__NODES, and that the nodes are up \
         and reachable from here"
    )]
    Unreachable {
        /// The nodes that were tried.
        nodes: String,
        /// What the driver says.
        reason: String,
    },
    /// The nodes answered, but do not let this user in.
    #[error("Cassandra at {nodes} refused the login: {reason}")]
    Login {
        /// The nodes that were tried.
        nodes: String,
        /// What is wrong with the credentials.
        reason: String,
    },
    /// The nodes could be reached, but no secure connection was made.
    #[error("no TLS connection to Cassandra at {nodes}: {reason}")]
    Tls {
        /// The nodes that were tried.
        nodes: String,
        /// What is wrong, and which setting it concerns.
        reason: String,
    },
}

impl CassandraError {
    /// Whether the same settings may work later.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

/// Connects to the cluster. The session's own tasks live on the runtime that calls this, which therefore has to outlive
/// the session; statements may be sent from any other runtime.
pub async fn connect(settings: &CassandraSettings) -> Result<Arc<Session>, CassandraError> {
    let nodes = nodes(&settings.nodes)?;
    let mut policy = DefaultPolicy::builder().token_aware(true).permit_dc_failover(true);
    if let Some(datacenter) = &settings.datacenter {
        policy = policy.prefer_datacenter(datacenter.clone());
    }
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::Quorum)
        .serial_consistency(Some(SerialConsistency::Serial))
        .request_timeout(Some(settings.timeout))
        .retry_policy(Arc::new(DefaultRetryPolicy::new()))
        .speculative_execution_policy(None)
        .load_balancing_policy(policy.build())
        .build();
    // A node that was reached and then falls silent is given up as soon as one that was not.
    let silence = settings.timeout.max(MIN_SILENCE);
    let mut builder = SessionBuilder::new()
        .known_nodes(&nodes)
        .connection_timeout(settings.timeout)
        .keepalive_interval(silence)
        .keepalive_timeout(silence)
        .hostname_resolution_timeout(Some(settings.timeout))
        .metadata_request_serverside_timeout(settings.timeout)
        .metadata_request_clientside_timeout(settings.timeout)
        // Enough to route requests. With the whole schema, one user-defined type with a name in quotes anywhere in the
        // cluster would keep the driver from connecting, since it cannot read a column of that type.
        .fetch_full_schema_metadata(false)
        .default_execution_profile_handle(profile.into_handle());
    match (&settings.user, &settings.password) {
        (Some(user), Some(password)) => builder = builder.user(user, password),
        (Some(_), None) => {
            return Err(setting("STRANDLINE_CASSANDRA__PASSWORD", "is missing, but STRANDLINE_CASSANDRA__USER is set"));
        }
        (None, Some(_)) => {
            return Err(setting("STRANDLINE_CASSANDRA__USER", "is missing, but STRANDLINE_CASSANDRA__PASSWORD is set"));
        }
        (None, None) => {}
    }
    if let Some(tls) = tls(settings)? {
        builder = builder.tls_context(Some(tls));
    }
    // The driver tries one node after the other, and waits for the handshakes of TLS without an end.
    let patience = silence * 3 * u32::try_from(nodes.len()).unwrap_or(u32::MAX).saturating_add(1);
    let session = match tokio::time::timeout(patience, builder.build()).await {
        Ok(built) => built.map_err(|error| session_error(&nodes, settings, &error))?,
        Err(_) => return Err(silent(nodes.join(", "), patience)),
    };
    check_datacenter(&session, settings)?;
    Ok(Arc::new(session))
}

/// Prepares a statement that may be sent again: a read, or a write whose timestamp is part of it.
pub async fn prepare(session: &Session, cql: &str) -> Result<PreparedStatement, Failure> {
    let mut statement = session.prepare(cql).await.map_err(|error| Failure::from(error).during(cql))?;
    statement.set_is_idempotent(true);
    Ok(statement)
}

/// Prepares a conditional write, which is sent exactly once.
pub async fn prepare_conditional(session: &Session, cql: &str) -> Result<PreparedStatement, Failure> {
    let mut statement = session.prepare(cql).await.map_err(|error| Failure::from(error).during(cql))?;
    statement.set_is_idempotent(false);
    statement.set_serial_consistency(Some(SerialConsistency::Serial));
    statement.set_retry_policy(Some(Arc::new(FallthroughRetryPolicy::new())));
    Ok(statement)
}

/// Prepares a read that sees the outcome of every conditional write before it, also of one whose answer was lost.
pub async fn prepare_serial_read(session: &Session, cql: &str) -> Result<PreparedStatement, Failure> {
    let mut statement = prepare(session, cql).await?;
    statement.set_consistency(Consistency::Serial);
    Ok(statement)
}

/// A name as CQL writes it when it is to be taken literally.
pub fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

// ---------------------------------------------------------------------------------------------------------------------
// Settings

fn setting(setting: &'static str, reason: impl Into<String>) -> CassandraError {
    CassandraError::Setting { setting, reason: reason.into() }
}

/// The nodes of the setting, each with its port.
fn nodes(text: &str) -> Result<Vec<String>, CassandraError> {
    const SETTING: &str = "STRANDLINE_CASSANDRA__NODES";
    let mut nodes = Vec::new();
    for node in text.split(',').map(str::trim).filter(|node| !node.is_empty()) {
        if node.parse::<std::net::Ipv6Addr>().is_ok() {
            nodes.push(format!("[{node}]:{DEFAULT_PORT}"));
            continue;
        }
        let (host, port) = match node.rsplit_once(':') {
            Some((host, port)) if !node.ends_with(']') => (host, Some(port)),
            _ => (node, None),
        };
        if host.is_empty() {
            return Err(setting(SETTING, format!("'{node}' has no host name; write host:port, comma-separated")));
        }
        match port.map(str::parse::<u16>) {
            None => nodes.push(format!("{host}:{DEFAULT_PORT}")),
            Some(Ok(port)) if port > 0 => nodes.push(format!("{host}:{port}")),
            Some(_) => {
                return Err(setting(SETTING, format!("'{node}' has no valid port; write host:port, comma-separated")));
            }
        }
    }
    if nodes.is_empty() {
        return Err(setting(SETTING, "names no node; write host:port, comma-separated"));
    }
    Ok(nodes)
}

fn tls(settings: &CassandraSettings) -> Result<Option<SslConnectorBuilder>, CassandraError> {
    if !settings.tls {
        let unused = [
            ("STRANDLINE_CASSANDRA__TLS_CA", &settings.tls_ca),
            ("STRANDLINE_CASSANDRA__TLS_CERT", &settings.tls_cert),
            ("STRANDLINE_CASSANDRA__TLS_KEY", &settings.tls_key),
        ];
        if let Some((name, _)) = unused.into_iter().find(|(_, path)| path.is_some()) {
            return Err(setting(name, "is set, but TLS is off; set STRANDLINE_CASSANDRA__TLS=true as well"));
        }
        return Ok(None);
    }
    let broken = |error: ErrorStack| setting("STRANDLINE_CASSANDRA__TLS", format!("OpenSSL cannot be set up: {error}"));
    let mut builder = SslConnector::builder(SslMethod::tls_client()).map_err(broken)?;
    match &settings.tls_ca {
        Some(path) => builder.set_ca_file(path).map_err(unusable("STRANDLINE_CASSANDRA__TLS_CA", path))?,
        // OpenSSL is linked in and does not know where this system keeps its authorities.
        None if std::env::var_os("SSL_CERT_FILE").is_none() => {
            if let Some(path) = SYSTEM_AUTHORITIES.iter().find(|path| Path::new(path).is_file()) {
                builder.set_ca_file(path).map_err(broken)?;
            }
        }
        None => builder.set_default_verify_paths().map_err(broken)?,
    }
    match (&settings.tls_cert, &settings.tls_key) {
        (Some(cert), Some(key)) => {
            builder.set_certificate_chain_file(cert).map_err(unusable("STRANDLINE_CASSANDRA__TLS_CERT", cert))?;
            let mismatch = || {
                let reason = format!("{} is not the key of the certificate in {}", key.display(), cert.display());
                setting("STRANDLINE_CASSANDRA__TLS_KEY", reason)
            };
            builder.set_private_key_file(key, SslFiletype::PEM).map_err(|error| {
                let of_another = error.to_string().contains("key values mismatch");
                if of_another { mismatch() } else { unusable("STRANDLINE_CASSANDRA__TLS_KEY", key)(error) }
            })?;
            builder.check_private_key().map_err(|_| mismatch())?;
        }
        (Some(_), None) => {
            return Err(setting(
                "STRANDLINE_CASSANDRA__TLS_KEY",
                "is missing, but STRANDLINE_CASSANDRA__TLS_CERT is set",
            ));
        }
        (None, Some(_)) => {
            return Err(setting(
                "STRANDLINE_CASSANDRA__TLS_CERT",
                "is missing, but STRANDLINE_CASSANDRA__TLS_KEY is set",
            ));
        }
        (None, None) => {}
    }
    Ok(Some(builder))
}

/// What is said of a PEM file that OpenSSL does not take.
fn unusable(name: &'static str, path: &Path) -> impl FnOnce(ErrorStack) -> CassandraError {
    let path = PathBuf::from(path);
    move |error| {
        let reason = match std::fs::File::open(&path) {
            Err(error) => format!("{} cannot be read: {error}", path.display()),
            Ok(_) => format!("{} is not a usable PEM file: {error}", path.display()),
        };
        setting(name, reason)
    }
}

/// A datacenter that nobody knows would be passed over in silence, and every request cross to another one.
fn check_datacenter(session: &Session, settings: &CassandraSettings) -> Result<(), CassandraError> {
    let Some(wanted) = &settings.datacenter else {
        return Ok(());
    };
    let state = session.get_cluster_state();
    let mut known: Vec<&str> = state.get_nodes_info().iter().filter_map(|node| node.datacenter.as_deref()).collect();
    known.sort_unstable();
    known.dedup();
    if known.contains(&wanted.as_str()) {
        return Ok(());
    }
    Err(setting(
        "STRANDLINE_CASSANDRA__DATACENTER",
        format!("the cluster has no datacenter '{wanted}'; it has: {}", known.join(", ")),
    ))
}

// ---------------------------------------------------------------------------------------------------------------------
// Failures of the connection

fn session_error(nodes: &[String], settings: &CassandraSettings, error: &NewSessionError) -> CassandraError {
    let nodes = nodes.join(", ");
    if let NewSessionError::FailedToResolveAnyHostname(names) = error {
        return CassandraError::Unreachable { nodes, reason: format!("no address found for {}", names.join(", ")) };
    }
    let NewSessionError::MetadataError(MetadataError::ConnectionPoolError(ConnectionPoolError::Broken {
        last_connection_error,
    })) = error
    else {
        return CassandraError::Unreachable { nodes, reason: with_sources(error) };
    };
    connection_error(nodes, settings, last_connection_error)
}

fn connection_error(nodes: String, settings: &CassandraSettings, error: &ConnectionError) -> CassandraError {
    match error {
        ConnectionError::ConnectionSetupRequestError(setup) => match setup.get_error() {
            ConnectionSetupRequestErrorKind::MissingAuthentication => CassandraError::Login {
                nodes,
                reason: "it asks for a user and a password; set STRANDLINE_CASSANDRA__USER and \
                         STRANDLINE_CASSANDRA__PASSWORD"
                    .into(),
            },
            ConnectionSetupRequestErrorKind::DbError(DbError::AuthenticationError | DbError::Unauthorized, said)
                if !said.contains(CANNOT_CHECK) =>
            {
                CassandraError::Login {
                    nodes,
                    reason: format!("{said}. Check STRANDLINE_CASSANDRA__USER and STRANDLINE_CASSANDRA__PASSWORD"),
                }
            }
            ConnectionSetupRequestErrorKind::BrokenConnection(broken)
                if matches!(broken.downcast_ref(), Some(BrokenConnectionErrorKind::KeepaliveTimeout(_))) =>
            {
                silent(nodes, settings.timeout)
            }
            // With TLS 1.3 a node looks at the client's certificate when the handshake is over for the client. Why it then
            // ends the connection may or may not arrive.
            ConnectionSetupRequestErrorKind::BrokenConnection(_) if settings.tls && settings.tls_cert.is_none() => {
                CassandraError::Tls { nodes, reason: format!("{}; {CLIENT_CERTIFICATE}", with_sources(error)) }
            }
            // A node that waits for TLS closes a connection that does not speak it.
            ConnectionSetupRequestErrorKind::BrokenConnection(_) if !settings.tls => CassandraError::Unreachable {
                nodes,
                reason: format!(
                    "the connection was closed during the greeting ({}); if the nodes want TLS, set \
                     STRANDLINE_CASSANDRA__TLS=true",
                    with_sources(error)
                ),
            },
            _ => CassandraError::Unreachable { nodes, reason: with_sources(error) },
        },
        ConnectionError::IoError(io) if settings.tls && io.raw_os_error().is_none() => {
            CassandraError::Tls { nodes, reason: tls_advice(&with_sources(error)) }
        }
        ConnectionError::ConnectTimeout => silent(nodes, settings.timeout),
        _ => CassandraError::Unreachable { nodes, reason: with_sources(error) },
    }
}

fn silent(nodes: String, patience: Duration) -> CassandraError {
    let reason = format!("no answer within {patience:?} (STRANDLINE_CASSANDRA__TIMEOUT)");
    CassandraError::Unreachable { nodes, reason }
}

const CLIENT_CERTIFICATE: &str = "if the nodes ask for a client's certificate, set STRANDLINE_CASSANDRA__TLS_CERT and \
                                  STRANDLINE_CASSANDRA__TLS_KEY";

/// What OpenSSL says, and what to do about it.
fn tls_advice(said: &str) -> String {
    let advice = if said.contains("certificate verify failed") {
        "the authority that signed the node's certificate has to be in STRANDLINE_CASSANDRA__TLS_CA, and the certificate \
         has to name the node's IP address as a subjectAltName"
    } else if said.contains("wrong version number") || said.contains("packet length too long") {
        "the port does not speak TLS; check the port, or unset STRANDLINE_CASSANDRA__TLS"
    } else if said.contains("certificate required") || said.contains("bad certificate") {
        CLIENT_CERTIFICATE
    } else {
        "check the settings that begin with STRANDLINE_CASSANDRA__TLS"
    };
    format!("{said}; {advice}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn message<T>(result: Result<T, CassandraError>) -> String {
        match result {
            Ok(_) => panic!("expected an error"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn nodes_get_the_usual_port_unless_they_name_one() {
        assert_eq!(
            nodes(" a, b:19042 ,, 10.0.0.1,fe80::1,[fe80::2]:99,[fe80::3]").unwrap(),
            ["a:9042", "b:19042", "10.0.0.1:9042", "[fe80::1]:9042", "[fe80::2]:99", "[fe80::3]:9042"]
        );
    }

    #[test]
    fn nodes_that_cannot_be_meant_are_named() {
        assert_eq!(
            message(nodes(" , ")),
            "STRANDLINE_CASSANDRA__NODES: names no node; write host:port, comma-separated"
        );
        assert_eq!(
            message(nodes("a:9042,b:cql")),
            "STRANDLINE_CASSANDRA__NODES: 'b:cql' has no valid port; write host:port, comma-separated"
        );
        assert_eq!(
            message(nodes("a:0")),
            "STRANDLINE_CASSANDRA__NODES: 'a:0' has no valid port; write host:port, comma-separated"
        );
        assert_eq!(
            message(nodes(":9042")),
            "STRANDLINE_CASSANDRA__NODES: ':9042' has no host name; write host:port, comma-separated"
        );
    }

    #[test]
    fn tls_files_are_checked_before_anything_is_sent() {
        let missing = CassandraSettings {
            tls: true,
            tls_ca: Some(PathBuf::from("/does/not/exist.pem")),
            ..CassandraSettings::default()
        };
        assert_eq!(
            message(tls(&missing)),
            "STRANDLINE_CASSANDRA__TLS_CA: /does/not/exist.pem cannot be read: No such file or directory (os error 2)"
        );
        let alone = CassandraSettings {
            tls: true,
            tls_cert: Some(PathBuf::from("/some/cert.pem")),
            ..CassandraSettings::default()
        };
        assert_eq!(
            message(tls(&alone)),
            "STRANDLINE_CASSANDRA__TLS_KEY: is missing, but STRANDLINE_CASSANDRA__TLS_CERT is set"
        );
        let off = CassandraSettings { tls_ca: Some(PathBuf::from("/some/ca.pem")), ..CassandraSettings::default() };
        assert_eq!(
            message(tls(&off)),
            "STRANDLINE_CASSANDRA__TLS_CA: is set, but TLS is off; set STRANDLINE_CASSANDRA__TLS=true as well"
        );
    }

    #[test]
    fn names_are_quoted_literally() {
        assert_eq!(quote("Shop"), "\"Shop\"");
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
    }
}
