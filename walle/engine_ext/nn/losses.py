"""Losses as modules."""

from __future__ import annotations

from walle.engine_ext.nn import functional
from walle.engine_ext.nn.functional.reduction import check_reduction
from walle.engine_ext.nn.module import Module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineSimilarity", "CrossEntropyLoss", "HuberLoss", "KLDivLoss",
    "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss",
]  # fmt: skip


class _Loss(Module):
    weight: ndarray | None
    reductions: tuple[str, ...] = ("none", "mean", "sum")

    def __init__(self, reduction: str, weight: Values | None = None) -> None:
        super().__init__()
        check_reduction(reduction, type(self).__name__, self.reductions)
        self.reduction = reduction
        if self._has_weight:
            self.register_buffer("weight", weight)

    _has_weight = False


class CrossEntropyLoss(_Loss):
    """Cross-entropy of logits (batch, classes, ...) and classes; see functional.cross_entropy."""

    _has_weight = True

    def __init__(self, weight: Values | None = None, *, ignore_index: int = -100, reduction: str = "mean",
                 label_smoothing: float = 0.0) -> None:  # fmt: skip
        super().__init__(reduction, weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Values, target: Values) -> ndarray:
        return functional.cross_entropy(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


class NLLLoss(_Loss):
    """Negative log-likelihood of log-probabilities (batch, classes, ...) and class indices."""

    _has_weight = True

    def __init__(self, weight: Values | None = None, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction, weight)
        self.ignore_index = ignore_index

    def forward(self, input: Values, target: Values) -> ndarray:
        return functional.nll_loss(input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class BCELoss(_Loss):
    """Binary cross-entropy of probabilities of equal shapes."""

    _has_weight = True

    def __init__(self, weight: Values | None = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction, weight)

    def forward(self, input: Values, target: Values) -> ndarray:
        return functional.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of logits and probabilities of equal shapes."""

    pos_weight: ndarray | None
    _has_weight = True

    def __init__(self, weight: Values | None = None, *, reduction: str = "mean",
                 pos_weight: Values | None = None) -> None:  # fmt: skip
        super().__init__(reduction, weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Values, target: Values) -> ndarray:
        return functional.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class MSELoss(_Loss):
    """Mean of (input - target)²."""

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Values, target: Values) -> ndarray:
        return functional.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """Mean of |input - target|."""

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Values, target: Values) -> ndarray:
        return functional.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """Mean of d² / (2 beta) where d = |input - target| is below beta, else of d - beta / 2."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Values, target: Values) -> ndarray:
        return functional.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """Mean of d² / 2 where d = |input - target| is at most delta, else of delta (d - delta / 2)."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Values, target: Values) -> ndarray:
        return functional.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of log-probabilities from probabilities; see functional.kl_div."""

    reductions = ("none", "mean", "sum", "batchmean")

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, input: Values, target: Values) -> ndarray:
        return functional.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class CTCLoss(_Loss):
    """Loss of a label sequence without alignment; see functional.ctc_loss."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Values, targets: Values, input_lengths: Values, target_lengths: Values) -> ndarray:
        return functional.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )


class CosineSimilarity(Module):
    """Cosine of the angle between vectors along an axis."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Values, x2: Values) -> ndarray:
        return functional.cosine_similarity(x1, x2, self.dim, self.eps)
