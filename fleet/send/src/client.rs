//! Connections to a server: TLS, and when they are made anew.

use crate::keeper::Keeper;
use aiprof_fleet::config::Http;
use aiprof_system::errors::chain;
use reqwest::redirect::Policy;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time that a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection waits for the next body. Windows are a minute apart, often.
const IDLE: Duration = Duration::from_secs(300);
/// How long the certificates of the system are taken to be the same.
const SYSTEM_ROOTS: Duration = Duration::from_secs(3600);

/// The client of a server.
pub(crate) struct ServerClient {
    http: Http,
    is_grpc: bool,
    keeper: Keeper,
    tls: Option<Tls>,
    client: Option<reqwest::Client>,
}

/// A configuration of TLS, and what it was made of.
struct Tls {
    config: ClientConfig,
    /// A digest of the content of the files.
    files: u64,
    made: Instant,
}

impl ServerClient {
    /// For a server.
    pub(crate) fn new(http: Http, is_grpc: bool, keeper: Keeper) -> Self {
        Self {
            http,
            is_grpc,
            keeper,
            tls: None,
            client: None,
        }
    }

    /// The client, made anew where files of certificates have changed.
    ///
    /// # Errors
    /// In words: a file is not what it must be.
    pub(crate) fn get(&mut self) -> Result<reqwest::Client, String> {
        if self.is_tls() && !self.is_current() {
            self.client = None;
            self.tls = None;
        }
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = self.build()?;
        self.client = Some(client.clone());
        Ok(client)
    }

    /// Forgets all connections: one that is dead without saying so would be used again.
    pub(crate) fn reset(&mut self) {
        self.client = None;
    }

    fn is_tls(&self) -> bool {
        self.http.url.starts_with("https://")
    }

    fn files(&self) -> [&Option<PathBuf>; 3] {
        [
            &self.http.ca_file,
            &self.http.cert_file,
            &self.http.key_file,
        ]
    }

    /// A digest of what is in the files now.
    fn mark(&self) -> u64 {
        let mut mark = DefaultHasher::new();
        for file in self.files() {
            let content = file.as_ref().map(|file| self.keeper.read(file).ok());
            content.hash(&mut mark);
        }
        mark.finish()
    }

    fn is_current(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| {
            let is_system = self.http.ca_file.is_none();
            tls.files == self.mark() && !(is_system && tls.made.elapsed() > SYSTEM_ROOTS)
        })
    }

    fn build(&mut self) -> Result<reqwest::Client, String> {
        let config = match &self.tls {
            Some(tls) => tls.config.clone(),
            None => {
                let files = self.mark();
                let mut config = self.tls()?;
                config.alpn_protocols = match self.is_grpc {
                    true => vec![b"h2".to_vec()],
                    false => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
                };
                let kept = config.clone();
                self.tls = Some(Tls {
                    config: kept,
                    files,
                    made: Instant::now(),
                });
                config
            }
        };
        // A ping or two while a long request is under way; more annoys servers of gRPC.
        let ping = (self.http.timeout / 2).max(Duration::from_secs(20));
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .user_agent(concat!("aiprof-send/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .referer(false)
            .connect_timeout(CONNECT.min(self.http.timeout))
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(1)
            .tcp_keepalive(Duration::from_secs(60))
            .http2_max_header_list_size(64 << 10)
            .http2_keep_alive_interval(ping)
            .http2_keep_alive_timeout(Duration::from_secs(20));
        if self.http.is_loopback() {
            // Secrets are allowed there without TLS: no proxy is to see them.
            builder = builder.no_proxy();
        }
        if self.is_grpc {
            builder = builder.http2_prior_knowledge();
            if !self.is_tls() {
                // Proxies pass on HTTP/1.1 only, unless it is in a tunnel.
                builder = builder.no_proxy();
            }
        }
        builder.build().map_err(|error| chain(&error))
    }

    fn tls(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(self.roots()?);
        let (Some(certificate), Some(key)) = (&self.http.cert_file, &self.http.key_file) else {
            return Ok(builder.with_no_client_auth());
        };
        let certificates = self.certificates("cert_file", certificate)?;
        let wrong = |why: String| format!("key_file {}: {why}", key.display());
        let bytes = self.keeper.read(key);
        let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
        // Not shown: the parser's error may have the content of a key.
        let parsed = PrivateKeyDer::from_pem_slice(&bytes);
        let parsed = parsed.map_err(|_| wrong("has no private key in PEM".to_owned()))?;
        builder
            .with_client_auth_cert(certificates, parsed)
            .map_err(|error| wrong(error.to_string()))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        if !self.is_tls() {
            return Ok(roots);
        }
        match &self.http.ca_file {
            Some(file) => {
                for certificate in self.certificates("ca_file", file)? {
                    roots
                        .add(certificate)
                        .map_err(|error| format!("ca_file {}: {error}", file.display()))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    let why = "the system has no trusted certificates: set `ca_file`";
                    return Err(why.to_owned());
                }
            }
        }
        Ok(roots)
    }

    fn certificates(&self, key: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
        let wrong = |why: String| format!("{key} {}: {why}", file.display());
        let bytes = self.keeper.read(file);
        let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        let all = all.map_err(|error| wrong(error.to_string()))?;
        match all.is_empty() {
            true => Err(wrong("has no certificate in PEM".to_owned())),
            false => Ok(all),
        }
    }
}
