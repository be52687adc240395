//! Taking posted events over HTTP into a log; who posted is answered when they are safe.
//!
//! All requests that are there go into one block and wait for one sync together.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use arrow_array::{ArrayRef, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::counters::add;
use super::log::{SourceLog, now_micros};
use super::malformed::MalformedFile;
use crate::error::{Error, Result};
use crate::source::{Lines, Rejected, Rejection, Splitter};

/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 1_024;
/// Requests that may wait for the log; more are told to come back.
const WAITING_MAX: usize = 4_096;
/// Bytes of events in one block.
const BLOCK_BYTES: usize = 1 << 20;
/// How long a client may take to send the head of a request, and its body.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a silent endpoint looks whether it should end.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Content type of a body with an event in each line.
const LINES: &str = "application/x-ndjson";

/// Settings of an endpoint.
#[derive(Clone)]
pub struct HttpSettings {
    /// Host and port to listen on.
    pub addr: String,
    /// Path that takes events.
    pub path: String,
    /// Longest body, in bytes.
    pub body_max: usize,
    /// Whether bytes that are no UTF-8 are replaced; else the event is refused.
    pub repair: bool,
    /// Whether events that are no UTF-8 are kept in a file, besides being refused.
    pub keep_malformed: bool,
    /// What must stand in `Authorization: Bearer`, if anything.
    pub token: Option<String>,
}

impl std::fmt::Debug for HttpSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is a secret.
        f.debug_struct("HttpSettings")
            .field("addr", &self.addr)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Events of one request, and where the answer goes.
struct Posted {
    events: Vec<String>,
    answer: oneshot::Sender<Result<u64>>,
}

/// What all requests share.
struct Endpoint {
    log: Arc<SourceLog>,
    settings: HttpSettings,
    queue: SyncSender<Posted>,
    malformed: std::sync::Mutex<Option<MalformedFile>>,
}

/// Serves until the log is stopped or `stop` says so.
///
/// # Errors
/// [`Error::Config`] if the address cannot be listened on.
pub fn receive_http(log: &Arc<SourceLog>, settings: &HttpSettings, stop: &AtomicBool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::io("starting the HTTP endpoint", &error))?;
    let malformed = if settings.keep_malformed { Some(MalformedFile::open(log.folder())?) } else { None };
    let (queue, posted) = sync_channel(WAITING_MAX);
    let endpoint = Arc::new(Endpoint {
        log: Arc::clone(log),
        settings: settings.clone(),
        queue,
        malformed: std::sync::Mutex::new(malformed),
    });
    let collecting = Arc::clone(log);
    let collector = std::thread::Builder::new()
        .name("clonos-http".into())
        .spawn(move || collect(&collecting, &posted))
        .map_err(|error| Error::io("starting a thread", &error))?;
    let go_on = || !stop.load(Ordering::Relaxed) && !log.is_stopped() && !collector.is_finished();
    let served = runtime.block_on(serve(endpoint, go_on));
    // Ends connections, and with the last the queue and its thread.
    drop(runtime);
    let _ended = collector.join();
    served
}

async fn serve(endpoint: Arc<Endpoint>, go_on: impl Fn() -> bool) -> Result<()> {
    let addr = &endpoint.settings.addr;
    let refused = |error: &std::io::Error| Error::Config {
        setting: "host, port".into(),
        reason: format!("cannot listen on {addr}: {error}"),
    };
    let listener = TcpListener::bind(addr).await.map_err(|error| refused(&error))?;
    let bound = listener.local_addr().map_err(|error| refused(&error))?;
    tracing::info!(addr = %bound, "events are taken");
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while go_on() {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
        let stream = match timeout(LOOK_PERIOD, listener.accept()).await {
            Ok(Ok((stream, _))) => stream,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
            Err(_silence) => continue,
        };
        add(&endpoint.log.counters().connections, 1);
        let endpoint = Arc::clone(&endpoint);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(Arc::clone(&endpoint), request));
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(SEND_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                add(&endpoint.log.counters().broken, 1);
                tracing::debug!(%error, "a client's connection broke");
            }
            drop(permit);
        });
    }
    Ok(())
}

type Answer = Response<Full<Bytes>>;

/// Status and text of an answer to a request that is not taken.
type Refusal = (StatusCode, String);

fn respond(status: StatusCode, text: String) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

async fn answer(
    endpoint: Arc<Endpoint>,
    request: Request<Incoming>,
) -> std::result::Result<Answer, Infallible> {
    Ok(take(&endpoint, request).await.unwrap_or_else(|(status, text)| respond(status, text)))
}

/// Takes one request.
async fn take(endpoint: &Endpoint, request: Request<Incoming>) -> Result<Answer, Refusal> {
    let settings = &endpoint.settings;
    if request.uri().path() != settings.path {
        return Err((StatusCode::NOT_FOUND, format!("post events to {}\n", settings.path)));
    }
    if let Some(token) = &settings.token {
        let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        if !same(given.as_bytes(), token.as_bytes()) {
            return Err((StatusCode::UNAUTHORIZED, "a bearer token is needed\n".into()));
        }
    }
    if request.method() != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "use POST\n".into()));
    }
    let lines = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with(LINES));
    let body = Limited::new(request.into_body(), settings.body_max).collect();
    let body = match timeout(SEND_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let rejected = [Rejected { why: Rejection::TooLong, len: 0, head: Vec::new() }];
            endpoint.log.counters().rejected(&rejected);
            let text = format!("a body has at most {} bytes\n", settings.body_max);
            return Err((StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        Ok(Err(error)) => return Err((StatusCode::BAD_REQUEST, format!("{error}\n"))),
        Err(_late) => return Err((StatusCode::REQUEST_TIMEOUT, "the body took too long\n".into())),
    };
    let events = endpoint.events(&body, lines)?;
    endpoint.safe(events).await
}

impl Endpoint {
    /// The events of a body.
    fn events(&self, body: &Bytes, lines: bool) -> Result<Vec<String>, Refusal> {
        let failed = |error: Error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"));
        let mut splitter = Splitter::new(self.settings.body_max, self.settings.repair);
        if lines {
            splitter.push(body);
            splitter.end(true);
        } else {
            splitter.push_whole(body);
        }
        let Lines { rows, rejected, repaired, .. } = splitter.take().map_err(failed)?;
        let counters = self.log.counters();
        counters.rejected(&rejected);
        add(&counters.repaired, repaired);
        if !rejected.is_empty() {
            if let Some(malformed) = &mut *crate::edge::locked(&self.malformed) {
                malformed.keep(&rejected, now_micros());
            }
            // All or nothing: a client that is told of an error sends the whole body again.
            return Err((StatusCode::BAD_REQUEST, "the body is no UTF-8\n".into()));
        }
        Ok(rows.iter().flatten().flatten().map(str::to_owned).collect())
    }

    /// Answers when the events are safe.
    async fn safe(&self, events: Vec<String>) -> Result<Answer, Refusal> {
        let busy = |text: &str| (StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
        let number = events.len();
        if number == 0 {
            return Err((StatusCode::BAD_REQUEST, "the body is empty\n".into()));
        }
        if self.log.is_full(events.iter().map(|event| event.len() as u64).sum()) {
            return Err(busy("events wait to be processed up to the limit; come back\n"));
        }
        let (sender, safe) = oneshot::channel();
        match self.queue.try_send(Posted { events, answer: sender }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(busy("too many requests wait; come back\n")),
            Err(TrySendError::Disconnected(_)) => return Err(busy("the endpoint is ending\n")),
        }
        match safe.await {
            Ok(Ok(position)) => {
                Ok(respond(StatusCode::OK, format!("{{\"events\":{number},\"position\":{position}}}\n")))
            }
            Ok(Err(error)) => Err(busy(&format!("{error}\n"))),
            Err(_gone) => Err(busy("the endpoint is ending\n")),
        }
    }
}

/// Compares without telling by its time where two secrets differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// Puts all that waits into one block, and answers when it is safe.
fn collect(log: &SourceLog, posted: &Receiver<Posted>) {
    while let Ok(first) = posted.recv() {
        let (mut group, mut bytes) = (Vec::new(), 0);
        let mut next = Some(first);
        while let Some(request) = next.take() {
            bytes += request.events.iter().map(String::len).sum::<usize>();
            group.push(request);
            next = if bytes < BLOCK_BYTES { posted.try_recv().ok() } else { None };
        }
        let events: Vec<&String> = group.iter().flat_map(|request| &request.events).collect();
        let taken = events.len() as u64;
        let column: ArrayRef = Arc::new(StringArray::from_iter_values(events));
        let rows = StructArray::from(vec![(Arc::new(Field::new("value", DataType::Utf8, true)), column)]);
        let safe = log.append(Some(&rows), taken, now_micros()).and_then(|end| log.wait(end).map(|()| end));
        for request in group {
            // A client that has gone gets no answer; its events are there all the same.
            let _gone = request.answer.send(safe.clone());
        }
    }
}
