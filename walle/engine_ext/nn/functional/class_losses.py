"""Losses between predicted and true classes or probabilities."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import DTypeError, ShapeError
from walle.engine_ext.nn.functional.activations import log_softmax
from walle.engine_ext.nn.functional.reduction import check_equal_shapes, check_reduction, reduce_loss
from walle.engine_ext.np.base import FLOATS, product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = [
    "bce", "bce_with_logits", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "kl_div",
    "nll_loss",
]  # fmt: skip


def cross_entropy(input: Values, target: Values, weight: Values | None = None, *, ignore_index: int = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0) -> ndarray:  # fmt: skip
    """Return the cross-entropy of logits (batch, classes, ...) and classes.

    The target has class indices (batch, ...), of an integer dtype, or probabilities in the logits' shape. The batch
    may be left out: logits (classes,). "mean" divides by the sum of the weights of the targets that are not ignored.

    Raises:
        ShapeError: the shapes do not fit, a class is out of range, or the reduction is unknown.
        DTypeError: the target is neither of integers nor of floats.
    """
    if not 0 <= label_smoothing <= 1:
        raise ShapeError(f"cross_entropy: label_smoothing {label_smoothing}; it takes a number from 0 to 1")
    axis = min(len(input.shape) - 1, 1)
    _check_classes(input, target, weight, axis, "cross_entropy")
    logs = log_softmax(input, axis)
    if target.dtype in FLOATS:
        return _expected_loss(logs, target, weight, axis, reduction, label_smoothing)
    return _indexed_loss(logs, target, weight, axis, ignore_index, reduction, label_smoothing, "cross_entropy")


def nll_loss(input: Values, target: Values, weight: Values | None = None, *, ignore_index: int = -100,
             reduction: str = "mean") -> ndarray:  # fmt: skip
    """Return the negative log-likelihood of class indices (batch, ...) by log-probabilities (batch, classes, ...).

    Raises:
        ShapeError: the shapes do not fit, a class is out of range, or the reduction is unknown.
        DTypeError: the indices are not integers.
    """
    axis = min(len(input.shape) - 1, 1)
    if target.dtype in FLOATS:
        raise DTypeError(f"nll_loss: target of dtype {target.dtype}; it takes class indices of an integer dtype")
    _check_classes(input, target, weight, axis, "nll_loss")
    return _indexed_loss(input, target, weight, axis, ignore_index, reduction, 0.0, "nll_loss")


def binary_cross_entropy_with_logits(input: Values, target: Values, weight: Values | None = None, *,
                                     reduction: str = "mean",
                                     pos_weight: Values | None = None) -> ndarray:  # fmt: skip
    """Return the binary cross-entropy of logits and probabilities of equal shapes; weights are broadcast.

    `pos_weight` weighs the positive part of each target.

    Raises:
        ShapeError: the shapes differ, or the reduction is unknown.
    """
    check_equal_shapes(input, target, "binary_cross_entropy_with_logits")
    softplus = operator("Softplus", [operator("Neg", [input])])  # -log(sigmoid(x)), without overflow
    if pos_weight is not None:
        softplus = softplus * ((pos_weight - 1.0) * target + 1.0)
    loss: ndarray = (1.0 - target) * input + softplus
    loss = loss if weight is None else loss * weight
    return reduce_loss(loss, reduction, "binary_cross_entropy_with_logits")


def binary_cross_entropy(input: Values, target: Values, weight: Values | None = None, *,
                         reduction: str = "mean") -> ndarray:  # fmt: skip
    """Return the binary cross-entropy of probabilities of equal shapes; logarithms are at least -100.

    Raises:
        ShapeError: the shapes differ, or the reduction is unknown.
    """
    check_equal_shapes(input, target, "binary_cross_entropy")
    positive, negative = _bounded_log(input), _bounded_log(np.subtract(1.0, input))
    loss: ndarray = (target - 1.0) * negative - target * positive
    loss = loss if weight is None else loss * weight
    return reduce_loss(loss, reduction, "binary_cross_entropy")


def _bounded_log(x: Values) -> ndarray:
    """Return the logarithm, at least -100, with a gradient that is finite at 0."""
    is_positive: ndarray = x > 0.0
    logarithm = operator("Log", [np.where(is_positive, x, 1.0)])
    bounded: ndarray = np.where(is_positive, np.maximum(logarithm, -100.0), -100.0)
    return bounded


def kl_div(input: Values, target: Values, *, reduction: str = "mean", log_target: bool = False) -> ndarray:
    """Return the Kullback-Leibler divergence of log-probabilities `input` from probabilities `target`.

    `reduction="batchmean"` divides the sum by the batch's size, as the definition asks; `log_target` says that the
    target has log-probabilities.

    Raises:
        ShapeError: the shapes differ, or the reduction is unknown.
    """
    check_equal_shapes(input, target, "kl_div")
    check_reduction(reduction, "kl_div", ("none", "mean", "sum", "batchmean"))
    loss: ndarray
    if log_target:
        loss = np.exp(target) * (target - input)
    else:
        is_positive = target > 0
        entropy = target * np.log(np.where(is_positive, target, 1.0))  # 0 log 0 is 0
        loss = entropy - target * input
    if reduction == "batchmean":
        return np.sum(loss) / float(input.shape[0])
    return reduce_loss(loss, reduction, "kl_div")


bce, bce_with_logits = binary_cross_entropy, binary_cross_entropy_with_logits


def _check_classes(input: Values, target: Values, weight: Values | None, axis: int, function: str) -> None:
    shape, given = tuple(input.shape), tuple(target.shape)
    if not shape:
        raise ShapeError(f"{function}: input of shape (); it takes (batch, classes, ...) or (classes,)")
    wanted = shape if target.dtype in FLOATS else shape[:axis] + shape[axis + 1 :]
    if given != wanted:
        raise ShapeError(
            f"{function}: input of shape {shape}, target of shape {given} and dtype {target.dtype}; such a target "
            f"must have shape {wanted}"
        )
    if weight is not None and tuple(weight.shape) != (shape[axis],):
        raise ShapeError(f"{function}: weight of shape {tuple(weight.shape)}; it takes ({shape[axis]},)")


def _by_class(weight: Values, logs: Values, axis: int) -> ndarray:
    return np.reshape(weight, (-1, *(1,) * (len(logs.shape) - axis - 1)))


def _expected_loss(logs: ndarray, target: Values, weight: Values | None, axis: int, reduction: str,
                   smoothing: float) -> ndarray:  # fmt: skip
    """Return the loss of target probabilities; its mean is over all places, whatever their weights."""
    check_reduction(reduction, "cross_entropy")
    classes = logs.shape[axis]
    expected: ndarray = target if smoothing == 0 else target * (1.0 - smoothing) + smoothing / classes
    terms = logs * expected if weight is None else logs * expected * _by_class(weight, logs, axis)
    if reduction == "none":
        return -np.sum(terms, axis=axis)
    places = product(logs.shape) // classes if reduction == "mean" else 1
    return np.sum(terms) * (-1.0 / places)


def _indexed_loss(logs: Values, target: Values, weight: Values | None, axis: int, ignore_index: int, reduction: str,
                  smoothing: float, function: str) -> ndarray:  # fmt: skip
    check_reduction(reduction, function)
    is_counted: ndarray = target != ignore_index
    # An ignored index may be out of range; others may not, nor count from the end.
    index = np.where(is_counted, np.where(target < 0, logs.shape[axis], target), 0)
    picked = np.squeeze(operator("GatherElements", [logs, np.expand_dims(index, axis)], axis=axis), axis=axis)
    weights = operator("Cast", [is_counted], to=str(logs.dtype))
    if weight is not None:
        weights = weights * operator("Gather", [weight, index], axis=0)
    loss = -picked * weights
    if smoothing:
        terms = logs if weight is None else logs * _by_class(weight, logs, axis)
        uniform = np.where(is_counted, -np.sum(terms, axis=axis), 0.0)
        loss = loss * (1.0 - smoothing) + uniform * (smoothing / logs.shape[axis])
    if reduction == "mean":
        return np.sum(loss) / np.sum(weights)
    return reduce_loss(loss, reduction, function)
