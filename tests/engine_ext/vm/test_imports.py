import importlib
import marshal
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest

from tests.sim.vm_task import write_task
from walle.engine_ext.vm.bytecode import BytecodeError, compile_source, load_code
from walle.engine_ext.vm.imports import ALLOWED_IMPORTS
from walle.engine_ext.vm.vm import VM
from walle.vm import ForbiddenImport, TaskError

pytestmark = pytest.mark.usefixtures("place")

THIS = rf"Python {sys.version_info.major}\.{sys.version_info.minor}"
OTHER_MAGIC, OTHER = (3627, r"Python 3\.14") if sys.version_info < (3, 14) else (3571, r"Python 3\.13")


async def run(folder: Path, function: str = "run", *args: Any) -> Any:
    vm = VM(folder)
    try:
        return await vm.call(function, *args)
    finally:
        vm.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "statement",
    [
        "import os",
        "import numpy",
        "import os.path",
        "from sys import modules",
        "import walle.engine_ext",
        "from walle import engine_ext",
        "import walle.device",
        "import walle.search",
        "__import__('subprocess')",
        "import importlib",
    ],
)
async def test_a_forbidden_import_names_module_file_and_line(tmp_path: Path, statement: str) -> None:
    write_task(tmp_path, "from helper import run", helper=f"import math\n\ndef run():\n    {statement}\n")
    with pytest.raises(ForbiddenImport) as caught:
        await run(tmp_path)
    assert caught.value.module.split(".")[0] in statement
    assert (caught.value.file, caught.value.line) == (f"{tmp_path}/helper.py", 4)


@pytest.mark.asyncio
async def test_a_task_may_catch_a_forbidden_import(tmp_path: Path) -> None:
    write_task(
        tmp_path, "try:\n    import numpy\nexcept ImportError:\n    numpy = None\ndef run(): return numpy is None"
    )
    assert await run(tmp_path)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["open", "exec", "eval", "compile", "input", "breakpoint"])
async def test_builtins_that_open_files_or_compile_are_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match=f"name '{name}' is not defined"):
        await run(write_task(tmp_path, f"def run(): return {name}"))


@pytest.mark.asyncio
async def test_io_is_only_its_memory_part(tmp_path: Path) -> None:
    write_task(tmp_path, "import io\ndef run(): return io.BytesIO(b'x').read(), hasattr(io, 'open')")
    assert await run(tmp_path) == (b"x", False)


@pytest.mark.asyncio
async def test_every_allowed_module_of_the_standard_library_loads_in_a_vm(tmp_path: Path) -> None:
    names = sorted(name for name in ALLOWED_IMPORTS if not name.startswith("walle."))
    write_task(
        tmp_path, "\n".join(f"import {name}" for name in names) + "\ndef run(): return collections.Counter('aab')['a']"
    )
    assert await run(tmp_path) == 2


@pytest.mark.asyncio
async def test_a_tasks_modules_import_each_other(tmp_path: Path) -> None:
    write_task(
        tmp_path,
        """
        import pack.deep
        import pack.deep as deep
        from pack import first
        from pack.first import value
        import random as own

        def run():
            return pack.deep.total, deep.total, first.value, value, own.mine
        """,
        pack__first="value = 1",
        pack__deep="from . import first\nfrom .first import value as v\ntotal = first.value + v",
        random="mine = True",
    )
    assert await run(tmp_path) == (2, 2, 1, 1, True)


@pytest.mark.asyncio
async def test_a_tasks_module_does_not_stand_in_for_the_standard_librarys(tmp_path: Path) -> None:
    write_task(tmp_path, "import json\ndef run(): return json.loads('[1]')", decoder="x = 1", re="broken = True")
    assert await run(tmp_path) == [1]


@pytest.mark.asyncio
async def test_a_module_that_fails_to_load_says_where(tmp_path: Path) -> None:
    write_task(tmp_path, "import helper", helper="x = 1\ny = 1 / 0")
    with pytest.raises(TaskError, match="division by zero") as caught:
        await run(tmp_path)
    assert f'File "{tmp_path}/helper.py", line 2' in caught.value.traceback_text


@pytest.mark.asyncio
async def test_bytecode_runs_and_keeps_the_name_that_it_was_compiled_with(tmp_path: Path) -> None:
    (tmp_path / "main.pyc").write_bytes(compile_source("def run():\n    return 1 / 0", "shop/ipv/v1/main.py"))
    with pytest.raises(TaskError) as caught:
        await run(tmp_path)
    assert 'File "shop/ipv/v1/main.py", line 2, in run' in caught.value.traceback_text


@pytest.mark.asyncio
async def test_the_right_one_of_several_versions_runs(tmp_path: Path) -> None:
    tag = sys.implementation.cache_tag
    (tmp_path / f"main.{tag}.pyc").write_bytes(compile_source("def run(): return 313", "main.py"))
    (tmp_path / "main.cpython-399.pyc").write_bytes(b"another's")
    assert await run(tmp_path) == 313
    (tmp_path / f"main.{tag}.pyc").unlink()
    with pytest.raises(BytecodeError, match=f"bytecode for cpython-399, but none for {tag}"):
        VM(tmp_path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ((3531).to_bytes(2, "little") + b"\r\n" + bytes(12), rf"is bytecode of Python 3\.12, this is {THIS}"),
        (OTHER_MAGIC.to_bytes(2, "little") + b"\r\n" + bytes(12), rf"is bytecode of {OTHER}, this is {THIS}"),
        ((9999).to_bytes(2, "little") + b"\r\n" + bytes(12), r"is bytecode of a Python after 3\.14"),
        (b"PK\3\4" + bytes(12), "no Python"),
        (b"", "is 0 bytes long"),
        (MAGIC_NUMBER + bytes(12), "is broken bytecode"),
        (MAGIC_NUMBER + bytes(12) + marshal.dumps("text"), "holds str, not code"),
        (compile_source("x = 1", "main.py")[:-3], "is broken bytecode"),
    ],
)
def test_bytecode_of_another_python_is_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / "main.pyc").write_bytes(data)
    with pytest.raises(BytecodeError, match=problem) as caught:
        VM(tmp_path)
    assert caught.value.file == f"{tmp_path}/main.pyc"


def test_a_syntax_error_is_found_before_a_vm_starts(tmp_path: Path) -> None:
    with pytest.raises(BytecodeError, match="does not compile: invalid syntax") as caught:
        VM(write_task(tmp_path, "x = 1\ndef broken(:\n"))
    assert (caught.value.file, caught.value.line) == (f"{tmp_path}/main.py", 2)


def test_the_same_source_gives_the_same_bytecode() -> None:
    assert compile_source("x = {1, 2}", "a.py") == compile_source(b"x = {1, 2}", "a.py")
    assert load_code(compile_source("x = 1", "a.py"), "a.py").co_filename == "a.py"


class InMemory:
    name = "shop/memory"

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files


@pytest.mark.asyncio
async def test_a_bundle_runs_from_memory() -> None:
    vm = VM(
        InMemory(
            {"main.pyc": compile_source("import helper\ndef run(): return helper.x", "main.py"), "helper.py": b"x = 5"}
        )
    )
    assert vm.name == "shop/memory"
    assert await vm.call("run") == 5
    vm.close()


def test_the_list_names_modules_that_exist() -> None:
    for name in ALLOWED_IMPORTS:
        if not name.startswith("walle."):
            importlib.import_module(name)


@pytest.mark.asyncio
async def test_no_module_is_reached_through_the_numeric_ones(tmp_path: Path) -> None:
    write_task(
        tmp_path,
        """
        import walle.cv as cv
        import walle.np as np

        def run():
            return [hasattr(np, "importlib"), hasattr(cv, "importlib"), float(np.ones(3).sum())]
        """,
    )
    assert await run(tmp_path) == [False, False, 3.0]
