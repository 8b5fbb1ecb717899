"""Performance model: microseconds of every primitive of a convolution layer, learned from profiled samples."""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from walle.engine_ext import np
from walle.engine_ext.np.likes import ArrayLike
from walle.engine_ext.search import model_file
from walle.engine_ext.search.features import KINDS, NAMES
from walle.engine_ext.search.mlp import Mlp, Schedule
from walle.engine_ext.search.predictor import OnEpoch, Predictor
from walle.engine_ext.search.ridge import STRENGTHS
from walle.engine_ext.search.samples import checked_layers, checked_samples
from walle.engine_ext.session import Session
from walle.errors import ConfigError

HIDDEN = (128, 512, 512, 128)
FITTING = Schedule()
TRANSFERRING = replace(FITTING, learning_rate=1e-4)  # the paper's Table 2: 1e-3 multiplied by 0.1


class PerformanceModel:
    """Predictor of the time of each primitive of a convolution layer (Mulder et al., §4.2 to §4.4 and §5.4).

    A fully-connected network of ReLUs predicts logarithms of times. Departures from the paper: its inputs are physical
    features (`features.py`), and it learns what a ridge regression on them leaves over. `features="raw"` with
    `Schedule(error_limit=math.inf)` is the paper's model. A prediction is one run of a session, for all layers at once.
    A model does not change.

    `primitives` has the names of the primitives, empty where `fit` got none.
    """

    def __init__(self, predictor: Predictor, primitives: Sequence[str] = ()) -> None:
        self.primitives = tuple(primitives)
        self.predictor = predictor
        self._session: Session | None = None

    @classmethod
    def fit(
        cls,
        layers: ArrayLike,
        times: ArrayLike,
        *,
        seed: int,
        primitives: Sequence[str] = (),
        features: str = "physical",
        hidden: Sequence[int] = HIDDEN,
        schedule: Schedule = FITTING,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Return a model trained on profiled samples; equal arguments give equal models on one machine.

        `layers` has shape (n, 5): kernels k, channels c, image size im, stride s and kernel size f of each layer.
        `times` has shape (n, primitives): microseconds, NaN where a primitive is undefined. A tenth of the samples,
        drawn by `seed`, is held out for early stopping; below 8 samples only the ridge regression is fitted.
        `hidden` are the sizes of the hidden layers. `on_epoch` gets the number of each epoch, from 1, and the mean
        absolute error of the held-out log times.

        Raises:
            ShapeError: shapes do not fit each other.
            SampleError: a layer or a time is wrong; the message names its row and column.
            ConfigError: `features` or `hidden` is wrong.
        """
        if features not in KINDS:
            raise ConfigError(f"features={features!r}; give one of {', '.join(KINDS)}")
        if any(size < 1 for size in hidden):
            raise ConfigError(f"hidden={tuple(hidden)!r}; give sizes of at least 1")
        samples = checked_samples(layers, times, tuple(primitives) or None)
        rng = np.random.default_rng(seed)
        untrained = Predictor.untrained(samples, features, hidden, rng)
        # The paper's model has no linear part: only a constant for each primitive.
        strengths = STRENGTHS if features == "physical" else STRENGTHS[:1]
        return cls(untrained.adapted(samples, schedule, rng, strengths, on_epoch), primitives)

    def predict(self, layers: ArrayLike) -> np.ndarray:
        """Return microseconds, float32 of shape (n, primitives), for layers of shape (n, 5).

        A primitive without samples has NaN. The caller masks primitives that are undefined for a layer.

        Raises:
            ShapeError: the shape is another.
            SampleError: a layer is wrong.
        """
        rows = checked_layers(layers)
        if rows.shape[0] == 0:
            return np.zeros((0, self.predictor.mlp.sizes[-1]), "float32")
        if self._session is None:
            self._session = Session(self.predictor.graph().to_bytes())
        return self._session.run({"x": self.predictor.inputs(rows)})["times"]

    def transfer(
        self,
        layers: ArrayLike,
        times: ArrayLike,
        *,
        seed: int = 0,
        schedule: Schedule = TRANSFERRING,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Return a model of another machine, fine-tuned on few samples of it (§5.4); arguments are those of `fit`.

        Departure from the paper: the ratios of the two machines' times are first fitted by a ridge regression. A
        primitive without samples is changed by the median ratio of the others.

        Raises: as `fit`.
        """
        samples = checked_samples(layers, times, self.primitives or self.predictor.mlp.sizes[-1])
        rng = np.random.default_rng(seed)
        return type(self)(self.predictor.adapted(samples, schedule, rng, STRENGTHS, on_epoch), self.primitives)

    def save(self, path: str | os.PathLike[str], *, weights: str = "float32") -> None:
        """Write the model to a file; `weights="int8"` makes it a quarter as large.

        Raises:
            ConfigError: `weights` is neither.
            OSError: the file cannot be written.
        """
        one = self.predictor
        arrays = {"mean": one.mean, "factor": one.factor, "coefficients": one.coefficients}
        arrays |= {"intercepts": one.intercepts}
        for layer, (weight, bias) in enumerate(zip(one.mlp.weights, one.mlp.biases, strict=True)):
            arrays |= {f"weight {layer}": weight, f"bias {layer}": bias}
        metadata = {
            "features": one.kind,
            "inputs": list(NAMES[one.kind]),
            "sizes": list(one.mlp.sizes),
            "primitives": list(self.primitives),
        }
        model_file.write(Path(path), metadata, arrays, weights)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the model that `save` wrote.

        Raises:
            ConfigError: the file is not a performance model, is damaged, or is of another version of walle.
            OSError: the file cannot be read.
        """
        metadata, arrays = model_file.read(Path(path))
        kind, sizes, primitives = metadata.get("features"), _ints(metadata, "sizes"), _texts(metadata, "primitives")
        if kind not in KINDS or _texts(metadata, "inputs") != list(NAMES[kind]):
            raise ConfigError(f"{path} has features of another version of walle; fit the model again")
        if len(sizes) < 2 or sizes[0] != len(NAMES[kind]) or len(primitives) not in (0, sizes[-1]):
            raise ConfigError(f"{path} has sizes that do not fit its features or primitives; fit the model again")
        inputs, outputs = sizes[0], sizes[-1]
        shapes = {"mean": (inputs,), "factor": (inputs,), "coefficients": (inputs, outputs), "intercepts": (outputs,)}
        for layer, (rows, columns) in enumerate(pairwise(sizes)):
            shapes |= {f"weight {layer}": (rows, columns), f"bias {layer}": (columns,)}
        if {name: array.shape for name, array in arrays.items()} != shapes:
            raise ConfigError(f"{path} has arrays that do not fit its sizes {sizes}; fit the model again")
        parameters = [arrays[name].reshape(-1) for name in shapes if name.startswith(("weight", "bias"))]
        predictor = Predictor(
            kind=kind,
            mlp=Mlp(sizes, np.concatenate(parameters)),
            **{name: arrays[name].astype("float64") for name in ("mean", "factor", "coefficients", "intercepts")},
        )
        return cls(predictor, primitives)


def _ints(metadata: dict[str, Any], key: str) -> list[int]:
    value = metadata.get(key)
    return [one for one in value if type(one) is int and one > 0] if isinstance(value, list) else []


def _texts(metadata: dict[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
