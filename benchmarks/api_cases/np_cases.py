# ruff: noqa: ARG005, ICN001, PLR0402 -- a table of calls with one signature, of two modules named np
"""Benchmark cases of walle.np against NumPy: calls that image and feature code makes, most on float32 and uint8."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy

import walle.np as np

PEER = f"NumPy {numpy.__version__}"


class Case(NamedTuple):
    """A call to both libraries on the same memory."""

    name: str
    size: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def agree(case: Case) -> None:
    """Raise AssertionError if the two results differ."""
    own, other = case.ours(), case.theirs()
    pairs = zip(own, other, strict=True) if isinstance(other, tuple | list) else [(own, other)]
    for here, there in pairs:
        left, right = numpy.asarray(here), numpy.asarray(there)
        scale = float(abs(right).max()) if right.size and right.dtype.kind in "fc" else 0.0
        numpy.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-4 * max(scale, 1.0), err_msg=case.name)


# Name, call(module, data); data.x and data.y are float32 in (0, 1), of one shape.
COMMON: list[tuple[str, Callable[..., Any]]] = [
    ("x + y", lambda m, d: d.x + d.y),
    ("x * 2.0", lambda m, d: d.x * 2.0),
    ("x - row", lambda m, d: d.x - d.row),
    ("x / y", lambda m, d: d.x / d.y),
    ("x ** 2", lambda m, d: d.x**2),
    ("x ** 0.5 by power", lambda m, d: m.power(d.x, d.half)),
    ("maximum", lambda m, d: m.maximum(d.x, d.y)),
    ("clip", lambda m, d: m.clip(d.x, 0.25, 0.75)),
    ("abs", lambda m, d: m.abs(d.x)),
    ("sqrt", lambda m, d: m.sqrt(d.x)),
    ("exp", lambda m, d: m.exp(d.x)),
    ("log", lambda m, d: m.log(d.x)),
    ("sin", lambda m, d: m.sin(d.x)),
    ("cos", lambda m, d: m.cos(d.x)),
    ("tanh", lambda m, d: m.tanh(d.x)),
    ("arctan2", lambda m, d: m.arctan2(d.x, d.y)),
    ("floor", lambda m, d: m.floor(d.x)),
    ("round", lambda m, d: m.round(d.x, 1)),
    ("x < y", lambda m, d: d.x < d.y),
    ("mask & mask", lambda m, d: d.mask & d.mask),
    ("isnan", lambda m, d: m.isnan(d.x)),
    ("where", lambda m, d: m.where(d.mask, d.x, d.y)),
    ("astype float32 of uint8", lambda m, d: d.bytes.astype("float32")),
    ("astype uint8 of float32", lambda m, d: d.x.astype("uint8")),
    ("bytes + bytes", lambda m, d: d.bytes + d.bytes),
    ("bytes > 127", lambda m, d: d.bytes > 127),
    ("copy of a transpose", lambda m, d: d.x.T.copy()),
    ("copy of a flip", lambda m, d: d.x[:, ::-1].copy()),
    ("concatenate", lambda m, d: m.concatenate([d.x, d.y], 1)),
    ("stack", lambda m, d: m.stack([d.x, d.y])),
    ("tile", lambda m, d: m.tile(d.row, 3)),
    ("repeat", lambda m, d: m.repeat(d.row, 3)),
    ("roll", lambda m, d: m.roll(d.x, 7, 0)),
    ("pad", lambda m, d: m.pad(d.x, 4)),
    ("x[mask]", lambda m, d: d.x[d.mask]),
    ("x[indices]", lambda m, d: d.x[d.indices]),
    ("take along axis 1", lambda m, d: m.take(d.x, d.columns, 1)),
    ("x[2:-2, 2:-2] view", lambda m, d: d.x[2:-2, 2:-2]),
    ("reshape", lambda m, d: d.x.reshape(-1)),
    ("sum", lambda m, d: m.sum(d.x)),
    ("sum over axis 0", lambda m, d: m.sum(d.x, axis=0)),
    ("sum over axes 0, 1", lambda m, d: m.sum(d.x, axis=(0, 1))),
    ("sum over the last axis", lambda m, d: m.sum(d.x, axis=-1)),
    ("sum of uint8", lambda m, d: m.sum(d.bytes)),
    ("mean", lambda m, d: m.mean(d.x)),
    ("mean over axes 0, 1", lambda m, d: m.mean(d.x, axis=(0, 1))),
    ("std", lambda m, d: m.std(d.x)),
    ("max", lambda m, d: m.max(d.x)),
    ("max over axis 0", lambda m, d: m.max(d.x, axis=0)),
    ("max over the last axis", lambda m, d: m.max(d.x, axis=-1)),
    ("argmax", lambda m, d: m.argmax(d.x)),
    ("argmax over the last axis", lambda m, d: m.argmax(d.x, axis=-1)),
    ("any", lambda m, d: m.any(d.mask)),
    ("count_nonzero", lambda m, d: m.count_nonzero(d.mask)),
    ("cumsum", lambda m, d: m.cumsum(d.x, axis=0)),
    ("diff", lambda m, d: m.diff(d.x, axis=0)),
    ("argwhere", lambda m, d: m.argwhere(d.mask)),
    ("histogram", lambda m, d: m.histogram(d.x, 32, (0.0, 1.0))),
    ("bincount", lambda m, d: m.bincount(d.bytes.reshape(-1), minlength=256)),
    ("interp", lambda m, d: m.interp(d.x, d.ends, d.ends)),
    ("percentile", lambda m, d: m.percentile(d.x, 90)),
    ("median", lambda m, d: m.median(d.x)),
    ("sort, all of it", lambda m, d: m.sort(d.x, axis=None)),
    ("argsort of a row", lambda m, d: m.argsort(d.row)),
    ("unique of uint8", lambda m, d: m.unique(d.bytes)),
    ("searchsorted", lambda m, d: m.searchsorted(d.ends, d.x)),
    ("norm", lambda m, d: m.linalg.norm(d.x)),
]

SQUARE: list[tuple[str, Callable[..., Any]]] = [
    ("sort rows", lambda m, d: m.sort(d.x)),
    ("argsort rows", lambda m, d: m.argsort(d.x)),
    ("matmul", lambda m, d: m.matmul(d.x, d.y)),
    ("matmul with a vector", lambda m, d: m.matmul(d.x, d.row)),
    ("outer", lambda m, d: m.outer(d.row, d.row)),
    ("rfft of rows", lambda m, d: m.fft.rfft(d.x)),
    ("cov", lambda m, d: m.cov(d.x[:100])),
    ("solve, 100 x 100", lambda m, d: m.linalg.solve(d.small, d.row[:100])),
    ("inv, 100 x 100", lambda m, d: m.linalg.inv(d.small)),
    ("svd, 100 x 100", lambda m, d: m.linalg.svd(d.small, compute_uv=False)),
    ("eigh, 100 x 100", lambda m, d: m.linalg.eigvalsh(d.small + d.small.T)),
]

# Other element types, which have loops of their own.
TYPES: list[tuple[str, Callable[..., Any]]] = [
    ("astype float32 of uint16", lambda m, d: d.words.astype("float32")),
    ("astype uint16 of float32", lambda m, d: d.x.astype("uint16")),
    ("astype float32 of int64", lambda m, d: d.longs.astype("float32")),
    ("longs + longs", lambda m, d: d.longs + d.longs),
    ("unsigned < unsigned", lambda m, d: d.unsigned < d.unsigned),
    ("sum of int64", lambda m, d: m.sum(d.longs)),
    ("sum of uint32", lambda m, d: m.sum(d.unsigned)),
    ("sum of float64", lambda m, d: m.sum(d.doubles)),
    ("max of float64 over the last axis", lambda m, d: m.max(d.doubles, axis=-1)),
    ("argmax of int64", lambda m, d: m.argmax(d.longs)),
    ("matmul of float64, 100 x 100", lambda m, d: m.matmul(d.fine, d.fine)),
    ("matmul of int32, 100 x 100", lambda m, d: m.matmul(d.whole, d.whole)),
    ("product of complex64", lambda m, d: d.spectrum * d.spectrum),
    ("quotient of complex64", lambda m, d: d.spectrum / d.spectrum),
    ("abs of complex64", lambda m, d: m.abs(d.spectrum)),
    ("angle of complex64", lambda m, d: m.angle(d.spectrum)),
    ("sum of complex64", lambda m, d: m.sum(d.spectrum)),
    ("abs of complex128", lambda m, d: m.abs(d.waves)),
    ("product of complex128", lambda m, d: d.waves * d.waves),
    ("fft of rows of complex64", lambda m, d: m.fft.fft(d.spectrum)),
    ("matmul of complex64, 100 x 100", lambda m, d: m.matmul(d.turned, d.turned)),
]


def _minus(x: Any, row: Any) -> Any:
    return x.x - row


class Data:
    """Arrays of one size, as arrays of one of the two libraries."""

    def __init__(self, arrays: dict[str, numpy.ndarray], convert: Callable[[numpy.ndarray], Any]) -> None:
        for name, array in arrays.items():
            setattr(self, name, convert(array))


def cases() -> Iterator[Case]:
    rng = numpy.random.default_rng(0)
    for size, shape in (("224x224x3", (224, 224, 3)), ("1000x1000", (1000, 1000))):
        count = math.prod(shape)  # all different, so that the sorted order is unique
        x, y = (((rng.permutation(count) + 1) / count).astype("float32").reshape(shape) for _ in range(2))
        arrays = {
            "x": x,
            "y": y,
            "row": x.reshape(-1, shape[-1])[0] if len(shape) == 2 else x[0],
            "half": numpy.full(shape[-1:], 0.5, "float32"),
            "bytes": rng.integers(0, 256, shape).astype("uint8"),
            "mask": x < 0.5,
            "indices": rng.integers(0, shape[0], shape[0]),
            "columns": rng.integers(0, shape[1], shape[1]),
            "ends": numpy.linspace(0, 1.01, 20, dtype="float32"),
            "small": rng.normal(size=(100, 100)).astype("float32") + 20 * numpy.eye(100, dtype="float32"),
            "words": rng.integers(0, 1 << 16, shape).astype("uint16"),
            "unsigned": rng.integers(0, 1 << 32, shape).astype("uint32"),
            "longs": rng.permutation(count).reshape(shape),
            "doubles": rng.random(shape),
            "fine": rng.random((100, 100)),
            "spectrum": (x + 1j * y).astype("complex64"),
            "waves": x.astype("float64") + 1j * y,
            "turned": (rng.normal(size=(100, 100)) + 1j * rng.normal(size=(100, 100))).astype("complex64"),
            "whole": rng.integers(0, 100, (100, 100)).astype("int32"),
        }
        here, there = Data(arrays, np.asarray), Data(arrays, lambda array: array)
        if len(shape) == 3:
            here.row, there.row = np.asarray(x[0, :, 0].copy()), x[0, :, 0].copy()  # type: ignore[attr-defined]
        for name, call in COMMON + TYPES + (SQUARE if len(shape) == 2 else []):
            if name == "x - row" and len(shape) == 3:
                own, peer = np.asarray(x[0, 0].copy()), x[0, 0].copy()
                here_row, there_row = partial(_minus, x=here, row=own), partial(_minus, x=there, row=peer)
                yield Case(name, size, here_row, there_row)
                continue
            yield Case(name, size, partial(call, np, here), partial(call, numpy, there))
