"""Convolutions of the six networks of Mulder et al., Table 1 and Fig. 5, in published sizes, batch 1, 224 x 224 pixels.

Padding is "same" everywhere, as in the layers that are profiled, so that AlexNet's first layers are a pixel wider than
published; the groups of AlexNet are left out, as in its later form (arXiv:1404.5997).
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.search.layers import Layer

_SIZE = 224


class Feature(NamedTuple):
    """A value of a network: channels, pixels a side, the convolutions whose results are in it, and its number."""

    channels: int
    size: int
    sources: tuple[int, ...]
    number: int = 0


class Step(NamedTuple):
    """An operator, the numbers of the values that it reads, and the kernel size of a pool or the layer that it ends."""

    op: str
    inputs: tuple[int, ...]
    kernel: int = 0
    layer: int = 0


class Network:
    """Layers of a network by number, and edges from a layer to one that reads its result."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.edges: list[tuple[int, int]] = []
        self.image = Feature(3, _SIZE, ())
        self._steps: list[Step] = []

    def conv(self, x: Feature, k: int, f: int, s: int = 1, *, is_summand: bool = False) -> Feature:
        """Return a convolution and its ReLU, which that of a summand has behind the sum."""
        layer, number = Layer(k, x.channels, x.size, s, f), len(self.layers)
        self.edges += [(source, number) for source in x.sources]
        self.layers.append(layer)
        step = Step("Sum" if is_summand else "Conv", (x.number,), layer=number)
        return self._feature(step, k, layer.out, (number,))

    def pool(self, x: Feature, size: int) -> Feature:
        """Return the greatest of each two pixels a side, or of as many as give that size."""
        return self._feature(Step("MaxPool", (x.number,), x.size - 2 * (size - 1)), x.channels, size, x.sources)

    def concat(self, *parts: Feature) -> Feature:
        sources = tuple(source for part in parts for source in part.sources)
        step = Step("Concat", tuple(part.number for part in parts))
        return self._feature(step, sum(part.channels for part in parts), parts[0].size, sources)

    def add(self, x: Feature, y: Feature) -> Feature:
        """Return the ReLU of the sum of a convolution and another value, which are one step of a plan."""
        sources = tuple(dict.fromkeys(x.sources + y.sources))
        return self._feature(Step("Add", (x.number, y.number), layer=x.sources[0]), x.channels, x.size, sources)

    def _feature(self, step: Step, channels: int, size: int, sources: tuple[int, ...]) -> Feature:
        self._steps.append(step)
        return Feature(channels, size, sources, len(self._steps))

    def to_bytes(self) -> bytes:
        """Return the model of the network, whose input is `x`, with seeded weights that keep magnitudes.

        Its plan names each convolution, with what is fused to it, by `conv_name`.
        """
        random = np.random.default_rng(0)
        graph = GraphBuilder("network")
        values = [graph.input("x", (1, self.image.channels, self.image.size, self.image.size))]
        for step in self._steps:
            inputs, name = [values[number] for number in step.inputs], conv_name(step.layer)
            if step.op in ("Conv", "Sum"):
                layer = self.layers[step.layer]
                shape = (layer.k, layer.c, layer.f, layer.f)
                w = random.standard_normal(shape, np.float32) * math.sqrt(2 / (layer.c * layer.f**2))
                inputs.append(graph.constant(f"w of {name}", w.astype(np.float32)))
                pads, strides = [layer.f // 2] * 4, [layer.s] * 2
                value = graph.op("Conv", inputs, pads=pads, strides=strides, name=name)
            elif step.op == "MaxPool":
                value = graph.op("MaxPool", inputs, kernel_shape=[step.kernel] * 2, strides=[2, 2])
            elif step.op == "Concat":
                value = graph.op("Concat", inputs, axis=1)
            else:
                value = graph.op("Add", inputs)
            values.append(graph.op("Relu", [value], name=name) if step.op in ("Conv", "Add") else value)
        graph.output("y", values[-1])
        return graph.to_bytes()


def conv_name(number: int) -> str:
    """Return the name of a layer's node in the model of its network."""
    return f"conv{number}"


def alexnet() -> Network:
    net = Network()
    x = net.pool(net.conv(net.image, 64, 11, 4), 27)
    x = net.pool(net.conv(x, 192, 5), 13)
    for k in (384, 256, 256):
        x = net.conv(x, k, 3)
    return net


def _vgg(counts: Iterable[int]) -> Network:
    net = Network()
    x = net.image
    for k, count in zip((64, 128, 256, 512, 512), counts, strict=True):
        for _ in range(count):
            x = net.conv(x, k, 3)
        x = net.pool(x, x.size // 2)
    return net


def googlenet() -> Network:
    net = Network()
    x = net.pool(net.conv(net.image, 64, 7, 2), 56)
    x = net.pool(net.conv(net.conv(x, 64, 1), 192, 3), 28)
    stages = (
        ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
        (
            (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
        ),
        ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
    )  # fmt: skip
    for stage in stages:
        for one, reduce3, three, reduce5, five, pooled in stage:
            x = net.concat(
                net.conv(x, one, 1),
                net.conv(net.conv(x, reduce3, 1), three, 3),
                net.conv(net.conv(x, reduce5, 1), five, 5),
                net.conv(x, pooled, 1),
            )
        x = net.pool(x, x.size // 2)
    return net


def _resnet(counts: Iterable[int]) -> Network:
    net = Network()
    x = net.pool(net.conv(net.image, 64, 7, 2), 56)
    for stage, count in enumerate(counts):
        for block in range(count):
            k, s = 64 << stage, 2 if stage and not block else 1
            y = net.conv(net.conv(x, k, 3, s), k, 3, is_summand=True)
            x = net.add(y, net.conv(x, k, 1, s, is_summand=True) if s > 1 else x)
    return net


NETWORKS: dict[str, Callable[[], Network]] = {
    "AlexNet": alexnet,
    "VGG-11": lambda: _vgg((1, 1, 2, 2, 2)),
    "VGG-19": lambda: _vgg((2, 2, 4, 4, 4)),
    "GoogLeNet": googlenet,
    "ResNet-18": lambda: _resnet((2, 2, 2, 2)),
    "ResNet-34": lambda: _resnet((3, 4, 6, 3)),
}
