"""Performance models that predict the same times for every layer."""

import math
from collections.abc import Mapping, Sequence

from walle.engine_ext import np
from walle.engine_ext.search.features import NAMES
from walle.engine_ext.search.mlp import Mlp
from walle.engine_ext.search.portable_model import portable
from walle.engine_ext.search.predictor import Predictor
from walle.search import PerformanceModel

LAYERS = ((1, 1, 7, 1, 1), (512, 512, 224, 4, 7))  # the least and the greatest k, c, im, s and f that the models cover


def constant_model(us: Mapping[str, float], layers: Sequence[Sequence[int]] = LAYERS) -> bytes:
    """Return a model, in its portable form, that predicts these microseconds by primitive for layers in the range."""
    inputs, outputs = len(NAMES["physical"]), len(us)
    predictor = Predictor(
        kind="physical",
        mlp=Mlp.drawn((inputs, outputs), np.random.default_rng(0)),
        mean=np.zeros((inputs,), "float64"),
        factor=np.ones((inputs,), "float64"),
        coefficients=np.zeros((inputs, outputs), "float64"),
        intercepts=np.asarray([math.log(one) for one in us.values()], "float64"),
    )
    return portable(PerformanceModel(predictor, list(us)), layers)
