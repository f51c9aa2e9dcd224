use std::sync::Arc;

use _native::edge::{Limits, Wire, server_config};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::access::callers;
use crate::grpc::{call, framed, request};
use crate::setup::{PREDICT, Setup, limits, until};

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
            builder.with_client_auth_cert(vec![CertificateDer::clone(own.cert.der())], key).unwrap()
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
async fn certificates_change_while_connections_stay() {
    let setup = Setup::start().await;
    let (old, new) = (identity(), identity());
    let config = |one: &Identity| {
        let key = one.signing_key.serialize_pem();
        server_config(one.cert.pem().as_bytes(), key.as_bytes(), None, &[b"h2"]).unwrap()
    };
    setup.server().set_tls(Wire::Grpc, Some(config(&old)));
    let stream = TcpStream::connect(setup.address(Wire::Grpc)).await.unwrap();
    let stream = client(&old, None).connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    setup.server().set_tls(Wire::Grpc, Some(config(&new)));
    assert_eq!(ask(&setup, &client(&new, None), PREDICT).await.unwrap(), "core Predict 5 hello");
    assert!(ask(&setup, &client(&old, None), PREDICT).await.is_err());
    let (response, mut body) = sender.clone().send_request(request(PREDICT, &[]), false).unwrap();
    body.send_data(framed(b"x"), true).unwrap();
    assert_eq!(crate::grpc::read(response).await.unwrap().status(), "0");
    until("the failed handshake is counted", || setup.count(|s| s.handshakes_failed.clone(), "grpc") == 1).await;
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
    let names = [("DNS:localhost", "m"), ("CN:rcgen self signed cert", "m"), ("CN:stranger", "m")];
    for (name, model) in names {
        setup.server().set_access(callers(&[("", name, model)]));
        assert_eq!(ask(&setup, &client(&own, Some(&friend)), "/echo").await.unwrap(), "hello");
        let answered = ask(&setup, &client(&own, Some(&friend)), PREDICT).await.unwrap();
        let is_known = name != "CN:stranger";
        assert_eq!(answered == "core Predict 5 hello", is_known, "{name}: {answered}");
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
