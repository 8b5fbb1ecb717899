"""Places in which VMs of tests run: in this process, and in a VM host. One contract, two implementations."""

from collections.abc import Iterator
from typing import Any

import pytest

from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.vm import VM


@pytest.fixture
def host() -> Iterator[VmHost]:
    """Return a host of the test's own."""
    host = VmHost()
    yield host
    host.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test's VMs in the place that the parameter names, and return it."""
    name: str = request.param
    if name == "host":
        # Of each test its own: what earlier tests' tasks leak, or do not stop, ends their host at any later moment.
        host, init = request.getfixturevalue("host"), VM.__init__

        def init_in_host(self: VM, *args: Any, **options: Any) -> None:
            init(self, *args, **{**options, "host": options.get("host") or host})

        monkeypatch.setattr(VM, "__init__", init_in_host)
    return name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        is_bound = metafunc.definition.get_closest_marker("in_process") is not None
        host = pytest.param("host", marks=pytest.mark.vm_host)
        metafunc.parametrize("place", ["process"] if is_bound else ["process", host], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "host" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.vm_host)
