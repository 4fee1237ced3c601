#!/usr/bin/env bash
# Installs, upgrades, rolls back or removes monky-deployd on a systemd host. Made to be run again:
# what is right already is left alone. `install.sh --help` says how to use it.
set -euo pipefail

# Root's own settings must not show in what is installed: the service user has to read all of it.
umask 022
unset PYTHONPATH PYTHONHOME
# The agent looks for docker in the same places: docker.path of the configuration.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C

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
lock=/run/$name-install.lock
# The overlay intercept's port; the authority is openziti's state/overlay/configs.json.
tenancy_port=443

# The oldest of each that the agent is tested with.
oldest_python=3.11
oldest_engine=20.10
oldest_compose=2.26.1

usage() {
    cat <<END
usage: install.sh [options]              install, or upgrade what is installed
       install.sh --rollback             go back to the version before the last upgrade
       install.sh --uninstall [--purge]  remove the agent; containers keep running

  --from WHEEL|DIR       the wheel, a directory with one, or a source tree (default: beside this script)
  --offline WHEELHOUSE   take the dependencies from this directory instead of PyPI
  --config FILE          put this configuration in place (the old one is kept as config.yaml.old)
  --grant FILE|-         install this grant; - reads it from standard input
  --no-start             do everything but enable and start the service
  --wait SECONDS         how long an upgrade may take until it is in contact with tenancy (default $wait)
  --dry-run              check the host and say what would be done
  --purge                with --uninstall: also remove configuration, grant, state and user
  --help                 this text

Without --config, $config is made from the example if it is missing, and never overwritten.
Tenancy is dialled at the overlay's intercept, port $tenancy_port unless the configuration says otherwise.
END
}

# shellcheck source=packaging/installer/host.sh
source "$here/installer/host.sh"
# shellcheck source=packaging/installer/version.sh
source "$here/installer/version.sh"

say() { printf 'install.sh: %s\n' "$*"; }

fail() {
    say "$*" >&2
    exit 1
}

# --- what was asked for

action=install
from=""
wheelhouse=""
new_config=""
grant=""
start=1
wait=90
dry_run=0
purge=0

parse() {
    while (($#)); do
        case "$1" in
        --from | --offline | --config | --grant | --wait)
            (($# >= 2)) || fail "$1 needs a value; see --help"
            case "$1" in
            --from) from="$2" ;;
            --offline) wheelhouse="$2" ;;
            --config) new_config="$2" ;;
            --grant) grant="$2" ;;
            --wait) wait="$2" ;;
            esac
            shift
            ;;
        --no-start) start=0 ;;
        --dry-run) dry_run=1 ;;
        --rollback) action=roll_back ;;
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
}

check_options() {
    [[ $wait =~ ^[0-9]+$ ]] || fail "--wait takes a number of seconds"
    [[ -z $new_config || -f $new_config ]] || fail "there is no configuration $new_config"
    [[ -z $grant || $grant == - || -f $grant ]] || fail "there is no grant file $grant"
    [[ -z $wheelhouse || -d $wheelhouse ]] || fail "there is no wheelhouse $wheelhouse"
}

# --- putting it in place

changed=0

# Installs a file unless it is right already.
put() {
    local mode="$1" group="$2" source="$3" target="$4"
    if cmp --silent "$source" "$target" && [[ "$(stat -c '%a %G' "$target")" == "$mode $group" ]]; then
        return
    fi
    install -D --mode="$mode" --group="$group" "$source" "$target" || fail "$target can't be written"
    say "wrote $target"
    changed=1
}

example() {
    local candidate
    for candidate in "$here/config.example.yaml" "$here/../config.example.yaml"; do
        [[ -f $candidate ]] && printf '%s\n' "$candidate" && return
    done
    fail "config.example.yaml is missing beside this script"
}

# The configuration that will be in force.
coming_config() {
    if [[ -n $new_config ]]; then
        printf '%s\n' "$new_config"
    elif [[ -e $config ]]; then
        printf '%s\n' "$config"
    else
        example
    fi
}

# Lets the version that is to run judge configuration and grant, before anything is in place.
check_inputs() {
    local agent="$1/bin/$name" file said
    file="$(coming_config)"
    said="$("$agent" --config "$file" config check 2>&1)" ||
        fail "${said#"$name: "}; nothing was changed"
    [[ -n $grant ]] || return 0
    [[ $grant != - ]] || grant_text="$(cat)"
    said="$(give_grant "$agent" "$file" --check 2>&1)" ||
        fail "${said#"$name: "}; nothing was changed"
}

# From standard input the grant is kept in memory only.
give_grant() {
    local agent="$1" file="$2"
    shift 2
    if [[ $grant == - ]]; then
        "$agent" --config "$file" grant install "$@" - <<<"$grant_text"
    else
        "$agent" --config "$file" grant install "$@" "$grant"
    fi
}

place_account() {
    put 644 root "$here/$name.sysusers.conf" "$sysusers"
    systemd-sysusers "$sysusers"
    install -d -m 0755 "$etc"
    install -d -m 0700 -o "$name" -g "$name" "$state"
}

place_config() {
    [[ -n $new_config || ! -e $config ]] || return 0
    if [[ -n $new_config && -f $config ]] && ! cmp --silent "$new_config" "$config"; then
        cp --preserve=all "$config" "$config.old"
        config_replaced=1
    fi
    put 640 "$name" "$(coming_config)" "$config"
}

systemd_version() { systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p'; }

# Newer features stand in drop-ins, because an older systemd warns of them or takes them wrongly.
# They are named after the version that knows them; other drop-ins are the operator's.
place_unit() {
    local source="$1" before="$changed" file since systemd
    systemd="$(systemd_version)"
    changed=0
    put 644 root "$source/$name.service" "$unit"
    for file in "$source"/*-systemd-*.conf; do
        since="${file##*-systemd-}"
        if ((systemd >= ${since%.conf})); then put 644 root "$file" "$dropins/${file##*/}"; fi
    done
    for file in "$dropins"/*-systemd-*.conf; do
        if [[ -f $file && ! -f $source/${file##*/} ]]; then
            rm "$file"
            changed=1
        fi
    done
    if ((changed)); then systemctl daemon-reload; else changed="$before"; fi
}

point() {
    ln -sfn "$2" "$1.new"
    mv -T "$1.new" "$1"
}

# Where a link points to; nothing if there is none.
target_of() { [[ ! -L $1 ]] || readlink "$1"; }

# Makes a version the current one, programs and unit. What runs is not touched.
use_version() {
    local target="$1"
    place_unit "$target/unit"
    if [[ "$(target_of "$opt/current")" != "$target" ]]; then
        point "$opt/current" "$target"
        say "current is now ${target##*/}"
        changed=1
    fi
    [[ "$(target_of "$link")" == "$opt/current/bin/$name" ]] || point "$link" "$opt/current/bin/$name"
}

# Only the current version and the one before it stay.
prune_versions() {
    local kept version
    kept=" $(target_of "$opt/current") $(target_of "$opt/previous") "
    for version in "$opt"/versions/*; do
        [[ $kept == *" $version "* ]] || rm -rf "$version"
    done
}

# --- running it

property() { systemctl show --property="$1" --value "$name"; }
is_active() { systemctl is-active --quiet "$name"; }
in_contact() { is_active && [[ $(property StatusText) == *"in contact with tenancy"* ]]; }

wait_for_contact() {
    local deadline=$((SECONDS + $1))
    until in_contact; do
        # A crash after READY shows as a restart that nobody asked for.
        ((SECONDS < deadline)) && (($(property NRestarts) == 0)) || return 1
        sleep 0.5
    done
}

# systemctl returns when the agent says READY. One that was in contact with tenancy must be so again.
comes_up() {
    systemctl enable --quiet "$name" && systemctl restart "$name" 2>/dev/null || return 1
    if ((was_in_contact)); then wait_for_contact "$wait"; else wait_for_contact 5 || is_active; fi
}

why_not() {
    local text
    text="$(property StatusText)"
    printf '%s' "${text:-it did not become ready}; see journalctl -u $name"
}

# Starts a version in place of another; on failure everything is again as it was.
change_to() {
    local target="$1" before previous why
    before="$(target_of "$opt/current")"
    previous="$(target_of "$opt/previous")"
    use_version "$target"
    if [[ -n $before && $before != "$target" ]]; then point "$opt/previous" "$before"; fi
    ((start)) || return 0
    if ((!changed)) && is_active; then
        say "it runs already: $(property StatusText)"
        return
    fi
    if comes_up; then
        say "started: $(property StatusText)"
        return
    fi
    why="$(why_not)"
    if [[ -z $before || ($before == "$target" && $config_replaced == 0) ]]; then
        fail "the service did not come up: $why"
    fi
    say "${target##*/} did not come up well: $why" >&2
    take_back "$target" "$before" "$previous"
    exit 1
}

take_back() {
    local target="$1" before="$2" previous="$3"
    ((!config_replaced)) || cp --preserve=all "$config.old" "$config"
    use_version "$before"
    if [[ -n $previous ]]; then point "$opt/previous" "$previous"; else rm -f "$opt/previous"; fi
    [[ $action == roll_back || $target == "$before" ]] || rm -rf "$target"
    systemctl restart "$name" 2>/dev/null || fail "${before##*/} does not come up again either: $(why_not)"
    say "went back to ${before##*/}"
}

# --- the actions

scratch=""
was_in_contact=0
config_replaced=0
grant_text=""

do_install() {
    local wheel target before
    check_host
    wheel="$(find_wheel)"
    target="$(version_dir "$wheel")"
    before="$(target_of "$opt/current")"
    if ((dry_run)); then
        say "the host is fit; would install $(wheel_version "$wheel") into $target"
        [[ -z $before || $before == "$target" ]] ||
            say "would upgrade from ${before##*/}, and go back if it does not come up"
        return
    fi
    build_version "$wheel" "$target"
    check_inputs "$target"
    ! in_contact || was_in_contact=1
    place_account
    place_config
    if [[ -n $grant ]]; then give_grant "$target/bin/$name" "$config"; fi
    keep_version
    if cmp --silent "$(example)" "$config"; then
        start=0
        say "set environment, tenancy.host and openbao.url in $config, then: systemctl enable --now $name"
    fi
    change_to "$target"
    prune_versions
    say "$name $(wheel_version "$wheel") is installed"
}

do_roll_back() {
    local previous
    previous="$(target_of "$opt/previous")"
    [[ -n $previous ]] || fail "there is no earlier version to go back to"
    "$previous/bin/$name" --version >/dev/null 2>&1 || fail "the earlier version $previous does not run"
    if ((dry_run)); then
        say "would go back to ${previous##*/}"
        return
    fi
    ! in_contact || was_in_contact=1
    change_to "$previous"
}

do_uninstall() {
    local left
    if ((dry_run)); then
        say "would remove $name; containers would keep running"
        return
    fi
    systemctl disable --now --quiet "$name" 2>/dev/null || true
    rm -rf "$opt" "$unit" "$link" "$dropins"/*-systemd-*.conf
    rmdir --ignore-fail-on-non-empty "$dropins" 2>/dev/null || true
    if ((!purge)); then
        systemctl daemon-reload
        say "removed; $etc, $state and the user stay, and containers keep running"
        return
    fi
    rm -rf "$etc" "$state" "$sysusers" "$dropins"
    systemctl daemon-reload
    systemctl reset-failed "$name" 2>/dev/null || true
    if getent passwd "$name" >/dev/null; then userdel "$name"; fi
    if getent group "$name" >/dev/null; then groupdel "$name"; fi
    # Where the Ansible role unpacks its bundles; this script may be in one, and is read by now.
    rm -rf /var/cache/"$name"-[0-9]* /var/cache/"$name"-config.yaml
    rm -f "$lock"
    say "removed, with configuration, grant, state and user"
    left="$(agents_docker ps --quiet \
        --filter "label=com.docker.compose.project.working_dir=$state/current" | wc -l)" || left=0
    ((left == 0)) || say "$left containers of the environment keep running; docker removes them"
}

main() {
    parse "$@"
    ((EUID == 0)) || fail "this must be run as root; nothing was changed"
    check_options
    exec {held}>"$lock"
    flock --nonblock "$held" || fail "another install.sh is at work; nothing was changed"
    trap 'rm -rf "$scratch"; drop_unfinished' EXIT
    scratch="$(mktemp -d)"
    "do_$action"
}

main "$@"
