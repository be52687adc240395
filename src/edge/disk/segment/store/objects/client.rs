//! Requests to the store: asked again within a bound, and told of without what must stay secret.

use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{
    Error, GetOptions, MultipartId, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::remembered::Remembered;
use super::removing::{remove_all, remove_segment};
use crate::edge::disk::segment::claim::is_claim;
use crate::edge::disk::segment::store::Entry;
use crate::error::{Error as Failure, Result};

/// Pause before a request is made again; each next is twice as long.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The part of the bound in which the first try must be answered.
const FIRST: u32 = 3;
/// Bytes that are asked for at once.
const READ_BYTES: u64 = if cfg!(test) { 4 << 10 } else { 8 << 20 };
/// Names of a listing that are asked for at once, as stores give them.
const PAGE: usize = 1000;
/// Bytes per second that any store takes or gives, for the bound.
const BYTES_PER_SECOND: u64 = 2 << 20;
/// Letters of an error that are told.
const WHY_MAX: usize = 600;
/// How long a name that was given up stays: stores refuse requests that were signed a quarter of an hour ago.
const GIVEN_UP: Duration = Duration::from_secs(24 * 3600);
/// How long the end waits for what is being removed in the background.
const FAREWELL: Duration = Duration::from_secs(2);

/// A bucket, asked by any number of threads.
pub(super) struct Client {
    bucket: Bucket,
    root: PathBuf,
    /// What was read of objects that never change.
    pub(super) remembered: Mutex<Remembered>,
    doomed: Option<UnboundedSender<PathBuf>>,
    removing: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

/// A store whose parts of an object have numbers that we give: one of which no answer came is put again.
pub(super) trait Backend: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Backend for T {}

/// An object that is put in parts.
pub(super) struct Parts {
    id: MultipartId,
    /// What had the name before.
    before: Option<ObjectMeta>,
    put: Vec<PartId>,
    bytes: u64,
}

/// What a request needs.
#[derive(Clone)]
pub(super) struct Bucket {
    pub(super) store: Arc<dyn Backend>,
    prefix: Key,
    root: PathBuf,
    patience: Duration,
    told: Arc<Told>,
}

/// How errors speak of a store.
pub(super) struct Told {
    /// What names it.
    pub(super) setting: String,
    /// Texts that nobody may see.
    pub(super) secrets: Vec<String>,
}

impl Client {
    /// Threads are started here: not before a fork.
    pub(super) fn start(
        store: Arc<dyn Backend>,
        root: PathBuf,
        prefix: Key,
        patience: Duration,
        told: Told,
    ) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("clonos-objects")
            .enable_all()
            .build()
            .map_err(|e| Failure::io("starting what speaks to the object store", &e))?;
        let bucket = Bucket { store, prefix, root: root.clone(), patience, told: Arc::new(told) };
        let (doomed, queue) = unbounded_channel();
        let removing = runtime.spawn(remove_all(bucket.clone(), queue));
        Ok(Self {
            bucket,
            root,
            remembered: Mutex::default(),
            doomed: Some(doomed),
            removing: Some(removing),
            runtime: Some(runtime),
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// What names the store.
    pub(super) fn setting(&self) -> &str {
        &self.bucket.told.setting
    }

    fn run<T>(&self, request: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let runtime = self.runtime.as_ref().ok_or_else(|| io::Error::other("it was stopped"))?;
        runtime.block_on(request)
    }

    /// Names in a folder.
    pub(super) fn names(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let key = self.bucket.key(dir);
        let listed = self.run(self.bucket.tried("LIST", dir, 0, || {
            let (store, key) = (&self.bucket.store, &key);
            async move { store.list_with_delimiter(Some(key)).await }
        }))?;
        let entry = |key: &Key, is_folder| {
            let path = dir.join(key.filename().unwrap_or_default());
            Entry { path, is_folder }
        };
        let mut names: Vec<Entry> = listed.common_prefixes.iter().map(|key| entry(key, true)).collect();
        for found in listed.objects {
            let named = entry(&found.location, false);
            // What users put beside ours is theirs, however short it is.
            if found.size > 0 || !is_claim(&named.path) {
                names.push(named);
            } else if is_older(&found, GIVEN_UP) {
                self.discard(&named.path);
            }
        }
        Ok(names)
    }

    /// All objects below a folder.
    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<(PathBuf, ObjectMeta)>> {
        let listed = self.run(self.bucket.list(dir))?;
        Ok(listed
            .into_iter()
            .map(|found| (dir.join(found.location.filename().unwrap_or_default()), found))
            .collect())
    }

    /// What is known of an object.
    pub(super) fn head(&self, path: &Path) -> io::Result<ObjectMeta> {
        let key = self.bucket.key(path);
        self.run(self.bucket.tried("HEAD", path, 0, || self.bucket.store.head(&key)))
    }

    /// Whether an object is there, and was not given up.
    pub(super) fn is_there(&self, path: &Path) -> io::Result<bool> {
        match self.head(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            found => found.map(|found| found.size > 0),
        }
    }

    /// All of an object.
    pub(super) fn get(&self, path: &Path) -> io::Result<Bytes> {
        self.run(self.bucket.get(path))
    }

    /// A piece of an object.
    pub(super) fn get_range(&self, path: &Path, range: Range<u64>) -> io::Result<Bytes> {
        let (key, bytes) = (self.bucket.key(path), range.end - range.start);
        self.run(self.bucket.tried("GET", path, bytes, || self.bucket.store.get_range(&key, range.clone())))
    }

    /// A piece of an object that is still the one that was found.
    pub(super) fn get_part(&self, path: &Path, found: &ObjectMeta, range: Range<u64>) -> io::Result<Bytes> {
        self.run(self.bucket.get_part(path, found, range))
    }

    /// Objects, asked for at once.
    pub(super) fn get_all(&self, paths: &[PathBuf]) -> io::Result<Vec<Bytes>> {
        self.run(futures_util::future::try_join_all(paths.iter().map(|path| self.bucket.get(path))))
    }

    /// Puts an object where there is none. What is there already and is the same was put by a request whose answer
    /// was lost.
    pub(super) fn create(&self, path: &Path, pieces: &[Bytes]) -> io::Result<()> {
        let key = self.bucket.key(path);
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let put = || {
            let payload: PutPayload = pieces.iter().cloned().collect();
            let options = PutOptions::from(PutMode::Create);
            let (store, key) = (&self.bucket.store, &key);
            async move { store.put_opts(key, payload, options).await }
        };
        let began = Instant::now();
        loop {
            let put = self.run(self.bucket.tried("PUT", path, bytes, put));
            let Err(refused) = put else { return Ok(()) };
            if refused.kind() != io::ErrorKind::AlreadyExists {
                return Err(refused);
            }
            match self.get(path) {
                Ok(found) if is_same(&found, pieces) => return Ok(()),
                // Stores refuse one of two puts at once, also if the other comes to nothing then.
                Err(e) if e.kind() == io::ErrorKind::NotFound && began.elapsed() < self.bucket.patience => {
                    std::thread::sleep(jittered(PAUSE));
                }
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => return Err(refused),
            }
        }
    }

    /// Puts an object, in place of one that may be there.
    pub(super) fn put(&self, path: &Path, content: &Bytes) -> io::Result<()> {
        let (key, bytes) = (self.bucket.key(path), content.len() as u64);
        let put = || self.bucket.store.put(&key, content.clone().into());
        self.run(self.bucket.tried("PUT", path, bytes, put)).map(drop)
    }

    /// Begins an object that is put in parts. It is there when they are finished.
    pub(super) fn begin_parts(&self, path: &Path) -> io::Result<Parts> {
        let key = self.bucket.key(path);
        let before = match self.head(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        let id = self.run(self.bucket.tried("POST", path, 0, || self.bucket.store.create_multipart(&key)))?;
        Ok(Parts { id, before, put: Vec::new(), bytes: 0 })
    }

    /// Puts the next part.
    pub(super) fn put_part(&self, path: &Path, parts: &mut Parts, part: &Bytes) -> io::Result<()> {
        let (key, bytes, number) = (self.bucket.key(path), part.len() as u64, parts.put.len());
        let put = || self.bucket.store.put_part(&key, &parts.id, number, part.clone().into());
        let put = self.run(self.bucket.tried("PUT", path, bytes, put))?;
        parts.put.push(put);
        parts.bytes += bytes;
        Ok(())
    }

    /// Makes an object of its parts.
    pub(super) fn finish_parts(&self, path: &Path, parts: Parts) -> io::Result<()> {
        let key = self.bucket.key(path);
        let finish = || self.bucket.store.complete_multipart(&key, &parts.id, parts.put.clone());
        match self.run(self.bucket.tried("POST", path, 0, finish)) {
            // They are gone if they were made an object by a request of which no answer came. Each store says it
            // otherwise.
            Err(e) => match self.head(path) {
                Ok(found) if found.size == parts.bytes && parts.before.as_ref() != Some(&found) => Ok(()),
                _ => {
                    self.give_up_parts(path, &parts);
                    Err(e)
                }
            },
            Ok(_) => Ok(()),
        }
    }

    /// Makes nothing of its parts.
    pub(super) fn give_up_parts(&self, path: &Path, parts: &Parts) {
        let key = self.bucket.key(path);
        let abort = self.bucket.store.abort_multipart(&key, &parts.id);
        let _rubbish_stays = self.run(self.bucket.once("DELETE", path, 0, abort));
    }

    /// Removes an object; one that is gone is no error.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        self.run(self.bucket.remove(path))
    }

    /// Removes a segment.
    pub(super) fn remove_segment(&self, path: &Path) -> io::Result<()> {
        self.run(remove_segment(&self.bucket, path))
    }

    /// Removes an object, or a segment, at some time.
    pub(super) fn discard(&self, path: &Path) {
        if let Some(doomed) = &self.doomed {
            let _stopping = doomed.send(path.to_owned());
        }
    }
}

impl Bucket {
    /// The name of an object in the bucket. Below the root names have letters, digits, `_`, `-` and `.`.
    fn key(&self, path: &Path) -> Key {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let names = below.components().map(|name| name.as_os_str().to_string_lossy().into_owned());
        names.fold(self.prefix.clone(), |key, name| key.join(name))
    }

    async fn get(&self, path: &Path) -> io::Result<Bytes> {
        let key = self.key(path);
        let get = || {
            let (store, key) = (&self.store, &key);
            async move {
                let found = store.get(key).await?;
                // How long it may take follows from how much it is, and what has come is not asked for again.
                if found.meta.size > READ_BYTES {
                    return Ok(Err(found.meta));
                }
                found.bytes().await.map(Ok)
            }
        };
        let found = match self.tried("GET", path, READ_BYTES, get).await? {
            Ok(bytes) => return Ok(bytes),
            Err(found) => found,
        };
        let mut all = Vec::new();
        while (all.len() as u64) < found.size {
            let from = all.len() as u64;
            all.extend_from_slice(
                &self.get_part(path, &found, from..found.size.min(from + READ_BYTES)).await?,
            );
        }
        Ok(all.into())
    }

    /// A piece of an object that is still the one that was found.
    async fn get_part(&self, path: &Path, found: &ObjectMeta, range: Range<u64>) -> io::Result<Bytes> {
        let (key, bytes) = (self.key(path), range.end - range.start);
        let get = || {
            let if_match = found.e_tag.clone();
            let options = GetOptions { range: Some(range.clone().into()), if_match, ..GetOptions::default() };
            let (store, key) = (&self.store, &key);
            async move { store.get_opts(key, options).await?.bytes().await }
        };
        self.tried("GET", path, bytes, get).await
    }

    /// How long so many bytes may take.
    fn allowed(&self, bytes: u64) -> Duration {
        self.patience + Duration::from_secs(bytes / BYTES_PER_SECOND)
    }

    /// Makes a request once, within the bound.
    pub(super) async fn once<T>(
        &self,
        verb: &str,
        path: &Path,
        bytes: u64,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> io::Result<T> {
        match tokio::time::timeout(self.allowed(bytes), request).await {
            Ok(answer) => answer.map_err(|error| io::Error::other(self.told(verb, path, &error.to_string()))),
            Err(_) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, self.told(verb, path, "there was no answer")))
            }
        }
    }

    pub(super) async fn list(&self, dir: &Path) -> io::Result<Vec<ObjectMeta>> {
        let key = self.key(dir);
        let mut all: Vec<ObjectMeta> = Vec::new();
        loop {
            let after = all.last().map_or_else(|| key.clone(), |last| last.location.clone());
            let page = || self.store.list_with_offset(Some(&key), &after).take(PAGE).try_collect::<Vec<_>>();
            let mut page = self.tried("LIST", dir, 0, page).await?;
            page.sort_unstable_by(|one, other| one.location.cmp(&other.location));
            let is_last = page.len() < PAGE;
            all.append(&mut page);
            if is_last {
                return Ok(all);
            }
        }
    }

    pub(super) async fn remove(&self, path: &Path) -> io::Result<()> {
        let key = self.key(path);
        match self.tried("DELETE", path, 0, || self.store.delete(&key)).await {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Makes a request, again if it fails in a way that may pass, until the bound. An error says what was asked.
    async fn tried<T, F>(&self, verb: &str, path: &Path, bytes: u64, request: impl Fn() -> F) -> io::Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let (began, patience, mut pause, mut tries) = (Instant::now(), self.allowed(bytes), PAUSE, 0);
        loop {
            tries += 1;
            // A request that got lost is made again soon; a store that is only slow is given the time that there is.
            let allowed =
                if tries == 1 { patience / FIRST } else { patience.saturating_sub(began.elapsed()) };
            let answer = tokio::time::timeout(allowed, request()).await;
            let why = match answer {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => match final_kind(&error) {
                    Some(kind) => {
                        return Err(io::Error::new(kind, self.told(verb, path, &error.to_string())));
                    }
                    None => error.to_string(),
                },
                Err(_) => "there was no answer".to_owned(),
            };
            if began.elapsed() + pause >= patience {
                let why = format!("failed {tries} times in {:.1?}: {why}", began.elapsed());
                return Err(io::Error::new(io::ErrorKind::TimedOut, self.told(verb, path, &why)));
            }
            tracing::debug!(verb, path = %path.display(), tries, "an object store is asked again");
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// What went wrong, for people, without what must stay secret.
    pub(super) fn told(&self, verb: &str, path: &Path, why: &str) -> String {
        let mut why = why.to_owned();
        for secret in &self.told.secrets {
            why = why.replace(secret.as_str(), "***");
        }
        // Stores answer with pages of XML.
        let why: String = why.chars().take(WHY_MAX).collect();
        format!("{}: {verb} of {}: {why}", self.told.setting, path.display())
    }
}

fn is_older(found: &ObjectMeta, age: Duration) -> bool {
    SystemTime::now().duration_since(found.last_modified.into()).is_ok_and(|since| since > age)
}

/// What kind of error it is if it would be the same again.
const fn final_kind(error: &Error) -> Option<io::ErrorKind> {
    Some(match error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => {
            io::ErrorKind::AlreadyExists
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => io::ErrorKind::Unsupported,
        Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => io::ErrorKind::InvalidInput,
        _ => return None,
    })
}

/// Half of a pause to all of it, so that agents that failed together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    let _as_it_is = getrandom::fill(&mut byte);
    pause / 2 + pause / 2 * u32::from(byte[0]) / 255
}

fn is_same(found: &Bytes, pieces: &[Bytes]) -> bool {
    let mut rest = &found[..];
    for piece in pieces {
        match rest.strip_prefix(&piece[..]) {
            Some(next) => rest = next,
            None => return false,
        }
    }
    rest.is_empty()
}

impl Drop for Client {
    fn drop(&mut self) {
        self.doomed = None;
        let (Some(runtime), Some(removing)) = (self.runtime.take(), self.removing.take()) else { return };
        let _rubbish_stays = runtime.block_on(async { tokio::time::timeout(FAREWELL, removing).await });
        runtime.shutdown_background();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("root", &self.root).finish_non_exhaustive()
    }
}
