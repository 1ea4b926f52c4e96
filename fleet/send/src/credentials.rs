//! Secrets: read when they are needed, and never shown.

use crate::answer::CUT;
use aiprof_fleet::config::Http;
use base64::Engine as _;
use reqwest::header::HeaderValue;
use std::io;
use std::path::Path;

/// Least bytes of the begin of a secret that are taken for one.
const LEAST_BEGUN: usize = 4;
/// What stands where a secret stood.
const HIDDEN: &str = "[hidden]";

/// What a request proves who it is with.
#[derive(Default)]
pub(crate) struct Credentials {
    /// `Authorization`.
    pub(crate) header: Option<HeaderValue>,
    /// What no message may have in it.
    secrets: Vec<String>,
}

impl Credentials {
    /// Those of a server, of which `read` gives a file's secret.
    ///
    /// # Errors
    /// In words, without any content: a file cannot be read, or is none of a secret.
    pub(crate) fn read(
        http: &Http,
        read: impl Fn(&Path) -> io::Result<String>,
    ) -> Result<Self, String> {
        let mut credentials = Self::default();
        // Nothing secret should be in them. A server may send them back all the same.
        let values = http.headers.values().filter(|value| value.len() >= 8);
        credentials.secrets.extend(values.cloned());
        let header = if let Some(file) = &http.token_file {
            let wrong = |why| format!("token_file {}: {why}", file.display());
            let token = read(file).map_err(wrong)?;
            let header = format!("Bearer {token}");
            credentials.secrets.push(token);
            header
        } else if let Some(file) = &http.basic_auth_file {
            let wrong = |why| format!("basic_auth_file {}: {why}", file.display());
            let both = read(file).map_err(wrong)?;
            let Some((_, password)) = both.split_once(':') else {
                return Err(wrong(io::Error::other("is not user:password")));
            };
            let packed = base64::engine::general_purpose::STANDARD.encode(&both);
            let header = format!("Basic {packed}");
            let password = Some(password.to_owned()).filter(|password| !password.is_empty());
            credentials.secrets.extend([both.clone(), packed]);
            credentials.secrets.extend(password);
            header
        } else {
            return Ok(credentials);
        };
        let header = HeaderValue::from_str(&header);
        let mut header =
            header.map_err(|_| "the secret has characters that a header cannot have")?;
        header.set_sensitive(true);
        credentials.header = Some(header);
        // A secret in another may be the shorter one.
        credentials
            .secrets
            .sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Ok(credentials)
    }

    /// A text without any of the secrets.
    pub(crate) fn hide(&self, mut text: String) -> String {
        for secret in &self.secrets {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), HIDDEN);
            }
        }
        self.hide_begun(text)
    }

    /// A text without the begin of a secret at its end, where it was cut.
    fn hide_begun(&self, text: String) -> String {
        let Some(kept) = text.strip_suffix(CUT) else {
            return text;
        };
        let begun = |secret: &String| {
            let mut lengths = (LEAST_BEGUN..secret.len()).rev();
            lengths.find(|length| {
                secret
                    .get(..*length)
                    .is_some_and(|part| kept.ends_with(part))
            })
        };
        match self.secrets.iter().filter_map(begun).max() {
            Some(length) => format!("{}{HIDDEN}{CUT}", &kept[..kept.len() - length]),
            None => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the keeper hands it over.
    fn read(file: &Path) -> io::Result<String> {
        let text = std::fs::read_to_string(file)?;
        Ok(text.trim_end_matches('\n').to_owned())
    }

    fn http(keys: &str) -> Http {
        let text = format!("[[output]]\ntype = \"parca\"\nurl = \"https://x\"\n{keys}");
        let config = aiprof_fleet::config::Config::parse(Path::new("x"), &text).unwrap();
        match config.outputs.into_iter().next().unwrap().to {
            aiprof_fleet::config::To::Server(server) => server.http,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn secrets_are_read_anew_and_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let http = http(&format!(
            "token_file = {file:?}\nheaders = {{ key = \"k-e-y-123\" }}"
        ));
        assert!(Credentials::read(&http, read).is_err());
        for token in ["s3cret-1", "s3cret-2"] {
            std::fs::write(&file, format!("{token}\n")).unwrap();
            let credentials = Credentials::read(&http, read).unwrap();
            let header = credentials.header.as_ref().unwrap();
            assert_eq!(header.to_str().unwrap(), format!("Bearer {token}"));
            assert!(!format!("{header:?}").contains(token));
            let hidden = credentials.hide(format!("no {token}, {token}, k-e-y-123"));
            assert_eq!(hidden, "no [hidden], [hidden], [hidden]");
        }
        std::fs::write(&file, "s3cret\u{1}b").unwrap();
        let error = Credentials::read(&http, read).err().unwrap();
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn of_a_secret_that_was_cut_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let http = http(&format!("token_file = {file:?}"));
        let token: String = (0..90).map(|n| format!("eyJ{n:07}")).collect();
        std::fs::write(&file, &token).unwrap();
        let credentials = Credentials::read(&http, read).unwrap();
        // As servers' messages are: the token is longer than what is kept of them.
        let shown = crate::answer::clean(&format!("invalid token: {token} expired"));
        assert!(shown.contains(&token[..200]));
        let hidden = credentials.hide(format!("HTTP 401: {shown}"));
        assert_eq!(hidden, "HTTP 401: invalid token: [hidden][..]");
        // And where only its begin does not fit any more.
        let shown = crate::answer::clean(&format!("{} {token}", "x".repeat(290)));
        let hidden = credentials.hide(shown);
        assert!(
            !hidden.contains("eyJ") && hidden.ends_with(" [hidden][..]"),
            "{hidden}"
        );
    }

    #[test]
    fn basic_authentication_hides_the_password_alone_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("basic");
        let http = http(&format!("basic_auth_file = {file:?}"));
        std::fs::write(&file, "me:pass:word").unwrap();
        let credentials = Credentials::read(&http, read).unwrap();
        let header = credentials.header.clone().unwrap();
        assert_eq!(header.to_str().unwrap(), "Basic bWU6cGFzczp3b3Jk");
        let hidden = credentials.hide("me:pass:word pass:word bWU6cGFzczp3b3Jk".to_owned());
        assert_eq!(hidden, "[hidden] [hidden] [hidden]");
        std::fs::write(&file, "nocolon").unwrap();
        let error = Credentials::read(&http, read).err().unwrap();
        assert!(!error.contains("nocolon") && error.contains("user:password"));
    }
}
