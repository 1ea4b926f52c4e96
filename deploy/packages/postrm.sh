#!/bin/sh
# Runs after the files are removed. dpkg keeps profiles when it removes the package, and deletes
# them when it purges the package. rpm has no purge, so it never deletes them (docs/deploy.md).
set -e
unit=aiprof-agent.service
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null || :
fi
case "$1" in
remove)
    # Links in /etc stay until the purge. The mask prevents a start without the program.
    if [ -x /usr/bin/deb-systemd-helper ]; then
        deb-systemd-helper mask $unit >/dev/null
    fi
    ;;
purge)
    if [ -x /usr/bin/deb-systemd-helper ]; then
        deb-systemd-helper purge $unit >/dev/null
        deb-systemd-helper unmask $unit >/dev/null
    fi
    # Files that an output wrote elsewhere are kept.
    rm -rf /var/lib/aiprof
    # Running recordings may have locks and sockets there too.
    rm -f /run/aiprof/control-agent.sock
    rmdir /run/aiprof 2>/dev/null || :
    # Secrets of the administrator in this directory are kept.
    rmdir /etc/aiprof 2>/dev/null || :
    ;;
esac
