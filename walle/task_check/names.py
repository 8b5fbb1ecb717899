"""Check of the names that a task's code uses of `walle.np`, `walle.cv` and `ctx`."""

import ast
import difflib
import functools
import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType

from walle.deploy.cloud.source_facts import imports, running
from walle.pipeline.context import Context, Log
from walle.pipeline.stream import Events
from walle.protocol import PHASES
from walle.task_check.finding import Code, Finding

_WITH_CONTEXT = (*PHASES, "execute_batch")
_MODULES = ("walle.np", "walle.cv")


def check_names(file: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield the findings about names that `walle.np`, `walle.cv` or `ctx` do not have."""
    yield from _check_imports(file, tree)
    aliases = _aliases(tree)
    for node in running(tree):
        if isinstance(node, ast.Attribute):
            yield from _check_attribute(file, node, aliases)
        elif isinstance(node, ast.FunctionDef):
            yield from _check_context(file, node)


def _check_imports(file: str, tree: ast.Module) -> Iterator[Finding]:
    for one in imports(tree):
        module = next((name for name in _MODULES if one.module == name or one.module.startswith(f"{name}.")), "")
        if not module:
            continue
        path = one.module.removeprefix(module).split(".")[1:] + ([one.name] if one.name not in ("", "*") else [])
        if reason := _missing(importlib.import_module(module), module, path):
            yield Finding(file=file, line=one.line, column=one.column, code="attribute", message=reason)


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return the names that stand for `walle.np` and `walle.cv` in the whole file, with the module of each.

    A name that is bound to something else too is left out.
    """
    found: dict[str, str] = {}
    others: set[str] = set()
    for node in running(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    if alias.asname and alias.name in _MODULES:
                        found[alias.asname] = alias.name
                    elif alias.name.partition(".")[0] != "walle" or alias.asname:
                        others.add(alias.asname or alias.name.partition(".")[0])
                    else:
                        found["walle"] = "walle"
            case ast.ImportFrom():
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    if name in _MODULES and not node.level:
                        found[alias.asname or alias.name] = name
                    else:
                        others.add(alias.asname or alias.name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                others.add(node.name)
            case ast.arg():
                others.add(node.arg)
            case ast.Name(ctx=ast.Store() | ast.Del()):
                others.add(node.id)
    return {name: module for name, module in found.items() if name not in others}


def _check_attribute(file: str, node: ast.Attribute, aliases: Mapping[str, str]) -> Iterator[Finding]:
    """Check one attribute; of `np.linalg.invert`, the node of `invert` and not that of `linalg`, which it contains."""
    path, inner = [node.attr], node.value
    while isinstance(inner, ast.Attribute):
        path.insert(0, inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name) or inner.id not in aliases:
        return
    module = aliases[inner.id]
    if module == "walle":
        module = f"walle.{path.pop(0)}"
        if module not in _MODULES or not path:
            return
    whole = importlib.import_module(module)
    for part in path[:-1]:  # of a value, such as an array, the attributes are not known here
        value: object = getattr(whole, part, None)
        if not isinstance(value, ModuleType):
            return
        whole, module = value, f"{module}.{part}"
    if reason := _missing(whole, module, path[-1:]):
        yield _finding(file, node, reason)


def _missing(whole: ModuleType, name: str, path: list[str]) -> str:
    """Return what is missing of a path of names in a module; empty if it has them."""
    for part in path:
        if not hasattr(whole, part):
            close = difflib.get_close_matches(part, dir(whole), n=1)
            hint = f"did you mean {close[0]}?" if close else "docs/api.md and docs/api-cv.md list the names"
            return f"{name} has no {part}; {hint}"
        value: object = getattr(whole, part)
        if not isinstance(value, ModuleType):
            break
        whole, name = value, f"{name}.{part}"
    return ""


@functools.cache
def _context_names() -> frozenset[str]:
    return frozenset(name for name in dir(Context("scenario/task", Events(), {}, Log())) if not name.startswith("_"))


def _check_context(file: str, function: ast.FunctionDef) -> Iterator[Finding]:
    """Check what a phase, or a function with a parameter `ctx`, uses of its context."""
    parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    name = parameters[0] if function.name in _WITH_CONTEXT and parameters else "ctx" if "ctx" in parameters else ""
    known = _context_names()
    for node in ast.walk(function):
        match node:
            case ast.Name(id=stored, ctx=ast.Store()) if stored == name:
                return
            case ast.Attribute(value=ast.Name(id=used), attr=attribute) if used == name and attribute not in known:
                close = difflib.get_close_matches(attribute, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(known))}"
                yield _finding(file, node, f"ctx has no {attribute}; {hint}", "ctx-attribute")


def _finding(file: str, node: ast.expr, message: str, code: Code = "attribute") -> Finding:
    return Finding(file=file, line=node.lineno, column=node.col_offset + 1, code=code, message=message)
