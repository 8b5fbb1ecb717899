"""The runner of NumPy's own tests: what it replaces in a file, how it classifies, and one small file of NumPy's."""

from tests.numpy_suite import run
from tests.numpy_suite.comparison import to_numpy


def test_imports_of_a_file_are_replaced() -> None:
    source = (
        "import numpy as np\nimport numpy._core.umath as ncu\nfrom numpy.testing import (\n    assert_,\n)\n"
        "from numpy import array\n"
    )
    assert run.on_walle(source).splitlines() == [
        "from tests.numpy_suite.stand_in import np",
        "from tests.numpy_suite.stand_in import np as ncu",
        "from tests.numpy_suite.comparison import (",
        "    assert_,",
        ")",
        "from tests.numpy_suite.stand_in import array",
    ]


def test_arrays_are_compared_as_numpys() -> None:
    import walle.np as np

    assert [type(one).__name__ for one in to_numpy([np.zeros(2), np.float32(1), 3])] == ["ndarray", "float32", "int"]


def test_a_file_of_the_numpy_suite_gives_an_outcome_for_each_test() -> None:
    rows, problem = run.outcomes("_core/test_indexerrors", 100)
    assert problem == ""
    kinds = [row["kind"] for row in rows]
    assert kinds.count("passed") >= 4
    assert set(kinds) <= set(run.KINDS)
    assert all(row["why"] for row in rows if row["kind"] != "passed")
