#!/bin/sh
# Runs a command in a control group of its own, and shows that group as /sys/fs/cgroup to a
# container that the command starts.
#
#   own_cgroup.sh NAME VIEW COMMAND…
#
# NAME is the group, made below the caller's own in each hierarchy. VIEW is an empty directory:
# in the command's mount namespace it holds what the container is to see. systemd-nspawn puts
# the container into `payload` below the group, in the hierarchies that systemd keeps units in,
# and that is where the container's cgroup namespace begins. If the view began anywhere else,
# PID 1 would stand outside its own namespace, which systemd-journald 257 refuses (EUNATCH).
set -eu

name=$1
view=$2
shift 2

# Read at once: the loop below changes what it says.
memberships=$(cat /proc/self/cgroup)
mounts="mount -t tmpfs -o mode=755 tmpfs '$view'"

while IFS=: read -r _ controllers own; do
    payload=
    case $controllers in
    '') hierarchy=unified payload=/payload ;;
    name=*) hierarchy=${controllers#name=} payload=/payload ;;
    *) hierarchy=$controllers ;;
    esac
    top=/sys/fs/cgroup/$hierarchy
    group=$top${own%/}/$name
    [ -f "$top/cgroup.procs" ] || continue
    mkdir -p "$group$payload"
    if [ "$hierarchy" = cpuset ]; then
        # A new group has no processors and no memory nodes, and takes no process before it has.
        for list in cpuset.cpus cpuset.mems; do cat "${group%/*}/$list" >"$group/$list"; done
    fi
    echo $$ >"$group/cgroup.procs"
    mounts="$mounts && mkdir '$view/$hierarchy'"
    mounts="$mounts && mount --bind '$group$payload' '$view/$hierarchy'"
    mounts="$mounts && mount --bind '$group' '$top'"
done <<EOF
$memberships
EOF

exec unshare --mount --cgroup sh -euc "$mounts"' && exec "$@"' sh "$@"
