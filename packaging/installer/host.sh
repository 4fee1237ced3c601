# shellcheck shell=bash
# Is the host fit? Made to be sourced by install.sh, whose variables these are.
# shellcheck disable=SC2154

at_least() { printf '%s\n%s\n' "$1" "$2" | sort --check --version-sort 2>/dev/null; }

problems=()
problem() { problems+=("$*"); }

check_python() {
    local version
    version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" || {
        problem "$python is missing: apt-get install python3 python3-venv"
        return
    }
    at_least "$oldest_python" "$version" ||
        problem "$python is $version and must be $oldest_python or newer: upgrade the host"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        problem "$python can't make virtual environments: apt-get install python3-venv"
}

# docker as the agent has it: nothing in root's home, no plugin and no context, counts.
agents_docker() {
    env -i PATH="$PATH" HOME="$scratch" DOCKER_CONFIG="$scratch" \
        DOCKER_HOST="${DOCKER_HOST:-unix:///var/run/docker.sock}" docker "$@" 2>/dev/null
}

check_engine() {
    local version
    version="$(agents_docker version --format '{{.Server.Version}}')" || {
        problem "the Docker Engine does not answer: systemctl start docker"
        return
    }
    at_least "$oldest_engine" "$version" ||
        problem "Docker Engine is $version and must be $oldest_engine or newer: upgrade it"
}

check_compose() {
    local version
    version="$(agents_docker compose version --short)" || version=""
    version="${version#v}"
    if [[ ! $version =~ ^[0-9]+\.[0-9]+ ]]; then
        problem "the Compose plugin is missing, or only in a home: install it for all users" \
            "(package docker-compose-plugin or docker-compose, or /usr/local/lib/docker/cli-plugins)"
    elif ! at_least "$oldest_compose" "$version"; then
        problem "Compose is $version and must be $oldest_compose or newer: upgrade the plugin"
    fi
}

check_host() {
    [[ -d /run/systemd/system ]] || problem "this host does not run systemd, which the agent needs"
    check_python
    if command -v docker >/dev/null; then
        check_engine
        check_compose
    else
        problem "Docker is not installed: apt-get install docker.io"
    fi
    ((${#problems[@]})) || return 0
    printf 'install.sh: %s\n' "${problems[@]}" >&2
    fail "nothing was changed"
}
