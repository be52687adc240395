//! What `checkpoint_dir`, or another setting, names if it is a URL.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path as Key;
use object_store::{ClientConfigKey, RetryConfig};

use super::client::Backend;
use crate::error::{Error, Result};

/// The setting with what goes beside the URL.
const OPTIONS: &str = "storage_options";
/// Parts of names of options whose values nobody may see.
const SECRET: [&str; 6] = ["key", "secret", "token", "password", "sas", "credential"];
/// Shorter values are not looked for in messages: they would be everywhere.
const SECRET_MIN: usize = 4;

/// Whether this is no path of a folder.
pub(in crate::edge) fn is_url(place: &str) -> bool {
    place.contains("://")
}

/// What kind of store a URL is of: those of one kind know the same options. None of a folder, and of other URLs.
pub(in crate::edge) fn kind_of(url: &str) -> Option<&'static str> {
    match url.split_once("://")?.0 {
        "s3" | "s3a" => Some("s3"),
        "gs" => Some("gs"),
        "abfs" | "abfss" => Some("abfs"),
        _ => None,
    }
}

/// Values that are to be kept out of messages.
pub(super) fn secrets(options: &BTreeMap<String, String>) -> Vec<String> {
    let is_secret = |name: &str| SECRET.iter().any(|part| name.to_lowercase().contains(part));
    let all = options.iter().filter(|(name, value)| is_secret(name) && value.len() >= SECRET_MIN);
    all.map(|(_, value)| value.clone()).collect()
}

/// A URL as it may be shown: some write a key and its secret there.
pub(in crate::edge) fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.rsplit_once('@') {
        Some((before, after)) if before.contains(':') => format!("{scheme}://***@{after}"),
        _ => url.to_owned(),
    }
}

/// The bucket that a URL names, which `setting` is, and the prefix in it.
pub(super) fn open(
    url: &str,
    options: &BTreeMap<String, String>,
    setting: &str,
) -> Result<(Arc<dyn Backend>, Key)> {
    let refused = |reason: String| Error::Config { setting: setting.to_owned(), reason };
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
                builder = builder.with_config(known(name, setting, name.parse())?, value);
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
                builder = builder.with_config(known(name, setting, name.parse())?, value);
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
                builder = builder.with_config(known(name, setting, name.parse())?, value);
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
    let store =
        built.map_err(|error| refused(format!("{shown}: {}", redacted(&error, &secrets(options)))))?;
    Ok((store, prefix))
}

/// An error's text without these.
fn redacted(error: &object_store::Error, secrets: &[String]) -> String {
    secrets.iter().fold(error.to_string(), |text, secret| text.replace(secret.as_str(), "***"))
}

fn known<T>(name: &str, setting: &str, parsed: object_store::Result<T>) -> Result<T> {
    parsed.map_err(|_| Error::Config {
        setting: OPTIONS.to_owned(),
        reason: format!("{name:?} is not known to this store, of which {setting} names a bucket"),
    })
}
