"""Bundles for fleets with several versions of Python, compiled by executables of those versions."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.tasks import task_version
from tests.task.format.test_bundle import SIGNER, WITH_MODEL
from walle.engine_ext.vm.bytecode import TAG, BytecodeError, compile_source, load_code
from walle.errors import ConfigError
from walle.task.format.bundle import build_bundle, unpack
from walle.task.format.bundle_error import BundleError
from walle.task.format.compilers import CompileLimits, OtherPython, other_pythons
from walle.vm import VM


def _another() -> str | None:
    for name in (*(f"python3.{minor}" for minor in range(10, 16)), "/usr/bin/python3"):
        path = shutil.which(name)
        if path is not None:
            say = "import sys; print(sys.implementation.cache_tag)"
            done = subprocess.run([path, "-c", say], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip() not in ("", TAG):
                return path
    return None


@pytest.fixture(scope="module")
def other() -> OtherPython:
    found = _another()
    if found is None:
        pytest.skip("this machine has one version of Python")
    return OtherPython(found)


@pytest.mark.asyncio
async def test_a_bundle_has_bytecode_for_each_python_and_a_vm_loads_its_own(other: OtherPython, tmp_path: Path) -> None:
    bundle = build_bundle(task_version(WITH_MODEL), SIGNER, [other])
    assert bundle.manifest.bytecode == (TAG, other.tag)
    paths = {entry.path: bundle.blobs[entry.sha256] for entry in bundle.manifest.files}
    assert {f"main.{TAG}.pyc", f"main.{other.tag}.pyc", f"pkg/__init__.{other.tag}.pyc"} <= set(paths)
    assert "main.pyc" not in paths
    assert paths[f"main.{TAG}.pyc"] == compile_source(WITH_MODEL["main.py"], "shop/ipv/v1/main.py")
    with pytest.raises(BytecodeError, match="is bytecode of Python"):
        load_code(paths[f"main.{other.tag}.pyc"], "main.pyc")
    unpack(bundle.manifest, bundle.blobs, tmp_path / "task")
    vm = VM(tmp_path / "task")
    assert await vm.call("execute", None, 4) == 0.25
    vm.close()


def test_the_other_version_compiles_as_this_one_does(tmp_path: Path) -> None:
    # This Python by another name, so that what it compiles can be compared.
    same = OtherPython.__new__(OtherPython)
    same.executable, same.tag, same._limits = sys.executable, "cpython-000", CompileLimits()
    source = b"value = [1, 'a', (2.5, None)]\ndef f(x, *, y=3): return lambda: x + y\n"
    assert same.compile({"shop/a.py": source}) == {"shop/a.py": compile_source(source, "shop/a.py")}


def test_a_file_that_another_python_cannot_compile_is_named(other: OtherPython) -> None:
    with pytest.raises(BytecodeError, match=rf"shop/b\.py:2: does not compile: .* \(by {other.tag}\)"):
        other.compile({"shop/a.py": b"x = 1", "shop/b.py": b"y = 1\nz = = 2\n"})


def test_a_bundle_that_another_version_cannot_compile_is_refused(
    other: OtherPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sources: object) -> dict[str, bytes]:
        raise BytecodeError("shop/ipv/v1/helper.py", "does not compile: too new (by cpython-311)", 2)

    monkeypatch.setattr(other, "compile", refuse)
    with pytest.raises(BundleError) as caught:
        build_bundle(task_version(WITH_MODEL), SIGNER, [other])
    assert (caught.value.path, caught.value.line) == ("helper.py", 2)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (None, "cannot compile for devices"),
        ("exit 3", "is not a Python that compiles: its compiler ended with exit status 3"),
        ('echo \'{"tag": "pypy311", "files": {}, "error": null}\'', "is pypy311; VMs run CPython only"),
    ],
)
def test_a_program_that_is_not_a_usable_python_is_refused(tmp_path: Path, program: str | None, problem: str) -> None:
    path = tmp_path / "python"
    if program is not None:
        path.write_text(f"#!/bin/sh\ncat >/dev/null\n{program}\n")
        path.chmod(0o755)
    with pytest.raises(ConfigError, match=problem):
        OtherPython(path)


def test_a_version_is_given_once(other: OtherPython) -> None:
    with pytest.raises(ConfigError, match=f"is {TAG}, as the cloud itself"):
        other_pythons([sys.executable])
    with pytest.raises(ConfigError, match=f"are both {other.tag}"):
        other_pythons([other.executable, other.executable])
