"""Reductions that are computed in pieces and can be stopped between them."""

from pathlib import Path

import numpy
import pytest

import walle.np as np
from tests.sim.vm_task import write_task
from walle.engine_ext import _core
from walle.vm import VM, DeadlineExceeded

COUNT = 2 * (1 << 22) + 5


def row() -> numpy.ndarray:
    values = (numpy.arange(COUNT, dtype="uint8") % 200).astype("uint8")
    values[[7, COUNT // 2, COUNT - 1]] = 255
    return values


def test_partial_results_are_combined() -> None:
    values = row()
    ours = np.asarray(values)
    assert (int(np.max(ours)), int(np.argmax(ours))) == (255, 7)
    assert int(_core.evaluate("ArgMax", [ours], {"select_last_index": 1, "keepdims": 0})[0]) == COUNT - 1
    assert int(np.argmin(ours)) == int(values.argmin())
    assert int(np.sum(ours.astype("int64"))) == int(values.sum(dtype="int64"))
    wide = np.broadcast_to(ours.astype("float32"), (3, COUNT))
    numpy.testing.assert_array_equal(numpy.asarray(np.sum(wide, axis=0)), values * numpy.float32(3))


@pytest.mark.asyncio
@pytest.mark.parametrize("expression", ["np.sum(big)", "np.max(big, axis=1)", "np.sum(big, axis=0)", "np.std(big)",
                                        "np.sum(np.broadcast_to(np.ones((2,)), (1 << 30, 2)), axis=0)",
                                        "np.argmax(big, axis=1)"])  # fmt: skip
async def test_an_endless_reduction_stops_at_its_deadline(tmp_path: Path, expression: str) -> None:
    main = f"""
    import walle.np as np
    big = np.broadcast_to(np.ones((1,)), (1 << 20, 1 << 20))
    def run(): return {expression}
    def live(): return 1
    """
    vm = VM(write_task(tmp_path, main), grace_s=10.0)
    assert await vm.call("live") == 1
    with pytest.raises(DeadlineExceeded):
        await vm.call("run", deadline=0.05)
    assert await vm.call("live") == 1
    vm.close()
