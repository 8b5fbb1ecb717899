"""Names, argument orders, defaults, texts and first weights are PyTorch's."""

import inspect
from types import ModuleType
from typing import Any

import numpy
import pytest

import walle.nn as nn
import walle.optim as optim
from tests.engine_ext.nn.torch_options import INITIAL, TEXTS
from tests.engine_ext.nn.torch_record import read_record

# Arguments that walle leaves out: legacy ones, devices, and what another argument or the result says.
LEFT_OUT = {
    "device", "dtype", "size_average", "reduce", "max_norm", "norm_type", "scale_grad_by_freq", "sparse", "_weight",
    "_freeze", "add_bias_kv", "add_zero_attn", "proj_size", "_stacklevel", "params", "maximize", "foreach",
    "capturable", "differentiable", "fused", "last_epoch", "out", "inplace", "verbose", "min_value", "max_value",
}  # fmt: skip
# Only walle has these, under short names; or PyTorch's other name for them says why it differs.
OURS = {
    "functional.bce", "functional.bce_with_logits", "functional.huber", "functional.l1", "functional.mse",
    "functional.smooth_l1", "optim.clip_grad_norm", "optim.clip_grad_value", "optim.CosineLR", "optim.LinearWarmup",
    "optim.LRScheduler", "optim.Optimizer", "nn.manual_seed", "nn.functional", "nn.init", "nn.Module", "nn.Parameter",
    "nn.Identity", "nn.Sequential", "nn.TrainStep", "nn.grad", "nn.value_and_grad",
}  # fmt: skip
DEFAULTS_OF_OURS = {
    "init.kaiming_uniform_.a", "init.kaiming_normal_.a", "init.constant_.val",
    "init.orthogonal_.gain", "nn.TransformerEncoderLayer.activation", "optim.SGD.lr",
}  # fmt: skip


def public() -> dict[str, Any]:
    owners: dict[str, ModuleType] = {"nn": nn, "functional": nn.functional, "init": nn.init, "optim": optim}
    return {
        f"{start}.{name}": getattr(owner, name)
        for start, owner in owners.items()
        for name in (owner.__all__ if start == "init" else dir(owner))
        if not name.startswith("_")
    }


def comparable() -> list[str]:
    """Return our names for which PyTorch has a signature; its built-in functions have none."""
    signatures = read_record().texts["signatures"]
    return sorted(
        name
        for name in public()
        if [part for part, _ in signatures.get(name, ())] != ["args", "kwargs"]
        and name in signatures
        and name not in OURS
    )


def test_most_names_are_compared() -> None:
    assert len(comparable()) > 110


@pytest.mark.parametrize("name", comparable())
def test_arguments_are_in_the_order_of_pytorch_with_its_defaults(name: str) -> None:
    signatures = read_record().texts["signatures"]
    what = public()[name]
    theirs = [(part, default) for part, default in signatures[name] if part not in LEFT_OUT]
    own = [part for part in inspect.signature(what).parameters.values() if part.name not in LEFT_OUT]
    assert [part.name for part in own] == [part for part, _ in theirs]
    for part, (_, default) in zip(own, theirs, strict=True):
        if f"{name}.{part.name}" in DEFAULTS_OF_OURS:
            continue
        found = "required" if part.default is part.empty else part.default
        assert found == ("required" if default == "required" else eval(default)), part.name


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_layer_is_that_of_pytorch(name: str) -> None:
    assert repr(TEXTS[name](nn)) == read_record().texts["texts"][name]


@pytest.mark.parametrize("name", INITIAL)
def test_first_weights_are_distributed_as_those_of_pytorch(name: str) -> None:
    nn.manual_seed(3)
    parameters = dict(INITIAL[name](nn).named_parameters())
    expected = read_record().texts["initial"][name]
    assert list(parameters) == list(expected)
    for path, (mean, deviation, most) in expected.items():
        values = numpy.asarray(parameters[path].data, "float64")
        spread = 6 * deviation / numpy.sqrt(values.size)  # six standard errors
        assert abs(values.mean() - mean) <= 2 * spread + 1e-7, path
        assert abs(values.std() - deviation) <= spread + 0.01 * deviation, path
        if "Embedding" not in name:  # a uniform distribution has a bound
            assert numpy.abs(values).max() == pytest.approx(most, rel=0.1), path
