"""Layers, losses and functions return PyTorch's results, from its weights (torch_record.xz names the version)."""

from typing import Any

import numpy
import pytest

import walle.nn as nn
import walle.np as np
from tests.engine_ext.nn.torch_cases import CASES, fed, flat
from tests.engine_ext.nn.torch_record import read_record


def module_of(name: str, state: str) -> tuple[Any, list[Any]]:
    """Return a case's module with the weights of the record, and the inputs that are not parameters."""
    record = read_record()
    inputs = [np.asarray(array) for array in record.listed(f"{name}/input ")]
    module = fed(nn, CASES[name], inputs)
    module.load_state_dict(record.named(f"{name}/{state}/"))
    return module, inputs if module.input is None else inputs[1:]


def check(found: Any, expected: Any) -> None:
    given = numpy.asarray(found)
    assert given.shape == expected.shape
    scale = max(1.0, float(numpy.abs(expected).max())) if expected.size else 1.0
    numpy.testing.assert_allclose(given, expected, rtol=1e-5, atol=3e-6 * scale)


@pytest.mark.parametrize("name", CASES)
def test_result_is_that_of_pytorch(name: str) -> None:
    module, rest = module_of(name, "first")
    results = list(flat(module(*rest)))
    expected = read_record().listed(f"{name}/result ")
    assert len(results) == len(expected) > 0
    for found, wanted in zip(results, expected, strict=True):
        check(found, wanted)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.trains])
def test_result_of_inference_after_training_is_that_of_pytorch(name: str) -> None:
    module, rest = module_of(name, "last")
    results = list(flat(module.eval()(*rest)))
    for found, wanted in zip(results, read_record().listed(f"{name}/last result "), strict=True):
        check(found, wanted)


@pytest.mark.parametrize("name", [name for name in CASES if "Norm" in name])
def test_running_statistics_are_those_of_pytorch(name: str) -> None:
    module, rest = module_of(name, "first")
    module(*rest)
    buffers = dict(module.named_buffers())
    expected = read_record().named(f"{name}/moved/")
    assert list(buffers) == list(expected)
    for path, array in buffers.items():
        assert array.dtype == expected[path].dtype
        check(array, expected[path])
    kept = {path: array.copy() for path, array in buffers.items()}
    module.eval()(*rest)
    assert all(np.array_equal(array, kept[path]) for path, array in module.named_buffers())


def test_record_names_its_version_of_pytorch() -> None:
    assert read_record().texts["version"].startswith("2.")
