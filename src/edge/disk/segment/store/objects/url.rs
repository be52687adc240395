//! What `checkpoint_dir` names, if it is a URL.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path as Key;
use object_store::{ClientConfigKey, RetryConfig};

use super::client::Backend;
use crate::edge::disk::segment::SETTING;
use crate::error::{Error, Result};

/// The setting with what goes beside the URL.
const OPTIONS: &str = "storage_options";
/// Parts of names of options whose values nobody may see.
const SECRET: [&str; 6] = ["key", "secret", "token", "password", "sas", "credential"];
/// Shorter values are not looked for in messages: they would be everywhere.
const SECRET_MIN: usize = 4;

/// Whether this is no path of a folder.
pub(in crate::edge) fn is_url(checkpoint_dir: &str) -> bool {
    checkpoint_dir.contains("://")
}

/// Values that are to be kept out of messages.
pub(super) fn secrets(options: &BTreeMap<String, String>) -> Vec<String> {
    let is_secret = |name: &str| SECRET.iter().any(|part| name.to_lowercase().contains(part));
    let all = options.iter().filter(|(name, value)| is_secret(name) && value.len() >= SECRET_MIN);
    all.map(|(_, value)| value.clone()).collect()
}

/// A URL as it may be shown: some write a key and its secret there.
fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    match rest.rsplit_once('@') {
        Some((before, after)) if before.contains(':') => format!("{scheme}://***@{after}"),
        _ => url.to_owned(),
    }
}

/// The bucket that a URL names, and the prefix in it.
pub(super) fn open(url: &str, options: &BTreeMap<String, String>) -> Result<(Arc<dyn Backend>, Key)> {
    let refused = |reason: String| Error::Config { setting: SETTING.to_owned(), reason };
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let shown = without_secrets(url);
    if shown != url {
        return Err(refused(format!("{shown} has something secret in it: give that as {OPTIONS}")));
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() || rest.contains(['?', '#']) {
        return Err(refused(format!("{shown} names no bucket: write s3://bucket/prefix")));
    }
    let prefix = Key::parse(prefix).map_err(|e| refused(format!("{shown}: {e}")))?;
    // In one process two libraries may bring each theirs; the first stays.
    let _other = rustls::crypto::ring::default_provider().install_default();
    // Requests are made again by whoever makes them, who knows what may have happened.
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let http = ("true", ClientConfigKey::AllowHttp);
    // Each request has a bound of its own, by what it moves.
    let long = ("1h", ClientConfigKey::Timeout);
    let built: object_store::Result<Arc<dyn Backend>> = match scheme {
        "s3" | "s3a" if !bucket.contains('@') => {
            let mut builder = AmazonS3Builder::from_env()
                .with_config(AmazonS3ConfigKey::Client(http.1), http.0)
                .with_config(AmazonS3ConfigKey::Client(long.1), long.0)
                .with_bucket_name(bucket)
                .with_retry(once);
            for (name, value) in options {
                builder = builder.with_config(known(name, name.parse())?, value);
            }
            builder.build().map(|store| Arc::new(store) as _)
        }
        "gs" if !bucket.contains('@') => {
            let mut builder = GoogleCloudStorageBuilder::from_env()
                .with_config(GoogleConfigKey::Client(http.1), http.0)
                .with_config(GoogleConfigKey::Client(long.1), long.0)
                .with_bucket_name(bucket)
                .with_retry(once);
            for (name, value) in options {
                builder = builder.with_config(known(name, name.parse())?, value);
            }
            builder.build().map(|store| Arc::new(store) as _)
        }
        "abfs" | "abfss" => {
            let mut builder = MicrosoftAzureBuilder::from_env()
                .with_config(AzureConfigKey::Client(http.1), http.0)
                .with_config(AzureConfigKey::Client(long.1), long.0)
                .with_url(url)
                .with_retry(once);
            for (name, value) in options {
                builder = builder.with_config(known(name, name.parse())?, value);
            }
            builder.build().map(|store| Arc::new(store) as _)
        }
        _ => {
            let reason = "must be a folder that driver and executors mount, or s3://bucket/prefix, gs://bucket/prefix \
                          or abfss://container@account.dfs.core.windows.net/prefix";
            return Err(refused(format!("{shown} {reason}")));
        }
    };
    // What the builder says may hold a value that it could not read.
    let store = built.map_err(|error| {
        let mut text = error.to_string();
        secrets(options).iter().for_each(|secret| text = text.replace(secret.as_str(), "***"));
        refused(format!("{shown}: {text}"))
    })?;
    Ok((store, prefix))
}

fn known<T>(name: &str, parsed: object_store::Result<T>) -> Result<T> {
    parsed.map_err(|_| Error::Config {
        setting: OPTIONS.to_owned(),
        reason: format!("{name:?} is not known to this store, of which checkpoint_dir names a bucket"),
    })
}
