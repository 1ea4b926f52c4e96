//! Reads the files that the configuration names, for the program that may not.
//!
//! Secrets are files of root alone, often, and are replaced by others of their names. So a process
//! of their own, the keeper, stays the user that started the program; it has no network, no
//! capabilities, and writes nothing. It reads the configuration by its path, and otherwise only
//! files that the configuration names. It hands over only what such a file has to have in it: one
//! line, certificates and keys in PEM, or keys of S3.
//!
//! A question is the length of a path, in four bytes, and the path; none asks for the
//! configuration. An answer is a byte that is 0 if all is well, a length, and the content or an
//! error's text.

use crate::confine;
use aiprof_fleet::config::{self, Config, Http, To};
use aiprof_fleet::secret;
use aiprof_system::files::caller;
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest path.
const MAX_PATH: u32 = 4096;
/// Longest answer.
const MAX_ANSWER: u32 = 8 << 20;
/// Largest file of a secret, and of certificates.
const MAX_SECRET: u64 = 64 << 10;
const MAX_PEM: u64 = 8 << 20;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a file has to have in it. All but certificates are secret: others must not be able to
/// read it. A file that is named for several has the last of these forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// Certificates.
    Pem,
    /// A key, in PEM.
    Key,
    /// `~/.aws/credentials`.
    Keys,
    /// One line.
    Secret,
}

/// Asks the keeper.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    /// `None`: an answer did not come, and the next may be that of an earlier question.
    stream: Arc<Mutex<Option<UnixStream>>>,
}

impl Keeper {
    /// Starts the keeper of a configuration. It ends with this process.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(config: &Path) -> anyhow::Result<Self> {
        let (own, its) = UnixStream::pair().context("cannot create the keeper's socket")?;
        own.set_read_timeout(Some(PATIENCE))?;
        own.set_write_timeout(Some(PATIENCE))?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("aiprof-send")
            .arg("--keeper")
            .arg("--config")
            .arg(config);
        // Ctrl-C is for the program, which still asks while it ends.
        command.process_group(0);
        command.stdin(OwnedFd::from(its)).stdout(Stdio::null());
        command.spawn().context("cannot start the keeper")?;
        Ok(Self {
            stream: Arc::new(Mutex::new(Some(own))),
        })
    }

    /// One that has ended.
    #[cfg(test)]
    pub(crate) fn gone() -> Self {
        Self {
            stream: Arc::default(),
        }
    }

    /// The text of the configuration.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn config_text(&self) -> io::Result<String> {
        self.read_to_string(Path::new(""))
    }

    /// The content of a file that the configuration names, reduced to the parts that have its form.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let stream = self.stream.lock();
        let mut stream = stream.unwrap_or_else(PoisonError::into_inner);
        let Some(open) = stream.as_mut() else {
            return Err(io::Error::other(
                "cannot be read, because the keeper has ended",
            ));
        };
        let asked = ask(open, path);
        if asked.is_err() {
            *stream = None;
        }
        asked?.map_err(io::Error::other)
    }

    /// The same as text.
    ///
    /// # Errors
    /// As there, or it is no text.
    pub(crate) fn read_to_string(&self, path: &Path) -> io::Result<String> {
        String::from_utf8(self.read(path)?).map_err(|_| io::Error::other("is not UTF-8 text"))
    }

    /// Whether it still answers.
    pub(crate) fn answers(&self) -> bool {
        let stream = self.stream.lock();
        stream.unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// What the keeper answers.
fn ask(stream: &mut UnixStream, path: &Path) -> io::Result<Result<Vec<u8>, String>> {
    let path = path.as_os_str().as_encoded_bytes();
    write_counted(stream, &[], path)?;
    let mut is_wrong = [0];
    stream.read_exact(&mut is_wrong)?;
    let content = read_counted(stream, MAX_ANSWER)?;
    Ok(match is_wrong {
        [0] => Ok(content),
        _ => Err(String::from_utf8_lossy(&content).into_owned()),
    })
}

fn write_counted(stream: &mut UnixStream, before: &[u8], content: &[u8]) -> io::Result<()> {
    let length = u32::try_from(content.len()).map_err(io::Error::other)?;
    stream.write_all(&[before, &length.to_le_bytes(), content].concat())
}

fn read_counted(stream: &mut UnixStream, most: u32) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut content = Vec::new();
    stream.take(u64::from(length)).read_to_end(&mut content)?;
    match content.len() as u64 == u64::from(length) {
        true => Ok(content),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Is the keeper of a configuration: answers on stdin until it ends.
///
/// # Errors
/// It cannot be confined, or stdin is no socket.
pub(crate) fn serve(config: &Path) -> anyhow::Result<()> {
    rustix::thread::set_name(c"aiprof-keeper").context("cannot set the process name")?;
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    let mut stream = UnixStream::from(stdin);
    confine::enter_keeper()?;
    let mut named = BTreeMap::new();
    // Ends when the asking program has ended, or its question is invalid.
    while let Ok(path) = read_counted(&mut stream, MAX_PATH) {
        let answer = match path.is_empty() {
            true => read_config(config, &mut named),
            false => read_named(&named, &path),
        };
        let written = match &answer {
            Ok(content) => write_counted(&mut stream, &[0], content),
            Err(error) => write_counted(&mut stream, &[1], error.to_string().as_bytes()),
        };
        if written.is_err() {
            break;
        }
    }
    Ok(())
}

/// The configuration; from now on it is this one's files that may be asked for, if it is right.
fn read_config(path: &Path, named: &mut BTreeMap<PathBuf, Form>) -> io::Result<Vec<u8>> {
    let text = read_whole(path, config::MAX_BYTES)?;
    if let Ok(text) = std::str::from_utf8(&text)
        && let Ok(config) = Config::parse(path, text)
    {
        *named = files_of(&config);
    }
    Ok(text)
}

/// A file of those that the configuration names.
fn read_named(named: &BTreeMap<PathBuf, Form>, path: &[u8]) -> io::Result<Vec<u8>> {
    let is_it = |known: &&PathBuf| known.as_os_str().as_encoded_bytes() == path;
    let known = named
        .keys()
        .find(is_it)
        .and_then(|path| named.get_key_value(path));
    let Some((path, form)) = known else {
        return Err(io::Error::other("the configuration does not name it"));
    };
    form.read(path)
}

/// The files that a configuration names, and what each has to have in it.
fn files_of(config: &Config) -> BTreeMap<PathBuf, Form> {
    let mut all = BTreeMap::new();
    let mut add = |file: &Option<PathBuf>, form: Form| {
        if let Some(file) = file {
            let known = all.entry(file.clone()).or_insert(form);
            *known = form.max(*known);
        }
    };
    for output in &config.outputs {
        match &output.to {
            To::Files(_) => {}
            To::Lake(lake) => {
                add(&lake.credentials_file, Form::Keys);
                add(&lake.ca_file, Form::Pem);
            }
            To::Server(server) => {
                let Http {
                    token_file,
                    basic_auth_file,
                    ca_file,
                    cert_file,
                    key_file,
                    ..
                } = &server.http;
                add(token_file, Form::Secret);
                add(basic_auth_file, Form::Secret);
                add(ca_file, Form::Pem);
                add(cert_file, Form::Pem);
                add(key_file, Form::Key);
            }
        }
    }
    all
}

impl Form {
    /// What a file has of this form.
    fn read(self, path: &Path) -> io::Result<Vec<u8>> {
        match self {
            Self::Pem => Ok(blocks(&read_whole(path, MAX_PEM)?)),
            Self::Key => Ok(blocks(&read_secret(path, MAX_PEM)?)),
            Self::Keys => Ok(keys(&read_secret(path, MAX_PEM)?)),
            Self::Secret => one_line(read_secret(path, MAX_SECRET)?),
        }
    }
}

fn read_secret(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let read = secret::read(path, most).map_err(io::Error::other)?;
    Ok(read.into_bytes())
}

fn read_whole(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let file = caller::open_regular(path)?;
    file.take(most + 1).read_to_end(&mut content)?;
    match content.len() as u64 > most {
        true => Err(io::Error::other(format!(
            "is longer than the limit of {most} bytes"
        ))),
        false => Ok(content),
    }
}

/// A secret, without the line's end: what has more lines is no secret of this kind.
fn one_line(content: Vec<u8>) -> io::Result<Vec<u8>> {
    match content.trim_ascii() {
        b"" => Err(io::Error::other("is empty")),
        line if line.iter().any(u8::is_ascii_control) => Err(io::Error::other(
            "has more than one line, or control characters",
        )),
        line => Ok(line.to_vec()),
    }
}

/// The blocks of PEM in a file.
fn blocks(content: &[u8]) -> Vec<u8> {
    let mut is_within = false;
    let mut blocks = Vec::new();
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        is_within |= line.starts_with(b"-----BEGIN ");
        if is_within {
            blocks.extend_from_slice(line);
        }
        is_within &= !line.starts_with(b"-----END ");
    }
    blocks
}

/// The names of profiles and the keys of S3 in a file.
fn keys(content: &[u8]) -> Vec<u8> {
    let is_key = |line: &&[u8]| {
        let line = line.trim_ascii();
        line.starts_with(b"[") || line.starts_with(b"aws_")
    };
    let lines = content.split_inclusive(|byte| *byte == b'\n');
    lines.filter(is_key).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    /// Writes a file that others cannot read.
    fn write_secret(file: &Path, content: &[u8]) {
        std::fs::write(file, content).unwrap();
        std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    }

    const SHADOW: &[u8] = b"root:$y$j9T$abc:20000:0:99999:7:::\ndaemon:*:20000:0:99999:7:::\n";

    #[test]
    fn of_a_file_that_is_something_else_nothing_is_handed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shadow");
        write_secret(&file, SHADOW);
        let error = Form::Secret.read(&file).unwrap_err().to_string();
        assert!(error.contains("more than one line"), "{error}");
        assert!(!error.contains("root"), "{error}");
        for form in [Form::Pem, Form::Key, Form::Keys] {
            assert!(form.read(&file).unwrap().is_empty());
        }
    }

    #[test]
    fn a_secret_that_others_can_read_is_not_handed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        for (mode, is_right) in [(0o600, true), (0o640, true), (0o644, false), (0o660, false)] {
            write_secret(&file, b"x");
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            for form in [Form::Secret, Form::Key, Form::Keys] {
                let found = form.read(&file);
                assert_eq!(found.is_ok(), is_right, "{form:?} {mode:o}: {found:?}");
            }
            assert!(Form::Pem.read(&file).is_ok(), "{mode:o}");
        }
        // Whichever output names it first.
        let tls = |keys: &str| {
            format!(
                "[[output]]\nname = {keys:?}\ntype = \"parca\"\nurl = \"https://x\"\n{keys} = {file:?}\n"
            )
        };
        let pair = "cert_file = \"/x\"\n";
        for text in [
            tls("ca_file") + &tls("key_file") + pair,
            tls("key_file") + pair + &tls("ca_file"),
        ] {
            let config = Config::parse(Path::new("x"), &text).unwrap();
            assert_eq!(files_of(&config)[&file], Form::Key, "{text}");
        }
    }

    #[test]
    fn what_has_its_form_is_handed_over_whole() {
        assert_eq!(one_line(b" s3cret \n".to_vec()).unwrap(), b"s3cret");
        assert!(one_line(b" \n".to_vec()).is_err());
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let two = format!("subject=x\n{pem}root:x\n{pem}");
        assert_eq!(blocks(two.as_bytes()), format!("{pem}{pem}").as_bytes());
        let text =
            "# mine\n[default]\naws_access_key_id = K\nother = x\n aws_secret_access_key=S\n";
        let expected = "[default]\naws_access_key_id = K\n aws_secret_access_key=S\n";
        assert_eq!(keys(text.as_bytes()), expected.as_bytes());
    }

    #[test]
    fn only_what_the_configuration_names_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write_secret(&path("token"), b"s3cret\n");
        std::fs::write(path("other"), "mine\n").unwrap();
        let write = |token: &str| {
            let text = format!("[[output]]\ntype = \"parca\"\nurl = \"https://x\"\n{token}");
            std::fs::write(path("agent.toml"), text).unwrap();
        };
        write(&format!("token_file = {:?}\n", path("token")));
        let mut named = BTreeMap::new();
        read_config(&path("agent.toml"), &mut named).unwrap();
        let read = |named: &BTreeMap<_, _>, name: &str| {
            read_named(named, path(name).as_os_str().as_encoded_bytes())
        };
        assert_eq!(read(&named, "token").unwrap(), b"s3cret");
        for other in ["other", "agent.toml", "../token", ""] {
            assert!(read(&named, other).is_err(), "{other}");
        }
        // A configuration that is wrong changes nothing.
        write("nonsense = 1\n");
        assert!(read_config(&path("agent.toml"), &mut named).is_ok());
        assert_eq!(read(&named, "token").unwrap(), b"s3cret");
        write("");
        read_config(&path("agent.toml"), &mut named).unwrap();
        assert!(read(&named, "token").is_err());
    }
}
