"""Modules: parameters, buffers, parts, state, modes and their errors."""

import copy
from typing import Any

import pytest

import walle.nn as nn
import walle.np as np
from walle.engine_ext.errors import DTypeError, ModelError, ShapeError
from walle.nn import functional


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
        self.fc = nn.Linear(8, 3)
        self.scale = nn.Parameter(np.ones(()))
        self.register_buffer("shift", np.zeros(3))
        self.register_buffer("cache", np.zeros(2), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.fc(self.features(x).reshape(x.shape[0], -1)) * self.scale + self.shift


NAMES = [
    "scale", "features.0.weight", "features.0.bias", "features.1.weight", "features.1.bias", "fc.weight", "fc.bias",
]  # fmt: skip


def test_module_finds_its_parameters_and_buffers_in_order() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert [name for name, _ in net.named_buffers()] == [
        "shift", "cache", "features.1.running_mean", "features.1.running_var", "features.1.num_batches_tracked",
    ]  # fmt: skip
    assert [name for name, _ in net.named_modules()] == [
        "", "features", "features.0", "features.1", "features.2", "fc",
    ]  # fmt: skip
    assert [name for name, _ in net.named_children()] == ["features", "fc"]
    assert net.get_submodule("features.1") is net.features[1]
    assert len(list(net.parameters())) == 7
    assert len(list(net.fc.parameters(recurse=False))) == 2
    assert net(np.ones((2, 1, 4, 4))).shape == (2, 3)


def test_shared_parameter_is_counted_once_and_saved_under_both_names() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    assert [name for name, _ in net.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert "1.weight" in net.state_dict()


def test_state_is_of_arrays_that_later_changes_leave_alone() -> None:
    net = Net()
    state = net.state_dict()
    assert "cache" not in state
    assert "shift" in state
    net.scale.data[...] = 5.0
    assert state["scale"] == 1
    other = Net()
    assert other.load_state_dict(net.state_dict()) == ([], [])
    assert other.scale.data == 5
    assert np.array_equal(other.fc.weight.data, net.fc.weight.data)


def test_state_that_does_not_fit_is_refused_by_every_name_and_changes_nothing() -> None:
    net = Net()
    state = net.state_dict()
    del state["fc.bias"], state["shift"]
    state["fc.weight"] = np.zeros((4, 8))
    state["head.weight"] = np.zeros(1)
    state["scale"] = np.array(7.0)
    with pytest.raises(ModelError) as refused:
        net.load_state_dict(state)
    message = str(refused.value)
    assert message == (
        "state of Net cannot be loaded: missing: shift, fc.bias; unexpected: head.weight; "
        "fc.weight has shape (4, 8); the module's has (3, 8)"
    )
    assert net.scale.data == 1
    del state["fc.weight"]
    state["cache"] = np.ones(2)
    assert net.load_state_dict(state, strict=False) == (["shift", "fc.weight", "fc.bias"], ["head.weight", "cache"])
    assert (net.cache == 0).all()
    assert net.scale.data == 7


def test_state_takes_the_dtype_of_the_module() -> None:
    layer = nn.Linear(2, 2)
    layer.load_state_dict({"weight": np.ones((2, 2), dtype="float64"), "bias": [1, 2]})
    assert layer.weight.dtype == "float32"
    assert layer.bias is not None
    assert layer.bias.data.tolist() == [1.0, 2.0]


def test_module_without_super_init_is_refused() -> None:
    class Forgot(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(2, 2)

    with pytest.raises(AttributeError, match=r"Forgot assigns 'fc' .* call super\(\).__init__\(\) first"):
        Forgot()

    class Empty(nn.Module):
        def __init__(self) -> None:
            self.width = 3

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) first"):
        Empty().register_buffer("x", np.ones(2))


def test_attributes_keep_their_kind() -> None:
    net: Any = Net()
    with pytest.raises(TypeError, match="scale is a Parameter"):
        net.scale = np.ones(())
    with pytest.raises(TypeError, match="fc is a Module"):
        net.fc = 3
    net.shift = np.ones(3)
    assert net.state_dict()["shift"].tolist() == [1, 1, 1]
    net.fc = nn.Identity()
    assert "fc.weight" not in net.state_dict()
    del net.scale
    assert not hasattr(net, "scale")
    with pytest.raises(AttributeError, match="Net has no attribute 'missing'"):
        _ = net.missing
    with pytest.raises(KeyError, match="dot"):
        net.register_buffer("a.b", np.ones(1))
    with pytest.raises(KeyError, match="already"):
        net.register_parameter("forward", None)


def test_modes_reach_every_part() -> None:
    net = Net()
    assert all(module.training for module in net.modules())
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    net.train()
    assert net.features[1].training
    net.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in net.parameters())
    seen: list[str] = []
    net.apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Conv2d", "BatchNorm2d", "ReLU", "Sequential", "Linear", "Net"]


def test_dtype_of_a_module_changes_its_floats() -> None:
    net = Net()
    assert net.double() is net
    dtypes = {name: str(array.dtype) for name, array in net.state_dict().items()}
    assert dtypes.pop("features.1.num_batches_tracked") == "int64"
    assert set(dtypes.values()) == {"float64"}
    assert net(np.ones((2, 1, 4, 4), dtype="float64")).dtype == "float64"
    assert net.float().fc.weight.dtype == "float32"
    with pytest.raises(DTypeError, match=r"Net.to\('int64'\)"):
        net.to("int64")


def test_copy_of_a_module_is_independent() -> None:
    net = Net()
    other = copy.deepcopy(net)
    other.scale.data[...] = 3.0
    assert net.scale.data == 1
    assert other(np.ones((2, 1, 4, 4))).shape == (2, 3)


def test_wrong_shape_names_the_layer_by_its_path() -> None:
    net = Net()
    with pytest.raises(ShapeError) as refused:
        net(np.ones((2, 3, 4, 4)))
    assert str(refused.value) == (
        "layer 'features.0' (Conv2d): input of shape (2, 3, 4, 4); it takes (batch, 1, height, width)"
    )
    with pytest.raises(ShapeError) as refused:
        net(np.ones((2, 1, 6, 6)))
    assert str(refused.value) == "layer 'fc' (Linear): input of shape (2, 32); it takes (..., 8)"
    with pytest.raises(ShapeError, match=r"^Linear: input of shape \(2,\)"):
        nn.Linear(3, 1)(np.ones(2))


def test_module_without_forward_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)


def test_containers_are_lists_and_dictionaries() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    layers.append(nn.ReLU())
    layers.insert(0, nn.Identity())
    assert len(layers) == 5
    assert isinstance(layers[-1], nn.ReLU)
    assert [type(part).__name__ for part in layers[:2]] == ["Identity", "Linear"]
    del layers[0]
    assert next(name for name, _ in layers.named_parameters()) == "0.weight"
    named = nn.Sequential({"first": nn.Linear(2, 3), "second": nn.ReLU()})
    assert named(np.ones((1, 2))).shape == (1, 3)
    assert named.first is named[0]
    table = nn.ModuleDict({"a": nn.ReLU()})
    table["b"] = nn.Linear(1, 1)
    assert list(table) == list(table.keys()) == ["a", "b"]
    assert "a" in table
    del table["a"]
    assert [name for name, _ in table.items()] == ["b"]
    values = nn.ParameterList([np.ones(2), nn.Parameter(np.zeros(1))])
    assert [name for name, _ in values.named_parameters()] == ["0", "1"]
    assert values[0].shape == (2,)
    with pytest.raises(ModelError, match="ModuleList"):
        nn.ParameterList([nn.ReLU()])


def test_same_seed_gives_the_same_weights_and_masks() -> None:
    def make() -> tuple[dict[str, Any], Any]:
        nn.manual_seed(4)
        net = Net()
        return net.state_dict(), functional.dropout(np.ones(50))

    first, mask = make()
    second, again = make()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert np.array_equal(mask, again)
    nn.manual_seed(5)
    assert not np.array_equal(Net().fc.weight.data, first["fc.weight"])


def test_dropout_keeps_the_mean_in_training_and_the_input_otherwise() -> None:
    nn.manual_seed(0)
    x = np.ones((100, 100))
    layer = nn.Dropout(0.3)
    y = layer(x)
    assert float(y.mean()) == pytest.approx(1, abs=0.03)
    assert sorted(set(y.reshape(-1).tolist())) == pytest.approx([0, 1 / 0.7])
    assert np.array_equal(layer.eval()(x), x)
    assert (functional.dropout(x, 1.0) == 0).all()
    assert not np.array_equal(layer.train()(x), layer(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "2 groups do not divide"),
        (lambda: nn.Conv2d(3, 4, (1, 2, 3)), "kernel_size"),
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"), "padding_mode 'mirror'"),
        (lambda: nn.Conv2d(1, 1, 3, 2, "same")(np.ones((1, 1, 4, 4))), "stride 1"),
        (lambda: nn.MultiheadAttention(5, 2), "2 heads do not divide 5"),
        (lambda: nn.GroupNorm(2, 3), "2 groups do not divide 3"),
        (lambda: nn.Dropout(1.5), "p 1.5"),
        (lambda: nn.CrossEntropyLoss(reduction="total"), "reduction 'total'"),
        (lambda: nn.RNN(2, 3, nonlinearity="sin"), "nonlinearity 'sin'"),
        (lambda: nn.GRU(2, 3)(np.ones((4, 1, 5))), r"\(length, batch, 2\)"),
        (lambda: nn.GRU(2, 3)(np.ones((4, 1, 2)), np.ones((1, 2, 3))), r"it takes \(1, 1, 3\)"),
        (lambda: nn.BatchNorm1d(3)(np.ones((1, 3))), "more than one number a channel"),
        (lambda: nn.BatchNorm2d(3)(np.ones((2, 3))), r"\(batch, 3, height, width\)"),
        (lambda: nn.LayerNorm(3)(np.ones((2, 4))), r"last axes must be \(3,\)"),
        (lambda: nn.MaxPool2d(2, padding=2)(np.ones((1, 1, 4, 4))), "half of the kernel"),
        (lambda: nn.Embedding(3, 2)(np.array([3])), "out of range"),
        (lambda: functional.cross_entropy(np.ones((2, 3)), np.array([0, 3])), "out of range"),
        (lambda: functional.cross_entropy(np.ones((2, 3)), np.array([0])), r"must have shape \(2,\)"),
        (lambda: functional.mse_loss(np.ones((2, 1)), np.ones(2)), "equal"),
        (lambda: functional.interpolate(np.ones((1, 1, 2)), 3, mode="bilinear"), "mode 'bilinear'"),
        (lambda: functional.pad(np.ones((2, 2)), (1, 1, 1)), "3 numbers"),
        (lambda: nn.MultiheadAttention(4, 2)(*[np.ones((3, 2, 4))] * 3, attn_mask=np.ones((2, 2))), "attn_mask"),
    ],
)
def test_wrong_argument_is_refused_with_what_is_taken(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make()


def test_one_target_number_is_broadcast() -> None:
    assert float(functional.mse_loss(np.array([1.0, 3.0]), 2.0)) == 1
