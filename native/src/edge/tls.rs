//! Builds the TLS configuration of a listener from the contents of PEM files, which Python has read.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::admission::limits::MAX_INTERMEDIATES;

/// The reason why PEM bytes give no TLS configuration.
#[derive(Debug)]
pub enum TlsError {
    /// The named part (certificate, private key or authority) is not PEM, or has no key or certificate of the right
    /// kind.
    Pem(&'static str),
    /// The certificate, the key and the authorities of a listener do not fit each other.
    Unfit(String),
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TlsError::Pem(part) => write!(formatter, "the {part} is not valid PEM"),
            TlsError::Unfit(reason) => formatter.write_str(reason),
        }
    }
}

impl std::error::Error for TlsError {}

/// Builds the TLS configuration of a listener.
///
/// `authorities`: PEM; one of them must have signed a client's certificate; None: clients show none. `protocols`: for
/// ALPN, such as `b"h2"`.
///
/// # Errors
/// [`TlsError`].
pub fn server_config(
    certificates: &[u8],
    key: &[u8],
    authorities: Option<&[u8]>,
    protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates_of(certificates, "certificate")?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::Pem("private key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unfit = |error: &dyn std::fmt::Display| TlsError::Unfit(error.to_string());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit(&error))?;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(authorities) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates_of(authorities, "authority")? {
                roots.add(authority).map_err(|error| unfit(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| unfit(&error))?;
            builder.with_client_cert_verifier(Arc::new(ShortChains(verifier)))
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| unfit(&error))?;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

/// A verifier of clients' certificates that refuses long chains. Where all certificates of a chain have the same subject,
/// webpki tries all orders of them: eight certificates cost 46 ms before the handshake fails, three at most 16 signatures.
#[derive(Debug)]
struct ShortChains(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ShortChains {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if intermediates.len() > MAX_INTERMEDIATES {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn certificates_of(pem: &[u8], part: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    found.ok().filter(|all| !all.is_empty()).ok_or(TlsError::Pem(part))
}
