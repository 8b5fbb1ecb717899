"""Backends: selection, forcing, and the documented error of the vectorised functions.

Tails, strides and memory bounds of every backend are tested in tests/cpp/test_kernels.cpp.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import walle.np as np
from walle.engine_ext import _core
from walle.engine_ext.errors import BackendError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session, backends

AVAILABLE = [backend.name for backend in backends() if backend.available]


def run_python(code: str, isa: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"WALLE_FORCE_ISA": isa},
    )


def test_the_best_backend_runs_unless_forced() -> None:
    assert [backend.name for backend in backends()] == ["scalar", "avx2", "avx512", "neon", "avx512_bf16"]
    assert _core.backend() == os.environ.get(
        "WALLE_FORCE_ISA", [b.name for b in backends() if b.available and b.exact][-1]
    )


# Fused multiply-add and plain arithmetic round this product differently, so that the result shows which kernels ran.
FORCED = """
import json, walle.np as np
from walle.engine_ext import _core
a = np.linspace(0.1, 3.7, 640).reshape(8, 80)
b = np.linspace(-1.3, 1.1, 80 * 16).reshape(80, 16)
print(json.dumps([_core.backend(), np.matmul(a, b).tolist(), np.tanh(a).tolist()]))
"""


def test_a_forced_backend_really_runs() -> None:
    results = {}
    for isa in AVAILABLE:
        done = run_python(FORCED, isa)
        assert done.returncode == 0, done.stderr
        name, product, tanh = json.loads(done.stdout)
        assert name == isa
        results[isa] = (product, tanh)
    for isa, (product, tanh) in results.items():
        atol = 0.1 if isa == "avx512_bf16" else 1e-5  # operands up to 3.7 of 80 terms, with 8 significant bits
        numpy.testing.assert_allclose(product, results["scalar"][0], rtol=1e-4, atol=atol)
        numpy.testing.assert_allclose(tanh, results["scalar"][1], rtol=1e-6)
    if len(results) > 1:
        assert json.dumps(results["scalar"][0]) not in {json.dumps(results[isa][0]) for isa in AVAILABLE[1:]}


@pytest.mark.parametrize("isa", ["sse9", "", "AVX2"])
def test_an_unknown_forced_backend_is_an_error_that_names_the_known(isa: str) -> None:
    done = run_python("import walle.np as np; np.zeros(3) + 1", isa)
    assert done.returncode != 0
    assert "BackendError" in done.stderr
    assert "known are: scalar, avx2, avx512, neon" in done.stderr


def test_a_backend_of_other_cpus_is_known_and_refused() -> None:
    missing = [backend.name for backend in backends() if not backend.available]
    assert len(missing) + len(AVAILABLE) == 5
    assert "neon" in missing or "avx2" in missing
    for name in missing:
        done = run_python("import walle.np as np; np.zeros(3) + 1", name)
        assert done.returncode != 0
        assert f"'{name}', which this CPU does not have; it has: {', '.join(AVAILABLE)}" in done.stderr


def test_a_session_chooses_its_backend() -> None:
    graph = GraphBuilder("g")
    graph.output("y", graph.op("Exp", [graph.input("x", (3,))]))
    for name in AVAILABLE:
        session = Session(graph.to_bytes(), backend=name)
        plan = session.plan()
        assert plan is not None
        assert plan.backend == name
        numpy.testing.assert_allclose(
            numpy.asarray(session.run({"x": [0, 1, 2]})["y"]), numpy.exp([0, 1, 2]), rtol=1e-6
        )
    with pytest.raises(BackendError, match="'sse9'; known are: scalar, avx2, avx512, neon"):
        Session(graph.to_bytes(), backend="sse9")
    with pytest.raises(BackendError, match="threads=0: 1 to 256"):
        Session(graph.to_bytes(), threads=0)


def ulps(here: numpy.ndarray, exact: numpy.ndarray) -> float:
    """Return the greatest distance from the exact values in units of the last place of float32."""
    spacing = numpy.spacing(numpy.abs(exact).astype("float32")).astype("float64")
    return float((numpy.abs(here.astype("float64") - exact) / spacing).max())


@pytest.mark.parametrize(
    ("function", "exact", "low", "high", "bound"),
    [
        (np.exp, numpy.exp, -87.0, 88.7, 2.0),
        (np.tanh, numpy.tanh, -20.0, 20.0, 4.0),
        (np.tanh, numpy.tanh, -0.7, 0.7, 4.0),
        (lambda x: _core.unary("Sigmoid", x), lambda x: 1 / (1 + numpy.exp(-x)), -87.0, 87.0, 4.0),
    ],
)
def test_vectorised_functions_keep_their_stated_error(
    function: Callable[[Any], Any], exact: Callable[[Any], Any], low: float, high: float, bound: float
) -> None:
    x = numpy.linspace(low, high, 400_001).astype("float32")
    assert ulps(numpy.asarray(function(x)), exact(x.astype("float64"))) <= bound


def test_exp_at_its_ends() -> None:
    x = numpy.array([89, 1e30, numpy.inf, -104, -1e30, -numpy.inf, numpy.nan, -87.5, -103, 0], "float32")
    own = numpy.asarray(np.exp(x))
    numpy.testing.assert_array_equal(own[[0, 1, 2, 3, 4, 5, 9]], [numpy.inf, numpy.inf, numpy.inf, 0, 0, 0, 1])
    assert numpy.isnan(own[6])
    numpy.testing.assert_allclose(own[[7, 8]], numpy.exp(x[[7, 8]].astype("float64")), atol=1.5e-45, rtol=1e-6)
