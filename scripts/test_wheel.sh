#!/bin/sh
# Builds the wheel, its bill of materials (CycloneDX) and the sdist into dist/, and tests each package in a virtual environment of its own, outside of the checkout and
# without its environment variables: import, `walle operators`, `walle task new` and `check`, a model run and a call of a VM.
# usage: PYTHON=.venv/bin/python test_wheel.sh
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
most_bytes=5000000  # design limit; 5.42 MB on 2026-12-01, of which 3.44 are the core with the kernels of all instruction sets
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
log=$root/build/wheel.log
mkdir -p build

say() { printf 'walle: %s\n' "$*"; }
die() { tail -n 40 "$log" >&2; say "$*; the whole log is $log" >&2; exit 1; }

rm -rf dist
PATH="$(dirname "$PYTHON"):$PATH" "$PYTHON" -c '
from scikit_build_core.build import build_sdist, build_wheel
print(build_wheel("dist"), build_sdist("dist"))' >"$log" 2>&1 || die "building the wheel and the sdist failed"
wheel=$(ls "$root"/dist/*.whl)
sdist=$(ls "$root"/dist/*.tar.gz)
size=$(wc -c <"$wheel")
say "$(basename "$wheel"): $size bytes; $(basename "$sdist"): $(wc -c <"$sdist") bytes"
[ "$size" -lt "$most_bytes" ] || die "the wheel has $size bytes, which must be fewer than $most_bytes"
"$PYTHON" scripts/bill_of_materials.py "$wheel" >>"$log" 2>&1 || die "the bill of materials cannot be written"
say "bill of materials: $(basename "$wheel").cdx.json"

# The model and the task of the test. A device has no ONNX, so the model is converted here.
mkdir "$room/task"
"$PYTHON" - "$room" <<'MODEL' >>"$log" 2>&1 || die "writing the model of the test failed"
import sys

import onnx
import walle

room = sys.argv[1]
value = lambda name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3])
graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", [value("x")], [value("y")])
onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), room + "/relu.onnx")
walle.convert(room + "/relu.onnx", room + "/relu.walle")
MODEL
echo '[[-1.0, 2.0, -3.0], [4.0, -5.0, 6.0]]' >"$room/x.json"
cat >"$room/task/main.py" <<'TASK'
import walle.np as np


def run(count):
    return float(np.sum(np.arange(count)))
TASK
cat >"$room/check.py" <<'CHECK'
import asyncio
import importlib.util
import sys
from pathlib import Path

import walle

home = Path(sys.prefix).resolve()
assert home in Path(walle.__file__).resolve().parents, f"{walle.__file__} lies outside of {home}"
for name in ("onnx", "numpy", "ray", "fastapi", "uvicorn", "dulwich", "prometheus_client"):
    assert importlib.util.find_spec(name) is None, f"{name} is in the environment"
session = walle.Session("relu.walle")
result = session.run({"x": [[-1.0, 2.0, -3.0], [4.0, -5.0, 6.0]]})["y"]
assert result.tolist() == [[0.0, 2.0, 0.0], [4.0, 0.0, 6.0]], result.tolist()


async def call():
    vm = walle.vm.VM(Path("task"))
    try:
        return await vm.call("run", 5, deadline=30)
    finally:
        vm.close()


assert asyncio.run(call()) == 10.0
CHECK

for package in "$wheel" "$sdist"; do
    say "testing $(basename "$package") in an empty environment"
    rm -rf "$room/venv"
    "$PYTHON" -m venv "$room/venv"
    {
        cd "$room" &&
            env -i HOME="$room" PATH=/usr/local/bin:/usr/bin:/bin CCACHE_DISABLE=1 "$room/venv/bin/python" -m pip install --disable-pip-version-check "$package" &&
            env -i HOME="$room" PATH=/usr/bin:/bin "$room/venv/bin/python" -X faulthandler check.py &&
            env -i HOME="$room" PATH=/usr/bin:/bin "$room/venv/bin/walle" operators --json >operators.json &&
            grep -q '"Conv"' operators.json &&
            env -i HOME="$room" PATH=/usr/bin:/bin "$room/venv/bin/walle" --version &&
            rm -rf visits && env -i HOME="$room" PATH=/usr/bin:/bin "$room/venv/bin/walle" task new visits &&
            env -i HOME="$room" PATH=/usr/bin:/bin "$room/venv/bin/walle" task check visits &&
            env -i HOME="$room" PATH=/usr/bin:/bin "$room/venv/bin/walle" model run relu.walle --input x=x.json --json
    } >>"$log" 2>&1 || die "$(basename "$package") failed"
done
say "wheel and sdist work"
