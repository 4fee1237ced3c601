#!/usr/bin/env bash
# Writes packaging/requirements.lock anew. `lock.sh --help` says how to use it.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# A newer Python would leave out what only the oldest supported one needs.
python=python3.11

usage() {
    cat <<'END'
usage: packaging/lock.sh [options of pip-compile]

Writes packaging/requirements.lock anew: what pyproject.toml depends on, pinned, with hashes.
Pins that still fit stay as they are. --upgrade takes the newest of everything, and
--upgrade-package NAME that of one.
END
}

case "${1-}" in
-h | --help)
    usage
    exit
    ;;
esac
command -v "$python" >/dev/null || {
    printf 'lock.sh: %s is missing: run it on Debian 12\n' "$python" >&2
    exit 1
}

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"
# pip-tools uses pip's inner parts, which change with pip 26.
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check 'pip<26' pip-tools
cd "$root"
"$scratch/venv/bin/pip-compile" --quiet --generate-hashes --no-annotate --no-header \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
    --strip-extras --allow-unsafe \
    "$@" --output-file packaging/requirements.lock pyproject.toml
