"""Deadlines within one long operator or kernel of the engine: it stops within the time to stop, and the VM goes on."""

from pathlib import Path

import pytest

from tests.sim.vm_task import in_interpreter, write_task
from walle.vm import DeadlineExceeded

pytestmark = pytest.mark.usefixtures("place")

LONG_OPERATORS = """
import json
import walle.cv as cv
import walle.np as np

core = json.dumps.__globals__["__builtins__"]["__import__"]("sys").modules["walle.engine_ext._core"]

def ones(*shape, dtype="float32"):
    return core.broadcast_to(core.full((1,) * len(shape), 1, dtype), shape)

def product():
    np.matmul(ones(8_000, 8_000), ones(8_000, 8_000))

def products():
    np.matmul(ones(100, 400, 20_000), ones(100, 20_000, 400))

def convolution():
    core.evaluate("Conv", [ones(1, 1024, 64, 64, dtype="float64"), ones(4096, 1024, 1, 1, dtype="float64")], {})

kept = {}

def prepare(function):  # so that the deadline falls into the operator
    if function == "filter":
        kept.update(image=np.ones((6_000, 6_000)), kernel=np.reshape(np.arange(4096), (64, 64)))
    elif function in ("sort", "short_sorts", "search"):
        kept["rows"] = np.random.random((20, 4_000_000))
        kept["line"] = np.sort(kept["rows"][0]) if function == "search" else None
    else:
        kept["matrix"] = np.random.random((2_000, 2_000))

def filter():
    cv.filter2D(kept["image"], -1, kept["kernel"])

def integer_product():
    np.matmul(ones(5_000, 5_000, dtype="int64"), ones(5_000, 5_000, dtype="int64"))

def row_product():
    np.matmul(ones(1, 200_000), ones(200_000, 200_000))

def dot_product():
    np.matmul(ones(4, 1_000_000_000), ones(1_000_000_000, 300))

def sort():
    np.sort(kept["rows"].reshape(-1))

def short_sorts():
    np.sort(kept["rows"].reshape(-1, 20))

def search():
    np.searchsorted(kept["line"], kept["rows"][:5])

def fourier_transform():
    np.fft.rfft(np.random.random((30, 1_000_003)))

def solve():
    np.linalg.inv(kept["matrix"])

def determinant():
    np.linalg.det(np.broadcast_to(kept["matrix"][:1400, :1400], (8, 1400, 1400)))

def cholesky():
    np.linalg.cholesky(np.broadcast_to(np.eye(900), (100, 900, 900)))

def qr():
    np.linalg.qr(kept["matrix"])

def eigh():
    np.linalg.eigh(kept["matrix"])

def eigvalsh():
    np.linalg.eigvalsh(kept["matrix"])

def svd():
    np.linalg.svd(kept["matrix"])

def svdvals():
    np.linalg.svdvals(kept["matrix"])

def guarded():
    try:
        product()
    except Exception:
        kept["failed"] = True  # at once: the next call of anything would be stopped from outside

def failed():
    return kept.get("failed")

def fine():
    return float(np.matmul(ones(300, 300), ones(300, 300))[7, 7])
"""


@pytest.mark.asyncio
async def test_a_call_that_is_stopped_while_its_error_is_described_names_the_line_of_the_error(tmp_path: Path) -> None:
    main = "def raise_large():\n    raise ValueError([0] * 5_000_000)\n"
    async with in_interpreter(write_task(tmp_path, main), grace_s=5.0) as vm:
        with pytest.raises(DeadlineExceeded, match=r"main\.py:2 in raise_large"):
            await vm.call("raise_large", deadline=0.05)


@pytest.mark.asyncio
@pytest.mark.parametrize("function", ["product", "products", "convolution", "filter"])
async def test_one_long_operator_is_stopped(tmp_path: Path, function: str) -> None:
    async with in_interpreter(write_task(tmp_path, LONG_OPERATORS), limits={"memory_mb": 1024}, grace_s=2.5) as vm:
        await vm.call("prepare", function)
        with pytest.raises(DeadlineExceeded, match=r"main\.py:\d+"):
            await vm.call(function, deadline=0.1)
        assert vm.alive  # stopped within its time: alone each takes four seconds and more
        assert await vm.call("fine") == 300


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "function",
    [
        "integer_product", "row_product", "dot_product", "sort", "short_sorts", "search", "fourier_transform", "solve",
        "determinant", "cholesky", "qr", "eigh", "eigvalsh", "svd", "svdvals",
    ],
)  # fmt: skip
async def test_a_long_kernel_is_stopped(tmp_path: Path, function: str) -> None:
    async with in_interpreter(write_task(tmp_path, LONG_OPERATORS), limits={"memory_mb": 2048}, grace_s=1.5) as vm:
        await vm.call("prepare", function)
        with pytest.raises(DeadlineExceeded, match=r"main\.py:\d+"):
            await vm.call(function, deadline=0.1)
        assert vm.alive  # alone each takes more than the time to stop
        assert await vm.call("fine") == 300


@pytest.mark.asyncio
async def test_a_stop_in_the_engine_is_not_a_failure_of_the_operator(tmp_path: Path) -> None:
    async with in_interpreter(write_task(tmp_path, LONG_OPERATORS), limits={"memory_mb": 1024}, grace_s=2.5) as vm:
        with pytest.raises(DeadlineExceeded):
            await vm.call("guarded", deadline=0.1)
        assert await vm.call("failed") is None
