"""Uses of `ctx` in a module's code: attributes, calls, and the texts that these name."""

import ast
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping

from walle.protocol import PHASES
from walle.task.format.source_facts import running

WITH_CONTEXT = (*PHASES, "execute_batch", "train")


@dataclasses.dataclass(frozen=True)
class ContextUse:
    """One path of attributes that begins at ctx: `ctx.store.put` is ("store", "put").

    `node` is its last attribute, `call` the call of it, None if it is not called. `phase` is the only phase, or
    `train`, that it runs in; empty where it runs in several, or that is not known.
    """

    node: ast.Attribute
    path: tuple[str, ...]
    call: ast.Call | None
    phase: str = ""

    def text(self, texts: Mapping[str, str], position: int, name: str) -> str | None:
        """Return a text argument of the call, None if it is absent or not known here; `texts` are the module's."""
        if self.call is None:
            return None
        given = self.call.args[position] if position < len(self.call.args) else None
        for keyword in self.call.keywords:
            if keyword.arg == name:
                given = keyword.value
        match given:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=constant):
                return texts.get(constant)
            case _:
                return None


def context_name(function: ast.FunctionDef) -> str:
    """Return the name of a function's ctx: a phase's first parameter, or a parameter `ctx`; "" if it has none."""
    parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    name = parameters[0] if function.name in WITH_CONTEXT and parameters else "ctx" if "ctx" in parameters else ""
    return "" if name and is_rebound(function, name) else name


def is_rebound(function: ast.FunctionDef, name: str) -> bool:
    """Return whether the function gives another value to the name of a parameter."""
    return any(
        isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(function)
    )


def context_uses(tree: ast.Module) -> Iterator[ContextUse]:
    """Yield each use of ctx in the module's functions once, in the order of the code."""
    found: dict[int, ContextUse] = {}
    phases = _phases_of(tree)
    for function in running(tree):
        if isinstance(function, ast.FunctionDef) and (name := context_name(function)):
            calls = {id(node.func): node for node in ast.walk(function) if isinstance(node, ast.Call)}
            inner = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Attribute)}
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and id(node) not in inner and (path := _path(node, name)):
                    phase = phases.get(function.name, "") if function in tree.body else ""
                    phase = phase or (found[id(node)].phase if id(node) in found else "")
                    found[id(node)] = ContextUse(node, path, calls.get(id(node)), phase)
    yield from sorted(found.values(), key=lambda one: (one.node.lineno, one.node.col_offset))


def _phases_of(tree: ast.Module) -> dict[str, str]:
    """Return the phase of each function of the module that runs in one phase alone, empty for one that runs in more."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    named = {
        name: {one.id for one in ast.walk(function) if isinstance(one, ast.Name)} & functions.keys()
        for name, function in functions.items()
    }
    phases: dict[str, str] = {}
    for phase in functions.keys() & {*WITH_CONTEXT}:
        waiting, reached = [phase], set[str]()
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += named[name]
        for name in reached:
            phases[name] = phase if phases.get(name, phase) == phase else ""
    return phases


def _path(node: ast.Attribute, name: str) -> tuple[str, ...]:
    parts: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        parts.insert(0, inner.attr)
        inner = inner.value
    return tuple(parts) if isinstance(inner, ast.Name) and inner.id == name else ()


def module_texts(tree: ast.Module) -> dict[str, str]:
    """Return the texts of the names that the module binds once, to a text: `MODEL = "intent"`."""
    bound = bound_names(tree)
    found = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if bound[name] == 1:
                found[name] = text
    return found


def bound_names(tree: ast.Module) -> Counter[str]:
    """Return the names that the module's code binds anywhere, with the number of places that do."""
    return Counter(name for node in ast.walk(tree) for name in _bound(node))


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias():
            yield node.asname or node.name.partition(".")[0]
