//! Chooses the requests that are sampled for a trace. Python makes their spans from what the core tells it: it starts
//! them with the drawn trace id, so that OpenTelemetry's sampler, which decides by the id, makes the same choice.

use std::time::Instant;

use http::HeaderMap;
use serde::Deserialize;

use super::request_id::{TRACEPARENT, trace_id};

/// The rates, from 0 to 1, at which an OpenTelemetry sampler samples traces; `service/core/edge.py` reads them
/// from the sampler.
///
/// A trace is sampled if the lower 64 bits of its id are below its rate times `2**64`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Tracing {
    pub root: f64,
    pub sampled_parent: f64,
    pub unsampled_parent: f64,
}

/// A request that is sampled for a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// When the request's headers had come.
    pub begun: Instant,
    /// The trace id that is drawn for a request without a parent trace.
    pub trace_id: u128,
    /// The client's `traceparent`; "" if it sent none.
    pub parent: String,
}

impl Tracing {
    /// Decides whether a request is sampled for a trace. Python's sampler decides about a request whose headers the core
    /// does not understand.
    #[must_use]
    pub fn begin(&self, headers: &HeaderMap) -> Option<Traced> {
        // The drawn trace id is never 0, because 0 is not a valid trace id.
        self.begin_as(headers, fastrand::u128(1..))
    }

    fn begin_as(&self, headers: &HeaderMap, drawn: u128) -> Option<Traced> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let parent = parents.next_back();
        let is_sampled = match parent.map(http::HeaderValue::as_bytes) {
            None => is_below(drawn, self.root),
            Some(_) if parents.next().is_some() => true,
            Some(parent) => self.is_parent_sampled(parent).unwrap_or(true),
        };
        let text = |value: &http::HeaderValue| value.as_bytes().iter().map(|&byte| char::from(byte)).collect();
        is_sampled.then(|| Traced {
            begun: Instant::now(),
            trace_id: drawn,
            parent: parent.map(text).unwrap_or_default(),
        })
    }

    /// Says whether a request with this `traceparent` is sampled; None if the core does not understand it.
    fn is_parent_sampled(&self, parent: &[u8]) -> Option<bool> {
        let id = trace_id(parent).filter(|_| parent.len() == 55 && parent.starts_with(b"00"))?;
        let hex = |digits: &[u8]| u128::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let (id, flags) = (hex(id)?, hex(&parent[53..])?);
        Some(is_below(id, if flags & 1 == 1 { self.sampled_parent } else { self.unsampled_parent }))
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

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use http::HeaderValue;

    use super::*;

    const ID: &str = "0af7651916cd43dd8448eb211c80319c";

    fn sampled(tracing: &Tracing, parents: &[&str], trace_id: u128) -> bool {
        let mut headers = HeaderMap::new();
        for parent in parents {
            headers.append(TRACEPARENT, HeaderValue::from_str(parent).expect("a header"));
        }
        tracing.begin_as(&headers, trace_id).is_some()
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
    fn unusual_parents_are_left_to_python() {
        let never = Tracing { root: 0.0, sampled_parent: 0.0, unsampled_parent: 0.0 };
        let plain = format!("00-{ID}-b7ad6b7169203331-01");
        assert!(!sampled(&never, &[&plain], 1));
        for parent in ["", "x", &format!("{plain}-more"), &plain.replace("00-", "01-"), &plain.replace("00-", "ff-")] {
            assert!(sampled(&never, &[parent], 1), "{parent}");
        }
        assert!(sampled(&never, &[&plain, &plain], 1));
        let headers = ["x", &plain].map(|value| (TRACEPARENT, HeaderValue::from_str(value).expect("a header")));
        assert_eq!(never.begin(&headers.into_iter().collect()).expect("it is sampled").parent, plain);
    }

    #[test]
    fn draws_are_even_and_never_no_id() {
        let tracing = Tracing { root: 0.1, sampled_parent: 1.0, unsampled_parent: 0.0 };
        fastrand::seed(7);
        let traced: Vec<Traced> = (0..10_000).filter_map(|_| tracing.begin(&HeaderMap::new())).collect();
        // With seed 7, the count is fixed. It is a draw from a binomial distribution of n = 10,000 and p = 0.1.
        assert!((900..1100).contains(&traced.len()), "{}", traced.len());
        assert!(traced.iter().all(|traced| traced.trace_id != 0 && traced.parent.is_empty()));
    }
}
