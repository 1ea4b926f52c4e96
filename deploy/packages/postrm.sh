#!/bin/sh
# After the files are gone. Profiles stay when dpkg removes the package, and go when it purges
# it. rpm knows no purge: there they go never, and docs/deploy.md says so.
set -e
unit=aiprof-agent.service
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null || :
fi
case "$1" in
remove)
    # Its links in /etc stay until it is purged; nothing starts what is not there.
    if [ -x /usr/bin/deb-systemd-helper ]; then
        deb-systemd-helper mask $unit >/dev/null
    fi
    ;;
purge)
    if [ -x /usr/bin/deb-systemd-helper ]; then
        deb-systemd-helper purge $unit >/dev/null
        deb-systemd-helper unmask $unit >/dev/null
    fi
    # Not what an output elsewhere wrote.
    rm -rf /var/lib/aiprof
    # Locks and sockets of recordings that still run lie there too.
    rm -f /run/aiprof/control-agent.sock
    rmdir /run/aiprof 2>/dev/null || :
    # Secrets that the administrator put beside the configuration are not the package's.
    rmdir /etc/aiprof 2>/dev/null || :
    ;;
esac
