//! Chooses the requests that are sampled for a trace or a request log, and draws the random numbers for this choice.
//!
//! The core forwards sampled requests to the reference server, which traces and logs them. Every forwarded request
//! carries its numbers. The reference server applies the same rates to the same numbers, so both make the same choice.

use http::HeaderMap;
use serde::Deserialize;

use super::request_id::trace_id;

const TRACEPARENT: &str = "traceparent";

/// The rates, from 0 to 1, at which an OpenTelemetry sampler samples traces; `service/native/sampling.py` reads them
/// from the sampler.
///
/// A trace is sampled if the lower 64 bits of its id are below its rate times `2**64`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Tracing {
    /// The sampling rate of requests without a parent trace.
    pub root: f64,
    /// The sampling rate of requests whose parent trace is sampled.
    pub sampled_parent: f64,
    /// The sampling rate of requests whose parent trace is not sampled.
    pub unsampled_parent: f64,
}

/// The random numbers of one request, which decide whether it is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draws {
    /// The trace id for a request without a parent trace; 0 if the server records no traces.
    pub trace_id: u128,
    /// A random number from 0 to below 1: the request is logged if this number is below the model's log rate.
    pub log: f64,
}

impl Draws {
    /// Draws the random numbers that decide whether a request is sampled for a trace or a log.
    #[must_use]
    pub fn new(tracing: Option<&Tracing>) -> Self {
        // The drawn trace id is never 0, because 0 is not a valid trace id.
        let trace_id = if tracing.is_some() { fastrand::u128(1..) } else { 0 };
        Draws { trace_id, log: fastrand::f64() }
    }
}

impl Tracing {
    /// Returns true if the request must be forwarded, because the reference server may record a trace of it.
    #[must_use]
    pub fn may_sample(&self, headers: &HeaderMap, draws: Draws) -> bool {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let Some(parent) = parents.next().map(http::HeaderValue::as_bytes) else {
            return is_below(draws.trace_id, self.root);
        };
        // The core reads only a single `traceparent` header of version 00; requests with other ones are forwarded to
        // the reference server.
        let Some(id) = trace_id(parent).filter(|_| parents.next().is_none() && parent.len() == 55) else {
            return true;
        };
        if !parent.starts_with(b"00") {
            return true;
        }
        let hex = |digits: &[u8]| std::str::from_utf8(digits).ok().and_then(|text| u128::from_str_radix(text, 16).ok());
        let (Some(id), Some(flags)) = (hex(id), hex(&parent[53..])) else {
            return true;
        };
        is_below(id, if flags & 1 == 1 { self.sampled_parent } else { self.unsampled_parent })
    }
}

/// Returns true if a trace id is sampled at this rate. Source: `opentelemetry.sdk.trace.sampling.TraceIdRatioBased` in
/// version 1.45.
fn is_below(trace_id: u128, share: f64) -> bool {
    const NUMBERS: f64 = 18_446_744_073_709_551_616.0;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number from 0 to 2**64")]
    let bound = (share * NUMBERS).round_ties_even() as u128;
    trace_id & u128::from(u64::MAX) < bound
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const ID: &str = "0af7651916cd43dd8448eb211c80319c";

    fn sampled(tracing: &Tracing, parents: &[&str], trace_id: u128) -> bool {
        let mut headers = HeaderMap::new();
        for parent in parents {
            headers.append(TRACEPARENT, HeaderValue::from_str(parent).expect("a header"));
        }
        tracing.may_sample(&headers, Draws { trace_id, log: 0.0 })
    }

    #[test]
    fn the_share_of_drawn_traces_is_the_samplers() {
        // For each rate the test uses evenly spaced trace ids, so the expected number of sampled ids is exact.
        for (share, expected) in [(0.0, 0), (1.0, 1000), (0.25, 250), (0.001, 1)] {
            let tracing = Tracing { root: share, sampled_parent: 1.0, unsampled_parent: 0.0 };
            let ids = (0..1000).map(|number| (7 << 64) | (((number << 64) + (1 << 63)) / 1000));
            assert_eq!(ids.filter(|id| sampled(&tracing, &[], *id)).count(), expected, "{share}");
        }
        assert!(is_below(u128::from(u64::MAX), 1.0) && !is_below(u128::from(u64::MAX), 0.999));
    }

    #[test]
    fn parents_are_respected() {
        let tracing = Tracing { root: 0.0, sampled_parent: 1.0, unsampled_parent: 0.0 };
        let parent = |flags: &str| format!("00-{ID}-b7ad6b7169203331-{flags}");
        assert!(sampled(&tracing, &[&parent("01")], 1) && sampled(&tracing, &[&parent("03")], 1));
        assert!(!sampled(&tracing, &[&parent("00")], 1) && !sampled(&tracing, &[&parent("02")], 1));
        assert!(!sampled(&tracing, &[], 1));
        // The trace id of the parent decides whether the request is sampled: its lower 64 bits are 0x8448..., which is
        // 0.517 of 2**64.
        let by_id = |share| Tracing { root: 0.0, sampled_parent: share, unsampled_parent: share };
        assert!(sampled(&by_id(0.52), &[&parent("00")], u128::MAX) && !sampled(&by_id(0.51), &[&parent("01")], 1));
    }

    #[test]
    fn unusual_parents_are_forwarded() {
        let never = Tracing { root: 0.0, sampled_parent: 0.0, unsampled_parent: 0.0 };
        let plain = format!("00-{ID}-b7ad6b7169203331-01");
        assert!(!sampled(&never, &[&plain], 1));
        for parent in ["", "x", &format!("{plain}-more"), &plain.replace("00-", "01-"), &plain.replace("00-", "ff-")] {
            assert!(sampled(&never, &[parent], 1), "{parent}");
        }
        assert!(sampled(&never, &[&plain, &plain], 1));
    }

    #[test]
    fn draws_are_even_and_never_no_id() {
        let tracing = Tracing { root: 0.1, sampled_parent: 1.0, unsampled_parent: 0.0 };
        fastrand::seed(7);
        let draws: Vec<Draws> = (0..10_000).map(|_| Draws::new(Some(&tracing))).collect();
        let traced = draws.iter().filter(|draws| tracing.may_sample(&HeaderMap::new(), **draws)).count();
        let logged = draws.iter().filter(|draws| draws.log < 0.1).count();
        let both = draws.iter().filter(|d| d.log < 0.1 && tracing.may_sample(&HeaderMap::new(), **d)).count();
        // With seed 7, the counts `traced`, `logged` and `both` are fixed. Each is a draw from a binomial distribution
        // of n = 10,000 and p = 0.1, 0.1 and 0.01.
        assert!((900..1100).contains(&traced) && (900..1100).contains(&logged), "{traced} {logged}");
        assert!((60..140).contains(&both), "{both}");
        assert!(draws.iter().all(|draws| draws.trace_id != 0 && (0.0..1.0).contains(&draws.log)));
        assert_eq!(Draws::new(None).trace_id, 0);
    }
}
