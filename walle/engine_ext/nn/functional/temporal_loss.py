"""Connectionist temporal classification: the loss of a label sequence without alignment (Graves et al. 2006)."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn.functional.reduction import check_reduction, reduce_loss

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = ["ctc_loss"]

_NEVER = -1e30  # log of 0: finite, so that no difference of two is NaN


def ctc_loss(log_probs: Values, targets: Values, input_lengths: Values, target_lengths: Values, blank: int = 0,
             reduction: str = "mean", zero_infinity: bool = False) -> ndarray:  # fmt: skip
    """Return the negative log-likelihood of label sequences.

    `log_probs` is (steps, batch, classes), `targets` int64 (batch, labels), padded by any class, the lengths are int64
    (batch,). "mean" divides each loss by its target's length, then averages. The recursion is written step by step, so
    a training step grows with the number of steps.

    Raises:
        ShapeError: the shapes do not fit, or the reduction is unknown.
    """
    check_reduction(reduction, "ctc_loss")
    if len(log_probs.shape) != 3 or len(targets.shape) != 2 or targets.shape[0] != log_probs.shape[1]:
        raise ShapeError(
            f"ctc_loss: log_probs of shape {tuple(log_probs.shape)}, targets of shape {tuple(targets.shape)}; it takes "
            "(steps, batch, classes) and (batch, labels)"
        )
    steps, batch, _ = log_probs.shape
    labels = targets.shape[1]
    places = 2 * labels + 1  # a blank before, between and after the labels
    blanks = np.full((batch, labels, 1), blank, dtype="int64")
    target = operator("Cast", [targets], to="int64")
    pairs = np.concatenate([blanks, np.expand_dims(target, -1)], axis=-1)
    path = np.concatenate([np.reshape(pairs, (batch, 2 * labels)), blanks[:, :1, 0]], axis=1)
    column = np.arange(places)
    shifted = np.concatenate([np.full((batch, 2), blank, dtype="int64"), path[:, :-2]], axis=1)
    skips = (path != blank) & (path != shifted) & (column >= 2)
    emitted = operator(
        "GatherElements", [log_probs, np.broadcast_to(np.expand_dims(path, 0), (steps, batch, places))], axis=2
    )
    inputs, lengths = np.expand_dims(input_lengths, -1), np.expand_dims(target_lengths, -1)
    alpha = np.where(column < 2, emitted[0], _NEVER)
    gap = np.full((batch, 2), _NEVER, dtype=str(log_probs.dtype))
    for step in range(1, steps):
        before = np.concatenate([gap[:, :1], alpha[:, :-1]], axis=1)
        earlier = np.where(skips, np.concatenate([gap, alpha[:, :-2]], axis=1), _NEVER)
        reached = _log_sum(_log_sum(alpha, before), earlier) + emitted[step]
        alpha = np.where(inputs > step, np.maximum(reached, _NEVER), alpha)
    ends = np.where((column == 2 * lengths) | (column == 2 * lengths - 1), alpha, _NEVER)
    peak = np.max(ends, axis=1)
    likelihood = peak + np.log(np.sum(np.exp(ends - np.expand_dims(peak, -1)), axis=1))
    loss = -likelihood
    impossible = loss > -_NEVER / 2
    loss = np.where(impossible, 0.0 if zero_infinity else float("inf"), loss)
    if reduction == "mean":
        return np.mean(loss / operator("Cast", [np.maximum(target_lengths, 1)], to=str(log_probs.dtype)))
    return reduce_loss(loss, reduction, "ctc_loss")


def _log_sum(a: ndarray, b: ndarray) -> ndarray:
    """Return log(exp(a) + exp(b)) of finite numbers."""
    return np.maximum(a, b) + operator("Log1p", [np.exp(-np.abs(a - b))])
