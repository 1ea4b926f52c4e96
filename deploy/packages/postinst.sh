#!/bin/sh
# Runs after the files are installed. dpkg passes `configure` as $1 and the previous version as $2.
# rpm passes the number of installed versions as $1: 1 at the first installation.
set -e
unit=aiprof-agent.service
is_update=
case "$1" in
configure) [ -z "$2" ] || is_update=yes ;;
1) ;;
[2-9]*) is_update=yes ;;
*) exit 0 ;; # dpkg recovers from a failure.
esac

# If the administrator disabled or masked the unit, it stays that way.
if [ -x /usr/bin/deb-systemd-helper ]; then
    deb-systemd-helper unmask $unit >/dev/null
    if deb-systemd-helper --quiet was-enabled $unit; then
        deb-systemd-helper enable $unit >/dev/null
    else
        deb-systemd-helper update-state $unit >/dev/null
    fi
elif [ -z "$is_update" ] && [ -x /usr/bin/systemctl ]; then
    systemctl enable $unit >/dev/null 2>&1 || :
fi

# A container build has no service manager, so nothing is started there.
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload >/dev/null || :
if [ -x /usr/bin/deb-systemd-invoke ]; then
    # It respects policy-rc.d and ignores disabled units.
    invoke=deb-systemd-invoke
else
    invoke=systemctl
fi
# `try-restart` does not start an agent that was stopped.
if [ -n "$is_update" ]; then
    $invoke try-restart $unit >/dev/null || :
else
    $invoke start $unit >/dev/null || :
fi
