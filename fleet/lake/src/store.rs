//! The directory or bucket that a lake is in.

use crate::LakeError;
use crate::answers::Bounded;
use aiprof_fleet::{config, place, secret};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig};
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Largest file of credentials or certificates that is read.
const MAX_FILE: u64 = 1 << 20;
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a lake is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read: it must be there.
    Read,
    /// It is written: a directory is made.
    Write,
}

/// Reads a file that the configuration names.
pub type Read<'a> = dyn Fn(&std::path::Path) -> std::io::Result<String> + 'a;

/// The store of a lake, with the lake at its root, and its directory if it is one.
pub(crate) fn open(
    config: &config::Lake,
    access: Access,
    read: &Read<'_>,
) -> Result<(Arc<dyn ObjectStore>, Option<PathBuf>), LakeError> {
    match config.directory() {
        None => Ok((bucket(config, read)?, None)),
        Some(path) => {
            if access == Access::Write {
                std::fs::create_dir_all(&path).map_err(LakeError::local(&path))?;
            }
            // Without this call an error would not show the path as it was given.
            let path = path.canonicalize().map_err(LakeError::local(&path))?;
            let store = LocalFileSystem::new_with_prefix(&path)
                .map_err(LakeError::store(path.display()))?;
            Ok((Arc::new(store), Some(path)))
        }
    }
}

/// Checks whether a lake can be written to, as well as possible without a request. Makes nothing.
///
/// # Errors
/// As [`crate::Lake::open_with`], and a directory that cannot be made or written to.
pub(crate) fn check(config: &config::Lake, read: &Read<'_>) -> Result<(), LakeError> {
    match config.directory() {
        None => bucket(config, read).map(drop),
        Some(path) => place::check(&path, place::ROOM).map_err(LakeError::Config),
    }
}

fn bucket(config: &config::Lake, read: &Read<'_>) -> Result<Arc<dyn ObjectStore>, LakeError> {
    let place = config.url.strip_prefix("s3://").unwrap_or_default();
    let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
    if name.is_empty() {
        return Err(LakeError::Config(format!(
            "{}: the URL has no bucket",
            config.url
        )));
    }
    let mut options = ClientOptions::new().with_timeout(TIMEOUT);
    let endpoint = config.endpoint.as_deref();
    options = options.with_allow_http(endpoint.is_some_and(|url| url.starts_with("http://")));
    if let Some(path) = &config.ca_file {
        let pem = read(path).map_err(LakeError::local(path))?;
        let found = Certificate::from_pem_bundle(pem.as_bytes());
        let found = found.map_err(LakeError::store(path.display()))?;
        if found.is_empty() {
            let why = format!("{}: has no certificate in PEM", path.display());
            return Err(LakeError::Config(why));
        }
        for certificate in found {
            options = options.with_root_certificate(certificate);
        }
    }
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 4,
        retry_timeout: TIMEOUT * 3,
    };
    let mut builder = match &config.credentials_file {
        None => AmazonS3Builder::from_env(),
        Some(path) => {
            let text = read(path).map_err(LakeError::local(path))?;
            let found = credentials(&text).ok_or_else(|| {
                let what = "profile `default` needs aws_access_key_id and aws_secret_access_key";
                LakeError::Config(format!("{}: {what}", path.display()))
            })?;
            let builder = AmazonS3Builder::new()
                .with_access_key_id(found.key)
                .with_secret_access_key(found.secret);
            match found.token {
                Some(token) => builder.with_token(token),
                None => builder,
            }
        }
    };
    builder = builder
        .with_bucket_name(name)
        .with_client_options(options)
        .with_http_connector(Bounded::default())
        .with_retry(retry);
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let store = builder.build().map_err(LakeError::store(&config.url))?;
    match prefix.trim_matches('/') {
        "" => Ok(Arc::new(store)),
        prefix => Ok(Arc::new(PrefixStore::new(store, Path::from(prefix)))),
    }
}

/// Reads the files of a lake with the rights of this process.
pub(crate) fn reader(
    config: &config::Lake,
) -> impl Fn(&std::path::Path) -> std::io::Result<String> {
    let secret = config.credentials_file.as_deref();
    move |path| match secret == Some(path) {
        true => secret::read(path, MAX_FILE).map_err(std::io::Error::other),
        false => read(path),
    }
}

fn read(path: &std::path::Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(text)
}

/// Keys of S3.
struct S3Keys {
    key: String,
    secret: String,
    token: Option<String>,
}

/// Those of the profile `default` of a file in the form of `~/.aws/credentials`.
fn credentials(text: &str) -> Option<S3Keys> {
    let mut section = "default";
    let (mut key, mut secret, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').trim();
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            continue;
        };
        let value = Some(value.trim().to_owned());
        match (section, name.trim()) {
            ("default", "aws_access_key_id") => key = value,
            ("default", "aws_secret_access_key") => secret = value,
            ("default", "aws_session_token") => token = value,
            _ => {}
        }
    }
    Some(S3Keys {
        key: key?,
        secret: secret?,
        token,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_those_of_the_default_profile() {
        let text = "# mine\n[other]\naws_access_key_id = no\n[default]\n\
                    aws_access_key_id=K\naws_secret_access_key = a/b=c\n";
        let found = credentials(text).unwrap();
        assert_eq!((found.key.as_str(), found.secret.as_str()), ("K", "a/b=c"));
        assert!(found.token.is_none());
        assert!(credentials("[default]\naws_access_key_id = K").is_none());
    }
}
