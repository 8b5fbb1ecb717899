"""Gradients of each layer and loss in float64 agree with central differences along a random direction."""

from typing import Any

import numpy
import pytest

import walle.nn as nn
import walle.np as np
import walle.optim as optim
from tests.engine_ext.nn.test_torch_training import TRAINED, Whole
from tests.engine_ext.nn.torch_cases import CASES, fed, flat
from tests.engine_ext.nn.torch_record import read_record

STEP = 1e-6


def wide(array: Any) -> Any:
    return np.asarray(array.astype("float64") if array.dtype == "float32" else array)


@pytest.mark.parametrize("name", [name for name in TRAINED if "padding" not in name])  # a padding row has no gradient
def test_gradient_in_float64_is_the_slope(name: str) -> None:
    record = read_record()
    inputs = [wide(array) for array in record.listed(f"{name}/input ")]
    module = fed(nn, CASES[name], inputs)
    module.double()
    module.load_state_dict(record.named(f"{name}/first/"))
    whole = Whole(module)
    target = record.arrays.get(f"{name}/target")
    arrays = [np.zeros(1, dtype="float64"), *(inputs if module.input is None else inputs[1:])]

    def loss(result: Any, wanted: Any) -> Any:
        first = next(flat(result))
        return first if target is None else nn.functional.mse_loss(first, wanted)

    last = np.zeros(1, dtype="float64") if target is None else wide(target)
    gradients = nn.TrainStep(whole, loss, optim.SGD()).gradients(*arrays, last)
    parameters = {path: part for path, part in whole.named_parameters() if part.requires_grad}
    assert {str(array.dtype) for array in gradients.values()} == {"float64"}
    state = numpy.random.RandomState(3)
    directions = {path: state.standard_normal(part.shape) for path, part in parameters.items()}
    start = {path: part.data.copy() for path, part in parameters.items()}
    sides = []
    for sign in (1, -1):
        for path, part in parameters.items():
            part.data = start[path] + np.asarray(directions[path]) * (sign * STEP)
        sides.append(float(loss(whole(*arrays), last)))
    slope = (sides[0] - sides[1]) / (2 * STEP)
    found = sum(float((numpy.asarray(gradients[path]) * directions[path]).sum()) for path in parameters)
    assert found == pytest.approx(slope, rel=1e-6, abs=1e-8)
