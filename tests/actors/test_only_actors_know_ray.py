"""Ray is known to `walle.actors` and `walle.cli` alone: by the source, and in a fresh interpreter."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

WALLE = Path(__file__).parents[2] / "walle"


def modules() -> dict[str, Path]:
    found = {}
    for path in WALLE.rglob("*.py"):
        parts = path.relative_to(WALLE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere, inside of functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides what it imports"
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def knows_ray(name: str) -> bool:
    return name in ("ray", "walle.actors") or name.startswith(("ray.", "walle.actors."))


@pytest.mark.night
def test_every_ray_is_started_where_it_listens_on_loopback_alone() -> None:
    calls = [
        (str(path.relative_to(WALLE.parent)), ast.unparse(node))
        for folder in ("walle", "apps", "benchmarks", "loadtest", "scripts", "tests")
        for path in (WALLE.parent / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ray.init"
    ]
    started = [where for where, call in calls if "address=address" not in call]
    assert started == ["walle/actors/local_ray.py"]
    assert len(calls) == 2  # the other one joins a cluster that runs


def test_nothing_below_the_actors_imports_them_or_ray() -> None:
    known = {name for name, path in modules().items() if any(map(knows_ray, imported(path)))}
    assert "walle.actors.node" in known
    assert {name for name in known if not name.startswith(("walle.actors", "walle.cli"))} == set()


def test_importing_everything_below_the_actors_loads_no_ray() -> None:
    names = [name for name in modules() if not name.startswith(("walle.actors", "walle.cli"))]
    assert {"walle.cloud.nodes.one_process", "walle.device", "walle.cloud.api.releases"} <= set(names)
    code = "\n".join([*(f"import {name}" for name in names), "import sys", "print('ray' in sys.modules)"])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "False"
