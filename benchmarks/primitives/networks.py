"""Convolutions of the six networks of Mulder et al., Table 1 and Fig. 5, in published sizes, batch 1, 224 x 224 pixels.

Padding is "same" everywhere, as in the layers that are profiled, so that AlexNet's first layers are a pixel wider than
published; the groups of AlexNet are left out, as in its later form (arXiv:1404.5997).
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from walle.engine_ext.search.layers import Layer

_SIZE = 224


class Feature(NamedTuple):
    """A value of a network: channels, pixels a side, and the convolutions whose results are in it."""

    channels: int
    size: int
    sources: tuple[int, ...]


class Network:
    """Layers of a network by number, and edges from a layer to one that reads its result."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.edges: list[tuple[int, int]] = []
        self.image = Feature(3, _SIZE, ())

    def conv(self, x: Feature, k: int, f: int, s: int = 1) -> Feature:
        layer, number = Layer(k, x.channels, x.size, s, f), len(self.layers)
        self.edges += [(source, number) for source in x.sources]
        self.layers.append(layer)
        return Feature(k, layer.out, (number,))


def _pool(x: Feature, size: int) -> Feature:
    return x._replace(size=size)


def _concat(*parts: Feature) -> Feature:
    sources = tuple(source for part in parts for source in part.sources)
    return Feature(sum(part.channels for part in parts), parts[0].size, sources)


def _add(x: Feature, y: Feature) -> Feature:
    return x._replace(sources=tuple(dict.fromkeys(x.sources + y.sources)))


def alexnet() -> Network:
    net = Network()
    x = _pool(net.conv(net.image, 64, 11, 4), 27)
    x = _pool(net.conv(x, 192, 5), 13)
    for k in (384, 256, 256):
        x = net.conv(x, k, 3)
    return net


def _vgg(counts: Iterable[int]) -> Network:
    net = Network()
    x = net.image
    for k, count in zip((64, 128, 256, 512, 512), counts, strict=True):
        for _ in range(count):
            x = net.conv(x, k, 3)
        x = _pool(x, x.size // 2)
    return net


def googlenet() -> Network:
    net = Network()
    x = _pool(net.conv(net.image, 64, 7, 2), 56)
    x = _pool(net.conv(net.conv(x, 64, 1), 192, 3), 28)
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
            x = _concat(
                net.conv(x, one, 1),
                net.conv(net.conv(x, reduce3, 1), three, 3),
                net.conv(net.conv(x, reduce5, 1), five, 5),
                net.conv(x, pooled, 1),
            )
        x = _pool(x, x.size // 2)
    return net


def _resnet(counts: Iterable[int]) -> Network:
    net = Network()
    x = _pool(net.conv(net.image, 64, 7, 2), 56)
    for stage, count in enumerate(counts):
        for block in range(count):
            k, s = 64 << stage, 2 if stage and not block else 1
            y = net.conv(net.conv(x, k, 3, s), k, 3)
            x = _add(y, net.conv(x, k, 1, s) if s > 1 else x)
    return net


NETWORKS: dict[str, Callable[[], Network]] = {
    "AlexNet": alexnet,
    "VGG-11": lambda: _vgg((1, 1, 2, 2, 2)),
    "VGG-19": lambda: _vgg((2, 2, 4, 4, 4)),
    "GoogLeNet": googlenet,
    "ResNet-18": lambda: _resnet((2, 2, 2, 2)),
    "ResNet-34": lambda: _resnet((3, 4, 6, 3)),
}
