"""Small networks of every kind of block that is adapted, with inputs."""

from __future__ import annotations

from typing import Any

from walle import nn, np


class Residual(nn.Module):
    """Convolutions with a shortcut, pooling and a dense layer."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.first = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.second = nn.Conv2d(2 * width, width, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.dense = nn.Linear(width * 16, 4)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        x = self.pool(nn.functional.relu(self.second(nn.functional.relu(self.first(x))) + x))
        return self.dense(x.reshape(x.shape[0], -1))


class Depthwise(nn.Module):
    """An inverted residual and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(1, 8, 1)
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU6())
        self.project = nn.Conv2d(8, 5, 1)
        self.other = nn.Conv2d(1, 3, 3, padding=1)
        self.dense = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        joined = np.concatenate([self.project(self.depthwise(self.expand(x))), self.other(x)], 1)
        return self.dense(joined.mean((2, 3)))


class Attention(nn.Module):
    """A transformer's layer, of which the two dense layers between are adapted."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation="gelu", batch_first=True)
        self.dense = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.dense(self.block(x).mean(1))


class Words(nn.Module):
    """Embeddings, a parametric activation and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.hidden = nn.Linear(6, 7)
        self.slope = nn.PReLU(7)
        self.dense = nn.Linear(7, 4)

    def forward(self, words: Any) -> Any:
        return self.dense(self.slope(self.hidden(self.words(words).mean(1))))


class Recurrent(nn.Module):
    """A recurrent layer, which keeps its sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 5, batch_first=True)
        self.dense = nn.Linear(5, 4)

    def forward(self, x: Any) -> Any:
        return self.dense(self.gru(x)[0][:, -1])


def images(count: int = 5) -> Any:
    return np.random.default_rng(3).normal(size=(count, 1, 8, 8)).astype("float32")


def network(name: str) -> tuple[nn.Module, list[Any]]:
    """Return a network in the mode of inference, its statistics not those of the start, and inputs of five samples."""
    nn.manual_seed(5)
    random = np.random.default_rng(4)
    made: nn.Module
    if name == "residual":
        made, inputs = Residual(), [images()]
    elif name == "depthwise":
        made, inputs = Depthwise(), [images()]
    elif name == "attention":
        made, inputs = Attention(), [random.normal(size=(5, 6, 8)).astype("float32")]
    elif name == "words":
        made, inputs = Words(), [random.integers(0, 20, (5, 6))]
    else:
        made, inputs = Recurrent(), [random.normal(size=(5, 6, 3)).astype("float32")]
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = random.normal(size=module.num_features).astype("float32")
            module.running_var = random.uniform(0.5, 2.0, module.num_features).astype("float32")
    return made.eval(), inputs


NAMES = ["residual", "depthwise", "attention", "words"]
