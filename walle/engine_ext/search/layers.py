"""Convolution layers to profile: seeded draws over the ranges of popular networks (Mulder et al., §4.4, Table 3)."""

import math
import random
from collections.abc import Iterator
from typing import NamedTuple, Self

MOST_CHANNELS = 2048
IMAGE_SIZES = (7, 299)
KERNEL_SIZES = {1: 36, 3: 40, 5: 12, 7: 6, 9: 3, 11: 3}  # size → weight in the draw
STRIDES = {1: 75, 2: 20, 4: 5}
# Values of AlexNet, VGG, GoogLeNet, ResNet, MobileNet and DenseNet.
POPULAR_CHANNELS = (
    1, 3, 16, 24, 32, 48, 64, 96, 112, 128, 144, 160, 192, 208, 224, 256, 288, 320, 384, 480, 512, 528, 576, 640, 768,
    832, 960, 1024, 1280, 1536, 2048,
)  # fmt: skip
POPULAR_SIZES = (7, 8, 13, 14, 17, 27, 28, 35, 55, 56, 64, 73, 80, 112, 147, 149, 160, 224, 227, 299)

MOST_FLOPS = 4e9
MOST_WEIGHT_BYTES = 16 << 20
MOST_IMAGE_BYTES = 64 << 20  # limit of the input, and of the output
MOST_COLUMN_BYTES = 256 << 20  # limit of im2col's matrix
LIMITS = "4 GFLOP, 16 MiB of weights, 64 MiB of input or output, 256 MiB of im2col"

_THINNED_FLOPS = 250e6  # above, a layer is kept with a chance in inverse proportion: long runs buy few samples
_FLOAT_BYTES = 4


class Layer(NamedTuple):
    """A convolution of a square float32 image, padding "same": k kernels of f x f, c channels, im pixels, stride s."""

    k: int
    c: int
    im: int
    s: int
    f: int

    @property
    def out(self) -> int:
        """Width of the output in pixels."""
        return (self.im - 1) // self.s + 1

    @property
    def flops(self) -> float:
        """Operations of the direct algorithm, two for each multiplication."""
        return 2.0 * self.k * self.c * self.f**2 * self.out**2

    @property
    def weight_bytes(self) -> int:
        return _FLOAT_BYTES * self.k * self.c * self.f**2

    def fits(self) -> bool:
        """Return whether the layer is within the limits of profiling (`LIMITS`)."""
        image_bytes = _FLOAT_BYTES * max(self.c * self.im**2, self.k * self.out**2)
        column_bytes = _FLOAT_BYTES * self.c * self.f**2 * self.out**2
        return (
            self.flops <= MOST_FLOPS
            and self.weight_bytes <= MOST_WEIGHT_BYTES
            and image_bytes <= MOST_IMAGE_BYTES
            and column_bytes <= MOST_COLUMN_BYTES
        )


class LayerDraw(Iterator[Layer]):
    """An endless draw of different layers; equal seeds give equal layers in equal order.

    Channels and sizes are, by a coin for each number, log-uniform or one of a popular network. `too_large` counts the
    layers that were skipped because they do not fit the limits.
    """

    def __init__(self, seed: int) -> None:
        self.too_large = 0
        self._random = random.Random(seed)
        self._drawn = set[Layer]()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Layer:
        while True:
            layer = self._draw()
            if layer in self._drawn or layer.f > layer.im:
                continue
            if not layer.fits():
                self.too_large += 1
            elif self._random.random() * layer.flops < _THINNED_FLOPS:
                self._drawn.add(layer)
                return layer

    def _draw(self) -> Layer:
        return Layer(
            k=self._number(1, MOST_CHANNELS, POPULAR_CHANNELS),
            c=self._number(1, MOST_CHANNELS, POPULAR_CHANNELS),
            im=self._number(*IMAGE_SIZES, POPULAR_SIZES),
            s=self._random.choices(list(STRIDES), list(STRIDES.values()))[0],
            f=self._random.choices(list(KERNEL_SIZES), list(KERNEL_SIZES.values()))[0],
        )

    def _number(self, least: int, most: int, popular: tuple[int, ...]) -> int:
        if self._random.random() < 0.5:
            return self._random.choice(popular)
        return round(math.exp(self._random.uniform(math.log(least), math.log(most))))
