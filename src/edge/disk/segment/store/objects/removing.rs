//! Removing what nobody needs, in the background.

use std::path::{Path, PathBuf};

use futures_util::{StreamExt, stream};
use object_store::Error;
use tokio::sync::mpsc::UnboundedReceiver;

use super::client::Bucket;
use super::object;
use crate::edge::disk::segment::layout::is_segment;

/// Files that are removed at once: a commit has a segment of each agent.
const REMOVED_AT_ONCE: usize = 16;

/// Removes what it is told to until nobody can tell it more.
pub(super) async fn remove_all(bucket: Bucket, mut queue: UnboundedReceiver<PathBuf>) {
    let doomed = stream::poll_fn(|context| queue.poll_recv(context));
    let removing = doomed.for_each_concurrent(REMOVED_AT_ONCE, |path| remove_one(&bucket, path));
    removing.await;
}

async fn remove_one(bucket: &Bucket, path: PathBuf) {
    let removed = match is_segment(&path) {
        true => remove_segment(bucket, &path).await,
        false => bucket.remove(&path).await,
    };
    if let Err(error) = removed {
        // It is found again: by who commits the next epoch, or as rubbish.
        tracing::warn!(path = %path.display(), %error, "what nobody needs could not be removed");
    }
}

/// Removes a segment; one that is gone is no error.
pub(super) async fn remove_segment(bucket: &Bucket, segment: &Path) -> std::io::Result<()> {
    // Without it there is no segment for those who read meanwhile.
    bucket.remove(&object(segment, 0)).await?;
    let rest = bucket.list(segment).await?;
    let names = stream::iter(rest).map(|found| Ok(found.location)).boxed();
    let mut removed = bucket.store.delete_stream(names);
    loop {
        let next = async {
            match removed.next().await {
                None => Ok(false),
                // Whoever else removes the segment was faster.
                Some(Err(Error::NotFound { .. })) => Ok(true),
                Some(one) => one.map(|_| true),
            }
        };
        if !bucket.once("DELETE", segment, 0, next).await? {
            return Ok(());
        }
    }
}
