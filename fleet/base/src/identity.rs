//! Who a host is, from one start to the next.

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use std::path::Path;

/// Key that makes a host's identity aiprof's own. The identity cannot be led back to the machine
/// id, nor to other programs' names of the machine (`sd_id128_get_machine_app_specific(3)`).
const APPLICATION: &[u8; 16] = b"aiprof-host-id-1";
/// Where the machine id is (`machine-id(5)`).
const MACHINE_ID: &str = "/etc/machine-id";

/// The identity of this host: 32 hexadecimal digits, the same as long as its machine id is.
/// `None`: it has no machine id. Images that were cloned with their machine id share it.
pub fn of_this_host() -> Option<String> {
    of_machine(&std::fs::read_to_string(Path::new(MACHINE_ID)).ok()?)
}

/// The identity of the host with this machine id.
fn of_machine(machine_id: &str) -> Option<String> {
    let machine_id = machine_id.trim();
    let is_id = machine_id.len() == 32 && machine_id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_id {
        return None;
    }
    let bytes: Vec<u8> = (0..16)
        .map_while(|at| u8::from_str_radix(machine_id.get(2 * at..2 * at + 2)?, 16).ok())
        .collect();
    let mut mac = Hmac::<Sha256>::new_from_slice(&bytes).ok()?;
    mac.update(APPLICATION);
    let digest = mac.finalize().into_bytes();
    Some(
        digest
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::of_machine;

    #[test]
    fn an_identity_is_that_of_the_machine_and_does_not_tell_it() {
        let machine = "0123456789abcdef0123456789abcdef";
        // Python: hmac.new(bytes.fromhex(machine), b"aiprof-host-id-1", "sha256").hexdigest()[:32]
        let expected = "fc8de75385f66074e71c4d76eed543eb";
        assert_eq!(
            of_machine(&format!("{machine}\n")).as_deref(),
            Some(expected)
        );
        for wrong in ["", "uninitialized", "0123", &machine.replace('0', "g")] {
            assert_eq!(of_machine(wrong), None, "{wrong}");
        }
    }
}
