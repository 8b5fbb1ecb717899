"""Imports: modules that importing walle loads, in a fresh interpreter."""

import subprocess
import sys

import pytest

CLOUD_ONLY = ("ray", "fastapi", "starlette", "uvicorn", "dulwich", "numpy", "matplotlib", "prometheus_client")


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in result.stdout.split()} | set(result.stdout.split())


@pytest.mark.parametrize("statement", ["import walle", "import walle; walle.np; walle.vm", "import walle.device"])
def test_a_device_loads_no_cloud_dependency(statement: str) -> None:
    assert not loaded_after(statement) & set(CLOUD_ONLY)


def test_import_walle_alone_loads_next_to_nothing() -> None:
    assert "asyncio" not in loaded_after("import walle")


def test_the_cloud_is_wired_without_ray() -> None:
    assert "ray" not in loaded_after("import walle.cloud")


def test_every_public_name_exists() -> None:
    import walle

    assert sorted(walle.__all__) == walle.__all__
    for name in walle.__all__:
        assert getattr(walle, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        walle.no_such_name  # noqa: B018 -- looking it up is the test


def test_the_commands_are_imported_without_what_one_of_them_needs() -> None:
    heavy = {"httpx", "numpy", "pyarrow"}
    assert not loaded_after("import walle.cli") & heavy


def test_a_device_that_sends_updates_loads_no_aggregation() -> None:
    loaded = loaded_after("import walle.federated.update_codec; from walle.federated import Trained")
    assert not loaded & {"walle.federated.aggregation", "walle.federated.coordinator", "walle.nn", "numpy"}


def test_every_public_name_of_federated_rounds_exists() -> None:
    from walle import federated

    assert sorted(federated.__all__) == federated.__all__ == list(federated._MODULES)
    for name in federated.__all__:
        assert getattr(federated, name).__name__ == name


def test_a_device_that_shares_models_loads_no_algorithm_of_adaptation() -> None:
    assert not loaded_after("import walle.device") & {"walle.adapt.adaptation", "walle.adapt.executor"}
