#!/bin/sh
# usage: CMAKE=... PYTHON=... test_asan.sh [pytest arguments] -- what `make test-asan` runs: the engine's Python tests upon a module
# built with ASan and UBSan. It lies, with copies of the Python sources, in a folder of its own, so that the checkout's stays.
# VMs are left out: their interpreters end in ways that the sanitizer's runtime, preloaded here, takes for its own to handle.
set -eu
site=build/asan/site
PATH="$(dirname "$PYTHON"):$PATH"
mkdir -p $site
{
    "$CMAKE" -S . -B build/asan -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWALLE_SANITIZE=address,undefined \
        -DPython_EXECUTABLE="$PYTHON" -Dpybind11_DIR="$("$PYTHON" -m pybind11 --cmakedir)" \
        -DCMAKE_INSTALL_PREFIX="$PWD/$site" &&
        "$CMAKE" --build build/asan --target _core && "$CMAKE" --install build/asan
} >build/asan/build.log 2>&1 || { tail -n 40 build/asan/build.log >&2; exit 1; }
(cd . && find walle -name '*.py' -o -name '*.pyi' | while read -r file; do
    mkdir -p "$site/$(dirname "$file")" && cp "$file" "$site/$file"
done)
library=$("${CXX:-c++}" -print-file-name=libasan.so)
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 LD_PRELOAD="$library" PYTHONPATH="$PWD/$site" \
    "$PYTHON" -P -m pytest tests/engine_ext --timeout=1200 -q -p no:cacheprovider \
    --ignore-glob='*/test_vm*' --deselect tests/engine_ext/test_shared_models.py "$@"
