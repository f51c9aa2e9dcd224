//! Reads the names in a client's certificate, written as users write them in `--auth_config`, and when certificates end.

use std::net::{Ipv4Addr, Ipv6Addr};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Returns when the first of the certificates in a PEM text expires, in seconds since 1970; None if the text has no
/// certificate, or one that can not be read.
#[must_use]
pub fn first_end_s(pem: &str) -> Option<i64> {
    let ends = CertificateDer::pem_slice_iter(pem.as_bytes()).map(|der| {
        let der = der.ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        Some(certificate.validity().not_after.timestamp())
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().min()
}

/// Returns the names in a client's certificate in DER form, each with its kind, such as `CN:ranker` or `DNS:a.example`.
///
/// If any name can not be read, none is returned: a missing name could hide that the certificate fits two callers.
#[must_use]
pub fn names(der: &[u8]) -> Vec<String> {
    read(der).unwrap_or_default()
}

fn read(der: &[u8]) -> Option<Vec<String>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let mut names = Vec::new();
    for name in certificate.subject().iter_common_name() {
        names.push(format!("CN:{}", name.as_str().ok()?));
    }
    let Some(alternatives) = certificate.subject_alternative_name().ok()? else {
        return Some(names);
    };
    for name in &alternatives.value.general_names {
        match name {
            GeneralName::DNSName(name) => names.push(format!("DNS:{name}")),
            GeneralName::URI(name) => names.push(format!("URI:{name}")),
            GeneralName::RFC822Name(name) => names.push(format!("email:{name}")),
            GeneralName::IPAddress(bytes) => names.extend(addresses(bytes)?),
            GeneralName::Invalid(..) => return None,
            _ => {}
        }
    }
    Some(names)
}

/// Returns the text of an IP address in a certificate. An IPv6 address gives two texts, because OpenSSL and grpcio
/// write IPv6 differently.
fn addresses(bytes: &[u8]) -> Option<Vec<String>> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(vec![format!("IP:{}", Ipv4Addr::from(bytes))]);
    }
    let address = Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?);
    let groups: Vec<String> = address.segments().iter().map(|group| format!("{group:X}")).collect();
    Some(vec![format!("IP:{}", groups.join(":")), format!("IP:{address}")])
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    use super::*;

    fn certificate(common_name: DnValue, alternatives: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "not a name of the caller");
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = alternatives;
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn all_kinds_of_names_are_read() {
        let der = certificate(
            "ranker é".into(),
            vec![
                SanType::DnsName("a.example".try_into().expect("ASCII")),
                SanType::URI("spiffe://prod/ranker".try_into().expect("ASCII")),
                SanType::Rfc822Name("ranker@a.example".try_into().expect("ASCII")),
                SanType::IpAddress("10.0.0.7".parse().expect("an address")),
                SanType::IpAddress("2001:db8::1".parse().expect("an address")),
            ],
        );
        assert_eq!(
            names(&der),
            [
                "CN:ranker é",
                "DNS:a.example",
                "URI:spiffe://prod/ranker",
                "email:ranker@a.example",
                "IP:10.0.0.7",
                "IP:2001:DB8:0:0:0:0:0:1",
                "IP:2001:db8::1",
            ]
        );
    }

    #[test]
    fn a_certificate_that_can_not_be_read_has_no_names() {
        let der = certificate("a".into(), Vec::new());
        assert_eq!(names(&der), ["CN:a"]);
        for bytes in [&b""[..], b"x", &der[..der.len() / 2]] {
            assert!(names(bytes).is_empty());
        }
        let universal = rcgen::string::UniversalString::try_from("a").expect("a character");
        let strange = certificate(
            DnValue::UniversalString(universal),
            vec![SanType::DnsName("a.example".try_into().expect("ASCII"))],
        );
        assert!(names(&strange).is_empty());
        assert!(addresses(&[1, 2, 3]).is_none());
    }
}
