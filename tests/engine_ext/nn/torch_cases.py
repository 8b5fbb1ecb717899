"""Layers, losses and functions that are compared with PyTorch: `nn` is torch.nn in the record and walle.nn in a test.

A case makes a layer and calls it with inputs. The first input of floats is trained like a weight, so that gradients
by inputs count too.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy

type Make = Callable[[Any], Any]  # nn → layer
type Call = Callable[..., Any]  # nn, layer, inputs → result


class Case(NamedTuple):
    """A layer and what it is called with."""

    make: Make
    inputs: tuple[Any, ...]  # shapes of normal numbers, or functions of a generator
    call: Call
    trains: bool


def _call(_nn: Any, layer: Any, *inputs: Any) -> Any:
    return layer(*inputs)


def layer(make: Make, *inputs: Any, call: Call = _call, trains: bool = True) -> Case:
    return Case(make, inputs, call, trains)


def function(call: Callable[..., Any], *inputs: Any, trains: bool = True) -> Case:
    """Return the case of a function of nn.functional."""
    return Case(lambda nn: nn.Identity(), inputs, lambda nn, _layer, *given: call(nn.functional, *given), trains)


def integers(high: int, *shape: int, ignored: bool = False) -> Callable[[numpy.random.RandomState], Any]:
    def make(state: numpy.random.RandomState) -> Any:
        values = state.randint(0, high, shape).astype("int64")
        if ignored:
            values.reshape(-1)[0] = -100
        return values

    return make


def exactly(values: Any, dtype: str = "int64") -> Callable[[numpy.random.RandomState], Any]:
    return lambda _state: numpy.array(values, dtype)


def probabilities(*shape: int) -> Callable[[numpy.random.RandomState], Any]:
    """Return numbers that add up to 1 along axis 1."""

    def make(state: numpy.random.RandomState) -> Any:
        values = state.uniform(0.1, 1, shape)
        return (values / values.sum(1, keepdims=True)).astype("float32")

    return make


def between(low: float, high: float, *shape: int) -> Callable[[numpy.random.RandomState], Any]:
    return lambda state: state.uniform(low, high, shape).astype("float32")


def arrays(name: str, case: Case) -> list[Any]:
    """Return the inputs of a case, always the same."""
    state = numpy.random.RandomState(sum(name.encode()) * 7919 + len(name))
    return [
        state.standard_normal(given).astype("float32") if isinstance(given, tuple) else given(state)
        for given in case.inputs
    ]


def attend(_nn: Any, attention: Any, x: Any, *rest: Any) -> Any:
    return attention(x, x, x, *rest)


def stacked(nn: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


PRODUCTS = {
    "Linear": layer(lambda nn: nn.Linear(5, 4), (3, 5)),
    "Linear without bias": layer(lambda nn: nn.Linear(5, 4, False), (2, 3, 5)),
    "Linear of one vector": layer(lambda nn: nn.Linear(5, 4), (5,)),
    "Embedding": layer(lambda nn: nn.Embedding(7, 3), integers(7, 2, 4)),
    "Embedding with padding": layer(lambda nn: nn.Embedding(5, 3, padding_idx=-4), integers(5, 3, 3)),
    "Conv1d": layer(lambda nn: nn.Conv1d(3, 4, 3, 2, 1), (2, 3, 8)),
    "Conv1d same": layer(lambda nn: nn.Conv1d(2, 3, 4, padding="same", dilation=2), (2, 2, 9)),
    "Conv2d": layer(lambda nn: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 5, 6)),
    "Conv2d in groups": layer(lambda nn: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), groups=2), (2, 4, 6, 5)),
    "Conv2d depthwise": layer(lambda nn: nn.Conv2d(4, 4, 3, 2, 1, groups=4, bias=False), (1, 4, 7, 7)),
    "Conv2d dilated": layer(lambda nn: nn.Conv2d(2, 3, 3, 1, 2, 2), (1, 2, 6, 6)),
    "Conv2d by points": layer(lambda nn: nn.Conv2d(5, 3, 1), (2, 5, 3, 3)),
    "Conv2d reflecting": layer(lambda nn: nn.Conv2d(2, 2, 3, padding=(2, 1), padding_mode="reflect"), (1, 2, 5, 4)),
    "Conv2d circular": layer(lambda nn: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (1, 2, 4, 5)),
    "Conv2d of one image": layer(lambda nn: nn.Conv2d(3, 2, 3), (3, 5, 5)),
    "ConvTranspose1d": layer(lambda nn: nn.ConvTranspose1d(3, 2, 4, 2, 1), (2, 3, 5)),
    "ConvTranspose2d": layer(lambda nn: nn.ConvTranspose2d(3, 2, 3), (1, 3, 4, 4)),
    "ConvTranspose2d strided": layer(lambda nn: nn.ConvTranspose2d(4, 2, 3, 2, 1, 1, 2), (1, 4, 3, 3)),
    "ConvTranspose2d dilated": layer(lambda nn: nn.ConvTranspose2d(2, 2, 3, dilation=2, bias=False), (1, 2, 3, 3)),
    "network of convolutions": layer(stacked, (4, 2, 4, 4)),
}

NORMALIZATION = {
    "BatchNorm1d": layer(lambda nn: nn.BatchNorm1d(4), (5, 4)),
    "BatchNorm1d with length": layer(lambda nn: nn.BatchNorm1d(3, 1e-3, 0.3), (2, 3, 5)),
    "BatchNorm2d": layer(lambda nn: nn.BatchNorm2d(3), (2, 3, 3, 4)),
    "BatchNorm2d without affine part": layer(lambda nn: nn.BatchNorm2d(3, affine=False), (2, 3, 3, 2)),
    "BatchNorm2d with plain means": layer(lambda nn: nn.BatchNorm2d(2, momentum=None), (3, 2, 2, 2)),
    "BatchNorm2d without statistics": layer(lambda nn: nn.BatchNorm2d(2, track_running_stats=False), (3, 2, 2, 2)),
    "LayerNorm": layer(lambda nn: nn.LayerNorm(6), (2, 3, 6)),
    "LayerNorm of two axes": layer(lambda nn: nn.LayerNorm((3, 4), 1e-4), (2, 3, 4)),
    "LayerNorm without bias": layer(lambda nn: nn.LayerNorm(6, bias=False), (4, 6)),
    "LayerNorm without affine part": layer(lambda nn: nn.LayerNorm(6, elementwise_affine=False), (4, 6)),
    "RMSNorm": layer(lambda nn: nn.RMSNorm(6), (2, 3, 6)),
    "RMSNorm with eps": layer(lambda nn: nn.RMSNorm((2, 3), 1e-2), (4, 2, 3)),
    "BatchNorm2d without bias": layer(lambda nn: nn.BatchNorm2d(3, bias=False), (2, 3, 3, 2)),
    "GroupNorm": layer(lambda nn: nn.GroupNorm(2, 6), (2, 6, 3)),
    "GroupNorm of vectors": layer(lambda nn: nn.GroupNorm(2, 6, affine=False), (3, 6)),
    "InstanceNorm2d": layer(lambda nn: nn.InstanceNorm2d(3), (2, 3, 3, 3)),
    "InstanceNorm2d with statistics": layer(
        lambda nn: nn.InstanceNorm2d(2, affine=True, track_running_stats=True), (2, 2, 3, 3)
    ),
}

SEQUENCES = {
    "RNN": layer(lambda nn: nn.RNN(3, 4), (5, 2, 3)),
    "RNN of relu": layer(lambda nn: nn.RNN(3, 4, nonlinearity="relu", batch_first=True), (2, 4, 3)),
    "GRU": layer(lambda nn: nn.GRU(3, 4), (5, 2, 3)),
    "GRU in two directions": layer(lambda nn: nn.GRU(3, 2, 2, bidirectional=True), (4, 2, 3)),
    "GRU with a first state": layer(lambda nn: nn.GRU(3, 4, batch_first=True, bias=False), (2, 3, 3), (1, 2, 4)),
    "LSTM": layer(lambda nn: nn.LSTM(3, 4), (5, 2, 3)),
    "LSTM in two directions": layer(
        lambda nn: nn.LSTM(3, 2, 2, batch_first=True, bidirectional=True),
        (2, 4, 3), (4, 2, 2), (4, 2, 2),
        call=lambda _nn, lstm, x, hidden, cell: lstm(x, (hidden, cell)),
    ),
    "LSTM of one sequence": layer(lambda nn: nn.LSTM(3, 4), (5, 3)),
    "MultiheadAttention": layer(lambda nn: nn.MultiheadAttention(6, 2), (4, 2, 6), call=attend),
    "MultiheadAttention of other widths": layer(
        lambda nn: nn.MultiheadAttention(6, 3, kdim=4, vdim=5, batch_first=True), (2, 3, 6), (2, 4, 4), (2, 4, 5)
    ),
    "MultiheadAttention with masks": layer(
        lambda nn: nn.MultiheadAttention(4, 2, batch_first=True, bias=False),
        (2, 3, 4), exactly([[0, 0, 1], [0, 0, 0]], "bool"), exactly([[0, 1, 1], [0, 0, 1], [0, 0, 0]], "bool"),
        call=lambda _nn, attention, x, padding, mask: attention(
            x, x, x, key_padding_mask=padding, attn_mask=mask, average_attn_weights=False
        ),
    ),
    "MultiheadAttention with added masks": layer(
        lambda nn: nn.MultiheadAttention(4, 2),
        (3, 2, 4), (4, 3, 3),
        call=lambda _nn, attention, x, mask: attention(x, x, x, attn_mask=mask, need_weights=False)[0],
    ),
    "MultiheadAttention of one sequence": layer(lambda nn: nn.MultiheadAttention(4, 2), (3, 4), call=attend),
    "TransformerEncoderLayer": layer(lambda nn: nn.TransformerEncoderLayer(4, 2, 6, 0.0), (3, 2, 4)),
    "TransformerEncoderLayer normalised first": layer(
        lambda nn: nn.TransformerEncoderLayer(4, 2, 6, 0.0, "gelu", batch_first=True, norm_first=True), (2, 3, 4)
    ),
}  # fmt: skip

SHAPES = {
    "MaxPool1d": layer(lambda nn: nn.MaxPool1d(3, 2, 1), (2, 2, 8)),
    "MaxPool2d": layer(lambda nn: nn.MaxPool2d(2), (2, 2, 5, 6)),
    "MaxPool2d rounding up": layer(lambda nn: nn.MaxPool2d(3, 2, 1, ceil_mode=True), (1, 2, 6, 5)),
    "MaxPool2d dilated": layer(lambda nn: nn.MaxPool2d((2, 3), 1, (1, 0), 2), (1, 2, 5, 6)),
    "AvgPool1d": layer(lambda nn: nn.AvgPool1d(3, 2, 1), (2, 2, 8)),
    "AvgPool2d": layer(lambda nn: nn.AvgPool2d(3, 2, 1), (1, 2, 5, 6)),
    "AvgPool2d of what is there": layer(lambda nn: nn.AvgPool2d(3, 2, 1, True, False), (1, 2, 6, 5)),
    "AvgPool2d rounding up": layer(lambda nn: nn.AvgPool2d(3, 2, 1, True), (1, 2, 6, 5)),
    "AdaptiveAvgPool1d": layer(lambda nn: nn.AdaptiveAvgPool1d(3), (1, 2, 7)),
    "AdaptiveAvgPool2d to one": layer(lambda nn: nn.AdaptiveAvgPool2d(1), (2, 3, 3, 4)),
    "AdaptiveAvgPool2d that divides": layer(lambda nn: nn.AdaptiveAvgPool2d((2, 3)), (1, 2, 4, 6)),
    "AdaptiveAvgPool2d in regions": layer(lambda nn: nn.AdaptiveAvgPool2d((None, 3)), (1, 2, 3, 5)),
    "Flatten": layer(lambda nn: nn.Flatten(), (2, 3, 4)),
    "Flatten of some axes": layer(lambda nn: nn.Flatten(0, 1), (2, 3, 4)),
    "Unflatten": layer(lambda nn: nn.Unflatten(1, (2, 3)), (2, 6)),
    "Upsample nearest": layer(lambda nn: nn.Upsample(scale_factor=2), (1, 2, 3, 2)),
    "Upsample linear": layer(lambda nn: nn.Upsample(scale_factor=1.5, mode="linear"), (1, 2, 5)),
    "Upsample bilinear": layer(lambda nn: nn.Upsample((5, 7), mode="bilinear"), (1, 2, 3, 4)),
    "Upsample with corners": layer(
        lambda nn: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (1, 1, 3, 4)
    ),
    "Upsample bicubic": layer(lambda nn: nn.Upsample(scale_factor=2, mode="bicubic"), (1, 1, 4, 3)),
    "interpolate to fewer": function(lambda f, x: f.interpolate(x, (2, 3)), (1, 2, 5, 7)),
    "interpolate exactly nearest": function(lambda f, x: f.interpolate(x, 5, mode="nearest-exact"), (1, 2, 3)),
    "interpolate by area": function(lambda f, x: f.interpolate(x, (2, 3), mode="area"), (1, 2, 5, 6)),
    "interpolate by other factors": function(
        lambda f, x: f.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"), (1, 1, 4, 7)
    ),
    "interpolate with antialias": function(
        lambda f, x: f.interpolate(x, (3, 4), mode="bilinear", antialias=True), (1, 1, 7, 8)
    ),
    "pad": function(lambda f, x: f.pad(x, (1, 2, 0, 1), value=1.5), (2, 3, 4)),
    "pad less": function(lambda f, x: f.pad(x, (-1, 2)), (2, 3, 4)),
    "pad reflecting": function(lambda f, x: f.pad(x, (1, 2, 2, 1), "reflect"), (1, 2, 3, 4)),
    "pad replicating": function(lambda f, x: f.pad(x, (1, 2), "replicate"), (1, 2, 4)),
    "pad circular": function(lambda f, x: f.pad(x, (1, 2), "circular"), (1, 2, 4)),
    "adaptive_max_pool2d": function(lambda f, x: f.adaptive_max_pool2d(x, (2, 3)), (1, 2, 4, 6)),
    "cosine_similarity": function(lambda f, x, y: f.cosine_similarity(x, y), (3, 4), (3, 4)),
    "cosine_similarity of broadcast shapes": function(
        lambda f, x, y: f.cosine_similarity(x, y, -1), (2, 1, 4), (3, 4)
    ),
    "normalize": function(lambda f, x: f.normalize(x, dim=-1), (3, 4)),
    "normalize by another norm": function(lambda f, x: f.normalize(x, 3.0, 0), (3, 4)),
    "one_hot": function(lambda f, x: f.one_hot(x, 5), integers(5, 2, 3), trains=False),
    "one_hot of all classes": function(lambda f, x: f.one_hot(x), integers(4, 2, 3), trains=False),
    "scaled_dot_product_attention": function(
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v), (2, 3, 4), (2, 5, 4), (2, 5, 3)
    ),
    "scaled_dot_product_attention causal": function(
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        (2, 3, 4), (2, 3, 4), (2, 3, 4),
    ),
    "scaled_dot_product_attention with a mask": function(
        lambda f, q, k, v, m: f.scaled_dot_product_attention(q, k, v, m),
        (2, 2, 4), (2, 3, 4), (2, 3, 4), exactly([[1, 0, 1], [1, 1, 0]], "bool"),
    ),
    "scaled_dot_product_attention of groups": function(
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (1, 4, 2, 3), (1, 2, 3, 3), (1, 2, 3, 3),
    ),
}  # fmt: skip

ACTIVATIONS = {
    "ReLU": layer(lambda nn: nn.ReLU(), (3, 5)),
    "ReLU6": layer(lambda nn: nn.ReLU6(), between(-3, 9, 3, 5)),
    "LeakyReLU": layer(lambda nn: nn.LeakyReLU(0.2), (3, 5)),
    "PReLU": layer(lambda nn: nn.PReLU(), (3, 5)),
    "PReLU by channel": layer(lambda nn: nn.PReLU(3, 0.1), (2, 3, 4)),
    "ELU": layer(lambda nn: nn.ELU(0.7), (3, 5)),
    "SELU": layer(lambda nn: nn.SELU(), (3, 5)),
    "GELU": layer(lambda nn: nn.GELU(), (3, 5)),
    "GELU by tanh": layer(lambda nn: nn.GELU("tanh"), (3, 5)),
    "SiLU": layer(lambda nn: nn.SiLU(), (3, 5)),
    "Mish": layer(lambda nn: nn.Mish(), (3, 5)),
    "Sigmoid": layer(lambda nn: nn.Sigmoid(), (3, 5)),
    "LogSigmoid": layer(lambda nn: nn.LogSigmoid(), (3, 5)),
    "Tanh": layer(lambda nn: nn.Tanh(), (3, 5)),
    "Softplus": layer(lambda nn: nn.Softplus(), between(-30, 30, 3, 5)),
    "Softplus with beta": layer(lambda nn: nn.Softplus(2.0, 3.0), (3, 5)),
    "Hardswish": layer(lambda nn: nn.Hardswish(), between(-5, 5, 3, 5)),
    "Hardsigmoid": layer(lambda nn: nn.Hardsigmoid(), between(-5, 5, 3, 5)),
    "Hardtanh": layer(lambda nn: nn.Hardtanh(-0.5, 0.8), (3, 5)),
    "Softmax": layer(lambda nn: nn.Softmax(1), (3, 5)),
    "LogSoftmax": layer(lambda nn: nn.LogSoftmax(-1), (2, 3, 4)),
    "Identity": layer(lambda nn: nn.Identity(), (3, 5)),
}

LOSSES = {
    "CrossEntropyLoss": layer(lambda nn: nn.CrossEntropyLoss(), (4, 3), integers(3, 4)),
    "cross_entropy of ignored": function(
        lambda f, x, t, w: f.cross_entropy(x, t, w), (4, 3), integers(3, 4, ignored=True), between(0.5, 2, 3)
    ),
    "cross_entropy smoothed": function(
        lambda f, x, t, w: f.cross_entropy(x, t, w, ignore_index=1, label_smoothing=0.2),
        (5, 3), exactly([0, 1, 2, 2, 0]), between(0.5, 2, 3),
    ),
    "cross_entropy of images": function(lambda f, x, t: f.cross_entropy(x, t), (2, 3, 2, 2), integers(3, 2, 2, 2)),
    "cross_entropy of one sample": function(lambda f, x, t: f.cross_entropy(x, t), (3,), exactly(1)),
    "cross_entropy of probabilities": function(
        lambda f, x, t, w: f.cross_entropy(x, t, w, label_smoothing=0.1),
        (4, 3), probabilities(4, 3), between(0.5, 2, 3),
    ),
    "cross_entropy by sample": function(
        lambda f, x, t: f.cross_entropy(x, t, reduction="none"), (4, 3), integers(3, 4, ignored=True)
    ),
    "cross_entropy in sum": function(
        lambda f, x, t: f.cross_entropy(x, t, reduction="sum", label_smoothing=0.1), (4, 3), integers(3, 4)
    ),
    "NLLLoss": layer(lambda nn: nn.NLLLoss(), (4, 3), integers(3, 4)),
    "nll_loss with weights": function(
        lambda f, x, t, w: f.nll_loss(x, t, w, reduction="sum"), (2, 3, 4), integers(3, 2, 4), between(0.5, 2, 3)
    ),
    "BCEWithLogitsLoss": layer(lambda nn: nn.BCEWithLogitsLoss(), (4, 3), between(0, 1, 4, 3)),
    "binary_cross_entropy_with_logits with weights": function(
        lambda f, x, t, w, p: f.binary_cross_entropy_with_logits(x, t, w, pos_weight=p),
        (4, 3), between(0, 1, 4, 3), between(0.5, 2, 4, 1), between(0.5, 2, 3),
    ),
    "BCELoss": layer(lambda nn: nn.BCELoss(), between(0.2, 0.8, 4, 3), between(0, 1, 4, 3)),
    "binary_cross_entropy with weights": function(
        lambda f, x, t, w: f.binary_cross_entropy(x, t, w, reduction="sum"),
        between(0.4, 0.6, 2, 2), between(0.4, 0.6, 2, 2), between(0.01, 0.02, 2, 2),
    ),
    "MSELoss": layer(lambda nn: nn.MSELoss(), (4, 3), (4, 3)),
    "mse_loss in sum": function(lambda f, x, t: f.mse_loss(x, t, reduction="sum"), (4, 3), (4, 3)),
    "mse_loss with weights": function(
        lambda f, x, t, w: f.mse_loss(x, t, weight=w), (4, 3), (4, 3), between(0.5, 2, 4, 3)
    ),
    "huber_loss with weights": function(
        lambda f, x, t, w: f.huber_loss(x, t, reduction="sum", delta=0.4, weight=w),
        (2, 3), (2, 3), between(0.1, 0.2, 2, 3),
    ),
    "l1_loss with weights": function(
        lambda f, x, t, w: f.l1_loss(x, t, reduction="none", weight=w), (4, 3), (4, 3), between(0.5, 2, 4, 3)
    ),
    "L1Loss": layer(lambda nn: nn.L1Loss(), (4, 3), (4, 3)),
    "SmoothL1Loss": layer(lambda nn: nn.SmoothL1Loss(beta=0.5), (4, 3), (4, 3)),
    "HuberLoss": layer(lambda nn: nn.HuberLoss(delta=0.6), (4, 3), (4, 3)),
    "KLDivLoss": layer(lambda nn: nn.KLDivLoss(reduction="batchmean"), (4, 3), probabilities(4, 3)),
    "kl_div of logarithms": function(lambda f, x, t: f.kl_div(x, t, log_target=True), (4, 3), (4, 3)),
    "kl_div with zeros": function(
        lambda f, x, t: f.kl_div(x, t, reduction="sum"), (2, 3), exactly([[0, 0.5, 0.5], [1, 0, 0]], "float32")
    ),
    "ctc_loss": function(
        lambda f, x, t, n, m: f.ctc_loss(f.log_softmax(x, -1), t, n, m),
        (6, 3, 4), exactly([[1, 2, 3], [1, 1, 2], [3, 0, 0]]), exactly([6, 5, 4]), exactly([3, 2, 1]),
    ),
}  # fmt: skip

GROUPS = {
    "products": PRODUCTS,
    "normalization": NORMALIZATION,
    "sequences": SEQUENCES,
    "shapes": SHAPES,
    "activations": ACTIVATIONS,
    "losses": LOSSES,
}
CASES = {name: case for group in GROUPS.values() for name, case in group.items()}


def fed(nn: Any, case: Case, inputs: list[Any]) -> Any:
    """Return a module of the case's layer, whose first input of floats is a parameter, called with the other inputs."""

    class Fed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = case.make(nn)
            self.input = nn.Parameter(inputs[0]) if "float" in str(inputs[0].dtype) else None

        def forward(self, *rest: Any) -> Any:
            return case.call(nn, self.layer, *([] if self.input is None else [self.input]), *rest)

    return Fed()


def flat(result: Any) -> Iterator[Any]:
    """Yield the arrays of a result: one, or nested tuples with None for what is left out."""
    if isinstance(result, tuple):
        for part in result:
            yield from flat(part)
    elif result is not None:
        yield result
