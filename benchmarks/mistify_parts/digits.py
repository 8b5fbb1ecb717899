"""scikit-learn's digits, and a small residual network that has learned them, for a file of goals.

`model = "digits.py:make"`, `data = {train = "digits.py:train", test = "digits.py:test"}`.
"""

from typing import Any

from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from walle import nn, np, optim

_TRAINED_ON = 1437  # images of 1797
_STEPS, _BATCH, _RATE = 300, 64, 2e-3


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut: nn.Module = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if changes
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        y = self.second_norm(self.second(nn.functional.relu(self.first_norm(self.first(x)))))
        return nn.functional.relu(y + self.shortcut(x))


class Network(nn.Module):
    """A residual network of seven convolutions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.dense = nn.Linear(4 * width, 10)

    def forward(self, x: Any) -> Any:
        return self.dense(self.blocks(self.stem(x)).mean((2, 3)))


def train() -> tuple[Any, Any]:
    images, labels = _data()
    return images[:_TRAINED_ON], labels[:_TRAINED_ON]


def test() -> tuple[Any, Any]:
    images, labels = _data()
    return images[_TRAINED_ON:], labels[_TRAINED_ON:]


def make() -> nn.Module:
    return trained(16, _STEPS)


def trained(width: int, steps: int) -> Network:
    """Return a network of that width, trained for a number of steps."""
    nn.manual_seed(0)
    network = Network(width)
    images, labels = train()
    random = np.random.default_rng(1)
    step = nn.TrainStep(network, nn.functional.cross_entropy, optim.Adam(lr=_RATE))
    for _ in range(steps):
        places = random.integers(0, len(images), _BATCH)
        step(images[places], labels[places])
    return network


def _data() -> tuple[Any, Any]:
    digits = load_digits()
    images = np.asarray(digits.images.astype("float32"))[:, None] / 16.0
    order = np.random.default_rng(0).permutation(len(images))
    return images[order], np.asarray(digits.target.astype("int64"))[order]
