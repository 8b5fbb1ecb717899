"""The kernels of images: every instruction set gives what the scalar one gives; and what importing walle.cv costs."""

# ruff: noqa: E501 -- rows of a table

import json
import os
import subprocess
import sys

import pytest

from walle.engine_ext.session import backends

SETS = [one.name for one in backends() if one.available]

# Whole numbers must be the same; results by way of floats may round a tie another way.
CODE = """
import hashlib, json
import walle.cv as cv, walle.np as np
x = (np.arange(61 * 83 * 3).reshape(61, 83, 3) * 7919 % 251).astype("uint8")
g = x[:, :, 1].copy()
k = cv.getStructuringElement(cv.MORPH_ELLIPSE, (5, 5))
exact = [cv.cvtColor(x, cv.COLOR_BGR2GRAY), cv.cvtColor(x, cv.COLOR_BGR2YCrCb), cv.cvtColor(x, cv.COLOR_BGR2HSV),
         cv.cvtColor(x, cv.COLOR_BGR2Lab), cv.cvtColor(x, cv.COLOR_BGR2RGBA), cv.resize(x, (40, 71)),
         cv.resize(x, (41, 30), interpolation=cv.INTER_NEAREST), cv.GaussianBlur(x, (5, 7), 0), cv.medianBlur(x, 5), cv.medianBlur(x, 9),
         cv.erode(x, k), cv.dilate(x, k), cv.Sobel(g, cv.CV_16S, 1, 0), cv.Canny(g, 300, 700), cv.add(x, x), cv.threshold(g, 90, 200, 0)[1],
         cv.inRange(x, (10, 20, 30), (200, 210, 220)), cv.integral(g), cv.pyrDown(x)]
near = [cv.blur(x, (5, 3)), cv.cvtColor(x, cv.COLOR_BGR2HLS), cv.warpAffine(x, cv.getRotationMatrix2D((40, 30), 20, 1.1), (70, 50)),
        cv.filter2D(x, -1, np.ones((3, 3)) / 9), cv.bilateralFilter(x, 5, 30, 3), cv.resize(x, (100, 90), interpolation=cv.INTER_CUBIC)]
print(json.dumps([[hashlib.sha256(a.tobytes()).hexdigest() for a in exact], [a.ravel().tolist() for a in near]]))
"""


def results(isa: str) -> list[list[object]]:
    environment = os.environ | {"WALLE_FORCE_ISA": isa}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment)
    answer: list[list[object]] = json.loads(done.stdout)
    return answer


def test_every_instruction_set_gives_the_same() -> None:
    if len(SETS) == 1:
        pytest.skip("one instruction set only")
    exact, near = results("scalar")
    assert len(set(map(str, exact))) == len(exact) == 19
    for isa in SETS[1:]:
        other, close = results(isa)
        assert other == exact
        for ours, scalar in zip(close, near, strict=True):
            assert isinstance(ours, list)
            assert isinstance(scalar, list)
            assert max(abs(a - b) for a, b in zip(ours, scalar, strict=True)) <= 1
            assert sum(a != b for a, b in zip(ours, scalar, strict=True)) <= len(ours) // 100


def test_importing_it_loads_one_part_at_a_time() -> None:
    code = "import sys; import walle.cv as cv; cv.resize; print([name for name in sys.modules if name.startswith('walle.engine_ext.cv.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(json.loads(done.stdout.replace("'", '"'))) == [
        f"walle.engine_ext.cv.{part}" for part in ("constants", "images", "sizes")
    ]
