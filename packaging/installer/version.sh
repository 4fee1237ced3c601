# shellcheck shell=bash
# A version of the agent, from its wheel to a directory that it runs from. Made to be sourced by
# install.sh, whose variables these are.
# shellcheck disable=SC2154

pip() {
    local python="$1" command="$2"
    shift 2
    [[ -z $wheelhouse ]] || set -- --no-index --find-links "$wheelhouse" "$@"
    "$python" -m pip "$command" --quiet --disable-pip-version-check --no-input --no-cache-dir "$@" >&2
}

only_wheel_in() {
    local found
    found=("$1"/monky_deployd-*.whl)
    [[ -f ${found[0]} ]] || return 1
    ((${#found[@]} == 1)) || fail "$1 holds several wheels of $name: name one with --from"
    printf '%s\n' "${found[0]}"
}

# Prints the path of the wheel to install; a source tree is built into one.
find_wheel() {
    local source="${from:-$here}"
    [[ -e $source ]] || fail "there is no $source"
    if [[ -f $source ]]; then
        [[ $source == *.whl ]] || fail "$source is not a wheel"
        printf '%s\n' "$source"
        return
    fi
    only_wheel_in "$source" && return
    # In a source tree this script stands one level down.
    [[ -n $from ]] || source="$here/.."
    [[ -f $source/pyproject.toml ]] || fail "$source holds neither a wheel nor a source tree"
    "$python" -m venv "$scratch/build" || fail "a virtual environment can't be made"
    pip "$scratch/build/bin/python" wheel --no-deps --wheel-dir "$scratch/wheel" "$source" ||
        fail "the source tree $source can't be built into a wheel; nothing was changed"
    only_wheel_in "$scratch/wheel"
}

wheel_version() {
    local base="${1##*/monky_deployd-}"
    printf '%s\n' "${base%%-*}"
}

# What a version is made of: its wheel, its dependencies, its unit.
build_id() {
    cat "$1" "$here/requirements.lock" "$here/$name.service" "$here/$name.service.d"/*.conf |
        sha256sum | cut -d' ' -f1
}

# Where the version of this wheel is, or is to be. Another build under the same number gets another
# directory, so that what runs is never rebuilt under its own feet.
version_dir() {
    local id plain
    id="$(build_id "$1")"
    plain="$opt/versions/$(wheel_version "$1")"
    if [[ -e $plain && "$(cat "$plain/build.id" 2>/dev/null)" != "$id" ]]; then
        plain+="+${id:0:8}"
    fi
    printf '%s\n' "$plain"
}

# A version that was made to its end, and whose Python is still the one that it was made with.
is_whole() {
    [[ "$(cat "$2/build.id" 2>/dev/null)" == "$(build_id "$1")" ]] &&
        "$2/bin/$name" --version >/dev/null 2>&1
}

unfinished=""
keep_version() { unfinished=""; }

# A version that was not made to its end, or that is not to be used, leaves nothing behind.
drop_unfinished() {
    [[ -n $unfinished ]] || return 0
    rm -rf "$unfinished"
    rmdir --ignore-fail-on-non-empty "$opt/versions" "$opt" 2>/dev/null || true
}

# A version: a virtual environment, and the unit that goes with it.
build_version() {
    local wheel="$1" target="$2"
    if is_whole "$wheel" "$target"; then
        say "${target##*/} is there already"
        return
    fi
    say "building $target"
    rm -rf "$target"
    unfinished="$target"
    mkdir -p "$opt/versions"
    "$python" -m venv "$target" || fail "a virtual environment can't be made; nothing was changed"
    pip "$target/bin/python" install --require-hashes --only-binary :all: \
        --requirement "$here/requirements.lock" ||
        fail "the dependencies can't be installed; nothing was changed"
    pip "$target/bin/python" install --no-deps "$wheel" ||
        fail "$wheel can't be installed; nothing was changed"
    "$target/bin/$name" --version >/dev/null || fail "$wheel does not run here; nothing was changed"
    mkdir "$target/unit"
    cp "$here/$name.service" "$here/$name.service.d"/*.conf "$target/unit"
    build_id "$wheel" >"$target/build.id"
}
