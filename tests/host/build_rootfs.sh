#!/usr/bin/env bash
# Builds the root file system of a bare Debian host for the tests, and prints its path.
#
#   tests/host/build_rootfs.sh bookworm|trixie
#
# The archive stays in the cache until the package list below changes. Packages come from
# mmdebstrap's default mirror; MONKY_MIRROR names another one (a URI, or a file of apt sources).
set -euo pipefail

# shellcheck source=packaging/parts.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../packaging/parts.sh"

# systemd with its bus, Python for the agent, Docker as Debian ships it.
packages=(
    systemd systemd-sysv dbus
    python3 python3-venv ca-certificates
    docker.io iptables iproute2
)

rootfs_packages() {
    case "$1" in
    bookworm) printf '%s\n' "${packages[@]}" ;;
    # From Debian 13 on the CLI is a package of its own, and Compose is packaged.
    trixie) printf '%s\n' "${packages[@]}" docker-cli docker-compose ;;
    *) parts_fail "build_rootfs.sh doesn't know the Debian suite $1; use bookworm or trixie" ;;
    esac
}

rootfs_build() {
    local suite="$1" include="$2" target="$3"
    parts_say "building the root file system of $suite (about 40 s): $target"
    rm -f "${target%/*}/$suite"-*.tar
    parts_twice mmdebstrap --format=tar --variant=minbase --include="$include" \
        "$suite" "$target.new" ${MONKY_MIRROR:+"$MONKY_MIRROR"}
    mv "$target.new" "$target"
}

main() {
    (($# == 1)) || parts_fail 'usage: build_rootfs.sh bookworm|trixie'
    local suite="$1" include key target
    include="$(rootfs_packages "$suite" | paste -sd,)"
    key="$(printf '%s' "$include" | sha256sum | cut -c1-12)"
    target="$parts_cache/rootfs/$suite-$key.tar"
    parts_for_host
    mkdir -p "${target%/*}"
    exec {lock}>"$parts_cache/rootfs/$suite.lock"
    flock "$lock"
    [[ -f $target ]] || rootfs_build "$suite" "$include" "$target"
    printf '%s\n' "$target"
}

main "$@"
