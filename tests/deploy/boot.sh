#!/bin/sh
# boot.sh LOWER UPPER WORK ROOT: boots the real systemd of a Debian root in namespaces of its own,
# with the host's network, so that it reaches servers of a test. What it writes goes to UPPER.
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
    for node in null zero full random urandom tty; do
        touch dev/$node
        mount --bind /dev/$node dev/$node
    done
    mkdir dev/shm dev/pts
    mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    touch dev/console
    mount --bind /dev/null dev/console
    hostname aiprof-test
    exec env -i container=aiprof-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        chroot . /lib/systemd/systemd --system --unit=multi-user.target --show-status=false
' sh "$@"
