//! Names of users, as /etc/passwd has them: looking them up elsewhere may wait for a
//! server.

use crate::files::caller;
use rustc_hash::FxHashMap;

/// Where they are.
const PASSWD: &str = "/etc/passwd";
/// Most bytes that are read of it.
const MAX_BYTES: u64 = 4 << 20;

/// Names of users by their numbers.
#[derive(Debug, Default)]
pub struct Users(FxHashMap<u32, String>);

impl Users {
    /// Reads them; none where that is not possible.
    pub fn read() -> Self {
        Self::parse(&caller::read_to_string(PASSWD, MAX_BYTES).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut users = FxHashMap::default();
        for line in text.lines() {
            let mut fields = line.split(':');
            let (name, uid) = (fields.next(), fields.nth(1));
            if let (Some(name), Some(Ok(uid))) = (name, uid.map(str::parse)) {
                users.entry(uid).or_insert_with(|| name.to_owned());
            }
        }
        Self(users)
    }

    /// The name of a user; its number if it has none.
    pub fn name(&self, uid: u32) -> String {
        self.0.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// The number of a user, from its name or from the number as text.
    pub fn number(&self, user: &str) -> Option<u32> {
        let named = self.0.iter().find(|(_, name)| *name == user);
        named.map(|(uid, _)| *uid).or_else(|| user.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_numbers() {
        let users = Users::parse(
            "root:x:0:0:root:/root:/bin/sh\nbad\n\n+nis::::::\nbob:x:1000:1000::/:\nbob2:x:1000:1::/:",
        );
        assert_eq!(users.name(0), "root");
        assert_eq!(users.name(1000), "bob");
        assert_eq!(users.name(7), "7");
        assert_eq!(users.number("bob"), Some(1000));
        assert_eq!(users.number("7"), Some(7));
        assert_eq!(users.number("nobody-here"), None);
    }
}
