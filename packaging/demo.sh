#!/usr/bin/env bash
# The demo: one environment on this machine, from an empty host to a running service and a failed
# pull. Installs what is missing (Debian 12 or newer, as root), and cleans up after itself.
#
#   packaging/demo.sh [--keep]
set -euo pipefail

usage() {
    cat <<'END'
usage: packaging/demo.sh [--keep]

Starts a private registry, OpenBao, a Docker Engine if none runs, and a reference tenancy server
on loopback, and lets the agent deploy a service from them.

  --keep  leave all of it running to explore, until Ctrl-C
END
}

case "${1-}" in
'' | --keep) ;;
-h | --help)
    usage
    exit
    ;;
*)
    usage >&2
    exit 2
    ;;
esac

# shellcheck source=packaging/parts.sh
source "$(dirname "${BASH_SOURCE[0]}")/parts.sh"
parts_for_demo
# dockerd and iptables are there, and `su` leaves them out.
export PATH="$PATH:/usr/sbin:/sbin"
exec "$parts_venv/bin/python" -m monky_deployd.demo.show "$@"
