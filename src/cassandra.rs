//! The connection to Cassandra that the state store and the table sinks share.
//!
//! Every statement reads and writes at QUORUM, and lightweight transactions agree at SERIAL, never at LOCAL_SERIAL: two
//! processes in two datacenters must not both believe that they own a shard. A conditional write is sent once. Neither
//! the driver's retries nor a second speculative request may repeat it, since whoever sent it has to know whether it was
//! applied; all other statements name their own write timestamp, so that sending them again changes nothing.

use std::fmt::Write as _;
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
    ExecutionError, MetadataError, NewSessionError, NextPageError, NextRowError, PagerExecutionError, PrepareError,
    RequestAttemptError, RequestError,
};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::{DefaultRetryPolicy, FallthroughRetryPolicy};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};

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

/// What Cassandra says when too few nodes answer to find out who somebody is, or what he may do.
const CANNOT_CHECK: &str = "Unable to perform auth";

// ---------------------------------------------------------------------------------------------------------------------
// Failures of statements

/// Why a statement failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// No answer, or not enough of one. Whether a write took place is unknown; sending it again may help.
    #[error("{0}")]
    Unknown(String),
    /// Refused for good: a missing table or right, a value that does not fit, a statement that is wrong.
    #[error("{0}")]
    Refused(String),
    /// The answer cannot be understood.
    #[error("{0}")]
    Unreadable(String),
}

impl Failure {
    /// Says what was being done.
    pub fn during(self, what: &str) -> Self {
        match self {
            Self::Unknown(reason) => Self::Unknown(format!("{what}: {reason}")),
            Self::Refused(reason) => Self::Refused(format!("{what}: {reason}")),
            Self::Unreadable(reason) => Self::Unreadable(format!("{what}: {reason}")),
        }
    }
}

impl From<RequestAttemptError> for Failure {
    fn from(error: RequestAttemptError) -> Self {
        let text = error.to_string();
        match error {
            // A node that cannot read its own users says so in the words of a refusal.
            RequestAttemptError::DbError(DbError::AuthenticationError | DbError::Unauthorized, said)
                if said.contains(CANNOT_CHECK) =>
            {
                Self::Unknown(text)
            }
            // These the server says before it does anything, and will say again.
            RequestAttemptError::DbError(
                DbError::SyntaxError
                | DbError::Invalid
                | DbError::AlreadyExists { .. }
                | DbError::FunctionFailure { .. }
                | DbError::AuthenticationError
                | DbError::Unauthorized
                | DbError::ConfigError,
                _,
            ) => Self::Refused(text),
            RequestAttemptError::SerializationError(_) | RequestAttemptError::CqlRequestSerialization(_) => {
                Self::Refused(text)
            }
            // Everything else leaves it open, also errors of a kind that this driver does not know yet: Cassandra 5
            // has some of its own for conditional writes.
            _ => Self::Unknown(text),
        }
    }
}

impl From<ExecutionError> for Failure {
    fn from(error: ExecutionError) -> Self {
        match error {
            ExecutionError::LastAttemptError(error) => error.into(),
            ExecutionError::PrepareError(error) => error.into(),
            ExecutionError::BadQuery(error) => Self::Refused(with_sources(&error)),
            other => Self::Unknown(with_sources(&other)),
        }
    }
}

impl From<PrepareError> for Failure {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::AllAttemptsFailed { first_attempt } => first_attempt.into(),
            other => Self::Unknown(with_sources(&other)),
        }
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        error.into_execution_error().into()
    }
}

impl From<NextPageError> for Failure {
    fn from(error: NextPageError) -> Self {
        match error {
            NextPageError::RequestFailure(error) => error.into(),
            other => Self::Unreadable(with_sources(&other)),
        }
    }
}

impl From<NextRowError> for Failure {
    fn from(error: NextRowError) -> Self {
        match error {
            NextRowError::NextPageError(error) => error.into(),
            other => Self::Unreadable(with_sources(&other)),
        }
    }
}

impl From<PagerExecutionError> for Failure {
    fn from(error: PagerExecutionError) -> Self {
        match error {
            PagerExecutionError::PrepareError(error) => error.into(),
            PagerExecutionError::SerializationError(error) => Self::Refused(with_sources(&error)),
            PagerExecutionError::NextPageError(error) => error.into(),
            other => Self::Unknown(with_sources(&other)),
        }
    }
}

/// An error with everything that lies below it.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            let _ = write!(text, ": {inner_text}");
        }
        source = inner.source();
    }
    text
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
            builder
                .set_private_key_file(key, SslFiletype::PEM)
                .map_err(unusable("STRANDLINE_CASSANDRA__TLS_KEY", key))?;
            builder.check_private_key().map_err(|_| {
                setting(
                    "STRANDLINE_CASSANDRA__TLS_KEY",
                    format!("{} is not the key of the certificate in {}", key.display(), cert.display()),
                )
            })?;
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

/// What OpenSSL says, and what to do about it.
fn tls_advice(said: &str) -> String {
    let advice = if said.contains("IP address mismatch") {
        "the certificate of the node has to name its IP address (subjectAltName IP:...)"
    } else if said.contains("certificate verify failed") {
        "the authority that signed the node's certificate has to be in STRANDLINE_CASSANDRA__TLS_CA"
    } else if said.contains("wrong version number") || said.contains("packet length too long") {
        "the port does not speak TLS; check the port, or unset STRANDLINE_CASSANDRA__TLS"
    } else if said.contains("certificate required") || said.contains("bad certificate") {
        "the node asks for a client certificate; set STRANDLINE_CASSANDRA__TLS_CERT and STRANDLINE_CASSANDRA__TLS_KEY"
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
    fn only_what_the_server_will_say_again_is_final() {
        let refused = |error: DbError| {
            matches!(Failure::from(RequestAttemptError::DbError(error, String::new())), Failure::Refused(_))
        };
        assert!(refused(DbError::SyntaxError));
        assert!(refused(DbError::Invalid));
        assert!(refused(DbError::Unauthorized));
        assert!(!refused(DbError::Overloaded));
        assert!(!refused(DbError::ServerError));
        assert!(!refused(DbError::IsBootstrapping));
        // Cassandra's CAS_WRITE_UNKNOWN, which the driver has no name for.
        assert!(!refused(DbError::Other(0x1700)));
        let timeout = ExecutionError::RequestTimeout(Duration::from_secs(5));
        assert!(matches!(Failure::from(timeout), Failure::Unknown(_)));
    }

    #[test]
    fn names_are_quoted_literally() {
        assert_eq!(quote("Shop"), "\"Shop\"");
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
    }
}
