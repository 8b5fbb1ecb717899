"""Check of the names that a task's code uses of Walle's libraries (`walle.np` ...) and `ctx`, and of builtins."""

import ast
import difflib
import functools
import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType

from walle.engine_ext.vm.imports import INSTEAD_OF_BUILTINS, REMOVED_BUILTINS
from walle.pipeline.stream.context import Context
from walle.pipeline.stream.events import Events
from walle.pipeline.stream.run_log import Log
from walle.task.check.context_use import bound_names, context_uses
from walle.task.check.finding import Code, Finding
from walle.task.format.source_facts import imports, running

_MODULES = ("walle.np", "walle.cv", "walle.nn", "walle.optim")


def check_names(file: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield the findings about names that Walle's libraries or `ctx` do not have, and builtins that tasks lack."""
    yield from _check_imports(file, tree)
    aliases = _aliases(tree)
    for node in running(tree):
        if isinstance(node, ast.Attribute):
            yield from _check_attribute(file, node, aliases)
    yield from _check_contexts(file, tree)
    yield from _check_builtins(file, tree)


def _check_imports(file: str, tree: ast.Module) -> Iterator[Finding]:
    for one in imports(tree):
        module = next((name for name in _MODULES if one.module == name or one.module.startswith(f"{name}.")), "")
        if not module:
            continue
        path = one.module.removeprefix(module).split(".")[1:] + ([one.name] if one.name not in ("", "*") else [])
        if reason := _missing(importlib.import_module(module), module, path):
            yield Finding(file=file, line=one.line, column=one.column, code="attribute", message=reason)


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return the names that stand for Walle's libraries in the whole file, with the module of each.

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
    for part in path[:-1]:  # a value's attributes, such as an array's, are not known here
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
            hint = f"did you mean {close[0]}?" if close else "the reference (make docs) lists the names"
            return f"{name} has no {part}; {hint}"
        value: object = getattr(whole, part)
        if not isinstance(value, ModuleType):
            break
        whole, name = value, f"{name}.{part}"
    return ""


@functools.cache
def _known() -> Mapping[tuple[str, ...], frozenset[str]]:
    """Return the names that ctx and its parts have, by the path of the part."""
    context = Context("scenario/task", Events(), {}, Log())
    events = _names_of(context.events)
    parts = {"store": _names_of(context.store), "log": _names_of(context.log), "events": events, "recent": events}
    return {(): _names_of(context), **{(part,): names for part, names in parts.items()}}


def _names_of(value: object) -> frozenset[str]:
    return frozenset(name for name in dir(value) if not name.startswith("_"))


def _check_contexts(file: str, tree: ast.Module) -> Iterator[Finding]:
    """Check what phases, and functions with a parameter `ctx`, use of their context, and of its parts."""
    for use in context_uses(tree):
        for length in range(min(2, len(use.path))):
            part, name = use.path[:length], use.path[length]
            known = _known().get(part)
            if known is None:
                break
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(known))}"
                yield _finding(file, use.node, f"{'.'.join(('ctx', *part))} has no {name}; {hint}", "ctx-attribute")
                break


def _check_builtins(file: str, tree: ast.Module) -> Iterator[Finding]:
    """Check for builtins that a task does not have, where the module does not define the name itself."""
    uses = [
        node
        for node in running(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in REMOVED_BUILTINS
    ]
    if uses and not any(isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(tree)):
        bound = bound_names(tree)
        for node in uses:
            if node.id not in bound:
                what = f"{node.id} is not a builtin of tasks: {INSTEAD_OF_BUILTINS[node.id]}"
                yield _finding(file, node, what, "builtin")


def _finding(file: str, node: ast.expr, message: str, code: Code = "attribute") -> Finding:
    return Finding(file=file, line=node.lineno, column=node.col_offset + 1, code=code, message=message)
