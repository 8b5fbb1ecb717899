"""Training with weights of bfloat16: what is rounded, what stays float32, and what it refuses."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle
import walle.nn as nn
import walle.np as np
import walle.optim as optim
from tests.engine_ext.nn.test_learning import images, train_digits
from walle.engine_ext import _core
from walle.engine_ext.errors import BackendError, DTypeError
from walle.engine_ext.model import GraphBuilder

type Array = numpy.ndarray[Any, numpy.dtype[Any]]

F = nn.functional
BACKEND = "avx512_bf16"
STEP = 2.0**-7  # distance of bfloat16 numbers from 1 to 2
needs_bfloat16 = pytest.mark.skipif(
    not any(one.name == BACKEND and one.available for one in walle.backends()),
    reason="this CPU has no AVX512_BF16",
)


def rounded(x: Array) -> Array:
    """Return float32 numbers rounded to bfloat16, ties to even, as float64."""
    bits = x.astype("float32").view("uint32").astype("uint64")
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    result: Array = bits.astype("uint32").view("float32").astype("float64")
    return result


@needs_bfloat16
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 90),
    st.integers(0, 70),
    st.integers(0, 70),
    st.sampled_from(["a b", "a b'", "a' b", "a' b'"]),
    st.integers(1, 2),
    st.integers(0, 2**32 - 1),
)
def test_products_of_many_rows_and_columns_round_both_operands_once(
    rows: int, depth: int, columns: int, form: str, threads: int, seed: int
) -> None:
    random = numpy.random.default_rng(seed)
    graph = GraphBuilder("net")
    arrays: dict[str, Array] = {}
    operands, matrices = [], []
    for part, shape in zip(form.split(), [(rows, depth), (depth, columns)], strict=True):
        is_turned = part.endswith("'")
        array = random.standard_normal(shape[::-1] if is_turned else shape).astype("float32")
        value = graph.input(part[0], array.shape)
        operands.append(graph.op("Transpose", [value], perm=[1, 0]) if is_turned else value)
        matrices.append(array.T if is_turned else array)
        arrays[part[0]] = array
    graph.output("y", graph.op("MatMul", operands))
    found = numpy.asarray(_core.Session(graph.to_bytes(), BACKEND, threads).run(arrays)["y"])
    a, b = (rounded(one) for one in matrices)
    terms = abs(a) @ abs(b)
    assert found.shape == (rows, columns)
    if rows > 4 and columns > 1:
        assert (abs(found - a @ b) <= (2 * depth + 8) * 2.0**-23 * terms + 1e-30).all()
    else:
        exact = matrices[0].astype("float64") @ matrices[1].astype("float64")
        assert (abs(found - exact) <= 3 * STEP * terms + 1e-30).all()


@needs_bfloat16
def test_products_of_many_rows_are_less_exact_than_those_of_float32() -> None:
    random = numpy.random.default_rng(1)
    x, w = (random.standard_normal(shape).astype("float32") for shape in [(40, 64), (64, 48)])
    graph = GraphBuilder("net")
    graph.output("y", graph.op("MatMul", [graph.input("x", x.shape), graph.input("w", w.shape)]))
    exact = x.astype("float64") @ w.astype("float64")
    errors = {
        name: abs(numpy.asarray(_core.Session(graph.to_bytes(), name).run({"x": x, "w": w})["y"]) - exact).max()
        for name in ("avx512", BACKEND)
    }
    assert errors["avx512"] < 1e-4 < 1e-3 < errors[BACKEND]


class Sum(nn.Module):
    """Layers whose weights are rounded: dense, strided, grouped and 1x1 convolutions, and linear ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.point = nn.Conv2d(8, 6, 1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        x = self.point(F.relu(self.grouped(F.relu(self.conv(x)))))
        return self.fc(x.mean((2, 3)))


@needs_bfloat16
def test_gradients_agree_with_those_of_float32_within_the_rounding() -> None:
    random = np.random.default_rng(5)
    x, y = random.standard_normal((8, 3, 12, 12)).astype("float32"), random.integers(0, 5, 8)
    nn.manual_seed(0)
    model = Sum()
    found, wanted = (
        nn.TrainStep(model, F.cross_entropy, optim.SGD(lr=0.1), weights=weights).gradients(x, y)
        for weights in ("bfloat16", "float32")
    )
    assert set(found) == set(wanted)
    for name, one in wanted.items():
        distance = float(np.linalg.norm(found[name] - one) / np.linalg.norm(one))
        assert 0 < distance < 16 * STEP, name


@needs_bfloat16
@pytest.mark.parametrize("rows", [1, 7, 44, 85, 256])
def test_steps_give_the_same_bits_for_any_number_of_threads(rows: int) -> None:
    states = []
    for threads in (1, 2, 3):
        nn.manual_seed(6)
        model = nn.Sequential(nn.Linear(97, 200), nn.ReLU(), nn.Linear(200, 40))
        random = np.random.default_rng(7)
        x, y = (random.standard_normal((rows, size)).astype("float32") for size in (97, 40))
        step = nn.TrainStep(model, F.mse_loss, optim.SGD(lr=0.1), threads=threads, weights="bfloat16")
        step(x, y)
        states.append({name: array.tobytes() for name, array in model.state_dict().items()})
    assert states[0] == states[1] == states[2]


@needs_bfloat16
def test_a_convolution_network_gives_the_same_bits_with_two_threads() -> None:
    random = np.random.default_rng(5)
    x, y = random.standard_normal((8, 3, 12, 12)).astype("float32"), random.integers(0, 5, 8)
    states = []
    for threads in (1, 2):
        nn.manual_seed(0)
        step = nn.TrainStep(Sum(), F.cross_entropy, optim.Adam(lr=0.01), threads=threads, weights="bfloat16")
        for _ in range(3):
            step(x, y)
        states.append({name: array.tobytes() for name, array in step.model.state_dict().items()})
    assert states[0] == states[1]


@needs_bfloat16
@pytest.mark.parametrize(("images", "channels"), [(1, 8), (3, 16)])
def test_pieces_of_few_channels_are_rounded_as_the_whole(images: int, channels: int) -> None:
    x = np.random.default_rng(5).standard_normal((images, 16, 8, 8)).astype("float32")
    states = []
    for threads in (1, 2, 4):
        nn.manual_seed(0)
        model = nn.Conv2d(16, channels, 1)
        step = nn.TrainStep(model, lambda y: (y * y).mean(), optim.SGD(lr=0.1), threads=threads, weights="bfloat16")
        loss = step(x)
        states.append((float(loss), model.state_dict()["weight"].tobytes()))
    assert states[0] == states[1] == states[2]


@needs_bfloat16
def test_the_last_rows_of_a_long_product_are_rounded_as_the_others() -> None:
    random = numpy.random.default_rng(8)
    graph = GraphBuilder("net")
    shapes = {"a": (340, 4096), "b": (4096, 256)}
    arrays = {name: random.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    graph.output("y", graph.op("MatMul", [graph.input(name, shape) for name, shape in shapes.items()]))
    one, two = (_core.Session(graph.to_bytes(), BACKEND, threads).run(arrays)["y"].tobytes() for threads in (1, 2))
    assert one == two


@needs_bfloat16
def test_updates_smaller_than_a_step_of_bfloat16_add_up() -> None:
    model = nn.Linear(1, 2, bias=False)
    model.load_state_dict({"weight": np.ones((2, 1))})
    step = nn.TrainStep(
        model, lambda y: y[:, 0].mean() + y[:, 1].mean() - 1, optim.SGD(lr=STEP / 64), weights="bfloat16"
    )
    losses = []
    for count in range(1, 130):
        losses.append(float(step(np.ones((8, 1)))))
        assert numpy.asarray(model.weight.data) == pytest.approx(1 - count * STEP / 64, abs=1e-6)
    assert str(model.weight.data.dtype) == "float32"
    assert sorted(set(losses), reverse=True) == [1 - i * STEP for i in range(5)]  # the weight, rounded in the product


@needs_bfloat16
def test_a_checkpoint_keeps_the_float32_weights(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    x, y = random.standard_normal((8, 3, 12, 12)).astype("float32"), random.integers(0, 5, 8)

    def made() -> nn.TrainStep:
        nn.manual_seed(0)
        return nn.TrainStep(Sum(), F.cross_entropy, optim.Adam(lr=0.01), weights="bfloat16")

    first, second = made(), made()
    for _ in range(3):
        first(x, y)
    nn.checkpoint(first, tmp_path / "c.walle", position=3)
    assert nn.resume(second, tmp_path / "c.walle") == 3
    weight = numpy.asarray(second.model.fc.weight.data)
    assert (weight != rounded(weight)).any()  # float32 in the file
    for step in (first, second):
        step(x, y)
    states = [{name: array.tobytes() for name, array in step.state_dict().items()} for step in (first, second)]
    assert states[0] == states[1]


@needs_bfloat16
def test_a_small_cnn_learns_digits_about_as_well_as_in_float32() -> None:
    x, y = images("sklearn", "datasets/data/digits.csv.gz", 16)
    accuracy, _ = train_digits(x, y, epochs=6, widths=(12, 24, 32), most_shift=0, weights="bfloat16")
    plain, _ = train_digits(x, y, epochs=6, widths=(12, 24, 32), most_shift=0)
    assert accuracy >= plain - 0.02 >= 0.9


@needs_bfloat16
def test_wrong_uses_are_errors_that_say_what_to_do() -> None:
    with pytest.raises(
        BackendError, match="needs AVX512_BF16, which backend 'avx2' does not use; train with weights='float32'"
    ):
        nn.TrainStep(nn.Linear(3, 3), F.mse_loss, optim.SGD(lr=0.1), weights="bfloat16", backend="avx2")
    model = nn.Linear(3, 3)
    for parameter in model.parameters():
        parameter.data = parameter.data.astype("float64")
    step = nn.TrainStep(model, F.mse_loss, optim.SGD(lr=0.1), weights="bfloat16")
    with pytest.raises(DTypeError, match="weights='bfloat16' rounds float32 parameters, and weight is float64"):
        step(np.ones((2, 3), "float64"), np.zeros((2, 3), "float64"))


def test_an_unknown_type_of_weights_is_an_error() -> None:
    with pytest.raises(DTypeError, match="weights='float16'; known are 'float32' and 'bfloat16'"):
        nn.TrainStep(nn.Linear(3, 3), F.mse_loss, optim.SGD(lr=0.1), weights="float16")


@needs_bfloat16
def test_a_smaller_instruction_set_of_the_environment_is_an_error() -> None:
    code = """
import walle.nn as nn, walle.optim as optim
try:
    nn.TrainStep(nn.Linear(3, 3), nn.functional.mse_loss, optim.SGD(lr=0.1), weights="bfloat16")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"WALLE_FORCE_ISA": "avx2"},
    )
    assert done.stdout == (
        "BackendError weights='bfloat16' needs AVX512_BF16, which backend 'avx2' does not use; "
        "train with weights='float32'\n"
    )


@pytest.mark.skipif(not needs_bfloat16.args[0], reason="this CPU has AVX512_BF16")
def test_a_cpu_without_the_instructions_is_an_error() -> None:
    with pytest.raises(BackendError, match="needs AVX512_BF16, which this CPU does not have; train with"):
        nn.TrainStep(nn.Linear(3, 3), F.mse_loss, optim.SGD(lr=0.1), weights="bfloat16")
