"""Check of the names of events in a task's code: event ids of its views, keys of the trigger, fields of events."""

import ast
import difflib
from collections.abc import Collection, Iterator, Mapping

from walle.pipeline.events.event import BASIC_KINDS, Event
from walle.protocol import PHASES
from walle.task.check.context_use import bound_names, context_name, context_uses, is_rebound, module_texts
from walle.task.check.finding import Code, Finding, Level
from walle.task.format.source_facts import running

_SIMILAR = 0.75
_VIEWS = ("events", "recent")
_TRIGGER_KEYS = ("event", "position", "visit")
_EVENT_FIELDS = ("event_id", "page_id", "ts_ms", "contents")


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name that is most like `name`, "" if none is."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=_SIMILAR)), "")


def check_event_ids(trees: Mapping[str, ast.Module], event_ids: Collection[str] | None) -> Iterator[Finding]:
    """Yield event ids that the code selects and no event has, where one that is known is similar.

    `event_ids` are those of a log; without one, ids are compared with the basic kinds.
    """
    known = BASIC_KINDS if event_ids is None else event_ids
    for file, tree in trees.items():
        texts = module_texts(tree)
        for use in context_uses(tree):
            match use.path:
                case (view, "named") if view in _VIEWS:
                    name = use.text(texts, 0, "event_id")
                case (view, "key_by") if view in _VIEWS:
                    name = use.text(texts, 0, "key")
                case ("history",):
                    name = use.text(texts, 0, "event_id")
                case _:
                    continue
            if name and name not in known and name not in BASIC_KINDS and (close := nearest(name, known)):
                what = f"no event is known with the event id {name!r}; did you mean {close}?"
                yield _finding(file, use.node, "event-id", what, "warning")


def check_event_fields(file: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield fields that events do not have, of the names that loops give to the events of ctx's views."""
    for function in running(tree):
        if not isinstance(function, ast.FunctionDef) or not (context := context_name(function)):
            continue
        names = _loop_names(function, context)
        for node in ast.walk(function):
            match node:
                case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))) if name in names:
                    if key not in _EVENT_FIELDS:
                        yield _unknown(file, node, "an event", key, _EVENT_FIELDS)
                case ast.Attribute(value=ast.Name(id=name), attr=key) if name in names and not hasattr(Event, key):
                    yield _unknown(file, node, "an event", key, _EVENT_FIELDS)


def _loop_names(function: ast.FunctionDef, context: str) -> set[str]:
    """Return the names that stand for an event wherever the function binds them."""
    loops = [
        node.target.id
        for node in ast.walk(function)
        if isinstance(node, ast.For | ast.comprehension)
        and isinstance(node.target, ast.Name)
        and _is_view(node.iter, context)
    ]
    bound = bound_names(ast.Module(body=[function], type_ignores=[]))
    return {name for name in loops if bound[name] == loops.count(name)}


def _is_view(node: ast.expr, context: str) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=view):
            return name == context and view in _VIEWS
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="history")):
            return name == context
        case ast.Call(func=ast.Attribute(value=view, attr="named" | "where" | "time_window" | "filter")):
            return _is_view(view, context)
        case ast.Call(func=ast.Name(id="list" | "tuple" | "reversed" | "sorted"), args=[view, *_]):
            return _is_view(view, context)
        case ast.Subscript(value=view, slice=ast.Slice()):
            return _is_view(view, context)
        case _:
            return False


def check_trigger_keys(file: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield keys that the trigger, the argument of main.py's first phase, and its event do not have."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    first = next((functions[phase] for phase in PHASES if phase in functions), None)
    if first is None or any(isinstance(node, ast.alias) and node.asname in PHASES for node in running(tree)):
        return
    arguments = [one.arg for one in (*first.args.posonlyargs, *first.args.args)]
    if len(arguments) < 2 or is_rebound(first, arguments[1]):
        return
    trigger = arguments[1]
    for node in ast.walk(first):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))) if name == trigger:
                if key not in _TRIGGER_KEYS:
                    yield _unknown(file, node, "the trigger", key, _TRIGGER_KEYS)
            case ast.Attribute(value=ast.Name(id=name), attr=key) if name == trigger and not hasattr(dict, key):
                close = nearest(key, _TRIGGER_KEYS)
                hint = f'write {trigger}["{close}"]' if close else f"its keys are {', '.join(_TRIGGER_KEYS)}"
                yield _finding(file, node, "event-field", f"the trigger is a dict, without an attribute {key}; {hint}")
            case ast.Subscript(value=event, slice=ast.Constant(value=str(key))) if _is_event(event, trigger):
                if key not in _EVENT_FIELDS:
                    yield _unknown(file, node, "an event", key, _EVENT_FIELDS)
            case ast.Attribute(value=event, attr=key) if _is_event(event, trigger):
                if key not in _EVENT_FIELDS and not hasattr(dict, key) and not hasattr(Event, key):
                    yield _unknown(file, node, "an event", key, _EVENT_FIELDS)


def _is_event(node: ast.expr, trigger: str) -> bool:
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value="event")):
            return name == trigger
        case _:
            return False


def _unknown(file: str, node: ast.expr, what: str, key: str, known: Collection[str]) -> Finding:
    close = nearest(key, known)
    hint = f"did you mean {close}?" if close else f"it has {', '.join(known)}"
    if what == "an event" and not close:
        hint += '; what the event is about is in its contents: event["contents"]'
    return _finding(file, node, "event-field", f"{what} has no {key!r}; {hint}")


def _finding(file: str, node: ast.expr, code: Code, message: str, level: Level = "error") -> Finding:
    return Finding(file=file, line=node.lineno, column=node.col_offset + 1, code=code, message=message, level=level)
