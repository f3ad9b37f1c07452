//! A small HTTP server for people and scrapers: few peers at a time (others wait), one request each, 5 s for it.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Maximum number of peers at one time.
pub(crate) const PEERS: usize = 8;
/// Time limit of a peer, the answer included.
const DEADLINE: Duration = Duration::from_secs(5);
/// Pause after the system could not accept a peer.
const PAUSE: Duration = Duration::from_millis(100);
/// Plain text.
pub(crate) const PLAIN: &str = "text/plain; charset=utf-8";

/// What is found under a path.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// Text of a content type.
    Text(&'static str, String),
    /// Nothing now; a line for people says why.
    Unavailable(String),
}

/// Answers requests from now on. `find` gives the answer to a path; `None`: there is nothing under it, and the peer is told `usage`.
pub(crate) async fn serve<F, A>(listener: TcpListener, usage: &'static str, find: F)
where
    F: Fn(&str) -> Option<A> + Clone + Send + 'static,
    A: Future<Output = Found> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(PEERS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let find = find.clone();
        tokio::spawn(async move {
            // What goes wrong with a peer is the peer's trouble.
            let _ = tokio::time::timeout(DEADLINE, answer(stream, usage, find)).await;
            drop(place);
        });
    }
}

async fn answer<F, A>(stream: TcpStream, usage: &'static str, find: F) -> Result<(), hyper::Error>
where
    F: Fn(&str) -> Option<A>,
    A: Future<Output = Found>,
{
    let service = service_fn(move |request: Request<Incoming>| {
        // Of an answer to HEAD, the body stays here.
        let may_ask = matches!(*request.method(), Method::GET | Method::HEAD);
        let found = match find(request.uri().path()) {
            Some(found) if may_ask => Ok(found),
            Some(_) => Err(StatusCode::METHOD_NOT_ALLOWED),
            None => Err(StatusCode::NOT_FOUND),
        };
        async move { Ok::<_, Infallible>(respond(usage, found).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).keep_alive(false).max_buf_size(16 << 10);
    builder.serve_connection(TokioIo::new(stream), service).await
}

async fn respond(
    usage: &str,
    found: Result<impl Future<Output = Found>, StatusCode>,
) -> Response<Full<Bytes>> {
    let (status, content, text) = match found {
        Ok(found) => match found.await {
            Found::Text(content, text) => (StatusCode::OK, content, text),
            Found::Unavailable(why) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, why),
        },
        Err(status) => (status, PLAIN, usage.to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
    }
    response
}
