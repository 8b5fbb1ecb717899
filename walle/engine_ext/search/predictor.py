"""Predictor of log times: a network and a ridge regression, added, on normalised features; its fit to samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from walle.engine_ext import np
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.search.features import FLOPS, features_of
from walle.engine_ext.search.mlp import Mlp, Schedule, Targets, train
from walle.engine_ext.search.ridge import STRENGTHS, ridge
from walle.engine_ext.search.samples import Samples

_FEWEST = 8  # samples below which none is held out, and no network is trained
_REFITTED = 2000  # samples below which those held out are trained on afterwards

type OnEpoch = Callable[[int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Network plus linear function of the features, which are shifted by `mean` and multiplied by `factor`.

    `coefficients` has shape (features, primitives), `intercepts` (primitives,): NaN for a primitive without samples.
    """

    kind: str
    mlp: Mlp
    mean: np.ndarray
    factor: np.ndarray
    coefficients: np.ndarray
    intercepts: np.ndarray

    @classmethod
    def untrained(cls, samples: Samples, kind: str, hidden: Sequence[int], rng: np.random.Generator) -> "Predictor":
        """Return a predictor with the mean and deviation of these samples' features, whose intercepts are NaN.

        On physical features it is linear in the FLOPs, so that a regression of few samples begins at a constant rate.
        """
        given = features_of(samples.layers, kind)
        mean, deviation = given.mean(axis=0), given.std(axis=0)
        varies = deviation > 1e-9 * (1 + np.abs(mean))  # a constant column is multiplied by 0
        coefficients = np.zeros((given.shape[1], samples.primitives), "float64")
        if kind == "physical":
            coefficients[FLOPS] = np.where(varies, deviation, 0.0)[FLOPS]
        return cls(
            kind=kind,
            mlp=Mlp.drawn((given.shape[1], *hidden, samples.primitives), rng),
            mean=mean,
            factor=np.where(varies, 1 / np.where(varies, deviation, 1.0), 0.0),
            coefficients=coefficients,
            intercepts=np.full((samples.primitives,), np.nan, "float64"),
        )

    def inputs(self, layers: np.ndarray) -> np.ndarray:
        """Return the normalised features of checked layers, float32."""
        return ((features_of(layers, self.kind) - self.mean) * self.factor).astype("float32")

    def graph(self) -> GraphBuilder:
        """Return the model that predicts `times`, microseconds, from the inputs `x`."""
        graph = GraphBuilder("performance_model")
        x = graph.input("x", (None, self.mlp.sizes[0]))
        hidden, last = x, len(self.mlp.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.mlp.weights, self.mlp.biases, strict=True)):
            bias_values = bias + self.intercepts if layer == last else bias
            operands = [
                graph.constant(f"weight {layer}", weight.copy()),
                graph.constant(f"bias {layer}", bias_values.astype("float32")),
            ]
            hidden = graph.op("Gemm", [hidden, *operands])
            if layer < last:
                hidden = graph.op("Relu", [hidden])
        coefficients = graph.constant("coefficients", self.coefficients.astype("float32"))
        linear = graph.op("MatMul", [x, coefficients])
        graph.output("times", graph.op("Exp", [graph.op("Add", [hidden, linear])]))
        return graph

    def adapted(
        self,
        samples: Samples,
        schedule: Schedule,
        rng: np.random.Generator,
        strengths: Sequence[float] = STRENGTHS,
        on_epoch: OnEpoch | None = None,
    ) -> "Predictor":
        """Return a predictor that is this one, changed to predict the samples.

        First the linear part is changed by a ridge regression of the errors, then the network is trained on what is
        left over, until the error on held-out samples no longer falls. With few samples both are repeated on all of
        them, for the number of epochs that was found.
        """
        targets = Targets(self.inputs(samples.layers), samples.log_times, samples.defined)
        count = len(samples)
        if count < _FEWEST:
            return self._regressed(targets, strengths)
        order = rng.permutation(count)
        held = min(count // 3, max(count // 10, 16))
        kept, held_out = targets.take(order[held:]), targets.take(order[:held])
        found = self._regressed(kept, strengths)
        mlp, epochs = train(
            self.mlp, found._left_over(kept), schedule, rng, held_out=found._left_over(held_out), on_epoch=on_epoch
        )
        regressed = self._regressed(targets, strengths)
        if count >= _REFITTED:
            unseen = kept.defined.sum(axis=0) == 0  # all samples of these primitives are held out
            return replace(
                found,
                mlp=mlp,
                coefficients=np.where(unseen, regressed.coefficients, found.coefficients),
                intercepts=np.where(unseen, regressed.intercepts, found.intercepts),
            )
        found = regressed
        mlp, _ = train(self.mlp, found._left_over(targets), schedule, rng, last_epoch=epochs)
        return replace(found, mlp=mlp)

    def _regressed(self, targets: Targets, strengths: Sequence[float]) -> "Predictor":
        """Return a predictor whose linear part is changed to predict the targets with the same network."""
        error = self._left_over(targets).y - self.mlp.outputs(targets.x)
        coefficients, intercepts = ridge(targets.x, error, targets.defined, strengths)
        seen = ~np.isnan(intercepts)
        intercepts = np.where(seen, intercepts, np.median(intercepts[np.flatnonzero(seen)]))
        known = np.where(seen, np.nan_to_num(self.intercepts), self.intercepts)
        return replace(self, coefficients=self.coefficients + coefficients, intercepts=known + intercepts)

    def _left_over(self, targets: Targets) -> Targets:
        """Return the targets of the network: those given, less the linear part; 0 where undefined."""
        linear = targets.x @ self.coefficients + np.nan_to_num(self.intercepts)
        return replace(targets, y=((targets.y - linear) * targets.defined).astype("float32"))
