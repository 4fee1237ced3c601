#!/usr/bin/env bash
# Installs, upgrades, rolls back or removes monky-deployd on a systemd host. Made to be run again:
# what is right already is left alone. `install.sh --help` says how to use it.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

name=monky-deployd
python=/usr/bin/python3
opt=/opt/monky-deployd
etc=/etc/monky-deployd
state=/var/lib/monky-deployd
config=$etc/config.yaml
unit=/etc/systemd/system/$name.service
dropins=$unit.d
sysusers=/etc/sysusers.d/$name.conf
link=/usr/local/bin/$name
# The overlay intercept's port; the authority is openziti's state/overlay/configs.json.
tenancy_port=443

# The oldest of each that the agent is tested with.
oldest_python=3.11
oldest_engine=20.10
oldest_compose=2.26.1

# How long (seconds) an upgrade may take until it is in contact with tenancy.
contact_patience=90

usage() {
    cat <<EOF
usage: install.sh [options]              install, or upgrade what is installed
       install.sh --rollback             go back to the version before the last upgrade
       install.sh --uninstall [--purge]  remove the agent; containers keep running

  --from WHEEL|DIR       the wheel, a directory with one, or a source tree (default: beside this script)
  --offline WHEELHOUSE   take the dependencies from this directory instead of PyPI
  --config FILE          put this configuration in place (the old one is kept as config.yaml.old)
  --grant FILE|-         install this grant; - reads it from standard input
  --no-start             do everything but enable and start the service
  --dry-run              check the host and say what would be done
  --purge                with --uninstall: also remove configuration, grant, state and user
  --help                 this text

Without --config, $config is made from the example if it is missing, and never overwritten.
Tenancy is dialled at the overlay's intercept, port $tenancy_port unless the configuration says otherwise.
EOF
}

say() { printf '%s: %s\n' "install.sh" "$*"; }

fail() {
    say "$*" >&2
    exit 1
}

# --- what was asked for

from=""
wheelhouse=""
new_config=""
grant=""
start=1
dry_run=0
action=install
purge=0

parse() {
    while (($#)); do
        case "$1" in
        --from | --offline | --config | --grant)
            (($# >= 2)) || fail "$1 needs a value; see --help"
            case "$1" in
            --from) from="$2" ;;
            --offline) wheelhouse="$2" ;;
            --config) new_config="$2" ;;
            --grant) grant="$2" ;;
            esac
            shift
            ;;
        --no-start) start=0 ;;
        --dry-run) dry_run=1 ;;
        --rollback) action=rollback ;;
        --uninstall) action=uninstall ;;
        --purge) purge=1 ;;
        --help | -h)
            usage
            exit 0
            ;;
        *) fail "unknown option $1; see --help" ;;
        esac
        shift
    done
    ((!purge)) || [[ $action == uninstall ]] || fail "--purge goes with --uninstall"
    [[ -z $new_config || -f $new_config ]] || fail "there is no configuration $new_config"
    [[ -z $grant || $grant == - || -f $grant ]] || fail "there is no grant file $grant"
    [[ -z $wheelhouse || -d $wheelhouse ]] || fail "there is no wheelhouse $wheelhouse"
}

# --- is the host fit?

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

check_engine() {
    local version
    command -v docker >/dev/null || {
        problem "Docker is not installed: apt-get install docker.io"
        return
    }
    version="$(docker version --format '{{.Server.Version}}' 2>/dev/null)" || {
        problem "the Docker Engine does not answer: systemctl start docker"
        return
    }
    at_least "$oldest_engine" "$version" ||
        problem "Docker Engine is $version and must be $oldest_engine or newer: upgrade it"
    check_compose
}

# Under an empty DOCKER_CONFIG, as the agent has it: a plugin in root's home doesn't count.
check_compose() {
    local version empty
    empty="$(mktemp -d)"
    version="$(env -i PATH="$PATH" HOME="$empty" DOCKER_CONFIG="$empty" \
        docker compose version --short 2>/dev/null)" || version=""
    rm -rf "$empty"
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
    check_engine
    ((${#problems[@]} == 0)) && return
    printf 'install.sh: %s\n' "${problems[@]}" >&2
    fail "nothing was changed"
}

# --- the package

scratch=""
made_version=""
committed=0

# What was made for a version that didn't get as far as being used.
clean_up() {
    [[ -z $scratch ]] || rm -rf "$scratch"
    if ((!committed)) && [[ -n $made_version ]]; then
        rm -rf "$made_version"
        rmdir --ignore-fail-on-non-empty "$opt/versions" "$opt" 2>/dev/null || true
    fi
}

pip_options() {
    printf '%s\n' --quiet --disable-pip-version-check --no-input --no-cache-dir
    [[ -z $wheelhouse ]] || printf '%s\n' --no-index --find-links "$wheelhouse"
}

only_wheel_in() {
    local found
    found=("$1"/monky_deployd-*.whl)
    [[ -f ${found[0]} ]] || return 1
    ((${#found[@]} == 1)) || fail "$1 holds several wheels of $name: name one with --from"
    printf '%s\n' "${found[0]}"
}

# The wheel to install; a source tree is built into one.
find_wheel() {
    local source="${from:-$here}"
    if [[ -f $source ]]; then
        [[ $source == *.whl ]] || fail "$source is not a wheel"
        printf '%s\n' "$source"
        return
    fi
    [[ -d $source ]] || fail "there is no $source"
    only_wheel_in "$source" && return
    [[ -f $source/pyproject.toml || -n $from ]] || source="$here/.."
    [[ -f $source/pyproject.toml ]] || fail "$source holds neither a wheel nor a source tree"
    "$python" -m venv "$scratch/build" || fail "a virtual environment can't be made"
    mapfile -t options < <(pip_options)
    "$scratch/build/bin/pip" wheel "${options[@]}" --no-deps --wheel-dir "$scratch/wheel" "$source" >&2 ||
        fail "the source tree $source can't be built into a wheel"
    only_wheel_in "$scratch/wheel"
}

wheel_version() {
    local base="${1##*/}"
    base="${base#monky_deployd-}"
    printf '%s\n' "${base%%-*}"
}

# Where this wheel's virtual environment is, or is to be: another build of the same version gets
# another directory, so that what runs is never rebuilt under its own feet.
version_dir() {
    local sum plain
    sum="$(sha256sum "$1")"
    plain="$opt/versions/$(wheel_version "$1")"
    if [[ -e $plain && "$(cat "$plain/wheel.sha256" 2>/dev/null)" != "${sum%% *}" ]]; then
        plain+="+${sum:0:8}"
    fi
    printf '%s\n' "$plain"
}

# A whole virtual environment has its mark written last.
build_version() {
    local wheel="$1" target="$2" sum
    sum="$(sha256sum "$wheel")"
    if [[ "$(cat "$target/wheel.sha256" 2>/dev/null)" == "${sum%% *}" ]]; then
        say "${target##*/} is there already"
        return
    fi
    say "building $target"
    rm -rf "$target"
    made_version="$target"
    mkdir -p "$opt/versions"
    "$python" -m venv "$target" || fail "a virtual environment can't be made in $target"
    mapfile -t options < <(pip_options)
    "$target/bin/pip" install "${options[@]}" --require-hashes --only-binary :all: \
        --requirement "$here/requirements.lock" ||
        fail "the dependencies can't be installed; nothing was changed"
    "$target/bin/pip" install "${options[@]}" --no-deps "$wheel" ||
        fail "$wheel can't be installed; nothing was changed"
    # Readable for the service user whatever root's umask is.
    chmod -R u+rwX,go+rX,go-w "$target"
    printf '%s\n' "${sum%% *}" >"$target/wheel.sha256"
}

# --- putting it in place

# Installs a file if it differs; true if it did.
put() {
    local mode="$1" source="$2" target="$3"
    cmp --silent "$source" "$target" && [[ "$(stat -c %a "$target")" == "$mode" ]] && return 1
    install -D --mode="$mode" "$source" "$target"
    say "wrote $target"
}

example() {
    local candidate
    for candidate in "$here/config.example.yaml" "$here/../config.example.yaml"; do
        [[ -f $candidate ]] && printf '%s\n' "$candidate" && return
    done
    fail "config.example.yaml is missing beside this script"
}

check_config() {
    local target="$1" file="$2"
    "$target/bin/$name" --config "$file" config check >/dev/null 2>"$scratch/config.err" ||
        fail "$(sed 's/^monky-deployd: //' "$scratch/config.err"); nothing was changed"
}

place_account() {
    put 644 "$here/monky-deployd.sysusers.conf" "$sysusers" || true
    systemd-sysusers "$sysusers"
    install -d -m 0755 -o root -g root "$etc"
    install -d -m 0700 -o "$name" -g "$name" "$state"
}

place_config() {
    if [[ -n $new_config ]]; then
        cmp --silent "$new_config" "$config" && return
        [[ ! -f $config ]] || cp --preserve=all "$config" "$config.old"
        install -m 0640 -o root -g "$name" "$new_config" "$config"
        say "wrote $config"
    elif [[ ! -e $config ]]; then
        install -m 0640 -o root -g "$name" "$(example)" "$config"
        say "wrote $config from the example: set environment, tenancy.host and openbao.url in it"
    fi
}

systemd_version() { systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p'; }

# Newer features stand in drop-ins, because an older systemd warns of them or takes them wrongly.
place_unit() {
    local changed=1 dropin since
    put 644 "$here/monky-deployd.service" "$unit" && changed=0
    for dropin in "$here"/monky-deployd.service.d/*.conf; do
        [[ -f $dropin ]] || continue
        since="${dropin##*systemd-}"
        since="${since%.conf}"
        (($(systemd_version) >= since)) || continue
        put 644 "$dropin" "$dropins/${dropin##*/}" && changed=0
    done
    ((changed)) || systemctl daemon-reload
}

point() {
    ln -sfn "$2" "$1.new"
    mv -T "$1.new" "$1"
}

target_of() { [[ -L $1 ]] && readlink "$1"; }

place_links() {
    local target="$1" before
    before="$(target_of "$opt/current" || true)"
    if [[ -n $before && $before != "$target" ]]; then point "$opt/previous" "$before"; fi
    [[ $before == "$target" ]] || say "current is now ${target##*/}"
    point "$opt/current" "$target"
    [[ "$(target_of "$link" || true)" == "$opt/current/bin/$name" ]] ||
        point "$link" "$opt/current/bin/$name"
}

# Only the current version and the one before it stay.
prune_versions() {
    local kept version
    kept=" $(target_of "$opt/current" || true) $(target_of "$opt/previous" || true) "
    for version in "$opt"/versions/*; do
        [[ $kept == *" $version "* ]] || rm -rf "$version"
    done
}

install_grant() {
    [[ -n $grant ]] || return 0
    "$1/bin/$name" --config "$config" grant install "$grant" || fail "the grant was not installed"
}

# --- running it

status_text() { systemctl show --property=StatusText --value "$name"; }
is_active() { systemctl is-active --quiet "$name"; }
in_contact() { is_active && [[ $(status_text) == *"in contact with tenancy"* ]]; }

wait_for_contact() {
    local deadline=$((SECONDS + contact_patience))
    until in_contact; do
        ((SECONDS < deadline)) && ! systemctl is-failed --quiet "$name" || return 1
        sleep 1
    done
}

# Starts what is current. READY comes from the agent itself; what it must show beyond READY is $1.
start_current() {
    systemctl enable --quiet "$name"
    systemctl restart "$name" || return 1
    [[ $1 == ready ]] || wait_for_contact
}

why_not() {
    local text
    text="$(status_text)"
    printf '%s' "${text:-it did not become ready; see journalctl -u $name}"
}

go_back() {
    local previous
    previous="$(target_of "$opt/previous")" || fail "there is no earlier version to go back to"
    [[ -x $previous/bin/$name ]] || fail "the earlier version $previous is not whole"
    point "$opt/previous" "$(target_of "$opt/current")"
    point "$opt/current" "$previous"
    systemctl restart "$name" || fail "${previous##*/} does not start either; see journalctl -u $name"
    say "went back to ${previous##*/}"
}

# $1: whether a version was running in contact before, so that the new one must be too.
start_and_judge() {
    local was_in_contact="$1" upgrade="$2" why
    if ((was_in_contact)); then
        start_current contact && say "started; in contact with tenancy" && return
    else
        start_current ready && say "started: $(status_text)" && return
    fi
    why="$(why_not)"
    ((upgrade)) || fail "the service did not come up: $why"
    say "the new version did not come up well: $why" >&2
    go_back
    exit 1
}

# --- the actions

do_install() {
    local wheel target was_in_contact=0 upgrade=0 before
    check_host
    scratch="$(mktemp -d)"
    wheel="$(find_wheel)"
    target="$(version_dir "$wheel")"
    before="$(target_of "$opt/current" || true)"
    if ((dry_run)); then
        say "the host is fit; would install $(wheel_version "$wheel") into $target"
        [[ -z $before ]] || say "would upgrade from ${before##*/}, and go back if it does not come up"
        return
    fi
    build_version "$wheel" "$target"
    if [[ -n $new_config ]]; then check_config "$target" "$new_config"; fi
    if [[ -z $new_config && -e $config ]]; then check_config "$target" "$config"; fi
    ! in_contact || was_in_contact=1
    [[ -z $before || $before == "$target" ]] || upgrade=1
    place_account
    place_config
    place_unit
    place_links "$target"
    committed=1
    install_grant "$target"
    if ((start)); then start_and_judge "$was_in_contact" "$upgrade"; fi
    prune_versions
    say "$name $(wheel_version "$wheel") is installed"
}

do_uninstall() {
    local project
    systemctl disable --now --quiet "$name" 2>/dev/null || true
    rm -rf "$unit" "$dropins" "$opt"
    rm -f "$link"
    systemctl daemon-reload
    systemctl reset-failed "$name" 2>/dev/null || true
    if ((!purge)); then
        say "removed; $etc, $state and the user stay, and containers keep running"
        return
    fi
    rm -rf "$etc" "$state" "$sysusers"
    if getent passwd "$name" >/dev/null; then userdel "$name"; fi
    if getent group "$name" >/dev/null; then groupdel "$name"; fi
    say "removed, with configuration, grant, state and user"
    project="$(docker ps --quiet --filter "label=com.docker.compose.project.working_dir=$state/current" \
        2>/dev/null | wc -l)" || project=0
    ((project == 0)) || say "$project containers of the environment still run; remove them with docker"
}

main() {
    parse "$@"
    ((EUID == 0)) || fail "this must be run as root; nothing was changed"
    exec {lock}>/run/lock/monky-deployd-install.lock
    flock --nonblock "$lock" || fail "another install.sh is at work; nothing was changed"
    trap clean_up EXIT
    case "$action" in
    install) do_install ;;
    rollback) go_back ;;
    uninstall) do_uninstall ;;
    esac
}

main "$@"
