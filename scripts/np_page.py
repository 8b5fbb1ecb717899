# ruff: noqa: E501, ICN001, PLR0402 -- tables, and two modules named np
"""Page of walle.np, docs/reference/np.md: its names, its differences from NumPy, and NumPy's names that it lacks."""

from typing import Any

import numpy

import walle.np as np

PARTS = ("fft", "linalg", "random")

# Intended differences from NumPy, with the reason.
MEANT = {
    "floats without a dtype are float32": "models compute in float32; float64 is available by name",
    "integers in a floating function": "those of 32 and 64 bits give float64 as in NumPy; smaller ones and bool give float32, not float16 (or, in statistics, float64)",
    "a dtype is a string": 'with NumPy\'s attributes: `x.dtype == "float32"`; `np.float32` is that string, and converts a value when it is called',
    "no scalars": "what NumPy returns as a scalar is an array without dimensions; `float()`, `.item()`, `==`, `hash` work; `json` of a task takes them, elsewhere `json.dumps(x, default=np.ndarray.tolist)` does",
    "floats to integers saturate, NaN is 0": "the same on every instruction set; in C, and so in NumPy, it is undefined",
    "one warning": "ComplexWarning where imaginary parts are discarded; 1 / 0 is inf, and 0 for integers",
    "texts of float64 and complex128 arrays": "name their dtype, because it is not the default here; all other texts are NumPy's",
    "`ufunc(..., where=)` without `out`": "0 where the mask is false; NumPy: uninitialised memory",
    "order of memory": "row-major only: `order=` chooses the order of elements in reshape, ravel and flatten, and creation refuses F",
    "`x.base`": "the array itself is the base of its views; views made by functions that repeat elements, and arrays on other libraries' buffers have none",
    "`binomial`, `poisson`": "means up to 65,536",
    "`empty` is zeros": "uninitialised memory could show data of another task",
    "arithmetic of bools": "int64; NumPy: bool or int8, or an error. In place, sums and products of bools are bools, as in NumPy",
    "8 and 16 bits with a Python float, and in functions of two": "float32, or the dtype that holds both; NumPy: float16 or float64",
    "`reciprocal` of ints": "floats; NumPy: ints",
    "`linspace`, `geomspace` between arrays or complex numbers": "refused: `start + (stop - start) * linspace(0, 1, n)`",
    "`sign(-0.0)`": "-0.0",
    "`argsort` of an array without dimensions": "is refused",
    "complex numbers without a dtype are complex64": "as floats are float32; complex128 is available by name",
    "complex numbers have no order": "comparison, sorting, maxima and decompositions refuse them; NumPy orders them by real parts first",
    "random numbers": "from Philox4x32-10: a seed gives the same ones on every device, and not NumPy's",
    "`sort` is always stable; `partition` sorts": "both use one radix sort",
    "`quantile` methods": "linear, lower, higher, midpoint, nearest",
    "linear algebra": "computed in float64 and rounded once, in float32 too",
    "`x.sort()` and `out=`": "the result is computed and then copied",
}

# Names of NumPy that walle.np does not have, by reason.
MISSING = {
    "complex numbers": "complex256 clongdouble sort_complex emath common_type mintypecode roots poly linalg.eig linalg.eigvals",
    "dtypes of C, objects and texts; classes of scalars": "ScalarType bytes_ character dtypes flexible float128 "
    "longdouble min_scalar_type object_ "
    "sctypeDict str_ typecodes typename "
    "void typing frompyfunc bitwise_count",
    "dates, strings and records": "busday_count busday_offset busdaycalendar datetime64 datetime_as_string datetime_data is_busday "
    "isnat timedelta64 char strings rec recarray record",
    "files and memory addresses: a task has `ctx.resource` and the buffer protocol": "ctypeslib from_dlpack fromfile fromregex "
    "genfromtxt load loadtxt memmap save savetxt savez savez_compressed may_share_memory shares_memory",
    "settings, and parts of NumPy as a library": "getbufsize geterrcall setbufsize "
    "seterrcall show_config show_runtime info test testing core f2py get_include little_endian __version__ "
    "__array_namespace_info__",
    "other kinds of arrays and iterators": "asmatrix bmat matrix ma broadcast flatiter nditer nested_iters poly1d polynomial "
    "asarray_chkfinite asfortranarray isfortran require",
    "rare; composed of other functions": "apply_over_axes einsum_path polydiv unique_all linalg.tensorinv linalg.tensorsolve",
    "NumPy's own generators": "random.BitGenerator random.MT19937 random.PCG64 random.PCG64DXSM random.Philox "
    "random.RandomState random.SFC64 random.SeedSequence random.get_state random.set_state random.bytes",
    "distributions that no app has needed": "random.beta random.chisquare random.dirichlet random.f "
    "random.gamma random.geometric random.gumbel random.hypergeometric random.laplace random.logistic random.lognormal "
    "random.logseries random.multinomial random.multivariate_normal random.negative_binomial random.noncentral_chisquare "
    "random.noncentral_f random.pareto random.power random.random_integers random.ranf random.rayleigh "
    "random.sample random.standard_cauchy random.standard_exponential random.standard_gamma random.standard_t "
    "random.triangular random.vonmises random.wald random.weibull random.zipf",
}


def public(module: Any) -> set[str]:
    """Return the public names of NumPy or of walle.np; names of submodules have a dot."""
    names = {name for name in module.__all__ if name not in (*PARTS, "lib")} | {"lib.stride_tricks"}
    for part in PARTS:
        names |= {f"{part}.{name}" for name in getattr(module, part).__all__}
    return names


def present() -> list[str]:
    return sorted(public(np))


def absent() -> dict[str, list[str]]:
    """Return NumPy's names that walle.np does not have, by reason; an empty reason if none is given."""
    rest = public(numpy) - public(np)
    reasons = {reason: sorted(set(names.split()) & rest) for reason, names in MISSING.items()}
    without = sorted(rest - {name for names in reasons.values() for name in names})
    return reasons | ({"": without} if without else {})


def problems() -> list[str]:
    """Return NumPy's names that walle.np lacks without a reason in MISSING."""
    return [f"MISSING gives no reason for {name}" for name in absent().get("", ())]


def page() -> str:
    """Return docs/reference/np.md."""
    names = present()
    lines = [
        "# walle.np",
        "",
        "A task has [`ctx`](ctx.md), `walle.np` (this page) and [`walle.cv`](cv.md).",
        "",
        f"`walle.np` has {len(names)} names: those of NumPy {numpy.__version__} and of MNN's `numpy` module. Results, shapes",
        "and dtypes are NumPy's, except for the differences below. `python -m benchmarks.apis --part np` measures their",
        "times beside NumPy's, and `make numpy-suite` runs NumPy's own tests on them.",
        "",
        "## Names",
        "",
        ", ".join(f"`{name}`" for name in names) + ".",
        "",
        "## Intended differences",
        "",
        "| what | why |",
        "| --- | --- |",
        *(f"| {what} | {why} |" for what, why in MEANT.items()),
        "",
        "## Names of NumPy that walle.np does not have",
        "",
        "| why | names |",
        "| --- | --- |",
        *(f"| {why} | {', '.join(f'`{name}`' for name in missing)} |" for why, missing in absent().items()),
    ]
    return "\n".join(lines) + "\n"
