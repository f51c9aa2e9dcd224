//! Chooses the handler of a wire format (the form) that answers a request. The network server calls these handlers only
//! through the trait `Dispatch`.

use std::borrow::Cow;

use crate::forms::{Answered, Call, Version};
use crate::plan::Declined;

/// A method of the HTTP or gRPC API that the core may answer; the variants are named as in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    /// gRPC: `/tensorflow.serving.PredictionService/Predict`.
    Predict,
    /// gRPC: `/inference.GRPCInferenceService/ModelInfer`.
    ModelInfer,
    /// HTTP: `/v1/models/{model}:predict`.
    HttpPredict,
    /// HTTP: `/v1/models/{model}:lookup`.
    Lookup,
    /// HTTP: `/v2/models/{model}/infer`.
    Infer,
    /// HTTP: `/v1/models/{model}/tables/{table}:rows`.
    Rows,
}

impl Method {
    /// Returns `Predict` or `ModelInfer` if the path of a gRPC call names this method; None for each other path.
    #[must_use]
    #[inline]
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/tensorflow.serving.PredictionService/Predict" => Some(Method::Predict),
            "/inference.GRPCInferenceService/ModelInfer" => Some(Method::ModelInfer),
            _ => None,
        }
    }

    /// Returns the name that the metrics use for the method's wire.
    #[must_use]
    pub fn api(self) -> &'static str {
        match self {
            Method::Predict | Method::ModelInfer => "grpc",
            _ => "http",
        }
    }

    /// Returns the name that the metrics use for the method.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Predict => "Predict",
            Method::ModelInfer => "ModelInfer",
            Method::HttpPredict => "predict",
            Method::Lookup => "lookup",
            Method::Infer => "infer",
            Method::Rows => "rows",
        }
    }
}

/// The target of an HTTP request, as its path and headers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The API method, such as predict, that the request's path names.
    pub method: Method,
    /// Name of the model that the path names.
    pub model: &'a str,
    /// Version of the model that the path names: a number, a label, or the latest one.
    pub version: Version<'a>,
    /// Name of the table in the path of a [`Method::Rows`] request; "" for other methods.
    pub table: &'a str,
    /// Number of bytes of JSON before the binary tensors, if a header of an [`Method::Infer`] request gives it.
    pub json_length: Option<usize>,
}

impl Target<'_> {
    /// Returns the pattern of the paths to which this one belongs.
    #[must_use]
    pub fn route(&self) -> String {
        let root = if self.method == Method::Infer { "/v2" } else { "/v1" };
        let version = match self.version {
            Version::Latest => "",
            Version::Number(_) => "/versions/{version}",
            Version::Label(_) => "/labels/{label}",
        };
        let end = match self.method {
            Method::Infer => "/infer",
            Method::Rows => "/tables/{table}:rows",
            Method::HttpPredict => ":predict",
            _ => ":lookup",
        };
        format!("{root}/models/{{model}}{version}{end}")
    }
}

/// Answers the requests that the native core can answer alone. Methods may run on any thread. If a method panics, only
/// its request fails.
pub trait Dispatch: Send + Sync + 'static {
    /// Answers one gRPC request message.
    ///
    /// # Errors
    /// [`Declined`].
    fn grpc(&self, method: Method, call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined>;

    /// Answers the body of one HTTP request.
    ///
    /// # Errors
    /// [`Declined`].
    fn http(&self, target: &Target<'_>, call: &Call<'_>, body: &[u8]) -> Result<Answered, Declined>;

    /// Returns the model name in a gRPC message; "" if the name can not be read.
    fn model<'m>(&self, method: Method, message: &'m [u8]) -> &'m str;
}

/// Parses the path of an HTTP request; returns None if the core does not answer requests for this path.
///
/// Names may hold ASCII letters, digits, `_`, `.` and `-`: others are percent-encoded, which the reference server
/// decodes.
#[must_use]
pub fn target(path: &str) -> Option<Target<'_>> {
    if let Some(rest) = path.strip_prefix("/v1/models/") {
        let (model, rest) = name(rest)?;
        let (version, rest) = version(rest)?;
        let mut table = "";
        let method = match rest {
            ":predict" => Method::HttpPredict,
            ":lookup" => Method::Lookup,
            _ => {
                let (found, rest) = name(rest.strip_prefix("/tables/")?)?;
                if rest != ":rows" {
                    return None;
                }
                table = found;
                Method::Rows
            }
        };
        return Some(Target { method, model, version, table, json_length: None });
    }
    let (model, rest) = name(path.strip_prefix("/v2/models/")?)?;
    let (version, rest) = version(rest)?;
    if rest != "/infer" || matches!(version, Version::Label(_)) {
        return None;
    }
    Some(Target { method: Method::Infer, model, version, table: "", json_length: None })
}

fn name(text: &str) -> Option<(&str, &str)> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let end = text.bytes().position(|byte| !is_plain(byte)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn version(text: &str) -> Option<(Version<'_>, &str)> {
    if let Some(rest) = text.strip_prefix("/versions/") {
        let end = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        // A version of more than 18 digits may not fit an int64, so the core forwards the request to the reference
        // server.
        if end == 0 || end > 18 {
            return None;
        }
        return Some((Version::Number(rest[..end].parse().ok()?), &rest[end..]));
    }
    if let Some(rest) = text.strip_prefix("/labels/") {
        let (label, rest) = name(rest)?;
        return Some((Version::Label(label), rest));
    }
    Some((Version::Latest, text))
}

/// The web origins whose pages may read the server's answers; decides the CORS headers of answers.
#[derive(Clone, Debug, Default)]
pub enum Cors {
    /// No web page of another origin may read the server's answers.
    #[default]
    Off,
    /// Web pages of all origins may read the server's answers.
    All,
    /// Web pages of these origins may read the server's answers.
    Listed(Vec<String>),
}

impl Cors {
    /// Returns the CORS headers for the answer to a request with this `Origin` header, in the order of the reference
    /// server.
    #[must_use]
    pub fn headers<'a>(&self, origin: Option<&'a str>) -> Vec<(&'static str, Cow<'a, str>)> {
        const METHODS: (&str, Cow<'static, str>) = ("access-control-allow-methods", Cow::Borrowed("POST, GET"));
        const ALLOWED: &str = "access-control-allow-headers";
        const EXPOSED: (&str, Cow<'static, str>) = (
            "access-control-expose-headers",
            Cow::Borrowed("X-Model-Version, X-Request-Id, X-Error-Code, Retry-After"),
        );
        match (self, origin) {
            (Cors::Off, _) => Vec::new(),
            (Cors::All, _) => vec![
                ("access-control-allow-origin", "*".into()),
                METHODS,
                (ALLOWED, "Content-Type, X-Request-Id, traceparent, tracestate, baggage".into()),
                EXPOSED,
            ],
            (Cors::Listed(origins), Some(origin)) if origins.iter().any(|known| known == origin) => vec![
                ("access-control-allow-origin", origin.into()),
                METHODS,
                (ALLOWED, "Authorization, Content-Type, X-Request-Id, traceparent, tracestate, baggage".into()),
                EXPOSED,
                ("vary", "Origin".into()),
            ],
            (Cors::Listed(_), _) => vec![("vary", "Origin".into())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str) -> Option<(Method, &str, Version<'_>, &str)> {
        target(path).map(|t| (t.method, t.model, t.version, t.table))
    }

    #[test]
    fn paths_become_targets() {
        use Version::{Label, Latest, Number};
        assert_eq!(parts("/v1/models/m:predict"), Some((Method::HttpPredict, "m", Latest, "")));
        assert_eq!(parts("/v1/models/m.a-b_c/versions/7:lookup"), Some((Method::Lookup, "m.a-b_c", Number(7), "")));
        assert_eq!(parts("/v1/models/m/labels/stable:predict"), Some((Method::HttpPredict, "m", Label("stable"), "")));
        assert_eq!(parts("/v1/models/m/versions/1/tables/user:rows"), Some((Method::Rows, "m", Number(1), "user")));
        assert_eq!(parts("/v2/models/m/infer"), Some((Method::Infer, "m", Latest, "")));
        assert_eq!(parts("/v2/models/m/versions/3/infer"), Some((Method::Infer, "m", Number(3), "")));
    }

    #[test]
    fn other_paths_are_the_references() {
        for path in [
            "/v1/models/m",
            "/v1/models/m%2Fn:predict",
            "/v1/models/:predict",
            "/V1/models/m:predict",
            "/v1/models/m:predict/",
            "/v1/models/m/versions/:predict",
            "/v1/models/m/versions/1234567890123456789:predict",
            "/v1/models/m/versions/x:predict",
            "/v2/models/m/labels/a/infer",
            "/v2/models/m",
            "/",
            "",
        ] {
            assert_eq!(parts(path), None, "{path}");
        }
    }
}
