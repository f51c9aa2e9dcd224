//! A server with a test form and with test reference servers that echo requests.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::edge::{Config, Dispatch, Limits, Listen, Method, Server, Target, Wire};
use crate::forms::{Answered, Call, Version};
use crate::plan::{Declined, Effort, Servable, VersionMemory};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;

/// Limit on the size of the body of a request to the test server, in bytes.
pub const MAX_REQUEST_BYTES: usize = 8 << 20;

pub const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";

/// Returns a servable without tables and with one signature.
pub fn servable() -> Arc<Servable> {
    let description = serde_json::json!({
        "model": "m", "version": 7, "tables": [], "vocabularies": [],
        "signatures": [{
            "name": "lookup", "kind": "lookup", "inputs": [], "features": [], "outputs": [],
            "max_rows": null, "graph": null
        }]
    });
    let description = serde_json::from_value(description).unwrap();
    let no_graph = |_: &serde_json::Value| Err(String::new());
    Arc::new(Servable::compile(description, VersionMemory::default(), &no_graph).unwrap())
}

/// A test handler for requests: the text of each request is a command that tells the handler how to answer.
pub struct Words {
    servable: Arc<Servable>,
    pub num_running: AtomicUsize,
}

impl Words {
    pub fn new() -> Arc<Self> {
        Arc::new(Words { servable: servable(), num_running: AtomicUsize::new(0) })
    }

    fn answer(&self, call: &Call<'_>, words: &[u8], title: &str) -> Result<Answered, Declined> {
        if call.grant.is_some_and(|grant| !grant.allows("m")) {
            return Err(Declined::Search);
        }
        let text = String::from_utf8_lossy(&words[..words.len().min(100)]).into_owned();
        let (verb, number) = text.split_once(' ').unwrap_or((&text, "0"));
        let number: usize = number.parse().unwrap_or(0);
        let is_large = matches!(verb, "large" | "sleep") || words.len() > 64 << 10;
        if is_large && call.effort == Effort::Small {
            return Err(Declined::TooLarge);
        }
        let body = match verb {
            "search" => return Err(Declined::Search),
            "panic" => panic!("as the request wants"),
            "sleep" => {
                self.num_running.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_millis(number as u64));
                "slept".into()
            }
            "bytes" => "x".repeat(number),
            "encoding" => format!("{:?}", call.encoding),
            _ => format!("core {title} {} {text}", words.len()),
        };
        Ok(Answered {
            body: body.into(),
            rows: 3,
            servable: Arc::clone(&self.servable),
            signature: 0,
            ran: Duration::from_micros(5),
            json_length: (verb == "binary").then_some(4),
            notes: None,
            began: Instant::now(),
            record: None,
        })
    }
}

impl Dispatch for Words {
    fn grpc(&self, method: Method, call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined> {
        self.answer(call, message, method.name())
    }

    fn model<'m>(&self, _: Method, _: &'m [u8]) -> &'m str {
        "m"
    }

    fn http(&self, target: &Target<'_>, call: &Call<'_>, body: &[u8]) -> Result<Answered, Declined> {
        let version = match target.version {
            Version::Latest => "latest".into(),
            Version::Number(number) => number.to_string(),
            Version::Label(label) => label.to_owned(),
        };
        let title = format!("{} {} {version} {}", target.method.name(), target.model, target.table);
        self.answer(call, body, title.trim_end())
    }
}

/// The requests that the test reference servers have received.
#[derive(Default)]
pub struct Seen {
    pub headers: Mutex<HeaderMap>,
    pub resets: AtomicUsize,
    pub calls: AtomicUsize,
}

pub struct Setup {
    pub server: Option<Server>,
    pub words: Arc<Words>,
    pub seen: Arc<Seen>,
    pub folder: PathBuf,
    pub grpc_reference: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn limits() -> Limits {
    Limits {
        max_request_bytes: MAX_REQUEST_BYTES,
        max_message_bytes: MAX_REQUEST_BYTES,
        stall_timeout: Duration::from_secs(1),
        head_timeout: Duration::from_millis(600),
        keep_alive: Duration::from_millis(600),
        ..Limits::default()
    }
}

impl Setup {
    pub async fn start() -> Self {
        Self::with(limits(), |_| ()).await
    }

    pub async fn with(limits: Limits, change: impl FnOnce(&mut Config)) -> Self {
        let setup = Self::without_routes(limits, change).await;
        setup.server().change_routes(HashMap::default(), &[]);
        setup
    }

    #[allow(clippy::unused_async, reason = "it needs a runtime")]
    pub async fn without_routes(limits: Limits, change: impl FnOnce(&mut Config)) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("edge-{}-{}", std::process::id(), NUMBER.fetch_add(1, SeqCst));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let words = Words::new();
        let seen = Arc::new(Seen::default());
        let mut config = Config {
            threads: 2,
            large_threads: 2,
            grpc: vec![Listen::Address("127.0.0.1:0".parse().unwrap())],
            http: vec![Listen::Address("127.0.0.1:0".parse().unwrap())],
            grpc_upstream: folder.join("grpc"),
            http_upstream: folder.join("http"),
            bucket_limits_s: vec![1e-9, 10.0],
            limits,
            linger: Duration::from_millis(300),
            ..Config::default()
        };
        change(&mut config);
        let dispatch: Arc<dyn Dispatch> = Arc::clone(&words) as _;
        let server = Server::start(config, dispatch).unwrap();
        let mut setup = Setup { server: Some(server), words, seen, folder, grpc_reference: None };
        setup.start_grpc_reference();
        let listener = UnixListener::bind(setup.folder.join("http")).unwrap();
        tokio::spawn(http_reference(listener, Arc::clone(&setup.seen)));
        setup
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub fn address(&self, wire: Wire) -> std::net::SocketAddr {
        self.server().addresses(wire)[0]
    }

    pub fn start_grpc_reference(&mut self) {
        let path = self.folder.join("grpc");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(path).unwrap();
        self.grpc_reference = Some(tokio::spawn(grpc_reference(listener, Arc::clone(&self.seen))));
    }

    pub fn count(&self, of: impl Fn(&crate::edge::Snapshot) -> Vec<(&'static str, u64)>, name: &str) -> u64 {
        let all = of(&self.server().statistics());
        all.into_iter().find(|(known, _)| *known == name).unwrap().1
    }
}

/// Waits until a condition is true; panics if it is still false after minutes, which a busy machine may need.
pub async fn until(what: &str, is_true: impl Fn() -> bool) {
    for _ in 0..30_000 {
        if is_true() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

async fn grpc_reference(listener: UnixListener, seen: Arc<Seen>) {
    // When the task of the test's reference server ends, its connections end with it, as those of a process do.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        connections.spawn(async move {
            let mut calls = tokio::task::JoinSet::new();
            let mut h2 = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, respond))) = h2.accept().await {
                calls.spawn(reference_call(request, respond, Arc::clone(&seen)));
            }
        });
    }
}

async fn reference_call(
    request: Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    seen: Arc<Seen>,
) {
    seen.calls.fetch_add(1, SeqCst);
    let (head, mut body) = request.into_parts();
    *seen.headers.lock().unwrap() = head.headers.clone();
    let path = head.uri.path();
    if path.ends_with("/hang") {
        let reset = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        assert_eq!(reset.unwrap(), h2::Reason::CANCEL);
        seen.resets.fetch_add(1, SeqCst);
        return;
    }
    if path == "/reset" {
        return respond.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
    }
    let mut answer = Response::new(());
    answer.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    answer.headers_mut().insert("x-from", "reference".parse().unwrap());
    if path == "/refuse" {
        answer.headers_mut().insert("grpc-status", "3".parse().unwrap());
        answer.headers_mut().insert("grpc-message", "in the reference's words".parse().unwrap());
        respond.send_response(answer, true).unwrap();
        return;
    }
    let mut stream = respond.send_response(answer, false).unwrap();
    if path == "/flood" {
        // The test's reference server sends data until the client ends the call.
        loop {
            stream.reserve_capacity(16 << 10);
            match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(size)) if size > 0 => stream.send_data(vec![0; size].into(), false).unwrap(),
                Some(Ok(_)) => {}
                _ => break,
            }
            seen.calls.fetch_add(1, SeqCst);
        }
        return;
    }
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        let mut left = data;
        while !left.is_empty() {
            stream.reserve_capacity(left.len());
            let Some(Ok(size)) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else {
                return;
            };
            stream.send_data(left.split_to(size.min(left.len())), false).unwrap();
        }
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    trailers.insert("x-trailer", "kept".parse().unwrap());
    let _ = stream.send_trailers(trailers);
}

async fn http_reference(listener: UnixListener, seen: Arc<Seen>) {
    while let Ok((stream, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
            let seen = Arc::clone(&seen);
            async move {
                seen.calls.fetch_add(1, SeqCst);
                let (head, body) = request.into_parts();
                *seen.headers.lock().unwrap() = head.headers.clone();
                if head.uri.path().contains("hang") {
                    std::future::pending::<()>().await;
                }
                if head.uri.path() == "/early" {
                    // For the path /early, the test's reference server answers without reading the request's body.
                    return Ok(Response::new(Full::new(Bytes::from("early"))));
                }
                let size = match body.size_hint().exact() {
                    // As the real reference server, this one refuses a body above the limit without reading it.
                    Some(size) if size > MAX_REQUEST_BYTES as u64 => size,
                    _ => body.collect().await?.to_bytes().len() as u64,
                };
                let text = format!("reference {} {} {size}", head.method, head.uri);
                let mut response = Response::new(Full::new(Bytes::from(text)));
                response.headers_mut().insert("x-from", "reference".parse().unwrap());
                Ok::<_, hyper::Error>(response)
            }
        });
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
