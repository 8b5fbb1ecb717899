#!/bin/sh
# usage: CMAKE=... PYTHON=... test_sanitized.sh asan|tsan [pytest arguments] -- what `make test-asan` and `make test-tsan` run: the
# engine's Python tests (tsan: those of VMs and of concurrent runs) upon a module built with sanitizers, then a thousand lives of a task and a minute
# of hostile tasks. The module lies, with copies of the Python sources, in a folder of its own, so that the checkout's stays.
set -eu
kind=$1
shift
case $kind in
    asan) sanitizers=address,undefined ;;
    tsan) sanitizers=thread ;;
    *) echo "there is no sanitizer $kind: give asan or tsan" >&2; exit 2 ;;
esac
build=build/$kind
site=$PWD/$build/site
PATH="$(dirname "$PYTHON"):$PATH"
mkdir -p "$site"
{
    "$CMAKE" -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWALLE_SANITIZE=$sanitizers \
        -DPython_EXECUTABLE="$PYTHON" -Dpybind11_DIR="$("$PYTHON" -m pybind11 --cmakedir)" \
        -DCMAKE_INSTALL_PREFIX="$site" &&
        "$CMAKE" --build "$build" --target _core && "$CMAKE" --install "$build"
} >"$build/build.log" 2>&1 || { tail -n 40 "$build/build.log" >&2; exit 1; }
find walle -name '*.py' -o -name '*.pyi' | while read -r file; do
    mkdir -p "$site/$(dirname "$file")" && cp "$file" "$site/$file"
done

# An editable install finds the checkout's module before PYTHONPATH is searched.
cat >"$site/sitecustomize.py" <<'END'
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")]
END

# Python is built without the sanitizer, whose runtime is therefore loaded before it, and with it the C++ library: the runtime looks
# up what it intercepts once, as the process begins, and would end it at the first exception that is thrown.
runtime="$("${CXX:-c++}" -print-file-name=lib$kind.so) $("${CXX:-c++}" -print-file-name=libstdc++.so.6)"
python() {  # in the environment, so that the processes that tests start take the same module
    LD_PRELOAD=$runtime PYTHONPATH=$site:$PWD PYTHONSAFEPATH=1 $no_shifting "$PYTHON" "$@"
}

check_module() {
    python -c "import walle.engine_ext._core as core; assert core.__file__.startswith('$site'), core.__file__"
}

# A VM host starts with an empty environment, so without the runtime, and its system calls are not the runtime's: tests that start
# one are left out. Those of the device's side against a hostile host are not.
#
# Memory does not stay flat, as a sanitizer keeps back what is freed: the test that measures it is left out here, and the lives
# below go without that check. A block of a large product takes longer than a call may be late, so slow are kernels with checks.
flat=tests/engine_ext/vm/test_reset.py::test_loading_and_unloading_leaks_no_memory
long='tests/engine_ext/vm/test_stopped_operators.py::test_one_long_operator_is_stopped[process-product]'
also_long=tests/engine_ext/vm/test_stopped_operators.py::test_a_stop_in_the_engine_is_not_a_failure_of_the_operator
case $kind in
    asan)
        no_shifting=
        export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
        check_module
        # The child of a fork among busy threads may hang: this runtime does not hold its allocator's locks over a fork.
        python -m pytest tests/engine_ext --timeout=1200 -q -p no:cacheprovider -m 'not vm_host and not exhausts' --deselect $flat \
            --deselect tests/engine_ext/test_shared_models.py \
            --deselect "$long" --deselect $also_long \
            --deselect 'tests/engine_ext/vm/test_fork.py::test_a_child_of_a_fork_has_no_vms_and_does_not_hang[fork-8]' "$@"
        ;;
    tsan)
        no_shifting="setarch -R"  # this runtime knows some layouts of a process's memory only
        export TSAN_OPTIONS="die_after_fork=0 suppressions=$PWD/scripts/tsan.supp"
        check_module
        # In the child of a fork the runtime still knows the parent's threads, and ends it when one of its own is made.
        python -m pytest tests/engine_ext/vm tests/engine_ext/test_concurrent_runs.py --timeout=1200 -q -p no:cacheprovider -m 'not vm_host and not exhausts' --deselect $flat \
            --deselect "$long" --deselect $also_long \
            --deselect 'tests/engine_ext/vm/test_fork.py::test_a_child_of_a_fork_has_no_vms_and_does_not_hang[fork-8]' "$@"
        ;;
esac
python -m tests.sim.vm_cycles --times 1000 --growth inf
python -m tests.sim.hostile --seconds 60
