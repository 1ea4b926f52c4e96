//! The parts of a URL of the configuration.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The parts of a URL that matter here.
pub(super) struct UrlParts<'a> {
    /// Whether it is `https://`.
    pub(super) is_tls: bool,
    host: &'a str,
    /// What follows host and port.
    pub(super) rest: &'a str,
}

impl<'a> UrlParts<'a> {
    /// Takes no host that one reader of URLs could take for another: only plain letters.
    pub(super) fn of(url: &'a str) -> Result<Self, &'static str> {
        let (is_tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err("must begin with https:// or http://"),
        };
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("has spaces or non-ASCII characters: write %20, or xn-- in a host name");
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (place, rest) = rest.split_at(end);
        if place.contains('@') {
            return Err("has a user or password, which logs would show: use `basic_auth_file`");
        }
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !place.ends_with(']') => (host, Some(port)),
            _ => (place, None),
        };
        if host.is_empty() {
            return Err("has no host");
        }
        if !is_address(host) {
            return Err("HOST must have only letters, digits, `.`, `-` and `_`, or be [IPv6]");
        }
        let is_port = |port: &str| {
            port.bytes().all(|byte| byte.is_ascii_digit())
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        match port.is_none_or(is_port) {
            true => Ok(Self { is_tls, host, rest }),
            false => Err("PORT must be 1 to 65535"),
        }
    }

    /// Whether what is sent there stays on this machine.
    pub(super) fn is_loopback(&self) -> bool {
        let ipv6 = ipv6(self.host).is_some_and(|address| address.is_loopback());
        let ipv4 = self.host.parse::<Ipv4Addr>();
        self.host == "localhost" || ipv6 || ipv4.is_ok_and(|address| address.is_loopback())
    }
}

fn ipv6(host: &str) -> Option<Ipv6Addr> {
    let inner = host.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse().ok()
}

fn is_address(host: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    host.bytes().all(is_letter) || ipv6(host).is_some()
}
