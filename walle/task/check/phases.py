"""Check of main.py's phases: their names and what they take."""

import ast
import difflib
from collections.abc import Collection, Iterator

from walle.protocol import PHASES
from walle.task.check.finding import Code, Finding
from walle.task.format.source_facts import running

_PARAMETERS = {
    "preprocess": "ctx, trigger",
    "execute": "ctx, x",
    "execute_batch": "ctx, payloads",
    "postprocess": "ctx, y",
    "migrate": "old_version, state",
    "train": "ctx",
}
_BATCH = "execute_batch"
_SIMILAR = 0.82  # ratio of difflib: `exectue` and `execute` have 0.86, `preprocessimage` and `preprocess` 0.8

type _Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_phases(
    file: str,
    tree: ast.Module,
    others: Collection[ast.Module],
    *,
    migrates: bool,
    trains: bool = False,
    max_batch: int = 1,
) -> Iterator[Finding]:
    """Yield the findings about the phases of main.py, whose syntax tree is `tree`; `others` are the other modules'.

    `migrates`: task.toml's [state] calls `migrate`. `trains`: it has [training], which calls `train`. `max_batch` is
    that of its [cloud].
    """
    bound = _bound_names(tree)
    wanted = {*PHASES, _BATCH, *(["migrate"] if migrates else []), *(["train"] if trains else [])}
    used = {name for module in (tree, *others) for name in _used_names(module)}
    found_similar = False
    for function in _functions(tree):
        if function.name in wanted:
            yield from _check_function(file, function)
        elif function.name not in used and (phase := _similar(function.name, wanted - bound)):
            found_similar = True
            what = f"{function.name} is not a phase, and nothing calls it; did you mean {phase}?"
            yield _finding(file, function, "phase-name", what)
    if not bound & set(PHASES) and not found_similar:
        what = f"has none of {', '.join(PHASES)}; a task needs at least one: def execute(ctx, trigger): ..."
        yield Finding(file=file, line=1, column=1, code="no-phase", message=what)
    if not found_similar:
        yield from _check_batch(file, tree, bound, max_batch)
    if migrates and "migrate" not in bound and not found_similar:
        what = 'has no migrate(old_version, state), which [state] on_upgrade = "migrate" calls'
        yield Finding(file=file, line=1, column=1, code="no-migrate", message=what)
    if trains and "train" not in bound and not found_similar:
        what = "has no train(ctx), which [training] of task.toml calls"
        yield Finding(file=file, line=1, column=1, code="no-train", message=what)


def _check_batch(file: str, tree: ast.Module, bound: Collection[str], max_batch: int) -> Iterator[Finding]:
    """Yield what does not fit between `execute_batch`, `execute` and [cloud] max_batch."""
    if any(isinstance(node, ast.alias) and node.name == "*" for node in running(tree)):
        return  # the import may bring it
    line = next((one.lineno for one in _functions(tree) if one.name == _BATCH), 1)
    if _BATCH in bound and "execute" not in bound:
        what = "has execute_batch and no execute, which runs a payload that is alone, or failed in a batch"
        yield Finding(file=file, line=line, column=1, code="batch", message=what)
    elif _BATCH in bound and max_batch == 1:
        what = "has execute_batch, which is never called: set max_batch under [cloud] in task.toml"
        yield Finding(file=file, line=line, column=1, code="batch", message=what, level="warning")
    elif _BATCH not in bound and max_batch > 1:
        what = f"has no execute_batch(ctx, payloads), so that [cloud] max_batch = {max_batch} has no effect"
        yield Finding(file=file, line=1, column=1, code="batch", message=what, level="warning")


def _functions(tree: ast.Module) -> Iterator[_Function]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _bound_names(tree: ast.Module) -> set[str]:
    """Return the names that the module's code binds anywhere; a phase may be imported or assigned."""
    found = set()
    for node in running(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.alias():
                found |= {node.asname or node.name.partition(".")[0]} if node.name != "*" else set(PHASES)
    return found


def _used_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Load()):
                yield node.id
            case ast.Attribute():
                yield node.attr
            case ast.alias():
                yield node.name


def _similar(name: str, phases: Collection[str]) -> str:
    plain = name.lower().replace("_", "")
    return next(iter(difflib.get_close_matches(plain, sorted(phases), n=1, cutoff=_SIMILAR)), "")


def _check_function(file: str, function: _Function) -> Iterator[Finding]:
    form = f"def {function.name}({_PARAMETERS[function.name]})"
    given = len(_PARAMETERS[function.name].split(","))
    if isinstance(function, ast.AsyncFunctionDef):
        yield _finding(file, function, "phase-signature", f"{function.name} is called without await; it must be {form}")
        return
    if _is_generator(function):
        what = f"{function.name} yields, so that its result is a generator, which is not plain data; return a list"
        yield _finding(file, function, "phase-generator", what)
    if function.decorator_list:  # a decorator may take other parameters
        return
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    least, most = len(positional) - len(args.defaults), len(positional)
    missing = [one.arg for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    if least > given or (most < given and args.vararg is None) or missing:
        shown = f"{function.name}({ast.unparse(args)})"
        what = f"{shown} is called with {given} argument{'s' * (given > 1)}; it must be {form}"
        yield _finding(file, function, "phase-signature", what)


def _is_generator(function: ast.FunctionDef) -> bool:
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return False


def _finding(file: str, function: _Function, code: Code, message: str) -> Finding:
    return Finding(file=file, line=function.lineno, column=function.col_offset + 1, code=code, message=message)
