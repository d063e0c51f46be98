//! TLS to Cassandra, through a server of TLS in front of the real one.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{ErrorCode, SslAcceptor, SslMethod, SslVerifyMode};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::{X509, X509Name};
use strandline::cassandra::{CassandraError, connect};
use strandline::settings::CassandraSettings;
use uuid::Uuid;

use crate::cassandra_connection::server;

/// A certificate and its key.
struct Identity {
    certificate: X509,
    key: PKey<Private>,
}

impl Identity {
    /// An identity that an authority signs, or that is its own authority.
    fn new(name: &str, ip: Option<&str>, authority: Option<&Identity>) -> Self {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
        let mut subject = X509Name::builder().unwrap();
        subject.append_entry_by_text("CN", name).unwrap();
        let subject = subject.build();
        let mut builder = X509::builder().unwrap();
        builder.set_version(2).unwrap();
        builder.set_subject_name(&subject).unwrap();
        builder.set_issuer_name(authority.map_or(&*subject, |by| by.certificate.subject_name())).unwrap();
        builder.set_pubkey(&key).unwrap();
        builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
        builder.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
        if authority.is_none() {
            builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
        }
        if let Some(ip) = ip {
            let names = SubjectAlternativeName::new().ip(ip).build(&builder.x509v3_context(None, None)).unwrap();
            builder.append_extension(names).unwrap();
        }
        builder.sign(authority.map_or(&key, |by| &by.key), MessageDigest::sha256()).unwrap();
        Self { certificate: builder.build(), key }
    }
}

/// Certificates as files, as the settings want them.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("strandline-{}", Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn certificate(&self, identity: &Identity) -> Option<PathBuf> {
        self.write(&identity.certificate.to_pem().unwrap())
    }

    fn key(&self, identity: &Identity) -> Option<PathBuf> {
        self.write(&identity.key.private_key_to_pem_pkcs8().unwrap())
    }

    fn write(&self, pem: &[u8]) -> Option<PathBuf> {
        let path = self.0.join(format!("{}.pem", Uuid::new_v4()));
        std::fs::write(&path, pem).unwrap();
        Some(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Speaks TLS in front of the real Cassandra, and asks clients for a certificate if it is told whose.
fn tls_server(node: &Identity, clients: Option<&Identity>) -> String {
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
    acceptor.set_certificate(&node.certificate).unwrap();
    acceptor.set_private_key(&node.key).unwrap();
    // Sessions of clients with a certificate are resumed only where they have a name.
    acceptor.set_session_id_context(b"strandline").unwrap();
    if let Some(authority) = clients {
        let mut store = X509StoreBuilder::new().unwrap();
        store.add_cert(authority.certificate.clone()).unwrap();
        acceptor.set_verify_cert_store(store.build()).unwrap();
        acceptor.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    }
    let acceptor = acceptor.build();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let acceptor = acceptor.clone();
            std::thread::spawn(move || pass(&acceptor, client.unwrap()));
        }
    });
    address
}

/// Carries what one connection says in both directions, until one side ends.
fn pass(acceptor: &SslAcceptor, client: TcpStream) {
    let Ok(mut client) = acceptor.accept(client) else { return };
    let mut server = TcpStream::connect(server()).unwrap();
    // One thread serves both directions, so it must not stay long with one of them.
    let pause = Some(Duration::from_millis(1));
    client.get_ref().set_read_timeout(pause).unwrap();
    server.set_read_timeout(pause).unwrap();
    let mut buffer = [0; 16 << 10];
    loop {
        match client.ssl_read(&mut buffer) {
            Ok(length) => server.write_all(&buffer[..length]).unwrap(),
            Err(error) if error.code() == ErrorCode::WANT_READ => {}
            Err(_) => return,
        }
        match server.read(&mut buffer) {
            Ok(length @ 1..) if client.write_all(&buffer[..length]).is_ok() => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => return,
        }
    }
}

fn settings(node: &str) -> CassandraSettings {
    CassandraSettings { nodes: node.into(), tls: true, timeout: Duration::from_secs(5), ..CassandraSettings::default() }
}

async fn refusal(settings: &CassandraSettings) -> CassandraError {
    connect(settings).await.expect_err("the connection should have failed")
}

fn assert_tls(error: &CassandraError, advice: &str) {
    let message = error.to_string();
    assert!(matches!(error, CassandraError::Tls { .. }), "{message}");
    assert!(message.starts_with("no TLS connection to Cassandra at 127.0.0.1:"), "{message}");
    assert!(message.contains(advice), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_show_their_certificates() {
    let files = Files::new();
    let authority = Identity::new("authority", None, None);
    let node = Identity::new("node", Some("127.0.0.1"), Some(&authority));
    let client = Identity::new("client", None, Some(&authority));
    let settings = CassandraSettings {
        tls_ca: files.certificate(&authority),
        tls_cert: files.certificate(&client),
        tls_key: files.key(&client),
        ..settings(&tls_server(&node, Some(&authority)))
    };
    let session = connect(&settings).await.unwrap();
    let answer = session.query_unpaged("SELECT cluster_name FROM system.local", ()).await.unwrap();
    assert_eq!(answer.into_rows_result().unwrap().rows_num(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_not_trusted() {
    let files = Files::new();
    let (authority, other) = (Identity::new("authority", None, None), Identity::new("other", None, None));
    let node = Identity::new("node", Some("127.0.0.1"), Some(&authority));
    let address = tls_server(&node, None);
    let advice = "the authority that signed the node's certificate has to be in STRANDLINE_CASSANDRA__TLS_CA";
    let wrong = CassandraSettings { tls_ca: files.certificate(&other), ..settings(&address) };
    assert_tls(&refusal(&wrong).await, advice);
    // The authorities of the system do not know it either.
    assert_tls(&refusal(&settings(&address)).await, advice);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_node() {
    let files = Files::new();
    let authority = Identity::new("authority", None, None);
    let node = Identity::new("node", Some("10.9.8.7"), Some(&authority));
    let settings = CassandraSettings { tls_ca: files.certificate(&authority), ..settings(&tls_server(&node, None)) };
    assert_tls(&refusal(&settings).await, "has to name the node's IP address as a subjectAltName");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_the_client_is_asked_for() {
    let files = Files::new();
    let authority = Identity::new("authority", None, None);
    let node = Identity::new("node", Some("127.0.0.1"), Some(&authority));
    let address = tls_server(&node, Some(&authority));
    let settings = CassandraSettings { tls_ca: files.certificate(&authority), ..settings(&address) };
    assert_tls(&refusal(&settings).await, "set STRANDLINE_CASSANDRA__TLS_CERT and STRANDLINE_CASSANDRA__TLS_KEY");
}

#[tokio::test]
async fn a_key_of_another_certificate() {
    let files = Files::new();
    let (one, two) = (Identity::new("one", None, None), Identity::new("two", None, None));
    let (cert, key) = (files.certificate(&one), files.key(&two));
    let settings = CassandraSettings { tls_cert: cert.clone(), tls_key: key.clone(), ..settings("127.0.0.1:1") };
    let shown = |path: &Option<PathBuf>| path.as_deref().map(Path::display).unwrap().to_string();
    assert_eq!(
        refusal(&settings).await.to_string(),
        format!("STRANDLINE_CASSANDRA__TLS_KEY: {} is not the key of the certificate in {}", shown(&key), shown(&cert))
    );
}

#[tokio::test]
async fn a_file_that_holds_no_certificate() {
    let files = Files::new();
    let path = files.write(b"something else");
    let settings = CassandraSettings { tls_ca: path.clone(), ..settings("127.0.0.1:1") };
    let message = refusal(&settings).await.to_string();
    let start = format!("STRANDLINE_CASSANDRA__TLS_CA: {} is not a usable PEM file", path.unwrap().display());
    assert!(message.starts_with(&start), "{message}");
}
