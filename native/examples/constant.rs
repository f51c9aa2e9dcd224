//! Answers requests with constant bytes, with hyper and h2 on one thread. The benchmark compares the core's request
//! rates with this program's.
//!
//! `constant FOLDER KIND` reads `<workload>.<KIND>.answer` of FOLDER, prints its port, and answers
//! `/constant/<workload>` until it is killed. KIND is `grpc` (HTTP/2) or `json` (HTTP/1.1).
//! `loadtest/bench/baselines.py` starts it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::{env, fs, io};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

type Answers = Arc<HashMap<String, Bytes>>;

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let (Some(folder), Some(kind)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: constant FOLDER grpc|json"));
    };
    let answers = Arc::new(read_answers(&folder, &kind)?);
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(kind == "grpc", answers))
}

/// Reads the constant answers of a kind from a folder, and returns them by path. It adds gRPC's five-byte prefix to
/// gRPC messages.
fn read_answers(folder: &str, kind: &str) -> io::Result<HashMap<String, Bytes>> {
    let mut found = HashMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(workload) = name.strip_suffix(&format!(".{kind}.answer")) {
            let message = fs::read(&path)?;
            let mut answer = BytesMut::with_capacity(message.len() + 5);
            if kind == "grpc" {
                answer.put_u8(0);
                answer.put_u32(u32::try_from(message.len()).map_err(io::Error::other)?);
            }
            answer.put_slice(&message);
            found.insert(format!("/constant/{workload}"), answer.freeze());
        }
    }
    Ok(found)
}

async fn serve(is_grpc: bool, answers: Answers) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let answers = Arc::clone(&answers);
        if is_grpc {
            tokio::spawn(serve_grpc(stream, answers));
        } else {
            tokio::spawn(serve_json(stream, answers));
        }
    }
}

async fn serve_json(stream: TcpStream, answers: Answers) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answers = Arc::clone(&answers);
        async move {
            let (head, body) = request.into_parts();
            let mut response = match answers.get(head.uri.path()) {
                Some(answer) if body.collect().await.is_ok() => Response::new(Full::new(answer.clone())),
                _ => {
                    let mut missing = Response::new(Full::default());
                    *missing.status_mut() = StatusCode::NOT_FOUND;
                    missing
                }
            };
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Ok::<_, Infallible>(response)
        }
    });
    // A client that disconnects ends its connection with an error, which is not a fault of this program.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn serve_grpc(stream: TcpStream, answers: Answers) {
    // The sizes of windows and frames are those of the core, so that a large request needs no more round trips here.
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(1000).initial_window_size(4 << 20).initial_connection_window_size(16 << 20);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer_call(request, respond, Arc::clone(&answers)));
    }
}

async fn answer_call(
    request: Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    answers: Answers,
) -> Option<()> {
    let (head, mut body) = request.into_parts();
    while let Some(part) = body.data().await {
        body.flow_control().release_capacity(part.ok()?.len()).ok()?;
    }
    let answer = answers.get(head.uri.path())?.clone();
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let mut sending = respond.send_response(response, false).ok()?;
    sending.send_data(answer, false).ok()?;
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    sending.send_trailers(trailers).ok()
}
