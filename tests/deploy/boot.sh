#!/bin/sh
# Boots the real systemd of a Debian root in namespaces of its own: boot.sh LOWER UPPER WORK ROOT.
# It has the host's network, so that it reaches servers of a test. What it writes goes to UPPER.
# /sys and /proc/sys are read-only, as in any container: no unit of it changes this machine.
set -e
exec unshare --mount --pid --fork --uts --ipc --cgroup --kill-child sh -ec '
    lower=$1 upper=$2 work=$3 root=$4
    mount --make-rprivate /
    mount -t overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$work" overlay "$root"
    cd "$root"
    mount -t proc proc proc
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs tmpfs tmp
    mount -t tmpfs -o mode=755 tmpfs dev
    # Nodes of its own: systemd changes the modes of some.
    mknod -m 666 dev/null c 1 3
    mknod -m 666 dev/zero c 1 5
    mknod -m 666 dev/full c 1 7
    mknod -m 666 dev/random c 1 8
    mknod -m 666 dev/urandom c 1 9
    mknod -m 666 dev/tty c 5 0
    mknod -m 600 dev/console c 1 3
    mkdir dev/shm dev/pts
    mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    hostname aiprof-test
    exec env -i container=aiprof-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        chroot . /lib/systemd/systemd --system --unit=multi-user.target --show-status=false
' sh "$@"
