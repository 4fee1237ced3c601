#!/usr/bin/env bash
# The one test command: installs what the tests need, then runs the gates and every layer.
#
#   tests/run.sh [unit|real|host|gates|faults] [pytest arguments]
#
# Without a layer all of them run, to the end even when one fails. `faults` is the matrix of faults
# and the soak: it comes last and alone, as it measures how long the agent takes to converge.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=packaging/parts.sh
source packaging/parts.sh

failed=()
step() {
    local name="$1"
    shift
    printf '\n== %s\n' "$name"
    "$@" || failed+=("$name")
}

# Every script of the tree: what git knows or would add, by name or by its first line.
scripts() {
    local file first
    git ls-files --cached --others --exclude-standard | while read -r file; do
        [[ -f $file ]] || continue
        IFS= read -r first 2>/dev/null <"$file" || true
        if [[ $file == *.sh || $first =~ ^'#!'.*[/\ ](ba)?sh( |$) ]]; then printf '%s\n' "$file"; fi
    done
}

bash_parses() {
    local script status=0
    for script in "$@"; do bash -n "$script" || status=1; done
    return "$status"
}

# systemd refuses a unit whose program isn't installed here: /bin/true stands in for it. It
# exits with 0 for a key that it doesn't know: any word about these units is a failure.
unit_verifies() {
    local copies unit said status=0
    copies="$(mktemp -d)"
    for unit in "$@"; do
        sed -E 's#^(Exec[A-Za-z]+=[-+!@:]*)/opt/[^ ]+#\1/bin/true#' "$unit" >"$copies/${unit##*/}"
    done
    said="$(systemd-analyze verify --man=no "$copies"/*.service 2>&1)" || status=1
    [[ $said != *"$copies/"* ]] || status=1
    rm -r "$copies"
    printf '%s' "${said:+$said$'\n'}"
    return "$status"
}

# From the role's directory: what is linted, and how, is said there.
ansible_lints() {
    (cd packaging/ansible && PATH="$parts_ansible/bin:$PATH" ansible-lint -q)
}

gates() {
    local scripts units
    mapfile -t scripts < <(scripts)
    step 'gate: ruff format' ruff format --check .
    step 'gate: ruff check' ruff check .
    step 'gate: mypy --strict' mypy --strict
    step 'gate: import contracts' lint-imports --no-logo
    step 'gate: bash -n' bash_parses "${scripts[@]}"
    step 'gate: shellcheck' shellcheck --external-sources "${scripts[@]}"
    shopt -s nullglob
    units=(packaging/*.service)
    ((${#units[@]} == 0)) || step 'gate: systemd-analyze verify' unit_verifies "${units[@]}"
    step 'gate: ansible-lint' ansible_lints
}

# pytest's exit code 5 (no test found) is a failure like any other.
pytest_layer() {
    local name="$1" options=()
    shift
    case "$name" in
    real) options=(tests/real --ignore=tests/real/faults) ;;
    # Its two halves, which take about as long.
    real:a-f) options=(tests/real/policy tests/real/test_[a-f]*.py) ;;
    real:g-z) options=(tests/real/test_[!a-f]*.py) ;;
    faults) options=(tests/real/faults) ;;
    *) options=("tests/$name") ;;
    esac
    # In the background SIGINT is ignored, and what is interrupted would not clean up.
    exec env --default-signal=INT python -m pytest "${options[@]}" "$@"
}

layer() { step "layer: $1" in_subshell pytest_layer "$@"; }
in_subshell() { ("$@"); }

# Several layers, named in the first argument, at once: most of them mostly wait, for an engine or
# for a host to boot. What one says comes in one piece when it is done.
layers_at_once() {
    local names="$1" name said
    local -A pids=()
    shift
    said="$(mktemp -d)"
    for name in $names; do
        pytest_layer "$name" "$@" >"$said/$name" 2>&1 &
        pids[$name]=$!
    done
    trap 'kill -INT "${pids[@]}" 2>/dev/null || true; wait; exit 130' INT TERM
    for name in $names; do step "layer: $name" ended "${pids[$name]}" "$said/$name"; done
    trap - INT TERM
    rm -r "$said"
}

# One engine for all layers that run at once. It ends with this script at the latest.
engine_starts() {
    local said word=
    said="$(mktemp -d)"
    mkfifo "$said/word"
    exec {engine_input}> >(exec python -m tests.shared_engine >"$said/word")
    engine_pid=$!
    read -r word <"$said/word" || true
    rm -r "$said"
    [[ $word == ready ]]
}

engine_stops() {
    exec {engine_input}>&-
    wait "$engine_pid"
}

ended() {
    local status=0
    wait "$1" || status=$?
    cat "$2"
    return "$status"
}

main() {
    local what=all
    case "${1-}" in
    unit | real | host | gates | faults)
        what="$1"
        shift
        ;;
    esac
    parts_for_tests
    if [[ $what == all || $what == host ]]; then parts_for_host; fi
    if [[ $what == all || $what == host || $what == gates ]]; then parts_for_ansible; fi
    export PATH="$parts_venv/bin:$PATH:/usr/sbin:/sbin"

    case "$what" in
    gates) gates ;;
    all)
        gates
        step 'engine: starts' engine_starts
        layers_at_once 'unit host real:a-f real:g-z' "$@"
        layer faults "$@"
        step 'engine: stops' engine_stops
        ;;
    *) layer "$what" "$@" ;;
    esac

    if ((${#failed[@]})); then
        printf '\n'
        printf 'FAILED %s\n' "${failed[@]}"
        exit 1
    fi
    printf '\nall green\n'
}

main "$@"
