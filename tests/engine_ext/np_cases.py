"""Table of test cases for walle.np: the arguments of each name, for the tests and for the benchmark.

A maker takes a `Draw` and returns the positional arguments, or (arguments, keywords). Arrays are NumPy's, of any
strides; walle.np reads them through the buffer protocol. Names with a dot are in a submodule.
"""
# ruff: noqa: E501, PLC3002 -- a table: one line a case, values bound by calling a lambda

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy

FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int32", "int64", "uint8")
NUMBERS = FLOATS + INTEGERS
DTYPES = (*NUMBERS, "bool")


@dataclass(kw_only=True)
class Draw:
    """Random choice of sizes, strides and numbers."""

    seed: int = 0
    shape: tuple[int, ...] = (4, 3, 5)
    dtype: int = 0  # index into the dtypes of a case
    strides: int = 0  # 0: contiguous, 1: transposed, 2: stepped, 3: reversed
    used: set[str] = field(default_factory=set)  # dtypes of the arrays drawn

    def __post_init__(self) -> None:
        self.rng = numpy.random.default_rng(self.seed)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(numpy.prod(self.shape))

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def axis(self) -> int:
        return int(self.rng.integers(-self.rank, self.rank))

    def axes(self) -> Any:
        return self.pick(None, self.axis(), tuple(range(self.rank)), (self.rank - 1,))

    def a(
        self, dtypes: tuple[str, ...] = DTYPES, shape: tuple[int, ...] | None = None, low: float = -4, high: float = 4
    ) -> numpy.ndarray:
        """Return an array of numbers from low to high, with the drawn strides."""
        dtype = dtypes[self.dtype % len(dtypes)]
        self.used.add(dtype)
        size = self.shape if shape is None else shape
        whole = size
        if self.strides % 4 == 1:
            whole = size[::-1]
        elif self.strides % 4 == 2 and size:
            whole = (*size[:-1], 2 * size[-1])
        made = self.numbers(dtype, whole, low, high)
        if self.strides % 4 == 1:
            return made.T
        if self.strides % 4 == 2 and size:
            return made[..., ::2]
        return made[::-1] if self.strides % 4 == 3 and size else made

    def numbers(self, dtype: str, shape: tuple[int, ...], low: float, high: float) -> numpy.ndarray:
        """Return an array; never a NumPy scalar, because one of float64 is a Python float."""
        if dtype == "bool":
            return numpy.asarray(self.rng.random(shape) < 0.5)
        if dtype in COMPLEX:
            part = FLOATS[COMPLEX.index(dtype)]
            real, imag = self.numbers(part, shape, low, high), self.numbers(part, shape, low, high)
            return numpy.asarray(real + 1j * imag).astype(dtype)
        if dtype in FLOATS:
            return numpy.asarray(low + (high - low) * self.rng.random(shape)).astype(dtype)
        least, most = int(numpy.ceil(low)), max(int(high), 1)
        least = max(least, 0) if dtype == "uint8" else min(least, int(high) - 1)
        return numpy.asarray(self.rng.integers(least, most + 1, shape)).astype(dtype)

    def f(self, shape: tuple[int, ...] | None = None, low: float = -4, high: float = 4) -> numpy.ndarray:
        return self.a(FLOATS, shape, low, high)

    def z(self, shape: tuple[int, ...] | None = None, low: float = -4, high: float = 4) -> numpy.ndarray:
        return self.a(COMPLEX, shape, low, high)

    def n(self, shape: tuple[int, ...] | None = None, low: float = -4, high: float = 4) -> numpy.ndarray:
        return self.a(NUMBERS, shape, low, high)

    def i(
        self, shape: tuple[int, ...] | None = None, low: int = 0, high: int = 4, dtype: str = "int64"
    ) -> numpy.ndarray:
        return self.rng.integers(low, high, self.shape if shape is None else shape).astype(dtype)

    def partner(self, x: numpy.ndarray) -> numpy.ndarray:
        """Return an array of the same dtype that broadcasts against x."""
        shape = tuple(self.pick(1, size) for size in x.shape)[int(self.rng.integers(0, 2)) :]
        return self.numbers(x.dtype.name, shape, 1, 4)

    def two(self, dtypes: tuple[str, ...] = DTYPES) -> list[Any]:
        x = self.a(dtypes)
        return [x, self.partner(x)]

    def matrix(self, n: int, dtype: str | None = None) -> numpy.ndarray:
        """Return a well-conditioned matrix, in a stack if the draw has more than two dimensions."""
        name = dtype or FLOATS[self.dtype % 2]
        self.used.add(name)
        stack = self.shape[:-2]
        return (self.rng.normal(size=(*stack, n, n)) + 3 * numpy.eye(n)).astype(name)

    def symmetric(self, n: int) -> numpy.ndarray:
        x = self.matrix(n)
        return numpy.asarray(x @ x.swapaxes(-1, -2) + numpy.eye(n, dtype=x.dtype))

    @property
    def n2(self) -> int:
        return max(self.shape[-1], 1)


type Maker = Callable[[Draw], Any]
CASES: dict[str, list[Maker]] = {}


def _add(names: str, *makers: Maker) -> None:
    for name in names.split():
        CASES.setdefault(name, []).extend(makers)


# Elementwise.
_add("abs absolute positive sign square", lambda d: [d.n()])
_add("negative", lambda d: [d.n()])
_add("sin cos tan arctan tanh sinh cosh exp exp2 expm1 arcsinh atan asinh", lambda d: [d.n()])
_add("fabs cbrt sinc i0 deg2rad rad2deg degrees radians angle", lambda d: [d.n()])
_add("sqrt log1p", lambda d: [d.n(low=0)])
_add("log log2 log10 reciprocal", lambda d: [d.f(low=0.1)])
_add("arcsin arccos asin acos", lambda d: [d.f(low=-1, high=1)])
_add("arctanh atanh", lambda d: [d.f(low=-0.9, high=0.9)])
_add("arccosh acosh", lambda d: [d.f(low=1, high=5)])
_add("floor ceil trunc fix", lambda d: [d.n()])
_add("rint", lambda d: [d.f()])
_add("round around", lambda d: [d.n(), d.pick(0, 1, 2)])
_add("isnan isinf isfinite signbit isposinf isneginf", lambda d: [_special(d)])
_add("nan_to_num", lambda d: [_special(d)])
_add("spacing", lambda d: [d.f()])
_add("frexp modf", lambda d: [d.f(low=-100, high=100)])
_add("ldexp", lambda d: [d.f(), d.i(high=9)])
_add("nextafter", lambda d: [d.f(), d.f()])
_add("invert bitwise_not bitwise_invert", lambda d: [d.a((*INTEGERS, "bool"))])
_add("add multiply maximum minimum equal not_equal less less_equal greater greater_equal", lambda d: d.two())
_add("subtract divide true_divide fmax fmin", lambda d: d.two(NUMBERS))
_add("floor_divide mod remainder fmod", lambda d: d.two(NUMBERS))
_add("divmod", lambda d: d.two(NUMBERS))
_add("power pow float_power", lambda d: [d.n(low=1), d.i(high=4)])
_add("arctan2 atan2 hypot copysign logaddexp logaddexp2 heaviside", lambda d: d.two(FLOATS))
_add("gcd lcm", lambda d: d.two(("int32", "int64")))
_add("bitwise_and bitwise_or bitwise_xor", lambda d: d.two((*INTEGERS, "bool")))
_add("left_shift right_shift bitwise_left_shift bitwise_right_shift", lambda d: d.two(INTEGERS))
_add("logical_and logical_or logical_xor", lambda d: d.two())
_add("logical_not", lambda d: [d.a()])
_add("clip", lambda d: [d.n(), 1, 3], lambda d: [d.n(), None, 2])
_add("isclose allclose", lambda d: [d.f(), d.f()], lambda d: [_special(d), _special(d)])
_add("array_equal array_equiv", lambda d: (lambda x: [x, x.copy()])(d.n()), lambda d: [d.n(), d.n()])


def _special(d: Draw) -> numpy.ndarray:
    x = d.f().copy()
    if x.size:
        for value in (numpy.nan, numpy.inf, -numpy.inf, -0.0):
            x.flat[int(d.rng.integers(x.size))] = value
    return x


def _with_nan(d: Draw) -> numpy.ndarray:
    x = d.f().copy()
    if x.size > 1:
        x.flat[int(d.rng.integers(x.size))] = numpy.nan
    return x


# Creation.
_add("zeros ones", lambda d: [d.shape, DTYPES[d.dtype % 6]])
_add("full", lambda d: [d.shape, 3, DTYPES[d.dtype % 6]])
_add("zeros_like ones_like", lambda d: [d.a()])
_add("full_like", lambda d: [d.a(), 2])
_add("array asarray asanyarray copy ascontiguousarray", lambda d: [d.a()])
_add("astype", lambda d: [d.n(low=0), NUMBERS[int(d.rng.integers(5))]])
_add(
    "arange",
    lambda d: [int(d.rng.integers(9))],
    lambda d: [2, int(d.rng.integers(20)), d.pick(1, 3)],
    lambda d: [9, 1, -2],
)
_add("linspace", lambda d: [1, 5, int(d.rng.integers(1, 9)), d.pick(True, False)])
_add("logspace", lambda d: [0, 2, int(d.rng.integers(1, 9))])
_add("geomspace", lambda d: [1, 1000, int(d.rng.integers(2, 9))])
_add("eye", lambda d: [d.n2, d.pick(None, 3, 6), d.pick(-7, -1, 0, 2)])
_add("identity", lambda d: [d.n2])
_add("tri", lambda d: [d.n2, d.pick(None, 3), d.pick(-1, 0, 1)])
_add("diag", lambda d: [d.a(shape=(d.n2,)), d.pick(-1, 0, 2)], lambda d: [d.a(shape=(3, 4)), d.pick(-1, 0, 2, 5)])
_add("diagflat", lambda d: [d.a(shape=(2, 2)), d.pick(-1, 0, 1)])
_add("tril triu", lambda d: [d.a(shape=(*d.shape, 3)), d.pick(-1, 0, 1)])
_add("vander", lambda d: [d.n(shape=(4,), low=1), d.pick(None, 3)])
_add(
    "meshgrid",
    lambda d: ([d.a(shape=(3,)), d.a(shape=(2,))], {"indexing": d.pick("xy", "ij"), "sparse": d.pick(True, False)}),
)
_add("indices", lambda d: [d.shape])
_add("fromfunction", lambda d: ([lambda i, j: i + 2 * j, (3, d.n2)], {"dtype": "int64"}))
_add("fromiter", lambda d: [range(d.n2), "int32"])
_add("frombuffer", lambda d: [d.rng.bytes(24), d.pick("uint8", "int32", "float64")])
_add("hanning hamming blackman bartlett", lambda d: [d.pick(1, 2, 5, 8)])
_add("kaiser", lambda d: [d.pick(1, 2, 5), 8.0])

# Shapes.
_add("reshape", lambda d: [d.a(), (-1, d.shape[-1]) if d.shape[-1] else d.shape])
_add("ravel squeeze transpose permute_dims atleast_1d atleast_2d atleast_3d flip", lambda d: [d.a()])
_add("shape ndim size", lambda d: [d.a()])
_add("matrix_transpose", lambda d: [d.a(shape=(*d.shape, 2))])
_add("swapaxes moveaxis", lambda d: [d.a(), d.axis(), d.axis()])
_add("moveaxis", lambda d: [d.a(shape=(2, 3, 4)), [0, 1], [-1, 0]])
_add("rollaxis", lambda d: [d.a(), d.axis(), d.pick(0, d.rank)])
_add("expand_dims", lambda d: [d.a(), d.pick(0, -1, (0, -1))])
_add("squeeze", lambda d: [d.a(shape=(1, *d.shape, 1)), d.pick(0, -1, (0, -1))])
_add("flip", lambda d: [d.a(), d.axis()])
_add("flipud", lambda d: [d.a()])
_add("fliplr", lambda d: [d.a(shape=(2, *d.shape))])
_add("rot90", lambda d: [d.a(shape=(2, *d.shape)), d.pick(0, 1, 2, 3, -1)])
_add(
    "roll", lambda d: [d.a(), d.pick(-7, 0, 2), d.pick(None, d.axis())], lambda d: [d.a(shape=(3, 4)), (1, -2), (0, 1)]
)
_add("broadcast_to", lambda d: [d.a(), (2, *d.shape)])
_add("broadcast_arrays", lambda d: d.two())
_add("broadcast_shapes", lambda d: [d.shape, (3, *([1] * d.rank))])
_add("concatenate concat", lambda d: (lambda k: [[d.a(), d.a()], k])(d.pick(d.axis(), None)))
_add("stack", lambda d: [[d.a(), d.a()], d.pick(0, -1, d.rank)])
_add("unstack", lambda d: [d.a()])
_add("vstack hstack dstack column_stack", lambda d: [[d.a(), d.a()]], lambda d: [[d.a(shape=(3,)), d.a(shape=(3,))]])
_add("block", lambda d: [[[d.a(shape=(2, 2)), d.a(shape=(2, 1))], [d.a(shape=(1, 2)), d.a(shape=(1, 1))]]])
_add("array_split", lambda d: [d.a(), d.pick(2, 3, [1, 2]), d.axis()])
_add("split", lambda d: [d.a(shape=(6, 4)), d.pick(2, [1, 3]), d.pick(0, 1)])
_add("hsplit vsplit", lambda d: [d.a(shape=(6, 4)), 2])
_add("dsplit", lambda d: [d.a(shape=(2, 3, 4)), 2])
_add("tile", lambda d: [d.a(), d.pick(2, (2, 1), (2, 1, 1, 3))])
_add("repeat", lambda d: [d.a(), d.pick(0, 1, 3), d.pick(None, d.axis())], lambda d: [d.a(shape=(3, 2)), [1, 0, 2], 0])
_add("resize", lambda d: [d.a(), (d.pick(1, 7), 3)])
_add("append", lambda d: [d.a(), d.a(), d.pick(None, 0)])
_add("insert", lambda d: [d.a(shape=(3, 4)), d.pick(0, 2, -1), 7, d.pick(None, 0, 1)], lambda d: [d.a(shape=(4,)), [1, 3], [8, 9]],
     lambda d: [d.a(shape=(3, 4)), 1, d.a(shape=(4,)), 0])  # fmt: skip
_add("delete", lambda d: [d.a(shape=(3, 4)), d.pick(0, -1, [0, 2], slice(0, 2)), d.pick(None, 0, 1)])
_add("trim_zeros", lambda d: [numpy.array([0, 0, 1, 0, 2, 0])])
_add("pad", lambda d: [d.n(), d.pick(1, (1, 2))],
     lambda d: [d.n(shape=(3, 4)), ((1, 2), (0, 5)), d.pick("edge", "reflect", "symmetric", "wrap", "maximum", "minimum")],
     lambda d: [d.f(shape=(3, 4)), ((1, 2), (0, 5)), d.pick("mean", "linear_ramp")],
     lambda d: ([d.f(shape=(3, 4)), ((1, 2), (0, 5)), "linear_ramp"], {"end_values": ((1, 2), (3, -4))}),
     lambda d: ([numpy.array([-7, 5, 9], "int32"), (3, 3), "linear_ramp"], {"end_values": (-9, 4)}),
     lambda d: ([d.n(shape=(3, 4)), 2], {"constant_values": ((1, 2), (3, 4))}))  # fmt: skip

# Indexing.
_add("where", lambda d: [d.a() > 0, d.n(), d.n()], lambda d: [d.a() > 0])
_add("nonzero flatnonzero argwhere", lambda d: [d.a(low=-1, high=1)])
_add("take", lambda d: [d.a(), d.i((2, 2), high=max(1, min(d.shape))), d.pick(None, d.axis())] if d.shape[-1] else [d.a(shape=(2,)), [1, 0]],
     lambda d: ([d.a(shape=(5,)), d.i((3,), -9, 9)], {"mode": d.pick("wrap", "clip")}))  # fmt: skip
_add("take_along_axis", lambda d: (lambda x, k: [x, numpy.argsort(x, k), k])(d.a(), d.axis()))
_add("choose", lambda d: [d.i(high=3), [d.n(), d.n(), d.n()]])
_add("select", lambda d: [[d.a() > 1, d.a() > 0], [d.n(), d.n()], 7])
_add("compress", lambda d: [[True, False, True], d.a(shape=(3, 4)), d.pick(0, None)])
_add("extract", lambda d: (lambda x: [x > 0, x])(d.a()))
_add("diagonal trace", lambda d: [d.a(NUMBERS, shape=(3, 4, 2)), d.pick(-1, 0, 2), *d.pick((0, 1), (2, 0))])
_add("diag_indices", lambda d: [4, d.pick(2, 3)])
_add("diag_indices_from", lambda d: [d.a(shape=(3, 3))])
_add("tril_indices triu_indices", lambda d: [4, d.pick(-1, 0, 1), d.pick(None, 6)])
_add("tril_indices_from triu_indices_from", lambda d: [d.a(shape=(3, 5)), d.pick(-1, 0, 1)])
_add("ix_", lambda d: [d.i((2,)), d.i((3,))])
_add("unravel_index", lambda d: [d.i((3, 2), high=24), (2, 3, 4)])
_add(
    "ravel_multi_index", lambda d: [tuple(d.i((5,), high=3) for _ in range(2)), (3, 4), d.pick("raise", "wrap", "clip")]
)

# Reductions.
_add("sum prod mean", lambda d: ([d.a(), d.axes()], {"keepdims": d.pick(True, False)}))
_add("sum prod", lambda d: ([d.n(), d.axes()], {"initial": 3, "where": d.a() > 0}))
_add("mean", lambda d: ([d.f(), d.axes()], {"where": numpy.arange(d.shape[-1]) != 1}))
_add(
    "max min",
    lambda d: ([d.n(), d.axes()], {"initial": 1, "where": d.a() > 0}),
    lambda d: ([numpy.zeros((2, 0)), 1], {"initial": 5}),
)
_add("all any", lambda d: ([d.a(), d.axes()], {"where": d.a() > 0}))
_add("var std", lambda d: ([d.f(), d.axes()], {"where": numpy.arange(d.shape[-1]) != 1}))
_add("all any count_nonzero", lambda d: ([d.a(low=-1, high=1), d.axes()], {"keepdims": d.pick(True, False)}))
_add("max min amax amin", lambda d: ([d.a(), d.axes()], {"keepdims": d.pick(True, False)}))
_add("ptp", lambda d: [d.n(), d.axes()])
_add("argmax argmin", lambda d: ([d.a(), d.pick(None, d.axis())], {"keepdims": d.pick(True, False)}))
_add("var std", lambda d: ([d.n(), d.axes()], {"ddof": d.pick(0, 1) if d.size > 1 and min(d.shape) > 1 else 0}))
_add("average", lambda d: [d.n(), d.axes()], lambda d: [d.f(), d.rank - 1, d.rng.random(d.shape[-1]) + 0.1])
_add("cumsum cumprod", lambda d: [d.a(), d.pick(None, d.axis())])
_add("cumulative_sum cumulative_prod", lambda d: ([d.n()], {"axis": d.axis(), "include_initial": d.pick(True, False)}))
_add("nansum nanprod nanmean nanvar nanstd", lambda d: [_with_nan(d), d.axes()])
_add("nanmax nanmin", lambda d: [_with_nan(d), d.axes()])
_add("nancumsum nancumprod", lambda d: [_with_nan(d), d.axis()])
_add("nanargmax nanargmin", lambda d: [_with_nan(d), None])
_add("diff", lambda d: [d.a(("float32", "float64", "int32", "int64", "bool")), d.pick(1, 2), d.axis()])
_add("ediff1d", lambda d: ([d.f()], {"to_begin": d.pick(None, [1.0])}))
_add("gradient", lambda d: [d.f(shape=(4, 5))], lambda d: [d.f(shape=(4, 5)), 2.0], lambda d: [d.f(shape=(5,)), numpy.array([0, 1, 3, 4, 7.0])],
     lambda d: ([d.f(shape=(4, 5))], {"axis": 1, "edge_order": 2}))  # fmt: skip
_add("trapezoid", lambda d: ([d.f()], {"dx": 0.5, "axis": d.axis()}), lambda d: [d.f(shape=(2, 4)), [0.0, 1, 3, 4]])

# Sorting, searching, sets.
_add(
    "sort",
    lambda d: [d.a(), d.pick(d.axis(), None)],
    lambda d: [_special(d)],
    lambda d: [d.a(shape=(3, 300), low=-99, high=99)],
)
_add(
    "argsort",
    lambda d: ([d.a(), d.pick(d.axis(), None)], {"kind": "stable"}),
    lambda d: ([d.a(shape=(3, 300))], {"kind": "stable"}),
)
_add("lexsort", lambda d: [(d.i((9,), high=3), d.i((9,), high=3))])
_add("searchsorted", lambda d: [numpy.sort(d.a(shape=(7,))), d.a(shape=d.shape), d.pick("left", "right")])
_add("digitize", lambda d: [d.f(), d.pick([-1.0, 0, 2], [2.0, 0, -1]), d.pick(True, False)])
_add("unique", lambda d: ([d.a()], {k: d.pick(True, False) for k in ("return_index", "return_inverse", "return_counts")}),
     lambda d: ([d.i((4, 2), high=2)], {"axis": 0}))  # fmt: skip
_add("unique_counts unique_inverse", lambda d: [d.a()])
_add("isin", lambda d: ([d.a(), d.a(shape=(3,))], {"invert": d.pick(True, False)}))
_add("union1d intersect1d setdiff1d setxor1d", lambda d: [d.a(shape=(5,)), d.a(shape=(4,))])

# Statistics.
_add("median", lambda d: ([d.n(), d.axes()], {"keepdims": d.pick(True, False)}), lambda d: [_with_nan(d), d.axes()])
_add("nanmedian", lambda d: [_with_nan(d), d.axes()])
_add(
    "quantile",
    lambda d: (
        [d.n(), d.pick(0.3, [0.1, 0.5, 1.0]), d.axes()],
        {"method": d.pick("linear", "lower", "higher", "midpoint")},
    ),
)
_add("percentile", lambda d: [d.n(), d.pick(30, [[10, 50], [0, 100]]), d.axes()])
_add("nanquantile", lambda d: [_with_nan(d), d.pick(0.3, [0.1, 0.5]), d.axes()])
_add("nanpercentile", lambda d: [_with_nan(d), 40, d.axes()])
_add("cov", lambda d: [d.n(shape=(3, 8))], lambda d: [d.f(shape=(8,)), d.f(shape=(8,))])
_add("corrcoef", lambda d: [d.f(shape=(3, 8))])
_add("bincount", lambda d: [d.i((20,), high=6)], lambda d: [d.i((20,), high=6), d.rng.random(20), 9])
_add(
    "histogram",
    lambda d: [d.n(), d.pick(3, 10, numpy.array([-1.0, 0, 0.5, 2]))],
    lambda d: ([d.f(), 4, (-1, 2)], {"density": True}),
)
_add("histogram_bin_edges", lambda d: [d.f(), 5])
_add("histogram2d", lambda d: [d.f(shape=(30,)), d.f(shape=(30,)), d.pick(3, (2, 4))])
_add("histogramdd", lambda d: [d.f(shape=(30, 3)), (2, 3, 2)])
_add("interp", lambda d: [d.f(), [-2.0, 0, 1, 3], [1.0, 5, 2, 2]])

# Products.
_add("matmul", lambda d: [d.n(shape=(*d.shape, 3)), d.n(shape=(3, 2))], lambda d: [d.n(shape=(3,)), d.n(shape=(3,))])
_add("dot", lambda d: [d.n(shape=(2, 3)), d.n(shape=(2, 3, 4))], lambda d: [d.n(shape=(5,)), d.n(shape=(5,))])
_add("vdot inner", lambda d: [d.n(shape=(2, 3)), d.n(shape=(2, 3))])
_add("outer kron", lambda d: [d.n(shape=(2, 3)), d.n(shape=(3, 2))])
_add("tensordot", lambda d: [d.n(shape=(2, 3, 4)), d.n(shape=(3, 4, 5)), d.pick(2, ([1, 2], [0, 1]))])
_add("einsum", lambda d: ["ij,jk->ik", d.n(shape=(2, 3)), d.n(shape=(3, 4))], lambda d: ["bij->bji", d.n(shape=(2, 3, 4))],
     lambda d: ["ii->i", d.n(shape=(3, 3))], lambda d: ["ij,ij->", d.f(shape=(3, 3)), d.f(shape=(3, 3))])  # fmt: skip
_add("cross", lambda d: [d.n(shape=(4, 3)), d.n(shape=(4, 3))])
_add("vecdot", lambda d: [d.n(shape=(2, 3)), d.n(shape=(2, 3))])
_add("matvec", lambda d: [d.f(shape=(4, 2, 3)), d.f(shape=(3,))])
_add("vecmat", lambda d: [d.f(shape=(2,)), d.f(shape=(4, 2, 3))])

# Signals, bits, polynomials.
_add("convolve correlate", lambda d: [d.n(shape=(7,)), d.n(shape=(3,)), d.pick("full", "same", "valid")])
_add("unwrap", lambda d: [d.f(low=-20, high=20)])
_add("packbits", lambda d: [d.a(("bool",)), d.pick(None, d.axis())])
_add("unpackbits", lambda d: [d.a(("uint8",)), d.pick(None, d.axis())])
_add("binary_repr", lambda d: [d.pick(-3, 0, 5), d.pick(None, 6)])
_add("base_repr", lambda d: [d.pick(-30, 0, 500), d.pick(2, 3, 16)])
_add("polyval", lambda d: [[1, 2, 3], d.n()])
_add("polyfit", lambda d: [numpy.arange(6.0), d.rng.random(6), d.pick(1, 2)])
_add("polyadd polysub polymul", lambda d: [d.n(shape=(3,)), d.n(shape=(4,))])
_add("polyder", lambda d: [d.n(shape=(4,))])
_add("polyint", lambda d: [d.f(shape=(4,))])
_add("apply_along_axis", lambda d: [lambda line: line[:2] * 2, 0, d.n(shape=(4, 3))])
_add("piecewise", lambda d: (lambda x: [x, [x < 0, x >= 0], [-1, lambda v: v * 2]])(d.f()))
_add("promote_types", lambda d: [NUMBERS[int(d.rng.integers(2))], NUMBERS[int(d.rng.integers(5))]])

# Linear algebra.
_add("linalg.solve", lambda d: (lambda x: [x, d.numbers(x.dtype.name, (*x.shape[:-1], 2), -1, 1)])(d.matrix(4)))
_add("linalg.inv linalg.det", lambda d: [d.matrix(4)])
_add("linalg.cholesky linalg.eigvalsh", lambda d: [d.symmetric(4)])
_add("linalg.slogdet", lambda d: [d.matrix(4)])
_add("linalg.qr", lambda d: [d.f(shape=(*d.shape[:-2], 5, 3)), "reduced"], lambda d: [d.f(shape=(3, 5)), "r"])
_add("linalg.svdvals linalg.cond", lambda d: [d.matrix(4)])
_add("linalg.pinv", lambda d: [d.f(shape=(5, 3))])
_add("linalg.matrix_rank", lambda d: [d.f(shape=(5, 2)) @ d.f(shape=(2, 4))])
_add("linalg.lstsq", lambda d: [d.f(shape=(6, 3)), d.f(shape=(6,)), None])
_add("linalg.norm", lambda d: ([d.f()], {"axis": d.axis(), "ord": d.pick(None, 1, 2, 3, numpy.inf, -numpy.inf, 0)}),
     lambda d: ([d.f(shape=(3, 4))], {"ord": d.pick(None, "fro", "nuc", 1, -1, 2, numpy.inf)}))  # fmt: skip
_add("linalg.vector_norm", lambda d: [d.f()])
_add("linalg.matrix_norm", lambda d: [d.f(shape=(2, 3, 4))])
_add("linalg.matrix_power", lambda d: [d.matrix(3, "float64"), d.pick(0, 1, 3, -2)])
_add("linalg.multi_dot", lambda d: [[d.f(shape=(2, 5)), d.f(shape=(5, 3)), d.f(shape=(3, 4))]])
_add("conj conjugate imag isreal iscomplex isrealobj iscomplexobj real_if_close", lambda d: [d.z()], lambda d: [d.f()])
_add("real", lambda d: [d.z()], lambda d: [d.n()])
_add("angle", lambda d: [d.z(), d.pick(False, True)], lambda d: [d.f()])
_add(
    "fft.fft fft.ifft",
    lambda d: [d.z(), d.pick(None, 4, 9), d.axis(), d.pick(None, "ortho", "forward")],
    lambda d: [d.f()],
)
_add("fft.rfft fft.ihfft", lambda d: [d.f(), d.pick(None, 4, 9), d.axis(), d.pick(None, "ortho", "forward")])
_add("fft.irfft fft.hfft", lambda d: [d.z(), d.pick(4, 7, 9), d.axis(), d.pick(None, "ortho", "forward")])
_add("fft.fftn fft.ifftn", lambda d: [d.z(), None, d.pick(None, (d.axis(),))])
_add("fft.fft2 fft.ifft2", lambda d: [d.z(shape=(2, 3, 5))])
_add("fft.rfftn fft.rfft2", lambda d: [d.f(shape=(2, 3, 5))])
_add("fft.irfftn fft.irfft2", lambda d: [d.z(shape=(2, 3, 5))])
_add("fft.fftfreq fft.rfftfreq", lambda d: [d.pick(1, 4, 7), 0.5])
_add("fft.fftshift fft.ifftshift", lambda d: [d.f(), d.pick(None, d.axis())])
