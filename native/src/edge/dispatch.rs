//! Chooses the handler of a wire format (the form) that answers a request. The network server calls these handlers only
//! through the trait `Dispatch`.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::forms::{Answered, Call, Version};
use crate::plan::Declined;
use crate::plan::faults::{self, BoxedFault};

/// A method of the HTTP or gRPC API that the core may answer; the variants are named as in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    /// gRPC: `/tensorflow.serving.PredictionService/Predict`.
    Predict,
    /// gRPC: `/tensorflow.serving.PredictionService/Classify`.
    Classify,
    /// gRPC: `/tensorflow.serving.PredictionService/Regress`.
    Regress,
    /// gRPC: `/tensorflow.serving.PredictionService/MultiInference`.
    MultiInference,
    /// gRPC: `/inference.GRPCInferenceService/ModelInfer`.
    ModelInfer,
    /// HTTP: `/v1/models/{model}:predict`.
    HttpPredict,
    /// HTTP: `/v1/models/{model}:classify`.
    HttpClassify,
    /// HTTP: `/v1/models/{model}:regress`.
    HttpRegress,
    /// HTTP: `/v1/models/{model}:lookup`.
    Lookup,
    /// HTTP: `/v2/models/{model}/infer`.
    Infer,
    /// HTTP: `/v1/models/{model}/tables/{table}:rows`.
    Rows,
    /// gRPC: a method that the core forwards.
    OtherGrpc,
    /// HTTP: a path that the core forwards.
    OtherHttp,
}

impl Method {
    /// Returns the method that the path of a gRPC call names; None for each other path.
    #[must_use]
    #[inline]
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/tensorflow.serving.PredictionService/Predict" => Some(Method::Predict),
            "/inference.GRPCInferenceService/ModelInfer" => Some(Method::ModelInfer),
            "/tensorflow.serving.PredictionService/Classify" => Some(Method::Classify),
            "/tensorflow.serving.PredictionService/Regress" => Some(Method::Regress),
            "/tensorflow.serving.PredictionService/MultiInference" => Some(Method::MultiInference),
            _ => None,
        }
    }

    /// Returns the method that the end of an HTTP path names: the name behind `:`.
    fn of_verb(verb: &str) -> Option<Self> {
        Some(match verb {
            "predict" => Method::HttpPredict,
            "classify" => Method::HttpClassify,
            "regress" => Method::HttpRegress,
            "lookup" => Method::Lookup,
            "rows" => Method::Rows,
            _ => return None,
        })
    }

    /// Says whether the method's requests have tf.Examples, whose numbers are counted as in TensorFlow Serving.
    #[must_use]
    pub fn has_examples(self) -> bool {
        use Method::{Classify, HttpClassify, HttpRegress, MultiInference, Regress};
        matches!(self, Classify | Regress | MultiInference | HttpClassify | HttpRegress)
    }

    /// Returns the name that the metrics use for the method's wire.
    #[must_use]
    pub fn api(self) -> &'static str {
        match self {
            Method::HttpPredict
            | Method::HttpClassify
            | Method::HttpRegress
            | Method::Lookup
            | Method::Infer
            | Method::Rows
            | Method::OtherHttp => "http",
            _ => "grpc",
        }
    }

    /// Returns the name that the metrics use for the method; "" for one that the core forwards.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Predict => "Predict",
            Method::Classify => "Classify",
            Method::Regress => "Regress",
            Method::MultiInference => "MultiInference",
            Method::ModelInfer => "ModelInfer",
            Method::HttpPredict => "predict",
            Method::HttpClassify => "classify",
            Method::HttpRegress => "regress",
            Method::Lookup => "lookup",
            Method::Infer => "infer",
            Method::Rows => "rows",
            Method::OtherGrpc | Method::OtherHttp => "",
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
            method => &format!(":{}", method.name()),
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

/// The target of an HTTP request whose path [`target`] does not read: a path with percent-encoded names, upper case in its
/// fixed parts, or a version beyond 18 digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RareTarget {
    method: Method,
    model: String,
    version: RareVersion,
    table: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RareVersion {
    Latest,
    Number(i64),
    Label(String),
}

impl RareTarget {
    /// Returns the target that the path names.
    #[must_use]
    pub fn target(&self) -> Target<'_> {
        let version = match &self.version {
            RareVersion::Latest => Version::Latest,
            RareVersion::Number(number) => Version::Number(*number),
            RareVersion::Label(label) => Version::Label(label),
        };
        Target { method: self.method, model: &self.model, version, table: &self.table, json_length: None }
    }

    /// Parses the path of an HTTP request of this method, as uvicorn, TensorFlow Serving and the router of the control
    /// plane do together; returns the API method that it names, and its target or its fault. None: the path names no
    /// API method of [`Target`].
    #[must_use]
    pub fn of_path(http_method: &str, path: &str) -> Option<(Method, Result<Self, BoxedFault>)> {
        let is_encoded = hides_separators(path);
        let decoded = decoded(path);
        let name = |text: &str| {
            if is_encoded { percent_decode_str(text).decode_utf8_lossy().into_owned() } else { text.to_owned() }
        };
        if let Some(rest) = decoded.strip_prefix("/v2/models/") {
            return infer(rest, name);
        }
        let usual = lowered(&decoded);
        let (rest, verb) = usual.strip_prefix("/v1/")?.rsplit_once(':')?;
        let method = Method::of_verb(verb)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let hint = match &parts[..] {
            ["", "models", model] | ["models", "", model] if !model.is_empty() => {
                format!("; did you mean /v1/models/{model}:{verb}?")
            }
            [model] if *model != "models" => format!("; did you mean /v1/models/{model}:{verb}?"),
            // Vertex AI's paths, such as /v1/endpoints/7:predict, name no model.
            ["endpoints" | "projects", ..] => format!("; did you mean /v1/models/MODEL:{verb}?"),
            ["models", model, version] if version_number(version).is_some() => {
                format!("; did you mean /v1/models/{model}/versions/{version}:{verb}?")
            }
            ["models", _, "versions", _, "labels", _] | ["models", _, "labels", _, "versions", _] => {
                "; a path has a version or a label, not both".to_owned()
            }
            ["models", model] if method == Method::Rows => {
                format!("; did you mean /v1/models/{model}/tables/TABLE:rows?")
            }
            ["models", model, "versions", label] if !label.is_empty() => {
                format!("; a version is a number, a label has the path /v1/models/{model}/labels/{label}:{verb}")
            }
            _ => String::new(),
        };
        let malformed = || faults::malformed_path(http_method, path, &hint);
        let (parts, table) = match (&parts[..], method) {
            ([parts @ .., "tables", table], Method::Rows) if !table.is_empty() => (parts, *table),
            (_, Method::Rows) => return Some((method, Err(malformed()))),
            (parts, _) => (parts, ""),
        };
        let (model, version) = match *parts {
            ["models", model] => (model, Ok(RareVersion::Latest)),
            ["models", model, "versions", version] => (
                model,
                version_number(version).ok_or_else(|| match version {
                    digits if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                        faults::no_version_number(digits)
                    }
                    _ => malformed(),
                }),
            ),
            ["models", model, "labels", label] if !label.is_empty() && !label.contains(':') => {
                (model, Ok(RareVersion::Label(name(label))))
            }
            _ => return Some((method, Err(malformed()))),
        };
        if model.is_empty() || model.contains(':') {
            return Some((method, Err(malformed())));
        }
        let found = |version| RareTarget { method, model: name(model), version, table: table.to_owned() };
        Some((method, version.map(found)))
    }
}

/// Says whether a path has a "/" or ":" that is encoded, and so belongs to a name.
fn hides_separators(path: &str) -> bool {
    path.contains('%') && {
        let lower = path.to_ascii_lowercase();
        lower.contains("%2f") || lower.contains("%3a")
    }
}

/// Returns a path without percent-encoding; but a path with an encoded "/" or ":" as it is, because its names are decoded
/// last.
#[must_use]
pub fn decoded(path: &str) -> Cow<'_, str> {
    if hides_separators(path) { path.into() } else { percent_decode_str(path).decode_utf8_lossy() }
}

/// Returns the name of the model in a path, in any spelling that [`RareTarget::of_path`] reads; "" if the path names none.
#[must_use]
pub fn named_model(path: &str) -> Cow<'_, str> {
    fn named(path: &str) -> Option<&str> {
        let rest = path.strip_prefix("/v1/models/").or_else(|| path.strip_prefix("/v2/models/"))?;
        rest.split(['/', ':']).next()
    }
    if !path.contains('%')
        && let Some(name) = named(path)
    {
        return name.into();
    }
    let usual = lowered(&decoded(path));
    let name = named(&usual).unwrap_or_default();
    if hides_separators(path) {
        return percent_decode_str(name).decode_utf8_lossy().into_owned().into();
    }
    name.to_owned().into()
}

/// Parses the rest of an Open Inference path behind `/v2/models/`.
fn infer(rest: &str, name: impl Fn(&str) -> String) -> Option<(Method, Result<RareTarget, BoxedFault>)> {
    let parts: Vec<&str> = rest.split('/').collect();
    let (model, version) = match *parts {
        [model, "infer"] => (model, Ok(RareVersion::Latest)),
        [model, "versions", version, "infer"] if !version.is_empty() => {
            let version = name(version);
            if version.bytes().all(|byte| byte.is_ascii_digit()) {
                let shown: String = version.chars().take(32).collect();
                (model, version_number(&version).ok_or_else(|| faults::long_version(&shown)))
            } else {
                (model, Ok(RareVersion::Label(version)))
            }
        }
        _ => return None,
    };
    if model.is_empty() {
        return None;
    }
    let method = Method::Infer;
    let found = |version| RareTarget { method, model: name(model), version, table: String::new() };
    Some((method, version.map(found)))
}

/// Returns the version with these digits; None if they are no number of 64 bits.
fn version_number(digits: &str) -> Option<RareVersion> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number).map(RareVersion::Number)
}

/// Returns a path with the fixed parts `/v1`, `/models`, `/versions/` and `/labels/` in lower case. Source:
/// `tensorflow_serving/model_servers/http_rest_api_util.cc` (9d981c5).
fn lowered(path: &str) -> String {
    let mut usual = String::with_capacity(path.len());
    let mut rest = path;
    let mut take = |rest: &mut &str, part: &str| {
        let found = rest.get(..part.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(part));
        if found {
            usual.push_str(part);
            *rest = &rest[part.len()..];
        }
        found
    };
    if take(&mut rest, "/v1") && take(&mut rest, "/models") {
        let end = rest.get(1..).and_then(|name| name.find('/')).map_or(rest.len(), |at| at + 1);
        let (model, after) = rest.split_at(end);
        rest = after;
        take(&mut &*model, model);
        let _ = take(&mut rest, "/versions/") || take(&mut rest, "/labels/");
    }
    usual.push_str(rest);
    usual
}

/// Parses the usual path of an HTTP request; returns None for any other path, which [`RareTarget`] may read.
///
/// Names may hold ASCII letters, digits, `_`, `.` and `-`: others are percent-encoded.
#[must_use]
pub fn target(path: &str) -> Option<Target<'_>> {
    if let Some(rest) = path.strip_prefix("/v1/models/") {
        let (model, rest) = name(rest)?;
        let (version, rest) = version(rest)?;
        let (table, rest) = match rest.strip_prefix("/tables/") {
            Some(rest) => name(rest)?,
            None => ("", rest),
        };
        let method = Method::of_verb(rest.strip_prefix(':')?)?;
        let has_table = method == Method::Rows;
        return (has_table != table.is_empty()).then_some(Target { method, model, version, table, json_length: None });
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
        // A version of more than 18 digits may not fit an int64.
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
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
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
    /// Says whether a request is a web browser's question whether a page may send its request.
    #[must_use]
    pub fn is_preflight(&self, method: &http::Method, headers: &http::HeaderMap) -> bool {
        let origin = headers.get(http::header::ORIGIN).map_or(&[][..], http::HeaderValue::as_bytes);
        let is_web = origin.starts_with(b"http://") || origin.starts_with(b"https://");
        !matches!(self, Cors::Off) && method == http::Method::OPTIONS && is_web
    }

    /// Returns the CORS headers for the answer to a request with this `Origin` header. A page may send the id and the
    /// trace of its request, and read those of the answer; a page of a listed origin may also send `Authorization`.
    /// Source: Fetch standard, section CORS protocol; TensorFlow Serving's `http_server.cc`, which allows `Content-Type`
    /// alone. "Vary: Origin" keeps caches from answering a page of one origin with the answer for another.
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

#[cfg(all(test, not(feature = "model")))]
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
        assert_eq!(parts("/v1/models/m:classify"), Some((Method::HttpClassify, "m", Latest, "")));
        assert_eq!(parts("/v1/models/m/versions/7:regress"), Some((Method::HttpRegress, "m", Number(7), "")));
        assert_eq!((parts("/v1/models/m:rows"), parts("/v1/models/m/tables/t:predict")), (None, None));
        assert_eq!(parts("/v1/models/m/versions/1/tables/user:rows"), Some((Method::Rows, "m", Number(1), "user")));
        assert_eq!(parts("/v2/models/m/infer"), Some((Method::Infer, "m", Latest, "")));
        assert_eq!(parts("/v2/models/m/versions/3/infer"), Some((Method::Infer, "m", Number(3), "")));
    }

    fn rare(path: &str) -> Result<Option<RareTarget>, String> {
        RareTarget::of_path("POST", path).map(|(_, found)| found.map_err(|fault| fault.text)).transpose()
    }

    fn rare_parts(path: &str) -> (String, String, String) {
        let found = rare(path).expect("no fault").expect("a target");
        let target = found.target();
        (target.model.to_owned(), format!("{:?}", target.version), target.table.to_owned())
    }

    #[test]
    fn rare_paths_become_targets() {
        for (path, model, version, table) in [
            ("/V1/Models/MyModel/VERSIONS/3:predict", "MyModel", "Number(3)", ""),
            ("/v1/models/t%6Fy:lookup", "toy", "Latest", ""),
            ("/v1/models/a%2fb%3Ac/Labels/x%20y:lookup", "a/b:c", "Label(\"x y\")", ""),
            ("/v1/models/%C3%BC%ff:predict", "ü\u{fffd}", "Latest", ""),
            ("/v1/models/m/versions/0000000000000000000000003/tables/a:b:rows", "m", "Number(3)", "a:b"),
            ("/v1/models/m/versions/9223372036854775807:lookup", "m", "Number(9223372036854775807)", ""),
            ("/v2/models/a%2Fb/versions/%33/infer", "a/b", "Number(3)", ""),
            ("/v2/models/m/versions/stable/infer", "m", "Label(\"stable\")", ""),
            ("/v2/models/a:b/infer", "a:b", "Latest", ""),
        ] {
            assert_eq!(rare_parts(path), (model.to_owned(), version.to_owned(), table.to_owned()), "{path}");
        }
    }

    #[test]
    fn a_path_names_its_model_in_any_spelling() {
        for (path, model) in [
            ("/v1/models/m/tables/t:neighbors", "m"),
            ("/v2/models/m/ready", "m"),
            ("/V1/Models/M:predict", "M"),
            ("/v1/models/%6D/tables/t%3aneighbors", "m"),
            ("/v1/models/a%2Fb/tables/t:neighbors", "a/b"),
            ("/v1/statusz", ""),
            ("/", ""),
        ] {
            assert_eq!(named_model(path), model, "{path}");
        }
        assert_eq!(decoded("/v1/models/m/tables/t:%6Eeighbors"), "/v1/models/m/tables/t:neighbors");
        assert_eq!(decoded("/v1/models/m/tables/t%3Aneighbors"), "/v1/models/m/tables/t%3Aneighbors");
    }

    #[test]
    fn faults_of_paths_have_the_texts_of_their_api() {
        for path in [
            "/v1/models/toy%3alookup:lookup/x:lookup",
            "/v1/models/a:b:predict",
            "/v1/models/:predict",
            "/v1/models//:predict",
            "/v1/models/m/versions/:lookup",
            "/v1/models/m/labels/:lookup",
            "/v1/models/m/labels/a:b:lookup",
            "/v1/models/m/tables/:rows",
            "/v1/models/m/tables/a/b:rows",
        ] {
            assert_eq!(rare(path), Err(format!("Malformed request: POST {path}")));
        }
        for (path, hint) in [
            ("/v1/models//m:lookup", "did you mean /v1/models/m:lookup?"),
            ("/v1//models/m:lookup", "did you mean /v1/models/m:lookup?"),
            ("/v1/models/m:rows", "did you mean /v1/models/m/tables/TABLE:rows?"),
            ("/v1/endpoints/7:predict", "did you mean /v1/models/MODEL:predict?"),
            ("/v1/projects/p/locations/l/endpoints/7:predict", "did you mean /v1/models/MODEL:predict?"),
            ("/v1/models/m/versions/1/labels/x:lookup", "a path has a version or a label, not both"),
            (
                "/v1/models/m/versions/x:lookup",
                "a version is a number, a label has the path /v1/models/m/labels/x:lookup",
            ),
        ] {
            assert_eq!(rare(path), Err(format!("Malformed request: POST {path}; {hint}")));
        }
        let number = "9223372036854775808";
        let text = format!("Failed to convert version: {number} to numeric.");
        assert_eq!(rare(&format!("/v1/models/m/versions/{number}:lookup")), Err(text));
        let text = format!("Version {number} is not a number of 64 bits.");
        assert_eq!(rare(&format!("/v2/models/m/versions/{number}/infer")), Err(text));
    }

    #[test]
    fn other_paths_are_the_control_planes() {
        for path in
            ["/v1/models/m", "/v1/models/m:upsert", "/v2/models//infer", "/V2/models/m/infer", "/x:predict", "/"]
        {
            assert_eq!(rare(path), Ok(None), "{path}");
        }
    }

    #[test]
    fn unusual_paths_are_not_read_here() {
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
