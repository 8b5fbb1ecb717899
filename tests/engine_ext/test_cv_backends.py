"""Image kernels: every instruction set against the scalar one; modules loaded by importing walle.cv."""

# ruff: noqa: E501 -- rows of a table

import json
import os
import subprocess
import sys

import pytest

from walle.engine_ext.session import backends

SETS = [one.name for one in backends() if one.available]

# Integers must be equal; results computed in floats may round a tie differently.
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
         cv.inRange(x, (10, 20, 30), (200, 210, 220)), cv.integral(g), cv.pyrDown(x),
         cv.flip(x, 1), cv.flip(g, -1), cv.split(x)[2], cv.pyrUp(x), cv.resize(x, (100, 90)), cv.medianBlur(x, 3), cv.blur(x, (5, 3)),
         cv.dilate(x, np.ones((9, 8), "uint8"))]
near = [cv.cvtColor(x, cv.COLOR_BGR2HLS), cv.warpAffine(x, cv.getRotationMatrix2D((40, 30), 20, 1.1), (70, 50)),
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
    assert len(set(map(str, exact))) == len(exact) == 27
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


# Each image is at the end or at the beginning of its pages, between two guard pages.
GUARDED = """
import ctypes, mmap
import numpy
import walle.cv as cv, walle.np as np
libc = ctypes.CDLL(None, use_errno=True)
areas = []
def guarded(array, front):
    page, size = mmap.PAGESIZE, array.nbytes
    pages = -(-size // page)
    area = mmap.mmap(-1, (pages + 2) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for at in (0, (pages + 1) * page):
        assert libc.mprotect(ctypes.c_void_p(address + at), page, 0) == 0
    made = numpy.frombuffer(area, array.dtype, array.size, page if front else (pages + 1) * page - size).reshape(array.shape)
    made[...] = array
    areas.append(area)
    return np.asarray(made)
random = numpy.random.default_rng(3)
done = 0
for height, width in ((1, 1), (2, 3), (5, 7), (3, 37), (16, 64), (33, 61)):
    for channels in (1, 2, 3, 4):
        shape = (height, width, channels) if channels > 1 else (height, width)
        for dtype in ("uint8", "float32"):
            for front in (False, True):
                x = guarded(random.integers(0, 256, shape).astype(dtype), front)
                turn = cv.getRotationMatrix2D((width / 2, height / 2), 30, 1.1)
                tilt = [[1, 0.1, 0], [0.05, 1, -1], [1e-4, 2e-4, 1]]
                maps = [guarded((random.random((9, 11)) * size).astype("float32"), front) for size in (width, height)]
                for way in (0, 1, 2, 4):
                    cv.warpAffine(x, turn, (40, 30), flags=way)
                    cv.warpPerspective(x, np.asarray(tilt, "float64"), (40, 30), flags=way)
                    cv.remap(x, *maps, way)
                for way in range(7):
                    for size in ((1, 1), (width * 2, height * 2), (max(1, width // 2), max(1, height // 2)), (50, 3)):
                        cv.resize(x, size, interpolation=way)
                for code in (-1, 0, 1):
                    cv.flip(x, code)
                cv.rotate(x, 0), cv.split(x), cv.mean(x), cv.meanStdDev(x), cv.add(x, x), cv.threshold(x, 9, 99, 0)
                cv.medianBlur(x, 3), cv.medianBlur(x, 5), cv.erode(x, None), cv.dilate(x, np.ones((7, 4), "uint8"))
                cv.blur(x, (3, 3)), cv.GaussianBlur(x, (5, 5), 0), cv.pyrDown(x), cv.pyrUp(x), cv.integral(x)
                if channels == 3:
                    for code in (4, 6, 36, 40, 44, 52, 54, 56, 78, 4):
                        cv.cvtColor(x, code)
                if channels == 1 and dtype == "uint8":
                    cv.Canny(x, 30, 90), cv.equalizeHist(x), cv.Sobel(x, cv.CV_16S, 1, 0)
                done += 1
print(done)
"""


@pytest.mark.parametrize("isa", SETS)
def test_nothing_is_read_beyond_an_image(isa: str) -> None:
    environment = os.environ | {"WALLE_FORCE_ISA": isa}
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "96"), done.stderr
