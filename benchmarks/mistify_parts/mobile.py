"""A small network of inverted residuals (MobileNetV2) that has learned scikit-learn's digits."""

from typing import Any

from benchmarks.mistify_parts.digits import train
from walle import nn, np, optim

_STEPS, _BATCH, _RATE = 300, 64, 2e-3
_EXPANSION = 4
# Channels and stride of each block.
_BLOCKS = ((16, 1), (16, 1), (24, 2), (24, 1), (24, 1), (32, 2), (32, 1))


class Block(nn.Module):
    """A wide layer between two narrow ones, filtered channel by channel, with a shortcut where shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = _EXPANSION * inputs
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        y = self.layers(x)
        return x + y if self.adds else y


class Network(nn.Module):
    """A stem, seven blocks, and a wide last convolution, as in MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        widths = [16, *(outputs for outputs, _ in _BLOCKS)]
        self.blocks = nn.Sequential(
            *(Block(inputs, outputs, stride) for inputs, (outputs, stride) in zip(widths[:-1], _BLOCKS, strict=True))
        )
        self.last = nn.Sequential(nn.Conv2d(32, 256, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU6())
        self.dense = nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        return self.dense(self.last(self.blocks(self.stem(x))).mean((2, 3)))


def make() -> nn.Module:
    return trained(_STEPS)


def trained(steps: int) -> Network:
    """Return the network after a number of steps of training."""
    nn.manual_seed(0)
    network = Network()
    images, labels = train()
    random = np.random.default_rng(1)
    step = nn.TrainStep(network, nn.functional.cross_entropy, optim.Adam(lr=_RATE))
    for _ in range(steps):
        places = random.integers(0, len(images), _BATCH)
        step(images[places], labels[places])
    return network
