//! Finds the caller of a request by the request's token or by the client's certificate.
//!
//! A browser that is signed in to the console has neither: its session's cookie and CSRF token are its credentials. The
//! control server knows the sessions, and tells the core of each that sends a data request.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE};
use serde::Deserialize;

use crate::plan::Grant;

const SCHEME: &[u8] = b"bearer ";
/// Beginning of the console's session cookie in the header `cookie`, and the name of the header with the session's CSRF
/// token, as in `service/access/sessions.py`.
const SESSION: &[u8] = b"embedding_console=";
const CSRF: &str = "x-console-csrf";
/// Maximal size of an `authorization` header that the core checks. A request with a longer header is forwarded to the
/// control server, which refuses the request.
const MAX_HEADER_BYTES: usize = 4096;

/// One caller of `--auth_config`, as `service/core/edge.py` writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caller {
    #[serde(default)]
    pub name: String,
    /// SHA-256 of each of the caller's tokens, in hexadecimal digits.
    pub digests: Vec<String>,
    pub certificates: Vec<String>,
    /// Patterns of the names of the models on which the caller has the right "predict".
    pub models: Vec<String>,
    /// Patterns of the names of the models on which the caller has any right.
    #[serde(default)]
    pub seen: Vec<String>,
}

/// The SHA-256 digest of a caller's token.
#[derive(Clone, Copy, Debug, Eq)]
struct Digest([u8; 32]);

impl PartialEq for Digest {
    // The comparison reads all bytes of both token digests, so that its time does not tell an attacker where the
    // digests differ.
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |found, (a, b)| found | (a ^ b)) == 0
    }
}

impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// The maps of all known callers: by the digest of a caller's token, and by a name in a caller's certificate.
#[derive(Debug, Default)]
pub struct Access {
    by_digest: HashMap<Digest, Arc<Grant>>,
    by_name: HashMap<String, Arc<Grant>>,
}

impl Access {
    /// Builds the maps of callers by token and by certificate name.
    ///
    /// # Errors
    /// A token's digest is not 64 hexadecimal digits.
    pub fn new(callers: &[Caller]) -> Result<Self, String> {
        let mut access = Access::default();
        for caller in callers {
            let grant = Grant::new(caller.models.iter().map(String::as_str));
            let grant = Arc::new(grant.of_caller(&caller.name, caller.seen.iter().map(String::as_str)));
            for digest in &caller.digests {
                access.by_digest.insert(Digest(bytes_of(digest).ok_or("a digest is malformed")?), Arc::clone(&grant));
            }
            for name in &caller.certificates {
                access.by_name.insert(name.clone(), Arc::clone(&grant));
            }
        }
        Ok(access)
    }

    /// Returns the models that the request's caller may run; None if the caller is not certain. With an `authorization`
    /// header, the caller is found by the token: None if the request has several such headers, or the token is
    /// malformed or unknown. Without this header, the caller is found by the certificate: None if its names belong to
    /// no caller, or to several.
    ///
    /// `names` are the names in the client's verified certificate. They count only without an `authorization` header.
    #[must_use]
    pub fn grant(&self, headers: &HeaderMap, names: &[String]) -> Option<&Arc<Grant>> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else {
            return self.of_names(names).or_else(|| self.of_digest(&session(headers)?));
        };
        if values.next().is_some() || value.len() > MAX_HEADER_BYTES {
            return None;
        }
        let (scheme, token) = value.as_bytes().split_at_checked(SCHEME.len())?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return None;
        }
        self.of_digest(token.trim_ascii())
    }

    fn of_digest(&self, credential: &[u8]) -> Option<&Arc<Grant>> {
        let digest = ring::digest::digest(&ring::digest::SHA256, credential);
        self.by_digest.get(&Digest(digest.as_ref().try_into().ok()?))
    }

    fn of_names(&self, names: &[String]) -> Option<&Arc<Grant>> {
        let mut found = names.iter().filter_map(|name| self.by_name.get(name));
        let grant = found.next()?;
        // A certificate with the names of two callers identifies neither of them.
        found.all(|other| Arc::ptr_eq(grant, other)).then_some(grant)
    }

    /// Returns those names of a client's certificate that belong to a known caller.
    pub fn known<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = &'a str> {
        names.iter().map(String::as_str).filter(|name| self.by_name.contains_key(*name))
    }
}

/// Returns the credential of a request from a browser that is signed in to the console: the session's cookie and CSRF
/// token. None: the request has no such cookie, or another credential.
#[must_use]
pub fn session(headers: &HeaderMap) -> Option<Vec<u8>> {
    let csrf =
        headers.get(CSRF).filter(|csrf| csrf.len() <= MAX_HEADER_BYTES && !headers.contains_key(AUTHORIZATION))?;
    let cookies = headers.get_all(COOKIE).iter().filter(|cookies| cookies.len() <= MAX_HEADER_BYTES);
    let mut all = cookies.flat_map(|cookies| cookies.as_bytes().split(|&byte| byte == b';'));
    let cookie = all.find_map(|cookie| cookie.trim_ascii().strip_prefix(SESSION))?;
    Some([cookie, b"\n", csrf.as_bytes()].concat())
}

fn bytes_of(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn digest(token: &str) -> String {
        let digest = format!("{:?}", ring::digest::digest(&ring::digest::SHA256, token.as_bytes()));
        digest.trim_start_matches("SHA256:").to_owned()
    }

    fn caller(tokens: &[&str], certificates: &[&str], models: &[&str]) -> Caller {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Caller {
            digests: tokens.iter().map(|token| digest(token)).collect(),
            certificates: owned(certificates),
            models: owned(models),
            name: String::new(),
            seen: Vec::new(),
        }
    }

    fn access() -> Access {
        let callers = [
            caller(&["first-token", "second-token"], &["CN:ranker", "DNS:ranker.example"], &["films"]),
            caller(&["other-token"], &["CN:other"], &["news-*"]),
            caller(&["reader-token"], &[], &[]),
        ];
        Access::new(&callers).expect("digests")
    }

    /// Returns true if a caller with these headers and certificate names may run the model "films".
    fn may(access: &Access, authorizations: &[&[u8]], names: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for value in authorizations {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).expect("a header"));
        }
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        access.grant(&headers, &names).is_some_and(|grant| grant.allows("films"))
    }

    #[test]
    fn a_session_needs_its_cookie_and_its_csrf_token() {
        let access = Access::new(&[caller(&["cookie\ncsrf"], &[], &["films"])]).expect("digests");
        let may = |cookies: &[&str], csrf: &str, authorization: Option<&str>| {
            let mut headers = HeaderMap::new();
            for cookie in cookies {
                headers.append(COOKIE, HeaderValue::from_str(cookie).expect("a header"));
            }
            headers.insert(CSRF, HeaderValue::from_str(csrf).expect("a header"));
            if let Some(value) = authorization {
                headers.insert(AUTHORIZATION, HeaderValue::from_str(value).expect("a header"));
            }
            access.grant(&headers, &[]).is_some_and(|grant| grant.allows("films"))
        };
        assert!(may(&["theme=dark; embedding_console=cookie"], "csrf", None));
        assert!(may(&["theme=dark", "embedding_console=cookie; a=b"], "csrf", None));
        assert!(!may(&["embedding_console=cookie"], "", None));
        assert!(!may(&["embedding_console=cookie"], "other", None));
        assert!(!may(&["embedding_console=other"], "csrf", None));
        assert!(!may(&["theme=cookie"], "csrf", None));
        assert!(!may(&["embedding_console=cookie"], "csrf", Some("Bearer x")));
    }

    #[test]
    fn tokens_are_found_as_the_control_servers_find_them() {
        let access = access();
        for value in ["Bearer first-token", "bearer second-token", "BEARER  first-token\t", "Bearer \t first-token"] {
            assert!(may(&access, &[value.as_bytes()], &[]), "{value}");
        }
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer first-toke",
            "Bearer first-tokens",
            "Bearer First-token",
            "Bearer first-token, Bearer first-token",
            "Bearer\tfirst-token",
            "Basic first-token",
            "first-token",
            "Bearer other-token",
            "Bearer reader-token",
        ] {
            assert!(!may(&access, &[value.as_bytes()], &[]), "{value}");
        }
        assert!(!may(&access, &[b"Bearer first-token", b"Bearer first-token"], &[]));
        assert!(!may(&access, &[b"Bearer \xff"], &[]));
        let long = format!("Bearer {}first-token", " ".repeat(MAX_HEADER_BYTES));
        assert!(!may(&access, &[long.as_bytes()], &[]));
    }

    #[test]
    fn certificates_count_where_no_token_came() {
        let access = access();
        assert!(may(&access, &[], &["CN:ranker"]));
        assert!(may(&access, &[], &["CN:unknown", "DNS:ranker.example", "CN:ranker"]));
        assert!(!may(&access, &[], &[]));
        assert!(!may(&access, &[], &["CN:other"]));
        // A certificate with the names of two callers identifies no caller.
        assert!(!may(&access, &[], &["CN:ranker", "CN:other"]));
        assert!(!may(&access, &[], &["CN:other", "CN:ranker"]));
        // A request with a wrong token is refused, even if its certificate is right.
        assert!(!may(&access, &[b"Bearer wrong"], &["CN:ranker"]));
        let names = ["CN:ranker".to_owned(), "CN:unknown".to_owned()];
        assert_eq!(access.known(&names).collect::<Vec<_>>(), ["CN:ranker"]);
    }

    #[test]
    fn a_malformed_digest_is_refused() {
        for digits in ["", "zz", &"g".repeat(64), &"ä".repeat(32), &"a".repeat(63)] {
            let caller = Caller { digests: vec![(*digits).to_owned()], ..caller(&[], &[], &[]) };
            assert!(Access::new(&[caller]).is_err(), "{digits}");
        }
    }
}
