#!/bin/sh
# After the files are there. $1 is `configure` for dpkg, with the version before as $2; for rpm
# it is how many versions there are: 1 at the first installation.
set -e
unit=aiprof-agent.service
is_update=
case "$1" in
configure) [ -z "$2" ] || is_update=yes ;;
1) ;;
[2-9]*) is_update=yes ;;
*) exit 0 ;; # What dpkg does after a failure.
esac

# Who disabled or masked the unit keeps it so.
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

# A container that is built has no service manager, and nothing is started there.
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload >/dev/null || :
if [ -x /usr/bin/deb-systemd-invoke ]; then
    # It asks policy-rc.d, and does nothing to a unit that is disabled.
    invoke=deb-systemd-invoke
else
    invoke=systemctl
fi
# `try-restart` leaves an agent alone that somebody stopped.
if [ -n "$is_update" ]; then
    $invoke try-restart $unit >/dev/null || :
else
    $invoke start $unit >/dev/null || :
fi
