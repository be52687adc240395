//! What `checkpoint_dir`, or another setting, names if it is a URL.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path as Key;
use object_store::{ClientConfigKey, RetryConfig};
use reqwest::Url;

use super::client::Backend;
use crate::error::{Error, Result};

/// The setting with what goes beside the URL.
const OPTIONS: &str = "storage_options";
/// Parts of names of options whose values nobody may see.
const SECRET: [&str; 6] = ["key", "secret", "token", "password", "sas", "credential"];
/// Shorter values are not looked for in messages: they would be everywhere.
const SECRET_MIN: usize = 4;
/// Hosts that are this machine.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// Where the Azure builder has the address of an emulator from.
const EMULATOR: &str = "AZURITE_BLOB_STORAGE_URL";

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

/// Whether the user says that a store may be reached in clear, of which the names of options and variables begin so; a
/// builder may have that on by itself.
fn is_allowed(options: &BTreeMap<String, String>, names: &str) -> bool {
    let is_on = |value: &str| value.eq_ignore_ascii_case("true");
    let is_it = |name: &str| {
        let name = name.to_lowercase();
        name.strip_prefix(names).and_then(|rest| rest.strip_prefix('_')).unwrap_or(&name) == "allow_http"
    };
    let variable = std::env::var(format!("{}_ALLOW_HTTP", names.to_uppercase()));
    options.iter().any(|(name, value)| is_it(name) && is_on(value))
        || variable.is_ok_and(|value| is_on(&value))
}

/// Whether a store with this endpoint may be reached in clear, where nobody says so: if nothing else is encrypted either,
/// and on this machine; or why it is refused.
fn may_be_in_clear(encrypt: bool, endpoint: Option<&str>) -> std::result::Result<bool, String> {
    if !encrypt {
        return Ok(true);
    }
    let url = endpoint.and_then(|endpoint| Url::parse(endpoint).ok()).filter(|url| url.scheme() == "http");
    let Some(host) = url.as_ref().and_then(Url::host_str) else { return Ok(false) };
    if LOCAL.contains(&host) {
        return Ok(true);
    }
    Err(format!(
        "the store's endpoint http://{host} is not encrypted, and encrypt is on: what is recorded, and the store's \
         credentials, would cross the network in clear. Give an https:// endpoint, in {OPTIONS} or the environment of each \
         process, or allow_http='true' in {OPTIONS}"
    ))
}

/// The bucket that a URL names, which `setting` is, and the prefix in it. With `encrypt`, it is not reached in clear unless
/// it is on this machine, or the user says that it may be.
pub(super) fn open(
    url: &str,
    options: &BTreeMap<String, String>,
    encrypt: bool,
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
    let built = store((scheme, bucket, url), options, encrypt, setting)?;
    let Some(built) = built else {
        let reason = "must be a folder that driver and executors mount, or s3://bucket/prefix, gs://bucket/prefix or \
                      abfss://container@account.dfs.core.windows.net/prefix";
        return Err(refused(format!("{shown} {reason}")));
    };
    // What the builder says may hold a value that it could not read.
    let store =
        built.map_err(|error| refused(format!("{shown}: {}", redacted(&error, &secrets(options)))))?;
    Ok((store, prefix))
}

/// The bucket, as its library makes it of what options and the environment say; none of a scheme that nobody knows.
fn store(
    (scheme, bucket, url): (&str, &str, &str),
    options: &BTreeMap<String, String>,
    encrypt: bool,
    setting: &str,
) -> Result<Option<object_store::Result<Arc<dyn Backend>>>> {
    let refused = |reason: String| Error::Config { setting: setting.to_owned(), reason };
    // Requests are made again by whoever makes them, who knows what may have happened.
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    // The three builders have the same methods, and no trait for them.
    macro_rules! builder {
        ($builder:ident, $key:ident, $names:literal, $endpoint:expr) => {{
            let told = |mut builder: $builder| -> Result<$builder> {
                for (name, value) in options {
                    builder = builder.with_config(known(name, setting, name.parse())?, value);
                }
                Ok(builder)
            };
            let endpoint: Option<String> = $endpoint(&told($builder::from_env())?);
            let in_clear = is_allowed(options, $names)
                || may_be_in_clear(encrypt, endpoint.as_deref()).map_err(refused)?;
            // Each request has a bound of its own, by what it moves.
            let builder = $builder::from_env().with_config($key::Client(ClientConfigKey::Timeout), "1h");
            let builder = match in_clear {
                true => builder.with_config($key::Client(ClientConfigKey::AllowHttp), "true"),
                false => builder,
            };
            told(builder.with_retry(once))?
        }};
    }
    let built: object_store::Result<Arc<dyn Backend>> = match scheme {
        "s3" | "s3a" if !bucket.contains('@') => {
            let endpoint = |asked: &AmazonS3Builder| {
                let of_s3 = asked.get_config_value(&AmazonS3ConfigKey::S3Endpoint);
                of_s3.or_else(|| asked.get_config_value(&AmazonS3ConfigKey::Endpoint))
            };
            let builder = builder!(AmazonS3Builder, AmazonS3ConfigKey, "aws", endpoint);
            builder.with_bucket_name(bucket).build().map(|store| Arc::new(store) as _)
        }
        "gs" if !bucket.contains('@') => {
            let endpoint =
                |asked: &GoogleCloudStorageBuilder| asked.get_config_value(&GoogleConfigKey::BaseUrl);
            let builder = builder!(GoogleCloudStorageBuilder, GoogleConfigKey, "google", endpoint);
            builder.with_bucket_name(bucket).build().map(|store| Arc::new(store) as _)
        }
        "abfs" | "abfss" => {
            let endpoint = |asked: &MicrosoftAzureBuilder| {
                let emulates = asked.get_config_value(&AzureConfigKey::UseEmulator);
                let emulator = emulates.filter(|emulates| emulates.eq_ignore_ascii_case("true"));
                // The builder lets an emulator be reached in clear by itself.
                let emulator = emulator.and_then(|_| std::env::var(EMULATOR).ok());
                emulator.or_else(|| asked.get_config_value(&AzureConfigKey::Endpoint))
            };
            let builder = builder!(MicrosoftAzureBuilder, AzureConfigKey, "azure", endpoint);
            builder.with_url(url).build().map(|store| Arc::new(store) as _)
        }
        _ => return Ok(None),
    };
    Ok(Some(built))
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
