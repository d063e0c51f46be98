//! What is said when there is no connection to Cassandra.

use std::time::Duration;

use strandline::cassandra::{CassandraError, connect};
use strandline::settings::CassandraSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// `host:port` of the Cassandra that the tests use.
pub(crate) fn server() -> String {
    std::env::var("TEST_CASSANDRA")
        .expect("TEST_CASSANDRA is not set: the tests need a Cassandra; start them with tests/run")
}

fn settings(nodes: &str) -> CassandraSettings {
    CassandraSettings { nodes: nodes.into(), timeout: Duration::from_secs(2), ..CassandraSettings::default() }
}

/// A real server has to answer in time.
fn of_the_server() -> CassandraSettings {
    CassandraSettings { timeout: Duration::from_secs(30), ..settings(&server()) }
}

async fn refusal(settings: &CassandraSettings) -> CassandraError {
    connect(settings).await.expect_err("the connection should have failed")
}

/// A port on which nobody listens.
async fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

/// What a server answers.
#[derive(Clone, Copy)]
enum Answer {
    Nothing,
    Close,
    AskForPassword,
    RefusePassword(&'static str),
}

/// A server that speaks just enough of Cassandra's protocol to turn clients away.
async fn unfriendly_server(answer: Answer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut header = [0_u8; 9];
                while client.read_exact(&mut header).await.is_ok() {
                    let mut body = vec![0; u32::from_be_bytes(header[5..9].try_into().unwrap()) as usize];
                    client.read_exact(&mut body).await.unwrap();
                    let string = |text: &str| [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
                    let (opcode, body) = match (answer, header[4]) {
                        (Answer::Nothing, _) => continue,
                        (Answer::Close, _) => break,
                        // OPTIONS: nothing special is supported.
                        (_, 0x05) => (0x06, vec![0, 0]),
                        // STARTUP: AUTHENTICATE.
                        (_, 0x01) => (0x03, string("org.apache.cassandra.auth.PasswordAuthenticator")),
                        // AUTH_RESPONSE: the error "bad credentials".
                        (Answer::RefusePassword(why), 0x0F) => {
                            (0x00, [&0x0100_u32.to_be_bytes()[..], &string(why)].concat())
                        }
                        (_, other) => panic!("an unexpected request: {other}"),
                    };
                    let head = [0x84, 0, header[2], header[3], opcode];
                    let frame = [&head[..], &(body.len() as u32).to_be_bytes(), &body].concat();
                    client.write_all(&frame).await.unwrap();
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn nobody_listens() {
    let (one, two) = (closed_port().await, closed_port().await);
    let error = refusal(&settings(&format!("{one}, {two}"))).await;
    let message = error.to_string();
    assert!(error.may_pass());
    assert!(message.starts_with(&format!("no Cassandra node answered at {one}, {two}: ")), "{message}");
    assert!(message.contains("Connection refused"), "{message}");
    assert!(
        message.ends_with("Check STRANDLINE_CASSANDRA__NODES, and that the nodes are up and reachable from here"),
        "{message}"
    );
}

#[tokio::test]
async fn the_host_does_not_exist() {
    let error = refusal(&settings("no-such-host.invalid:9042")).await;
    let message = error.to_string();
    assert!(error.may_pass());
    assert!(message.contains("no address found for no-such-host.invalid:9042"), "{message}");
    assert!(message.contains("STRANDLINE_CASSANDRA__NODES"), "{message}");
}

#[tokio::test]
async fn the_server_never_answers() {
    let node = unfriendly_server(Answer::Nothing).await;
    let error = refusal(&settings(&node)).await;
    let message = error.to_string();
    assert!(error.may_pass());
    assert!(message.contains(&node), "{message}");
    assert!(message.contains("no answer within 2s (STRANDLINE_CASSANDRA__TIMEOUT)"), "{message}");
}

#[tokio::test]
async fn the_server_never_answers_to_tls() {
    let node = unfriendly_server(Answer::Nothing).await;
    let error = refusal(&CassandraSettings { tls: true, ..settings(&node) }).await;
    let message = error.to_string();
    assert!(error.may_pass());
    assert!(message.contains(&node), "{message}");
    assert!(message.contains("(STRANDLINE_CASSANDRA__TIMEOUT)"), "{message}");
}

#[tokio::test]
async fn the_server_closes_the_connection() {
    let node = unfriendly_server(Answer::Close).await;
    let message = refusal(&settings(&node)).await.to_string();
    assert!(message.contains("if the nodes want TLS, set STRANDLINE_CASSANDRA__TLS=true"), "{message}");
}

#[tokio::test]
async fn a_password_is_asked_for() {
    let node = unfriendly_server(Answer::AskForPassword).await;
    let error = refusal(&settings(&node)).await;
    assert!(!error.may_pass());
    assert_eq!(
        error.to_string(),
        format!(
            "Cassandra at {node} refused the login: it asks for a user and a password; set STRANDLINE_CASSANDRA__USER \
             and STRANDLINE_CASSANDRA__PASSWORD"
        )
    );
}

#[tokio::test]
async fn the_password_is_wrong() {
    let node = unfriendly_server(Answer::RefusePassword("Provided username x and/or password are incorrect")).await;
    let settings = CassandraSettings { user: Some("x".into()), password: Some("secret!".into()), ..settings(&node) };
    let error = refusal(&settings).await;
    assert!(!error.may_pass());
    assert_eq!(
        error.to_string(),
        format!(
            "Cassandra at {node} refused the login: Provided username x and/or password are incorrect. Check \
             STRANDLINE_CASSANDRA__USER and STRANDLINE_CASSANDRA__PASSWORD"
        )
    );
}

#[tokio::test]
async fn a_node_that_cannot_check_passwords_is_no_wrong_password() {
    let said = "Unable to perform authentication: Cannot achieve consistency level LOCAL_ONE";
    let node = unfriendly_server(Answer::RefusePassword(said)).await;
    let settings = CassandraSettings { user: Some("x".into()), password: Some("y".into()), ..settings(&node) };
    let error = refusal(&settings).await;
    assert!(error.may_pass(), "{error}");
    assert!(error.to_string().contains(said), "{error}");
}

#[tokio::test]
async fn a_user_needs_a_password() {
    let settings = CassandraSettings { user: Some("x".into()), ..settings("127.0.0.1:9042") };
    assert_eq!(
        refusal(&settings).await.to_string(),
        "STRANDLINE_CASSANDRA__PASSWORD: is missing, but STRANDLINE_CASSANDRA__USER is set"
    );
}

#[tokio::test]
async fn the_server_does_not_speak_tls() {
    let settings = CassandraSettings { tls: true, ..of_the_server() };
    let error = refusal(&settings).await;
    let message = error.to_string();
    assert!(matches!(error, CassandraError::Tls { .. }), "{message}");
    assert!(message.contains(&server()), "{message}");
    assert!(message.contains("the port does not speak TLS"), "{message}");
}

#[tokio::test]
async fn the_datacenter_does_not_exist() {
    let settings = CassandraSettings { datacenter: Some("moon".into()), ..of_the_server() };
    assert_eq!(
        refusal(&settings).await.to_string(),
        "STRANDLINE_CASSANDRA__DATACENTER: the cluster has no datacenter 'moon'; it has: datacenter1"
    );
}

#[tokio::test]
async fn the_datacenter_exists() {
    connect(&CassandraSettings { datacenter: Some("datacenter1".into()), ..of_the_server() }).await.unwrap();
}
