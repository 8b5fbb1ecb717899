# ruff: noqa: E501, ICN001, PLR0402, E402 -- a script with tables, that compares two modules named np
"""Writer of walle.np's part of docs/api.md: the names shared with NumPy, their agreement, and their time over NumPy's.

python scripts/np_api.py            # measure, and replace the part
python scripts/np_api.py --check    # only check that the document has the right names
"""

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy

import walle.np as np
from tests.engine_ext.np_cases import CASES, Draw
from tests.engine_ext.test_np_agreement import check, named, ours

DOCUMENT = ROOT / "docs/api.md"
BEGIN, END = "<!-- walle.np: begin, written by scripts/np_api.py -->", "<!-- walle.np: end -->"
PARTS = ("fft", "linalg", "random")
SIZE = (224, 224, 3)

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


def agrees(name: str, draws: int = 24) -> str:
    """Return "yes", or the first difference."""
    for seed in range(draws):
        shape = ((4, 3), (5,), (2, 3, 4))[seed % 3]
        try:
            check(name, seed % len(CASES[name]), Draw(seed=seed, shape=shape, dtype=seed, strides=seed // 2))
        except AssertionError as error:
            return next(line.strip() for line in str(error).splitlines() if line.strip())
    return "yes"


def ratio(name: str, rounds: int = 7) -> float:
    """Return our time over NumPy's for the first case, on float32 of 224 x 224 x 3 or the size of the case."""
    made = CASES[name][0](Draw(shape=SIZE))
    args, kwargs = made if isinstance(made, tuple) else (made, {})
    mine = [ours(one) for one in args]
    calls: list[Callable[[], Any]] = [
        lambda: named(np, name)(*mine, **({} if name == "argsort" else kwargs)),
        lambda: named(numpy, name)(*args, **kwargs),
    ]
    best = [math.inf, math.inf]
    for call in calls:  # the first call may load a module
        call()
    times = [max(1, math.ceil(0.0005 / max(_seconds(call, 1), 1e-7))) for call in calls]
    for _ in range(rounds):
        for at, call in enumerate(calls):
            best[at] = min(best[at], _seconds(call, times[at]))
    return best[0] / best[1]


def _seconds(call: Callable[[], Any], times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - start) / times


def name_lists(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the lists of names: compared ones with their times, then those with another name or tests of their own."""
    compared, different, same, tested = [], [], [], []
    for name, agreement, time_ratio in rows:
        if agreement == "yes":
            compared.append(f"`{name}` {time_ratio}")
        elif agreement == "own tests":
            tested.append(f"`{name}`")
        elif time_ratio:
            different.append(f"- `{name}` {time_ratio}: {agreement}")
        else:
            same.append(f"`{name}`")
    lines = ["**Compared with NumPy**, with the time: " + ", ".join(compared) + "."]
    lines += ["", "**Different from NumPy**:", "", *different] if different else []
    lines += ["", "**Functions of the main module**: " + ", ".join(same) + "."]
    return [*lines, "", "**Tests of their own**: " + ", ".join(tested) + "."]


def section() -> str:
    rows, ratios = [], []
    with numpy.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in present():
            same = name.split(".")[-1]  # linalg.matmul is matmul
            if name not in CASES and same in CASES and named(np, name) is named(np, same):
                rows.append((name, f"is `{same}`", ""))
            elif name not in CASES:
                rows.append((name, "own tests", ""))
            else:
                ratios.append(ratio(name))
                rows.append((name, agrees(name), f"{ratios[-1]:.2f}"))
    mean = math.exp(sum(math.log(one) for one in ratios) / len(ratios))
    lines = [
        BEGIN,
        "",
        f"`walle.np` has {len(rows)} of the names of NumPy {numpy.__version__} and of MNN's `numpy` module. Results, shapes and dtypes of",
        "the compared ones are NumPy's, except for the differences below. *Time*: over NumPy's in the same run, one thread,",
        f"float32 of {SIZE[0]} x {SIZE[1]} x {SIZE[2]} or the smaller size of its case; the geometric mean is {mean:.2f}.",
        "",
        "### Names",
        "",
        *name_lists(rows),
        "",
        "### Intended differences",
        "",
        "| what | why |",
        "| --- | --- |",
        *(f"| {what} | {why} |" for what, why in MEANT.items()),
        "",
        "### Names of NumPy that walle.np does not have",
        "",
        "| why | names |",
        "| --- | --- |",
        *(f"| {why} | {', '.join(f'`{name}`' for name in names)} |" for why, names in absent().items()),
        "",
        END,
    ]
    return "\n".join(lines)


def problems(text: str) -> list[str]:
    """Return the differences of a document from what this script writes, times excepted."""
    if BEGIN not in text or END not in text:
        return ["docs/api.md has no part for walle.np; write it with: python scripts/np_api.py"]
    part = text[text.index(BEGIN) : text.index(END)]
    lines = part.splitlines()
    listed = lines[lines.index("### Names") : lines.index("### Intended differences")]
    found = [name for line in listed for name in line.split("`")[1::2]]
    wrong = [f"{name} is not in docs/api.md" for name in present() if name not in found]
    wrong += [f"{name} is in docs/api.md but not in walle.np" for name in found if name not in present()]
    wrong += [
        f"docs/api.md does not list the difference {what!r}"
        for what, why in MEANT.items()
        if f"| {what} | {why} |" not in lines
    ]
    for why, names in absent().items():
        row = f"| {why} | {', '.join(f'`{name}`' for name in names)} |"
        if not why or row not in lines:
            wrong.append(f"docs/api.md gives no reason for the missing {', '.join(names)}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    text = DOCUMENT.read_text() if DOCUMENT.exists() else f"# What a task can call\n\n## `walle.np`\n\n{BEGIN}\n{END}\n"
    if parser.parse_args().check:
        sys.exit("\n".join(problems(text)) or 0)
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n## `walle.np`\n\n{BEGIN}\n{END}\n"
    DOCUMENT.write_text(text[: text.index(BEGIN)] + section() + text[text.index(END) + len(END) :])


if __name__ == "__main__":
    main()
