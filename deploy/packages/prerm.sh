#!/bin/sh
# Runs before the files are removed. $1 is `remove` for dpkg, or the number of remaining versions
# for rpm. During an update, the agent keeps running until postinst restarts it.
set -e
unit=aiprof-agent.service
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
    if [ -x /usr/bin/deb-systemd-invoke ]; then
        deb-systemd-invoke stop $unit >/dev/null || :
    else
        systemctl stop $unit >/dev/null || :
    fi
fi
if [ "$1" = 0 ] && [ -x /usr/bin/systemctl ]; then
    systemctl disable $unit >/dev/null 2>&1 || :
fi
