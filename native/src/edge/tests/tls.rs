use std::sync::Arc;
use std::time::Duration;

use crate::edge::{Access, Caller, Limits, Wire, server_config};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::grpc::{call, framed};
use super::setup::{PREDICT, Setup, limits, until};

const NAMES: &str = "x-embedding-server-names";

type Identity = rcgen::CertifiedKey<rcgen::KeyPair>;

fn identity() -> Identity {
    rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap()
}

fn client(trusted: &Identity, own: Option<&Identity>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
            builder.with_client_auth_cert(vec![own.cert.der().clone()], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn ask(setup: &Setup, connector: &TlsConnector, path: &str) -> Result<String, String> {
    let stream = TcpStream::connect(setup.address(Wire::Grpc)).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
    let (sender, connection) = h2::client::handshake(stream).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let reply = call(&sender, path, &[], framed(b"hello")).await.map_err(|error| error.to_string())?;
    Ok(reply.message())
}

#[tokio::test]
async fn client_certificates_are_asked_for_and_told_to_the_reference() {
    let setup = Setup::start().await;
    let (own, friend, stranger) = (identity(), identity(), identity());
    let key = own.signing_key.serialize_pem();
    let authority = friend.cert.pem();
    let config = server_config(own.cert.pem().as_bytes(), key.as_bytes(), Some(authority.as_bytes()), &[b"h2"]);
    setup.server().set_tls(Wire::Grpc, Some(config.unwrap()));
    assert!(ask(&setup, &client(&own, None), PREDICT).await.is_err());
    assert!(ask(&setup, &client(&own, Some(&stranger)), PREDICT).await.is_err());
    assert_eq!(ask(&setup, &client(&own, Some(&friend)), "/echo").await.unwrap(), "hello");
    assert!(!setup.seen.headers.lock().unwrap().contains_key(NAMES));
    // The first two names are the DNS name and the common name in the test's certificates, which rcgen makes.
    for name in ["DNS:localhost", "CN:rcgen self signed cert", "CN:stranger"] {
        let (certificates, models) = (vec![name.to_owned()], vec!["m".to_owned()]);
        let caller = Caller { digests: Vec::new(), certificates, models, name: String::new(), seen: Vec::new() };
        setup.server().set_access(Access::new(&[caller]).unwrap());
        assert_eq!(ask(&setup, &client(&own, Some(&friend)), "/echo").await.unwrap(), "hello");
        let is_known = name != "CN:stranger";
        if is_known {
            let answered = ask(&setup, &client(&own, Some(&friend)), PREDICT).await.unwrap();
            assert_eq!(answered, "core Predict 5 hello", "{name}");
        }
        let headers = setup.seen.headers.lock().unwrap().clone();
        let told = percent_encoding::percent_encode(name.as_bytes(), percent_encoding::NON_ALPHANUMERIC).to_string();
        assert_eq!(headers.get(NAMES).map(|value| value.to_str().unwrap()), is_known.then_some(&*told));
    }
}

#[test]
fn other_bytes_are_no_configuration() {
    let one = identity();
    let (certificate, key) = (one.cert.pem(), one.signing_key.serialize_pem());
    for (certificate, key, authority) in [
        ("", &*key, None),
        (&*certificate, "", None),
        (&certificate, &identity().signing_key.serialize_pem(), None),
        (&certificate, &key, Some("x")),
    ] {
        let made = server_config(certificate.as_bytes(), key.as_bytes(), authority.map(str::as_bytes), &[]);
        assert!(made.is_err());
    }
}

#[tokio::test]
async fn the_oldest_handshake_makes_room() {
    let limits = Limits { max_handshakes: 2, ..limits() };
    let setup = Setup::with(limits, |_| ()).await;
    let own = identity();
    let key = own.signing_key.serialize_pem();
    let config = server_config(own.cert.pem().as_bytes(), key.as_bytes(), None, &[b"h2"]).unwrap();
    setup.server().set_tls(Wire::Grpc, Some(config));
    let mut oldest = TcpStream::connect(setup.address(Wire::Grpc)).await.unwrap();
    until("it began", || setup.count(|s| s.connected.clone(), "grpc") == 1).await;
    let second = TcpStream::connect(setup.address(Wire::Grpc)).await.unwrap();
    assert_eq!(ask(&setup, &client(&own, None), PREDICT).await.unwrap(), "core Predict 5 hello");
    assert_eq!(oldest.read(&mut [0]).await.unwrap_or(0), 0);
    until("the second is left", || setup.count(|s| s.connections.clone(), "grpc") == 1).await;
    drop(second);
}

async fn connected(setup: &Setup, wire: Wire, connector: &TlsConnector) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(setup.address(wire)).await.unwrap();
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
}

/// Starts a server whose HTTP port has TLS.
async fn with_https(own: &Identity) -> Setup {
    let setup = Setup::with(Limits { head_timeout: Duration::from_secs(60), ..limits() }, |_| ()).await;
    let key = own.signing_key.serialize_pem();
    let config = server_config(own.cert.pem().as_bytes(), key.as_bytes(), None, &[b"h2"]).unwrap();
    setup.server().set_tls(Wire::Http, Some(config));
    setup
}

#[tokio::test]
async fn records_without_data_end_a_connection() {
    let own = identity();
    let setup = with_https(&own).await;
    let mut stream = connected(&setup, Wire::Http, &client(&own, None)).await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx: ").await.unwrap();
    for _ in 0..400 {
        // rustls ends a connection after 32 key updates without data between them, so the test sends data after each
        // 30.
        for _ in 0..30 {
            stream.get_mut().1.refresh_traffic_keys().unwrap();
        }
        if stream.write_all(b"y").await.is_err() || stream.flush().await.is_err() {
            break;
        }
    }
    until("the flood is counted", || setup.count(|s| s.flooded.clone(), "tls") == 1).await;
    assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_client_may_send_each_byte_in_its_own_record() {
    let own = identity();
    let setup = with_https(&own).await;
    let mut stream = connected(&setup, Wire::Http, &client(&own, None)).await;
    let filler = "y".repeat(3000);
    let head = format!("POST /v1/models/m:lookup HTTP/1.1\r\nhost: x\r\nx: {filler}\r\ncontent-length: 5\r\n\r\n");
    for byte in [head.as_bytes(), b"hello"].concat() {
        stream.write_all(&[byte]).await.unwrap();
        stream.flush().await.unwrap();
    }
    let mut got = [0; 15];
    stream.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_long_handshake_is_refused() {
    let own = identity();
    let setup = with_https(&own).await;
    let mut stream = TcpStream::connect(setup.address(Wire::Http)).await.unwrap();
    // The ClientHello's length field announces 60,000 bytes, of which the test sends 49,148.
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.extend(b"\x16\x03\x01\x40\0");
        sent.extend(vec![0; 1 << 14]);
    }
    sent[5..9].copy_from_slice(b"\x01\0\xea\x60");
    let _ = stream.write_all(&sent).await;
    assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
    until("it is counted", || setup.count(|s| s.handshakes_failed.clone(), "http") == 1).await;
}
