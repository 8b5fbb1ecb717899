"""walle.np inside task VMs: every part loads there, without NumPy and without shared state."""

import asyncio
import json
from pathlib import Path

import numpy
import pytest

import walle.np as np
from tests.sim.vm_task import write_task
from walle.vm import VM

MAIN = """
import walle.np as np
from walle.np import linalg

def load_all():
    return len([getattr(np, name) for name in dir(np)])

def work(x):
    u, s, vh = linalg.svd(np.cov(x))
    spectrum = np.fft.rfft(x - x.mean(axis=1, keepdims=True))
    picked = x[np.argsort(x[:, 0])[::-1], ::2]
    return s, spectrum, picked

def texts():
    x = np.arange(4).reshape(2, 2)
    np.add.at(x, ([0, 0], [0, 0]), 1)
    x.flat[3] = np.add.reduce([7, 1])
    return str(x), repr(x[0, 1] + np.float32(1)), x.flags.c_contiguous, [one.item() for one in x.flat], f"{x.dtype}"

def seeded(number):
    np.random.seed(number)
    return np.random.rand(3)

def more():
    return np.random.rand(3)

def to_json():
    import io
    import json
    from json import JSONEncoder

    class Upper(JSONEncoder):
        def default(self, o):
            return "object" if type(o) is object else super().default(o)

    a = np.array([1.0, 2.5])
    features = {"m": a.mean(), "s": [a.sum(), a[1], np.float32(1.5)], "n": np.int64(3), "b": np.bool_(True)}
    file = io.StringIO()
    json.dump(features, file)
    texts = [json.dumps(features), file.getvalue(), json.dumps(features, indent=None)]
    texts += [json.JSONEncoder().encode(features)]
    texts += [json.dumps([a[0], object()], cls=Upper), json.dumps(a[0], default=str)]
    texts += [json.dumps(np.float32(float("nan")))]
    errors = []
    for wrong in (a, np.complex64(1j), object()):
        try:
            json.dumps(wrong)
        except TypeError as error:
            errors.append(str(error))
    return texts, errors

def refused():
    try:
        linalg.inv(np.zeros((2, 2)))
    except linalg.LinAlgError as error:
        return str(error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_task(tmp_path, MAIN)


@pytest.mark.asyncio
async def test_all_of_it_works_in_a_vm(folder: Path) -> None:
    vm = VM(folder)
    there = numpy.random.default_rng(0).normal(size=(4, 32))
    s, spectrum, picked = await vm.call("work", there)
    numpy.testing.assert_allclose(numpy.asarray(s), numpy.linalg.svd(numpy.cov(there))[1], rtol=1e-10)
    half = numpy.fft.rfft(there - there.mean(axis=1, keepdims=True))
    numpy.testing.assert_allclose(numpy.asarray(spectrum), half, atol=1e-10)
    numpy.testing.assert_array_equal(numpy.asarray(picked), there[numpy.argsort(there[:, 0])[::-1], ::2])
    assert "singular" in await vm.call("refused")
    assert await vm.call("load_all") > 300
    vm.close()
    assert await vm.wait_closed()


@pytest.mark.asyncio
async def test_parts_that_the_native_types_call_load_in_a_vm(folder: Path) -> None:
    vm = VM(folder)
    for _ in range(2):
        assert await vm.call("texts") == ("[[2 1]\n [2 8]]", "array(2., dtype=float64)", True, [2, 1, 2, 8], "int64")
    vm.close()
    assert await vm.wait_closed()


@pytest.mark.asyncio
async def test_json_of_a_task_takes_scalars(folder: Path) -> None:
    vm = VM(folder)
    texts, errors = await vm.call("to_json")
    vm.close()
    assert await vm.wait_closed()
    assert set(texts[:4]) == {'{"m": 1.75, "s": [3.5, 2.5, 1.5], "n": 3, "b": true}'}
    assert texts[4:] == ['[1.0, "object"]', '"1.0"', "NaN"]
    assert "shape (2,)" in errors[0]
    assert "tolist()" in errors[0]
    assert "complex" in errors[1]
    assert "object" in errors[2]


def test_json_outside_a_vm_takes_scalars_with_a_default() -> None:
    a = np.array([1.0, 2.5])
    features = {"m": a.mean(), "s": [a.sum(), a[1], np.float32(1.5)], "n": np.int64(3), "a": a}
    text = '{"m": 1.75, "s": [3.5, 2.5, 1.5], "n": 3, "a": [1.0, 2.5]}'
    assert json.dumps(features, default=np.ndarray.tolist) == text
    with pytest.raises(TypeError, match="ndarray is not JSON serializable"):
        json.dumps(features)


@pytest.mark.asyncio
async def test_vms_do_not_share_random_numbers(folder: Path) -> None:
    first, second = VM(folder), VM(folder)
    one, other = await asyncio.gather(first.call("seeded", 1), second.call("seeded", 1))
    assert one.tolist() == other.tolist()
    await first.call("more")
    ahead, behind = await asyncio.gather(first.call("more"), second.call("more"))
    assert ahead.tolist() != behind.tolist()
    assert (await second.call("more")).tolist() == ahead.tolist()
    for vm in (first, second):
        vm.close()
        assert await vm.wait_closed()
