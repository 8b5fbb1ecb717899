"""One side of the figure `training`: a process that trains networks with walle.nn or with PyTorch, step by step.

The networks are written once, in the names that both have. A line of JSON on standard input asks for a network, for
steps or for the memory of one, a line on standard output answers:

    {"network": "gru"}             → {"mode": "plan", "arena_bytes": 5000000}
    {"steps": 3}                   → {"ms": [4.0, 4.1, 4.0], "loss": 2.29}
    {"peak": true}                 → {"peak_bytes": 13000000}
    {"build": "gru"}               → {"first_ms": 30.1}

Before the network a tiny one of all layers is trained, so that neither "first_ms" nor "peak_bytes" counts imports.
"first_ms" is the least of the first steps of three networks; the process has none of them afterwards.

    python -m benchmarks.training_sides.process walle|torch
"""

import gc
import json
import random
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

from benchmarks.training_sides.resident_memory import release_free_memory, reset_peak, resident_bytes

_TINY = "tiny"
_BUILDS = 3  # networks of one process
_PATTERN = 1 << 16  # random values in all; longer arrays repeat them


def networks(nn: Any, functional: Any, concatenate: Callable[[list[Any], int], Any]) -> dict[str, Callable[[], Any]]:
    """Return makers of the networks of the figure, as modules of `nn`."""

    class Residual(nn.Module):
        """Inverted residual of MobileNetV2."""

        def __init__(self, inner: int, outer: int, stride: int, expansion: int) -> None:
            super().__init__()
            hidden = inner * expansion
            self.adds = stride == 1 and inner == outer
            layers = []
            if expansion != 1:
                layers += [nn.Conv2d(inner, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
            layers += [nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden)]
            layers += [nn.ReLU6(), nn.Conv2d(hidden, outer, 1, bias=False), nn.BatchNorm2d(outer)]
            self.layers = nn.Sequential(*layers)

        def forward(self, x: Any) -> Any:
            return x + self.layers(x) if self.adds else self.layers(x)

    class MobileNetV2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers: list[Any] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
            inner = 32
            stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))
            for expansion, outer, count, stride in (*stages, (6, 320, 1, 1)):
                for place in range(count):
                    layers.append(Residual(inner, outer, stride if place == 0 else 1, expansion))
                    inner = outer
            layers += [nn.Conv2d(inner, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
            self.features = nn.Sequential(*layers)
            self.classifier = nn.Linear(1280, 1000)

        def forward(self, x: Any) -> Any:
            return self.classifier(self.features(x).mean((2, 3)))

    class Basic(nn.Module):
        """Basic block of ResNet-18."""

        def __init__(self, inner: int, outer: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(outer)
            self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(outer)
            self.down: Any = None
            if stride != 1 or inner != outer:
                self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

        def forward(self, x: Any) -> Any:
            y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
            return functional.relu(y + (x if self.down is None else self.down(x)))

    class ResNet18(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
            self.norm = nn.BatchNorm2d(64)
            self.pool = nn.MaxPool2d(3, 2, 1)
            sizes = [64, 64, 128, 128, 256, 256, 512, 512]
            blocks = [Basic(*pair, 1 if pair[0] == pair[1] else 2) for pair in zip([64, *sizes], sizes, strict=False)]
            self.blocks = nn.Sequential(*blocks)
            self.classifier = nn.Linear(512, 1000)

        def forward(self, x: Any) -> Any:
            x = self.pool(functional.relu(self.norm(self.conv(x))))
            return self.classifier(self.blocks(x).mean((2, 3)))

    class Gru(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(64, 64, batch_first=True)
            self.classifier = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.classifier(self.gru(x)[0][:, -1])

    class Din(nn.Module):
        """Deep Interest Network: attention of a candidate on 50 items of a history."""

        def __init__(self, activation: Callable[[], Any]) -> None:
            super().__init__()
            self.items = nn.Embedding(10_000, 32)
            self.attention = nn.Sequential(
                nn.Linear(128, 80), activation(), nn.Linear(80, 40), activation(), nn.Linear(40, 1)
            )
            self.score = nn.Sequential(
                nn.Linear(96, 200), activation(), nn.Linear(200, 80), activation(), nn.Linear(80, 1)
            )

        def forward(self, history: Any, candidate: Any) -> Any:
            items, one = self.items(history), self.items(candidate)
            wanted = one[:, None, :] + items * 0
            weights = self.attention(concatenate([wanted, items, wanted - items, wanted * items], -1))
            interest = (weights * items).sum(1)
            return self.score(concatenate([interest, one, interest * one], -1))[:, 0]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, activation="gelu", batch_first=True)
            self.classifier = nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.classifier(self.block(x).mean(1))

    class Tiny(nn.Module):
        """Layers of every kind, whose training loads what a library loads on first use."""

        def __init__(self) -> None:
            super().__init__()
            self.images = nn.Sequential(
                nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.PReLU(),
                nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 1), nn.ReLU(),
            )  # fmt: skip
            self.items = nn.Embedding(10, 8)
            self.gru = nn.GRU(8, 8, batch_first=True)
            self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation="gelu", batch_first=True)
            self.classifier = nn.Linear(16, 4)

        def forward(self, image: Any, items: Any) -> Any:
            sequence = self.block(self.gru(self.items(items))[0]).mean(1)
            return self.classifier(concatenate([self.images(image).mean((2, 3)), sequence], -1))

    return {
        _TINY: Tiny,
        "mobilenet_v2": MobileNetV2,
        "gru": Gru,
        "din": lambda: Din(nn.ReLU),
        "din_prelu": lambda: Din(nn.PReLU),
        "resnet18": ResNet18,
        "transformer": Block,
    }


# Inputs and target of a step: a type of array.array, a shape, and for integers the number of values.
DATA: dict[str, list[tuple[str, tuple[int, ...], int]]] = {
    _TINY: [("f", (2, 3, 16, 16), 0), ("q", (2, 4), 10), ("q", (2,), 4)],
    "mobilenet_v2": [("f", (8, 3, 96, 96), 0), ("q", (8,), 1000)],
    "gru": [("f", (32, 50, 64), 0), ("q", (32,), 10)],
    "din": [("q", (256, 50), 10_000), ("q", (256,), 10_000), ("f", (256,), 2)],
    "din_prelu": [("q", (256, 50), 10_000), ("q", (256,), 10_000), ("f", (256,), 2)],
    "resnet18": [("f", (8, 3, 64, 64), 0), ("q", (8,), 1000)],
    "transformer": [("f", (8, 128, 256), 0), ("q", (8,), 10)],
}
TITLES = {
    "mobilenet_v2": "MobileNetV2, batch 8 at 96×96",
    "gru": "GRU(64) × 50 steps, batch 32",
    "din": "DIN, batch 256, ReLU",
    "din_prelu": "DIN, batch 256, PReLU",
    "resnet18": "ResNet-18, batch 8 at 64×64",
    "transformer": "transformer block, 128 tokens × 8",
}


def arrays(name: str) -> list[tuple[Any, tuple[int, ...]]]:
    """Return the numbers and the shape of each input of a step, the target last; equal in every process."""
    draw = random.Random(1)
    found = []
    for kind, shape, values in DATA[name]:
        count = 1
        for size in shape:
            count *= size
        some = [
            draw.gauss(0, 1) if kind == "f" and not values else float(draw.randrange(values)) if kind == "f"
            else draw.randrange(values)
            for _ in range(min(count, _PATTERN))
        ]  # fmt: skip
        found.append((array(kind, (some * (count // len(some) + 1))[:count]), shape))
    return found


def loss_name(name: str) -> str:
    return "binary_cross_entropy_with_logits" if name.startswith("din") else "cross_entropy"


class WalleSide:
    """walle.nn: one plan a step."""

    mode = "plan"

    def __init__(self, name: str) -> None:
        from walle import nn, np, optim

        nn.manual_seed(0)
        model = networks(nn, nn.functional, np.concatenate)[name]()
        self.step = nn.TrainStep(model, getattr(nn.functional, loss_name(name)), optim.SGD(lr=0.01))
        self.arrays = [np.asarray(numbers).reshape(shape) for numbers, shape in arrays(name)]

    def choose_mode(self, *, compiles: bool) -> None:
        """Keep the only mode."""

    def run(self) -> float:
        return float(self.step(*self.arrays))

    def facts(self) -> dict[str, Any]:
        return {"arena_bytes": self.step.plan().arena_bytes}


class TorchSide:
    """PyTorch in its fastest mode: eager, with images channels-last, and either of these compiled."""

    def __init__(self, name: str) -> None:
        import numpy as np
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.mode = "eager"
        self.model = networks(torch.nn, torch.nn.functional, torch.cat)[name]()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loss = getattr(torch.nn.functional, loss_name(name))
        types = {"f": "float32", "q": "int64"}
        self.arrays = [
            torch.from_numpy(np.frombuffer(numbers, types[numbers.typecode]).reshape(shape).copy())
            for numbers, shape in arrays(name)
        ]

    def choose_mode(self, *, compiles: bool) -> None:
        """Take the fastest mode: the memory format of images, and, where `compiles`, whether the model is compiled."""
        import torch

        if not compiles and self.arrays[0].ndim != 4:
            return
        eager_ms = self._least_ms()
        if self.arrays[0].ndim == 4:
            self._set_format(torch.channels_last)
            last_ms = self._least_ms()
            if last_ms < eager_ms:
                eager_ms, self.mode = last_ms, "channels-last"
            else:
                self._set_format(torch.contiguous_format)
        if compiles:
            eager = self.model
            self.model = torch.compile(eager)
            try:
                compiled_ms = self._least_ms()
            except Exception as error:  # noqa: BLE001  # any error of the compiler, which needs one of C++
                print(f"torch.compile failed: {type(error).__name__}", file=sys.stderr)
                compiled_ms = eager_ms
            if compiled_ms < eager_ms:
                self.mode = "compiled" if self.mode == "eager" else f"compiled, {self.mode}"
            else:
                self.model = eager
                torch._dynamo.reset()

    def _set_format(self, memory: Any) -> None:
        self.model = self.model.to(memory_format=memory)
        self.arrays[0] = self.arrays[0].contiguous(memory_format=memory)

    def _least_ms(self) -> float:
        times = []
        for _ in range(4):
            begin = time.thread_time()
            self.run()
            times.append(time.thread_time() - begin)
        return min(times) * 1e3

    def run(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(self.model(*self.arrays[:-1]), self.arrays[-1])
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def facts(self) -> dict[str, Any]:
        return {}


def _build(side: str, name: str) -> tuple[Any, float]:
    """Return a side with its network, and the CPU milliseconds of its first step."""
    gc.collect()
    release_free_memory()
    made: Any = (WalleSide if side == "walle" else TorchSide)(name)
    begin = time.thread_time()
    made.run()
    return made, (time.thread_time() - begin) * 1e3


def serve(side: str) -> None:
    """Answer the lines of standard input until it ends."""
    made: Any = None
    base_bytes, first_ms = 0, 0.0
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        if "network" in request:
            compiles = request.get("compile", False)
            for _ in range(2):  # the second frees what only the first needed
                _build(side, _TINY)[0].choose_mode(compiles=compiles)
            gc.collect()
            release_free_memory()
            base_bytes = resident_bytes()
            made, first_ms = _build(side, request["network"])
            made.choose_mode(compiles=compiles)
            answer = {"mode": made.mode, **made.facts()}
        elif "steps" in request:
            times, loss = [], 0.0
            for _ in range(request["steps"]):
                begin = time.thread_time()
                loss = made.run()
                times.append((time.thread_time() - begin) * 1e3)
            answer = {"ms": times, "loss": loss}
        elif "build" in request:
            made = None
            # The host of a virtual machine gives memory that is new to it slowly: the least time counts.
            first_ms = min(first_ms, *(_build(side, request["build"])[1] for _ in range(_BUILDS - 1)))
            answer = {"first_ms": first_ms}
        else:
            gc.collect()
            release_free_memory()
            reset_peak()
            made.run()
            answer = {"peak_bytes": resident_bytes(peak=True) - base_bytes}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
