#!/bin/sh
# Makes the virtual environment: finds a Python that can run VMs with their own GIL, checks for a compiler, installs, builds.
# usage: setup.sh VENV [EXTRA]      EXTRA is the group of dependencies to install, dev if not given
set -eu
venv=$1
extra=${2:-dev}

say() { printf 'walle: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

# A candidate will do if it is 3.13 or newer, has a GIL to give to each VM, and has headers, venv and pip.
fits() {
    "$1" -c '
import os, sys, sysconfig
import ensurepip, venv
sys.exit(not (sys.version_info >= (3, 13) and not sysconfig.get_config_var("Py_GIL_DISABLED")
              and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))' 2>/dev/null
}

find_python() {
    for candidate in "${PYTHON:-}" python3.13 python3 python3.14 python3.15 python \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[3-9]*/bin/python \
        "${XDG_DATA_HOME:-$HOME/.local/share}"/uv/python/cpython-3.1[3-9]*/bin/python3; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 && fits "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
}

# One whose making was interrupted has no pip; it is made again.
is_whole() { "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; }

if ! is_whole; then
    python=$(find_python)
    [ -n "$python" ] || die "no Python 3.13 or newer with headers and venv was found; get one with 'sudo apt-get install python3.13-dev python3.13-venv' (Debian, Ubuntu) or 'uv python install 3.13', or name one with PYTHON=/path/to/python"
fi
command -v "${CXX:-c++}" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
    die "no C++ compiler was found; get one with 'sudo apt-get install g++' (uv and pip cannot install one)"

if ! is_whole; then
    say "making $venv with $("$python" --version) ($python)"
    "$python" -m venv "$venv"
fi
# Prints the children of process "$1", where /proc lists them, else where pgrep does.
children_of() { cat "/proc/$1/task"/*/children 2>/dev/null || pgrep -P "$1" 2>/dev/null || true; }
# Ends process "$1" and all below it: pip, ninja, compilers. Each is stopped first, so that it starts no further one.
end_tree() {
    kill -STOP "$1" 2>/dev/null || return 0
    for child in $(children_of "$1"); do end_tree "$child"; done
    kill -TERM "$1" 2>/dev/null || true
    kill -CONT "$1" 2>/dev/null || true
}
# Ends the job of with_progress, then this script with status "$1". (sh without a terminal has no process groups for jobs.)
end_job() {
    trap '' HUP INT TERM
    end_tree "$job"
    wait "$job" 2>/dev/null || true
    exit "$1"
}
# Runs "$@" with its output in the log, and shows ninja's count of compiled units: on one line of a terminal, else every tenth.
with_progress() {
    "$@" >"$log" 2>&1 &
    job=$!
    trap 'end_job 129' HUP
    trap 'end_job 130' INT
    trap 'end_job 143' TERM
    shown=
    while kill -0 "$job" 2>/dev/null; do
        count=$(sed -n 's|^ *\[\([0-9]\{1,\}\)/\([0-9]\{1,\}\)\] .*|\1 of \2|p' "$log" | tail -n 1)
        if [ -n "$count" ] && [ "$count" != "$shown" ]; then
            if [ -t 1 ]; then
                printf '\rwalle: compiling the native core: %s ' "$count"
            elif [ -z "$shown" ] || [ "$((${count%% *} / 10))" != "$((${shown%% *} / 10))" ]; then
                say "compiling the native core: $count"
            fi
            shown=$count
        fi
        sleep 1
    done
    trap - HUP INT TERM
    if [ -t 1 ] && [ -n "$shown" ]; then printf '\n'; fi
    wait "$job"
}
# Prints the packages that walle and its group of dependencies $extra need, without walle itself.
requirements() {
    "$venv/bin/python" - "$extra" <<'END'
import sys, tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]

def packages(group):
    for package in project["optional-dependencies"][group]:
        if package.startswith("walle["):  # groups of its own, as in walle[cloud,apps]
            for other in package.removeprefix("walle[").rstrip("]").split(","):
                yield from packages(other)
        else:
            yield package

print(*project["dependencies"], *packages(sys.argv[1]), sep="\n")
END
}
# Packages are downloaded while the core compiles. Most of their bytecode is never needed: see `compile_shared`.
pip_install() { "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile "$@"; }
install() {
    pip_install 'scikit-build-core>=0.11' 'pybind11>=3.1,<4' 'cmake>=3.26' 'ninja>=1.11' &&
        requirements >build/requirements.txt || return
    (
        PATH="$(cd "$venv/bin" && pwd):$PATH"
        # as in the Makefile, for those who run this script by itself
        export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)}"
        pip_install -v --no-build-isolation --no-deps -e .
    ) &
    core=$!
    # In a log of its own, so that what is last in the other is the compiler's.
    if ! pip_install -r build/requirements.txt >build/packages.log 2>&1; then
        end_tree "$core"
        cat build/packages.log
        return 1
    fi
    wait "$core" && compile_shared
}
# Writes the bytecode of what each process of a Ray imports. They start together, and each would compile it for itself;
# where PYTHONDONTWRITEBYTECODE is set, at every start. Without it they work too, so that an error here ends nothing.
compile_shared() {
    ray=$("$venv/bin/python" -c 'import importlib.util; print(importlib.util.find_spec("ray").submodule_search_locations[0])') || return 0
    env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c 'import walle.actors.wiring, walle.cli' || return 0
    for part in _common _private autoscaler core dashboard; do
        "$venv/bin/python" -m compileall -q -j 0 "$ray/$part" || return 0
    done
}

say "installing packages and building the native core (README.md says how long that took where it was measured)"
mkdir -p build
log=build/setup.log
if ! with_progress install; then
    tail -n 40 "$log" >&2
    die "set-up failed; the whole log is $log"
fi
say "ready"
