"""Order of the tests' folders."""

from tests.plugins.order import place


def test_systems_come_first_and_the_engine_last() -> None:
    files = [
        "tests/engine_ext/nn/test_grad.py",
        "tests/store/test_sql.py",
        "tests/test_docs.py",
        "tests/system/test_x.py",
    ]
    assert sorted(files, key=place) == [files[3], files[1], files[2], files[0]]
