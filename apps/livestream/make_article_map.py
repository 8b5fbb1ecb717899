"""The article map as a .walle model, from the published EfficientNet-Lite0 (models.toml, article_efficientnet):
`python -m apps.livestream.make_article_map EFFICIENTNET.pth MAP.walle [--side 448]`.

The published network says what an image shows, of the 1000 classes of ImageNet. Before the mean over the image it has
features of each cell of 32 x 32 pixels; its classifier, put on each cell by itself, says what is there. The map is the
sum of the probabilities of the classes that are portable articles:

    image [1, 3, side, side], RGB, (x - 127) / 128  ->  articles [1, 1, side / 32, side / 32]
    with classes=True also  probabilities [1, 1000], of the whole image
"""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from walle.engine_ext.errors import ModelError
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.torch_weights import read_weights

SIDE = 224
CELL = 32
_EPSILON = 1e-3  # constant of the batch normalisations
# Portable articles among the classes of ImageNet, counted from 0: what may be sold, shown or held. Chosen by the rule
# of the labels from the classes' names, before a score was seen: no worn clothes, furniture, vehicles, buildings,
# large appliances, televisions, animals or plants.
ARTICLES = """
401-402 411 413-414 418-420 422 426 429-430 432 434 438 440-441 443 446-447 455-456 462-463 469-470 473 477-478 481-482
485-487 491-492 494 499 503-505 507-508 512-513 518 521-522 528 530-531 541-546 549-552 558 560 563 566-567 570 572 574
577 584-585 587-594 596-597 600 604-606 611 613 618 620 622-623 626 629-633 636 641-644 647 650-651 653 658-659 662
673-674 677 679-681 683-684 686 692 695-696 699-700 709-712 714 719-723 726 728 731-732 737-738 740 742 745-746 748-750
752 754 758-759 761 763-764 766-774 776-778 783-784 787 790 792-793 797-798 801 804-805 809 813 816 822-823 826 828
836-838 840 844-845 848-850 852 855 859 862 868 872 875 878-879 882-883 889-893 898-899 901-902 907 909-910 917-918 921
923 927-934 948-954 963 965 967
"""


class _Stage(NamedTuple):
    blocks: int
    kernel: int
    stride: int
    widening: int


# The stages of EfficientNet-B0 (Tan and Le, 2019, table 1); Lite0 has them without squeeze-and-excitation, with ReLU6.
_STAGES = (
    _Stage(1, 3, 1, 1), _Stage(2, 3, 2, 6), _Stage(2, 5, 2, 6), _Stage(3, 3, 2, 6), _Stage(3, 5, 1, 6),
    _Stage(4, 5, 2, 6), _Stage(1, 3, 1, 6),
)  # fmt: skip

type Weights = Mapping[str, NDArray[Any]]


def article_classes() -> list[int]:
    """Return the numbers of ARTICLES, of 0 to 999."""
    parts = [part.partition("-") for part in ARTICLES.split()]
    return [number for first, _, last in parts for number in range(int(first), int(last or first) + 1)]


def build_article_map(graph: GraphBuilder, weights: Weights, *, side: int = SIDE, classes: bool = False) -> None:
    """Add the network to an empty graph, with the names that its layers have in PyTorch.

    Raises:
        ModelError: the weights are not those of EfficientNet-Lite0.
        ValueError: `side` is not a multiple of 32.
    """
    if side < CELL or side % CELL:
        raise ValueError(f"the side is {side}, must be a multiple of {CELL}")
    try:
        _Network(graph, weights, side).build(classes=classes)
    except KeyError as error:
        raise ModelError(f"has no tensor {error}: it is not EfficientNet-Lite0") from error


class _Network:
    def __init__(self, graph: GraphBuilder, weights: Weights, side: int) -> None:
        self._graph, self._weights, self._side = graph, weights, side
        self._low = graph.constant("low", np.float32(0))
        self._high = graph.constant("high", np.float32(6))

    def build(self, *, classes: bool) -> None:
        graph = self._graph
        image = graph.input("image", (1, 3, self._side, self._side))
        x, side = self._conv(image, self._side, "_conv_stem", "_bn0", stride=2)
        block = 0
        for stage in _STAGES:
            for number in range(stage.blocks):
                x, side = self._block(x, side, f"_blocks.{block}", stage, is_first=number == 0)
                block += 1
        if f"_blocks.{block}._bn1.weight" in self._weights:
            raise ModelError(f"has more than {block} blocks: it is not EfficientNet-Lite0")
        x, side = self._conv(x, side, "_conv_head", "_bn1")
        last, bias = self._weights["_fc.weight"], self._weights["_fc.bias"]
        if last.shape[0] != 1000:
            raise ModelError(f"has {last.shape[0]} classes, must have the 1000 of ImageNet")
        # A classifier on each cell is a convolution of 1 x 1; the sum over the articles is another one.
        classifier = [graph.constant("classes.w", last[:, :, None, None]), graph.constant("classes.b", bias)]
        shares = graph.op("Softmax", [graph.op("Conv", [x, *classifier], kernel_shape=[1, 1])], axis=1)
        chosen = np.zeros((1, 1000, 1, 1), np.float32)
        chosen[0, article_classes()] = 1
        graph.output("articles", graph.op("Conv", [shares, graph.constant("chosen", chosen)], kernel_shape=[1, 1]))
        if classes:
            mean = graph.op("Conv", [graph.op("GlobalAveragePool", [x]), *classifier], kernel_shape=[1, 1])
            flat = graph.op("Reshape", [mean, graph.constant("flat", [1, 1000], "int64")])
            graph.output("probabilities", graph.op("Softmax", [flat], axis=1))

    def _block(self, x: Value, side: int, name: str, stage: _Stage, *, is_first: bool) -> tuple[Value, int]:
        """Add an inverted residual: widen, filter each channel, narrow; add the input where the size is the same."""
        y, result = x, side
        if stage.widening != 1:
            y, _ = self._conv(y, side, f"{name}._expand_conv", f"{name}._bn0")
        depthwise = f"{name}._depthwise_conv"
        if self._weights[f"{depthwise}.weight"].shape[2] != stage.kernel:
            raise ModelError(f"{depthwise} has another kernel than {stage.kernel}: it is not EfficientNet-Lite0")
        y, result = self._conv(y, side, depthwise, f"{name}._bn1", stride=stage.stride if is_first else 1)
        y, _ = self._conv(y, result, f"{name}._project_conv", f"{name}._bn2", activation=False)
        return (y if is_first else self._graph.op("Add", [x, y])), result

    def _conv(
        self, x: Value, side: int, name: str, norm: str, *, stride: int = 1, activation: bool = True
    ) -> tuple[Value, int]:
        """Add a convolution with its batch normalisation, TensorFlow's padding SAME, and ReLU6; return it and its side.

        One input channel a filter is a depthwise convolution.
        """
        weight = self._weights[f"{name}.weight"]
        mean, variance = self._weights[f"{norm}.running_mean"], self._weights[f"{norm}.running_var"]
        scale = self._weights[f"{norm}.weight"] / np.sqrt(variance + np.float32(_EPSILON))
        if weight.ndim != 4 or weight.shape[0] != len(scale):
            raise ModelError(f"{name} and {norm} do not fit: it is not EfficientNet-Lite0")
        kernel, result = weight.shape[2], math.ceil(side / stride)
        total = max(0, (result - 1) * stride + kernel - side)
        inputs = [
            x,
            self._graph.constant(f"{name}.w", weight * scale[:, None, None, None]),
            self._graph.constant(f"{name}.b", self._weights[f"{norm}.bias"] - mean * scale),
        ]
        group = weight.shape[0] if weight.shape[1] == 1 else 1
        pads = [total // 2] * 2 + [total - total // 2] * 2
        y: Value = self._graph.op(
            "Conv", inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=group
        )
        return (self._graph.op("Clip", [y, self._low, self._high]) if activation else y), result


def write_article_map(source: Path, target: Path, *, side: int = SIDE) -> Path:
    """Write the article map of the checkpoint `source` to `target`; return `target`.

    Raises:
        ModelError: the file is not EfficientNet-Lite0.
        OSError: it cannot be read.
    """
    graph = GraphBuilder("article_map")
    try:
        build_article_map(graph, read_weights(source.read_bytes()), side=side)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error
    graph.save(target)
    return target


def main() -> None:
    """Write the article map."""
    parser = argparse.ArgumentParser(description="Write the article map as a .walle model.")
    parser.add_argument("source", type=Path, help="the published EfficientNet-Lite0, a .pth file")
    parser.add_argument("target", type=Path)
    parser.add_argument("--side", type=int, default=SIDE, help="of its input, in pixels; a multiple of 32")
    arguments = parser.parse_args()
    write_article_map(arguments.source, arguments.target, side=arguments.side)


if __name__ == "__main__":
    main()
