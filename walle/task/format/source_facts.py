"""Facts of a task's source files, found without running them: bytecode, imports, and the topics that they read.

This file is also a program, which a cloud runs in a process with limits (`compilers`), in its own Python or in that of
another version: it needs the standard library alone, and Python 3.10 or newer.
"""

import ast
import importlib.util
import json
import marshal
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_MAX_PROBLEM_CHARS = 1000
_NO_MEMORY = "needs more memory to compile than it may have; split the file"
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_HASH_BASED = 0b01  # PEP 552: identified by its source's hash, which a device need not check


class SourceError(Exception):
    """A source that does not compile; `line` is 0 where it is unknown."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


class Import(NamedTuple):
    """An import of `module`, and of `name` from it (empty for the module itself); line and column from 1."""

    module: str
    name: str
    line: int
    column: int


class Query(NamedTuple):
    """A read of another task's topic, `TASK` or `TASK/TOPIC`, at a line from 1."""

    topic: str
    line: int


class SourceFacts(NamedTuple):
    """`pyc`: the bytes of a `.pyc` file. `imports` and `queries` have each module and topic once."""

    pyc: bytes
    imports: tuple[Import, ...]
    queries: tuple[Query, ...]


def facts_of(source: bytes, file: str) -> SourceFacts:
    """Return the facts of one source file; `file` is what tracebacks show.

    Raises:
        SourceError: it does not compile.
    """
    pyc = compile_pyc(source, file)
    try:
        parsed = ast.parse(source)  # fails only for want of memory: it was compiled before
        found = {one.module: one for one in reversed(list(imports(parsed)))}
        read = {one.topic: one for one in reversed(list(queries(parsed)))}
    except MemoryError as error:
        raise SourceError(_NO_MEMORY) from error
    return SourceFacts(pyc, tuple(sorted(found.values(), key=_place)), tuple(sorted(read.values(), key=_place)))


def _place(one: Any) -> int:
    return int(one.line)


def compile_pyc(source: bytes, file: str) -> bytes:
    """Return the `.pyc` bytes of a source; the same source gives the same bytes.

    Raises:
        SourceError: it does not compile.
    """
    try:  # compiled from bytes, not from a tree: marshal writes objects that a tree still refers to in another way
        body = marshal.dumps(compile(source, file, "exec", dont_inherit=True, optimize=0))
    except SyntaxError as error:
        raise SourceError(f"does not compile: {error.msg}", error.lineno or 0) from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise SourceError(f"does not compile: {error}") from error
    except MemoryError as error:  # a MemoryError with a text is the parser's own bound on nesting
        raise SourceError(f"does not compile: {error}" if error.args else _NO_MEMORY) from error
    return importlib.util.MAGIC_NUMBER + _HASH_BASED.to_bytes(4, "little") + importlib.util.source_hash(source) + body


def imports(tree: ast.AST) -> Iterator[Import]:
    """Yield what the code imports where it runs: not under `if TYPE_CHECKING:`, and not relative to its package."""
    for node in running(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", alias.lineno, alias.col_offset + 1)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                if node.module == "walle":  # `from walle import np` names a module, not an attribute
                    yield Import(f"walle.{alias.name}", "", alias.lineno, alias.col_offset + 1)
                else:
                    yield Import(node.module, alias.name, node.lineno, node.col_offset + 1)


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of the tree without those under `if TYPE_CHECKING:`, which only type checkers read."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += reversed(node.orelse)
        else:
            waiting += reversed(list(ast.iter_child_nodes(node)))


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def queries(tree: ast.AST) -> Iterator[Query]:
    """Yield each `ctx.store.query("name", task="other")` of another task's topic, where both are literals."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "query"):
            continue
        given = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
        task = given.get("task")
        topic = _literal(node.args[0]) if node.args else given.get("topic", "")
        if not (isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "store") or not task:
            continue
        if topic is not None and "/" not in task:
            yield Query(f"{task}/{topic}".removesuffix("/"), node.lineno)


def _literal(node: ast.expr) -> "str | None":
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


# --- The program ------------------------------------------------------------------------------------------------------
# Standard input: a line of JSON, {"core", "limits": {"memory_bytes", "cpu_s"}, "files": [[name, size], ...]}, and the
# bytes of the files. Standard output: {"tag"}, and for each file {"size", "imports", "queries"} and the bytes of its
# .pyc, or {"error": [problem, line]}, which is the last one.


def _main() -> None:
    asked = json.loads(sys.stdin.buffer.readline())
    files = [(name, sys.stdin.buffer.read(size)) for name, size in asked["files"]]
    _contain(asked["core"], asked["limits"])
    _say({"tag": sys.implementation.cache_tag})
    for name, source in files:
        try:
            found = facts_of(source, name)
        except SourceError as error:
            _say({"error": [error.problem[:_MAX_PROBLEM_CHARS], error.line]})
            break
        _say({"size": len(found.pyc), "imports": found.imports, "queries": found.queries}, found.pyc)


def end_with_parent() -> None:
    """Have this process killed when the thread that started it ends, which waits for it: also where that is killed."""
    import contextlib

    with contextlib.suppress(ImportError, AttributeError):  # another system than Linux
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def _contain(core: str, limits: Mapping[str, int]) -> None:
    """Limit this process, and enter the layers of walle's native core at the path `core`, "" for none."""
    import os
    import resource

    os.nice(10)  # devices are served first
    end_with_parent()
    for what, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))
    if core:
        from importlib.machinery import ExtensionFileLoader

        loader = ExtensionFileLoader("walle.engine_ext._core", core)
        module: Any = importlib.util.module_from_spec(
            importlib.util.spec_from_file_location("walle.engine_ext._core", core, loader=loader)  # type: ignore[arg-type]
        )
        loader.exec_module(module)
        module.enter_sandbox([path for path in sys.path if path])  # codecs that a source names are read from there


def _say(said: Mapping[str, Any], data: bytes = b"") -> None:
    sys.stdout.buffer.write(json.dumps(said).encode() + b"\n" + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
