//! Names of Kubernetes pods and containers, from the names of their logs on this node.
//!
//! Control groups have a pod's uid and a container's id. The names of both are in the names
//! of the directories and links that the kubelet makes for logs, since Kubernetes 1.14
//! (pkg/kubelet/kuberuntime/helpers.go and legacy.go):
//!
//! * `/var/log/pods/NAMESPACE_POD_UID/`
//! * `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`
//!
//! Nothing in them is opened, and no service is asked: any program can listen on the
//! kubelet's port without authentication, 10255, where the kubelet does not. Only
//! directories count that root alone can change: then the names in them are root's.

use super::cgroup;
use aiprof_model::labels::{self, CgroupLabels};
use aiprof_system::files::{kernel, others};
use rustc_hash::FxHashMap;
use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

/// Where the kubelet has the logs of pods, and links to those of containers.
const PODS: &str = "/var/log/pods";
const CONTAINERS: &str = "/var/log/containers";
/// Most entries of each that are read: a node has some 110 pods, and their dead.
const MAX_ENTRIES: usize = 8192;
/// How long what was read is believed without a look whether it has changed.
const BELIEVED: Duration = Duration::from_secs(1);
/// After how long a change of a directory shows in its time for sure.
const SETTLED: Duration = Duration::from_secs(2);
/// Longest name of a namespace or container, and of a pod (DNS labels and subdomains,
/// RFC 1123).
const MAX_LABEL: usize = 63;
const MAX_SUBDOMAIN: usize = 253;

/// A pod's name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pod {
    namespace: String,
    name: String,
}

/// Names of pods and containers, from the names of logs.
#[derive(Debug)]
pub(crate) struct PodNames {
    /// Pods by uid.
    pods: DirectoryNames<Pod>,
    /// Containers by id: their pods and own names.
    containers: DirectoryNames<(Pod, String)>,
    looked: Option<Instant>,
}

impl Default for PodNames {
    fn default() -> Self {
        Self::of(Path::new(PODS), Path::new(CONTAINERS))
    }
}

impl PodNames {
    fn of(pods: &Path, containers: &Path) -> Self {
        Self {
            pods: DirectoryNames::new(pods, pod_of),
            containers: DirectoryNames::new(containers, container_of),
            looked: None,
        }
    }

    /// The labels that the control groups of a process lead to.
    pub(crate) fn labels_of(&mut self, pid: u32) -> Vec<(String, String)> {
        let paths = cgroup::paths_of_process(pid);
        let found = paths.iter().map(|path| CgroupLabels::of(path));
        let found: Vec<CgroupLabels<'_>> = found.collect();
        let pod = found.iter().find_map(|on_path| on_path.pod);
        let container = found.iter().find_map(|on_path| on_path.container);
        if pod.is_none() && container.is_none() {
            return Vec::new();
        }
        if self.looked.is_none_or(|at| at.elapsed() >= BELIEVED) {
            self.pods.refresh();
            self.containers.refresh();
            self.looked = Some(Instant::now());
        }
        self.find(pod, container)
    }

    fn find(&self, pod: Option<&str>, container: Option<&str>) -> Vec<(String, String)> {
        let pod = pod.map(|uid| uid.replace('_', "-"));
        let pod = pod.and_then(|uid| self.pods.entries.get(&uid));
        let container = container.and_then(|id| self.containers.entries.get(id));
        let of_container = container.map(|(pod, _)| pod);
        // One of both is wrong, or old.
        let disagree = pod.zip(of_container).is_some_and(|(a, b)| a != b);
        let Some(pod) = of_container.or(pod).filter(|_| !disagree) else {
            return Vec::new();
        };
        let mut found = vec![
            (labels::NAMESPACE.to_owned(), pod.namespace.clone()),
            (labels::POD_NAME.to_owned(), pod.name.clone()),
        ];
        let name = container.map(|(_, name)| name.clone());
        found.extend(name.map(|name| (labels::CONTAINER_NAME.to_owned(), name)));
        found
    }
}

/// A directory, and what was read from the names in it.
#[derive(Debug)]
struct DirectoryNames<T> {
    directory: PathBuf,
    /// Reads a name: gives a key, and the value for it.
    read: fn(&str) -> Option<(String, T)>,
    entries: FxHashMap<String, T>,
    /// Which directory was read, and when it had last changed then.
    stamp: Option<(u64, u64, i64, i64)>,
}

impl<T> DirectoryNames<T> {
    fn new(directory: &Path, read: fn(&str) -> Option<(String, T)>) -> Self {
        Self {
            directory: directory.to_owned(),
            read,
            entries: FxHashMap::default(),
            stamp: None,
        }
    }

    /// Reads the names anew, if they may have changed.
    fn refresh(&mut self) {
        let Some(stamp) = self.changed() else {
            return;
        };
        self.entries.clear();
        self.stamp = stamp;
        if self.stamp.is_none() {
            return;
        }
        let names = others::read_dir(&self.directory, MAX_ENTRIES).unwrap_or_default();
        let names = names.iter().filter_map(|(_, name)| name.to_str());
        self.entries.extend(names.filter_map(self.read));
        // What changes in the same moment has the same time.
        let changed = self.stamp.map_or(0, |(_, _, seconds, _)| seconds);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let settled = now.is_ok_and(|now| {
            now.saturating_sub(SETTLED) > Duration::from_secs(changed.unsigned_abs())
        });
        if !settled {
            self.stamp = self.stamp.map(|(dev, ino, ..)| (dev, ino, i64::MIN, 0));
        }
    }

    /// Which state the directory is in, if that is another than was read; without one it is
    /// not there, or not root's alone.
    fn changed(&self) -> Option<Option<(u64, u64, i64, i64)>> {
        let stamp = kernel::open(&self.directory)
            .ok()
            .filter(others::is_roots_own)
            .and_then(|directory| directory.metadata().ok())
            .filter(std::fs::Metadata::is_dir)
            .map(|now| (now.dev(), now.ino(), now.mtime(), now.mtime_nsec()));
        (stamp.is_none() || stamp != self.stamp).then_some(stamp)
    }
}

/// `NAMESPACE_POD_UID`
fn pod_of(name: &str) -> Option<(String, Pod)> {
    let mut parts = name.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_uid = matches!(uid.len(), 32 | 36)
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let pod = pod(namespace, name)?;
    (parts.next().is_none() && is_uid).then(|| (uid.to_owned(), pod))
}

/// `POD_NAMESPACE_CONTAINER-ID.log`; longer than 255 bytes the id would be cut, and is not
/// found.
fn container_of(name: &str) -> Option<(String, (Pod, String))> {
    let (rest, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let mut parts = rest.split('_');
    let (name, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_whole = parts.next().is_none() && is_id && is_name(container, MAX_LABEL);
    let pod = pod(namespace, name)?;
    is_whole.then(|| (id.to_owned(), (pod, container.to_owned())))
}

fn pod(namespace: &str, name: &str) -> Option<Pod> {
    let are_names = is_name(namespace, MAX_LABEL) && is_name(name, MAX_SUBDOMAIN);
    are_names.then(|| Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Whether a text can be a name in Kubernetes.
fn is_name(text: &str, most: usize) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().next_back()];
    text.len() <= most
        && ends.into_iter().all(|byte| byte.is_some_and(is_inner))
        && text
            .bytes()
            .all(|byte| is_inner(byte) || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    const UID: &str = "2f0a7dd4-6a7e-4dd1-9c3c-6f3b1c1a2d3e";
    const STATIC: &str = "0123456789abcdef0123456789abcdef";
    const ID: &str = "7c2ae7b1e2f0c6a2d9d1a52b1c7a9ad60d3d0cc6b3b2f8f1f7a4b8f0e9d1c2b3";

    fn texts(found: &[(String, String)]) -> Vec<String> {
        let found = found.iter().map(|(key, value)| format!("{key}={value}"));
        found.collect()
    }

    #[test]
    fn logs_are_named_after_pods_and_containers() {
        let (uid, pod) = pod_of(&format!("ml_train-0.a_{UID}")).unwrap();
        assert_eq!(
            (&*uid, &*pod.namespace, &*pod.name),
            (UID, "ml", "train-0.a")
        );
        assert!(pod_of(&format!("kube-system_etcd-node1.x_{STATIC}")).is_some());
        let name = format!("train-0.a_ml_worker-gpu-{ID}.log");
        let (id, (of, container)) = container_of(&name).unwrap();
        assert_eq!((&*id, of, &*container), (ID, pod, "worker-gpu"));
    }

    #[test]
    fn any_other_name_says_nothing() {
        let long = "x".repeat(64);
        for name in [
            "",
            "_",
            "__",
            "ml_train",
            &format!("ml_train_{UID}_x"),
            &format!("ml_train_{}", &UID[1..]),
            &format!("Ml_train_{UID}"),
            &format!("ml_tr\u{202e}ain_{UID}"),
            &format!("-ml_train_{UID}"),
            &format!("{long}_train_{UID}"),
            &format!("ml__{UID}"),
        ] {
            assert!(pod_of(name).is_none(), "{name}");
        }
        for name in [
            "",
            ".log",
            "-.log",
            "train_ml_worker.log",
            &format!("train_ml_worker-{ID}"),
            &format!("train_ml_worker-{}.log", &ID[1..]),
            &format!("train_ml_wor ker-{ID}.log"),
            &format!("train_ml_{long}-{ID}.log"),
            &format!("train_ml_a_b-{ID}.log"),
            &format!("train_ml-{ID}.log"),
        ] {
            assert!(container_of(name).is_none(), "{name}");
        }
    }

    #[test]
    fn names_come_from_directories_of_root_alone() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: names_come_from_directories_of_root_alone: needs root");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let (pods, containers) = (root.path().join("pods"), root.path().join("containers"));
        let mut names = PodNames::of(&pods, &containers);
        let look = |names: &mut PodNames| {
            names.pods.refresh();
            names.containers.refresh();
        };
        look(&mut names);
        let uid = UID.replace('-', "_");
        assert_eq!(names.find(Some(&uid), Some(ID)), []);
        fs::create_dir_all(pods.join(format!("ml_train_{UID}"))).unwrap();
        fs::create_dir(&containers).unwrap();
        look(&mut names);
        let of_pod = ["namespace=ml", "pod_name=train"];
        assert_eq!(texts(&names.find(Some(&uid), Some(ID))), of_pod);
        // A moment later, at perhaps the same time.
        let link = containers.join(format!("train_ml_worker-{ID}.log"));
        std::os::unix::fs::symlink("/nowhere", &link).unwrap();
        look(&mut names);
        let all = ["namespace=ml", "pod_name=train", "container_name=worker"];
        assert_eq!(texts(&names.find(Some(&uid), Some(ID))), all);
        assert_eq!(texts(&names.find(None, Some(ID))), all);
        assert_eq!(names.find(Some(STATIC), None), []);
        // The link names another pod for the container.
        fs::rename(&link, containers.join(format!("other_ml_worker-{ID}.log"))).unwrap();
        look(&mut names);
        assert_eq!(names.find(Some(&uid), Some(ID)), []);
        // Others may write there.
        fs::set_permissions(&pods, fs::Permissions::from_mode(0o777)).unwrap();
        look(&mut names);
        assert_eq!(names.find(Some(&uid), None), []);
        std::os::unix::fs::chown(&containers, Some(65534), None).unwrap();
        look(&mut names);
        assert_eq!(names.find(None, Some(ID)), []);
    }

    #[test]
    fn processes_outside_of_pods_have_no_names() {
        let mut names = PodNames::default();
        let found = names.labels_of(std::process::id());
        let paths = cgroup::paths_of_process(std::process::id());
        let in_pod = paths
            .iter()
            .any(|path| CgroupLabels::of(path).pod.is_some());
        assert!(in_pod || found.is_empty(), "{found:?}");
        assert_eq!(names.labels_of(u32::MAX), []);
    }
}
