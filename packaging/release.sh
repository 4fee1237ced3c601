#!/usr/bin/env bash
# Builds a release of this tree: wheel, sdist and the bundle that goes to a host.
# `release.sh --help` says how to use it.
set -euo pipefail

umask 022
export LC_ALL=C

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
name=monky-deployd
lock="$root/packaging/requirements.lock"
# Debian 12's and Debian 13's, on both architectures.
pythons=(3.11 3.13)
machines=(x86_64 aarch64)
# The oldest C library of those hosts takes all of these.
manylinux=(manylinux_2_28 manylinux_2_17 manylinux2014)

usage() {
    cat <<END
usage: packaging/release.sh [--allow-dirty] [OUTPUT]

Writes into OUTPUT (default: dist, in the tree)
  monky_deployd-VERSION-py3-none-any.whl, monky_deployd-VERSION.tar.gz   wheel and sdist
  $name-VERSION.tar.gz   the bundle: install.sh with all that it needs, also offline, on
                               Python ${pythons[*]}, ${machines[*]}
  SHA256SUMS                   of these

  --allow-dirty  build although the tree is not what the last commit says
  --help         this text

VERSION is that of monky_deployd/__init__.py. The dependencies in the bundle are those of
packaging/requirements.lock, checked against its hashes.
END
}

say() { printf 'release.sh: %s\n' "$*"; }

fail() {
    say "$*" >&2
    exit 1
}

allow_dirty=0
output="$root/dist"

parse() {
    while (($#)); do
        case "$1" in
        --allow-dirty) allow_dirty=1 ;;
        --help | -h)
            usage
            exit
            ;;
        -*) fail "unknown option $1; see --help" ;;
        *)
            (($# == 1)) || fail "one output directory is expected; see --help"
            output="$1"
            ;;
        esac
        shift
    done
}

check_tree() {
    local changes
    changes="$(git -C "$root" status --porcelain)" || fail "$root is not a git checkout"
    [[ -z $changes ]] || ((allow_dirty)) ||
        fail "the tree differs from its last commit; commit, or use --allow-dirty:"$'\n'"$changes"
}

version() {
    local file="$root/monky_deployd/__init__.py" found
    found="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$file")"
    [[ -n $found ]] || fail "$file has no __version__"
    printf '%s\n' "$found"
}

# One release of one commit is the same bytes each time, as far as the build back end is the same.
fix_time() {
    SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}"
    export SOURCE_DATE_EPOCH
}

pip() { "$scratch/venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check --no-input; }

build_package() {
    say "building wheel and sdist"
    python3 -m venv "$scratch/venv" || fail "a virtual environment can't be made"
    pip install build
    "$scratch/venv/bin/python" -m build --outdir "$scratch/out" "$root" >"$scratch/log" 2>&1 ||
        fail "the package can't be built:"$'\n'"$(tail -n 20 "$scratch/log")"
}

# The locked dependencies as wheels, for every supported Python and machine.
fill_wheelhouse() {
    local target="$1" python machine platforms
    platforms=("${manylinux[@]/#/--platform=}")
    for python in "${pythons[@]}"; do
        for machine in "${machines[@]}"; do
            say "fetching the dependencies for Python $python on $machine"
            pip download --no-deps --require-hashes --only-binary :all: \
                --implementation cp --python-version "$python" \
                "${platforms[@]/%/_$machine}" --dest "$target" --requirement "$lock"
        done
    done
}

make_bundle() {
    local bundle="$scratch/$1" file
    mkdir "$bundle"
    cp -R "$root/packaging"/{install.sh,installer,requirements.lock} \
        "$root/packaging/$name".{service,service.d,sysusers.conf} \
        "$root/config.example.yaml" "$scratch/out"/*.whl "$bundle"
    for file in README.md PROTOCOL.md OPERATIONS.md; do
        [[ ! -f $root/$file ]] || cp "$root/$file" "$bundle"
    done
    fill_wheelhouse "$bundle/wheelhouse"
    say "packing the bundle"
    tar --create --directory "$scratch" --sort=name --owner=0 --group=0 --numeric-owner \
        --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" --format=gnu "$1" |
        gzip --no-name >"$scratch/out/$1.tar.gz"
}

main() {
    local bundle
    parse "$@"
    check_tree
    fix_time
    bundle="$(version)"
    bundle="$name-$bundle"
    scratch="$(mktemp -d)"
    trap 'rm -rf "$scratch"' EXIT
    build_package
    make_bundle "$bundle"
    (cd "$scratch/out" && sha256sum -- * >"$scratch/SHA256SUMS")
    mkdir -p "$output"
    mv "$scratch/out"/* "$scratch/SHA256SUMS" "$output"
    say "$bundle is in $output"
}

main "$@"
