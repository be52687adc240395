//! A store in memory that fails when told to.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What becomes of the next puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not made: 503.
    Refused,
    /// It is made, and the answer is an error.
    AnswerLost,
    /// It is not made, as another is being made of the same name, of which nothing comes.
    Conflict,
    /// It is made when [`Faulty::deliver`] says so, and the answer is an error.
    Late,
}

/// A store in memory with faults.
#[derive(Debug, Default)]
pub(crate) struct Faulty {
    pub(crate) inner: InMemory,
    faults: Mutex<Vec<Fault>>,
    /// Only puts of names with this ending have faults.
    ending: Mutex<&'static str>,
    late: Mutex<Vec<(Path, PutPayload, PutOptions)>>,
    /// All requests but puts are refused.
    is_down: AtomicBool,
    /// What becomes of requests that make an object of its parts.
    ends: Mutex<Option<Fault>>,
    /// Milliseconds that a put takes.
    slow: AtomicU64,
    /// Puts that were made.
    pub(crate) puts: AtomicU64,
    /// How many puts are waited for, each by all others, if any are.
    together: AtomicU64,
    begun: AtomicU64,
}

impl Faulty {
    /// The next puts go like this, one after the other; those after them well.
    pub(crate) fn next_puts(&self, faults: &[Fault]) {
        *self.faults.lock().unwrap() = faults.iter().rev().copied().collect();
    }

    /// Whether puts are on their way.
    pub(crate) fn is_late(&self) -> bool {
        !self.late.lock().unwrap().is_empty()
    }

    /// Whether no put is to fail any more.
    pub(crate) fn is_spent(&self) -> bool {
        self.faults.lock().unwrap().is_empty()
    }

    /// Only puts of names with this ending go like that.
    pub(crate) fn only(&self, ending: &'static str) {
        *self.ending.lock().unwrap() = ending;
    }

    fn next_fault(&self, path: &Path) -> Option<Fault> {
        let concerned = path.as_ref().ends_with(*self.ending.lock().unwrap());
        if concerned { self.faults.lock().unwrap().pop() } else { None }
    }

    /// Requests that make an object of its parts are refused, or the answer to the next is lost.
    pub(crate) fn ends(&self, fault: Option<Fault>) {
        *self.ends.lock().unwrap() = fault;
    }

    /// No request is answered well, or all are again.
    pub(crate) fn is_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
        self.next_puts(&vec![Fault::Refused; if is_down { 10_000 } else { 0 }]);
    }

    /// Puts take so long.
    pub(crate) fn slow(&self, time: Duration) {
        self.slow.store(u64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// Puts of names that concern faults wait until so many of them have begun.
    pub(crate) fn together(&self, puts: u64) {
        self.begun.store(0, Ordering::Relaxed);
        self.together.store(puts, Ordering::Relaxed);
    }

    async fn wait_for_others(&self, path: &Path) {
        if self.together.load(Ordering::Relaxed) > 0 && path.as_ref().contains(*self.ending.lock().unwrap()) {
            self.begun.fetch_add(1, Ordering::Relaxed);
            while self.begun.load(Ordering::Relaxed) < self.together.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Makes the puts that are late.
    pub(crate) fn deliver(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (path, payload, options) in late {
            let _nobody_hears = runtime.block_on(self.inner.put_opts(&path, payload, options));
        }
    }

    fn check(&self) -> Result<()> {
        if self.is_down.load(Ordering::Relaxed) { Err(unavailable()) } else { Ok(()) }
    }
}

fn unavailable() -> Error {
    Error::Generic { store: "test", source: "503 Slow Down, says hunter2-secret".into() }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        tokio::time::sleep(Duration::from_millis(self.slow.load(Ordering::Relaxed))).await;
        self.wait_for_others(path).await;
        let fault = self.next_fault(path);
        match fault {
            Some(Fault::Refused) => return Err(unavailable()),
            Some(Fault::Conflict) => {
                let (path, source) = (path.to_string(), "409 ConditionalRequestConflict".into());
                return Err(Error::AlreadyExists { path, source });
            }
            Some(Fault::Late) => {
                self.late.lock().unwrap().push((path.clone(), payload, options));
                return Err(unavailable());
            }
            _ => {}
        }
        let done = self.inner.put_opts(path, payload, options).await?;
        self.puts.fetch_add(1, Ordering::Relaxed);
        if fault == Some(Fault::AnswerLost) { Err(unavailable()) } else { Ok(done) }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.check()?;
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.check()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait::async_trait]
impl MultipartStore for Faulty {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.inner.create_multipart(path).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        number: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let fault = self.next_fault(path);
        match fault {
            Some(Fault::Refused | Fault::Late | Fault::Conflict) => Err(unavailable()),
            Some(Fault::AnswerLost) => {
                self.inner.put_part(path, id, number, data).await?;
                Err(unavailable())
            }
            None => self.inner.put_part(path, id, number, data).await,
        }
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        self.check()?;
        let fault = *self.ends.lock().unwrap();
        if fault == Some(Fault::Refused) {
            return Err(unavailable());
        }
        // As stores say it of parts that nobody has any more.
        let gone = |source| Error::NotFound { path: path.to_string(), source: Box::new(source) };
        let done = self.inner.complete_multipart(path, id, parts).await.map_err(gone)?;
        self.ends(None);
        if fault == Some(Fault::AnswerLost) { Err(unavailable()) } else { Ok(done) }
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.inner.abort_multipart(path, id).await
    }
}

/// What speaks to a store that fails when told to.
pub(crate) fn faulty() -> (Arc<super::Objects>, Arc<Faulty>) {
    let bucket = Arc::new(Faulty::default());
    (Arc::new(over(&bucket)), bucket)
}

/// Another that speaks to the same.
pub(crate) fn over(bucket: &Arc<Faulty>) -> super::Objects {
    let bucket = Arc::clone(bucket) as Arc<dyn super::client::Backend>;
    let (root, prefix) = ("s3://bucket/prefix".into(), "prefix".into());
    let told =
        super::client::Told { setting: "checkpoint_dir".into(), secrets: vec!["hunter2-secret".to_owned()] };
    let client =
        super::client::Client::start(bucket, root, prefix, Duration::from_millis(400), told).unwrap();
    super::Objects { client: Arc::new(client) }
}
