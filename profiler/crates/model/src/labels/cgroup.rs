//! Labels from the path of a control group: where a process runs.
//!
//! Engines and init systems name control groups after what runs in them: Docker and
//! Podman after the container, the kubelet after the pod, systemd after the unit. The
//! paths are those of cgroups(7); who may make control groups may make any.

/// Longest label that is taken from a path, in bytes.
const MAX_LEN: usize = 256;
/// Most parts of a path that are looked at.
const MAX_PARTS: usize = 64;

/// The labels in a path of a control group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLabels<'a> {
    /// Id or name of the innermost container.
    pub container: Option<&'a str>,
    /// Id of the pod, as the path has it: systemd's slices have `_` for `-`.
    pub pod: Option<&'a str>,
    /// The systemd unit: a service or scope, of a user's manager where it is one.
    pub unit: Option<&'a str>,
}

impl<'a> CgroupLabels<'a> {
    /// Reads a path below the root of the hierarchy: `/system.slice/cron.service`.
    pub fn of(path: &'a str) -> Self {
        let mut found = Self::default();
        let mut user_manager = false;
        let parts = path.split('/').filter(|part| !part.is_empty());
        let mut parts = parts.take(MAX_PARTS).peekable();
        while let Some(part) = parts.next() {
            if part.len() > MAX_LEN {
                continue;
            }
            found.container = container(part, parts.peek().copied()).or(found.container);
            found.pod = pod(part).or(found.pod);
            if !part.ends_with(".service") && !part.ends_with(".scope") {
                continue;
            }
            if found.unit.is_none() || user_manager {
                found.unit = Some(part);
                user_manager = part.starts_with("user@") && part.ends_with(".service");
            }
        }
        found
    }
}

/// The id or name of a container that a part of a path is of. `next` is the part below.
fn container<'a>(part: &'a str, next: Option<&'a str>) -> Option<&'a str> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let (engine, id) = name.rsplit_once('-').unwrap_or(("", name));
    // The monitors of Podman and CRI-O run beside their containers.
    if is_id(id) && !engine.ends_with("conmon") {
        return Some(id);
    }
    // LXC and Incus; before LXC 4 they were below a group `lxc`.
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return Some(name).filter(|name| !name.is_empty());
    }
    if part == "lxc" {
        return next;
    }
    // systemd-nspawn, which also registers its machines as scopes. Those of libvirt are
    // virtual machines.
    if let Some(name) = part.strip_prefix("systemd-nspawn@") {
        return name.strip_suffix(".service");
    }
    let machine = name.strip_prefix("machine-")?;
    let is_scope = part.ends_with(".scope") && !machine.starts_with("qemu");
    is_scope.then_some(machine)
}

/// The id of a pod that a part of a path is of: `pod<uid>` of the kubelet's own driver,
/// `kubepods-burstable-pod<uid>.slice` of systemd's, `libpod_pod_<id>` of Podman.
fn pod(part: &str) -> Option<&str> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    if let Some((_, id)) = name.rsplit_once("libpod_pod_") {
        return Some(id).filter(|id| is_id(id));
    }
    let uid = match name.rsplit_once("-pod") {
        Some((above, uid)) if above.contains("kubepods") => uid,
        _ => name.strip_prefix("pod")?,
    };
    let is_uid = |c: u8| c.is_ascii_hexdigit() || c == b'-' || c == b'_';
    (matches!(uid.len(), 32 | 36) && uid.bytes().all(is_uid)).then_some(uid)
}

/// Whether a text is a container's id: 64 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "7c2ae7b1e2f0c6a2d9d1a52b1c7a9ad60d3d0cc6b3b2f8f1f7a4b8f0e9d1c2b3";
    const INNER: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const UID: &str = "2f0a7dd4-6a7e-4dd1-9c3c-6f3b1c1a2d3e";

    #[track_caller]
    fn check(path: &str, container: Option<&str>, pod: Option<&str>, unit: Option<&str>) {
        let expected = CgroupLabels {
            container,
            pod,
            unit,
        };
        let path = path.replace("ID", ID).replace("UID", UID);
        assert_eq!(CgroupLabels::of(&path), expected, "{path}");
    }

    #[test]
    fn containers_of_engines() {
        let id = Some(ID);
        // docs.docker.com, "Runtime metrics": both cgroup drivers.
        check("/docker/ID", id, None, None);
        let scope = format!("docker-{ID}.scope");
        check("/system.slice/docker-ID.scope", id, None, Some(&scope));
        // podman: root, of a user, in a pod.
        let scope = format!("libpod-{ID}.scope");
        check("/machine.slice/libpod-ID.scope", id, None, Some(&scope));
        check(
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
            id,
            None,
            Some(&scope),
        );
        check("/libpod_parent/libpod-ID", id, None, None);
        let pod = format!("/machine.slice/machine-libpod_pod_{INNER}.slice/libpod-{ID}.scope");
        check(&pod, id, Some(INNER), Some(&scope));
        // The monitor of a container is not in it.
        let conmon = format!("libpod-conmon-{ID}.scope");
        check(
            "/machine.slice/libpod-conmon-ID.scope",
            None,
            None,
            Some(&conmon),
        );
        // LXC, Incus, systemd-nspawn; a virtual machine is none.
        check("/lxc.payload.web1/system.slice", Some("web1"), None, None);
        check("/lxc/web1", Some("web1"), None, None);
        check("/lxc.monitor.web1", None, None, None);
        let service = "systemd-nspawn@deb.service";
        check(
            "/machine.slice/systemd-nspawn@deb.service/payload",
            Some("deb"),
            None,
            Some(service),
        );
        check(
            "/machine.slice/machine-deb.scope",
            Some("deb"),
            None,
            Some("machine-deb.scope"),
        );
        let vm = r"machine-qemu\x2d1\x2dvm.scope";
        check(&format!("/machine.slice/{vm}"), None, None, Some(vm));
        // A container in a container: the inner one.
        check(&format!("/docker/{INNER}/docker/ID"), id, None, None);
    }

    #[test]
    fn pods_of_both_cgroup_drivers() {
        let id = Some(ID);
        // kubernetes.io, "Node resource managers", and the kubelet's cgroup_manager_linux.go.
        let path = format!("/kubepods/burstable/pod{UID}/{ID}");
        check(&path, id, Some(UID), None);
        check(&format!("/kubepods/pod{UID}/{ID}"), id, Some(UID), None);
        let slice = UID.replace('-', "_");
        let scope = format!("cri-containerd-{ID}.scope");
        let path = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/{scope}"
        );
        check(&path, id, Some(&slice), Some(&scope));
        let scope = format!("crio-{ID}.scope");
        let path = format!("/kubepods.slice/kubepods-pod{slice}.slice/{scope}/container");
        check(&path, id, Some(&slice), Some(&scope));
        // A static pod has the digest of its manifest.
        let digest = "0123456789abcdef0123456789abcdef";
        let path = format!("/kubepods/besteffort/pod{digest}/crio-{ID}");
        check(&path, id, Some(digest), None);
        // kind: a node that is a container, with a kubelet below.
        let path = format!("/docker/{INNER}/kubelet/kubepods/besteffort/pod{UID}/{ID}");
        check(&path, id, Some(UID), None);
        check("/podcasts", None, None, None);
    }

    #[test]
    fn units_of_the_system_and_of_users() {
        let unit = |path: &str, unit: &str| check(path, None, None, Some(unit));
        unit("/system.slice/nginx.service", "nginx.service");
        unit(
            "/system.slice/system-getty.slice/getty@tty1.service",
            "getty@tty1.service",
        );
        unit(
            "/user.slice/user-1000.slice/session-2.scope",
            "session-2.scope",
        );
        unit("/init.scope", "init.scope");
        // What a service delegates is still of the service.
        unit("/system.slice/slurmd.service/job.service", "slurmd.service");
        let user = "/user.slice/user-1000.slice/user@1000.service";
        unit(user, "user@1000.service");
        unit(
            &format!("{user}/app.slice/backup.service"),
            "backup.service",
        );
        unit(&format!("{user}/init.scope"), "init.scope");
        check("/user.slice", None, None, None);
        check("/", None, None, None);
    }

    #[test]
    fn any_text_is_read() {
        for path in [
            "",
            "//",
            "/lxc",
            "/lxc.payload.",
            "/machine-",
            "/-.scope",
            "pod",
            "/\u{202e}-x",
        ] {
            CgroupLabels::of(path);
        }
        let deep = "/a.service".repeat(100_000);
        assert_eq!(CgroupLabels::of(&deep).unit, Some("a.service"));
        let long = format!("/{}.service", "x".repeat(1 << 20));
        assert_eq!(CgroupLabels::of(&long), CgroupLabels::default());
    }
}
