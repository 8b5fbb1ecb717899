"""Check of what a task's code asks ctx for: files, sections of task.toml, topics."""

import ast
import difflib
from collections.abc import Collection, Iterator, Mapping

from walle.protocol import StatePolicy
from walle.task.check.context_use import ContextUse, context_uses, module_texts
from walle.task.check.finding import Code, Finding, Level
from walle.task.format.bundle import CONFIG_FILE, MAIN_FILE, RESOURCES
from walle.task.format.config import TaskConfig

_VERSION_OPTIONS = ("version", "on_upgrade", "features")  # options of [state] that are not of its entries
_ENTRY_OPTIONS = tuple(key for key in StatePolicy.KEYS if key not in _VERSION_OPTIONS)
_MAX_SHOWN = 5
_ON_CLOUD = ("cloud", "auto")
_NOT_IN_TRAIN = {  # what raises there, and what to do
    "state": "keep it in ctx.checkpoint",
    "recent": "no event triggers it: put what it learns from in another phase, and read that with ctx.store.query",
    "escalate": "it runs on the device alone",
    "features": "it runs on the device alone",
}


def check_requests(
    trees: Mapping[str, ast.Module],
    config: TaskConfig,
    paths: Collection[str],
    places: Mapping[tuple[str, ...], tuple[int, int]],
    *,
    is_config_whole: bool = True,
) -> Iterator[Finding]:
    """Yield what the modules in `trees` ask ctx for that the task does not have; `paths` are its files.

    `places` are those of the keys of task.toml: options of a state that nothing uses are a finding too.

    A configuration that is not whole lacks entries that were wrong: what needs them is not looked for.
    """
    resources = {path.removeprefix(RESOURCES): config.files.get(path, "") for path in sorted(paths) if _is_file(path)}
    puts = _topics_put(trees)
    if config.state is not None and is_config_whole:
        yield from _unused_state(trees, config.state, places)
    for file, tree in trees.items():
        texts = module_texts(tree)
        for use in context_uses(tree):
            if file == MAIN_FILE and (message := _not_in_phase(use, config)):
                yield from _found(file, use, "phase-context", message)
                continue
            name = use.text(texts, 0, "name")
            match use.path:
                case ("session",) if name is not None:
                    yield from _found(file, use, "resource", _no_model(name, resources, config))
                case ("resource",) if name is not None:
                    yield from _found(file, use, "resource", _no_file(name, resources, config))
                case ("exclusive",) if name is not None and is_config_whole:
                    yield from _found(file, use, "resource", _no_exclusive(name, config))
                case ("history" | "state" | "checkpoint" | "escalate" | "features", *_) if is_config_whole:
                    yield from _found(file, use, "section", _no_section(use.path[0], config))
                case ("store", "query") if puts is not None:
                    yield from _found(file, use, "topic", _no_topic(use, texts, config, puts), "warning")


def _is_file(path: str) -> bool:
    return path.startswith(RESOURCES) and not path.endswith(".py")


def _found(file: str, use: ContextUse, code: Code, message: str, level: Level = "error") -> Iterator[Finding]:
    if message:
        line, column = use.node.lineno, use.node.col_offset + 1
        yield Finding(file=file, line=line, column=column, code=code, message=message, level=level)


def _not_in_phase(use: ContextUse, config: TaskConfig) -> str:
    """Return why this use of ctx raises in its phase, empty if it does not."""
    name = use.path[0]
    if config.training is None:
        return ""  # `train` is a function as others
    if use.phase == "train" and name in _NOT_IN_TRAIN:
        return f"train(ctx) has no ctx.{name}; {_NOT_IN_TRAIN[name]}"
    is_assigned = use.path == ("checkpoint",) and isinstance(use.node.ctx, ast.Store)
    if is_assigned and use.phase not in ("", "train"):
        return f"{use.phase} cannot assign ctx.checkpoint; train(ctx) does"
    return ""


# --- Files ------------------------------------------------------------------------------------------------------------


def _no_model(name: str, resources: Mapping[str, str], config: TaskConfig) -> str:
    path = next((name + ending for ending in ("", ".walle", ".onnx") if name + ending in resources), None)
    file = name if name.endswith(".walle") else f"{name}.walle"
    if path is None:
        models = [one.removesuffix(".walle") for one in resources if one.endswith((".walle", ".onnx"))]
        how = f"convert a model: walle model convert MODEL.onnx {RESOURCES}{file}"
        return f"the task has no model {RESOURCES}{file}; {_hint(file.removesuffix('.walle'), models, how)}"
    if path.endswith(".onnx"):
        target = RESOURCES + path.removesuffix(".onnx") + ".walle"
        what = f"{RESOURCES}{path} is an ONNX model, which a task's VM does not read"
        return f"{what}; convert it: walle model convert {RESOURCES}{path} {target}, and list that file under [files]"
    return _elsewhere(path, resources, config)


def _no_file(name: str, resources: Mapping[str, str], config: TaskConfig) -> str:
    if name in resources:
        return _elsewhere(name, resources, config)
    how = f'add it, and list it under [files] of {CONFIG_FILE}: "{RESOURCES}{name}" = "shared"'
    return f"the task has no file {RESOURCES}{name}; {_hint(name, list(resources), how)}"


def _elsewhere(name: str, resources: Mapping[str, str], config: TaskConfig) -> str:
    if resources[name] != "cloud" or any(place in _ON_CLOUD for place in config.phases.values()):
        return ""
    what = f'{RESOURCES}{name} is "cloud" under [files], and no phase runs there'
    return f'{what}; list it as "shared", or give a phase "cloud" or "auto" under [phases]'


def _no_exclusive(name: str, config: TaskConfig) -> str:
    known = [file.name for file in config.exclusive]
    if name in known:
        return ""
    how = f'add to {CONFIG_FILE}: [[exclusive]] with name = "{name}"'
    return f"[[exclusive]] of {CONFIG_FILE} does not list {name!r}; {_hint(name, known, how)}"


def _hint(name: str, known: list[str], how_to_add: str) -> str:
    """Return the nearest of the known names, all of them if none is near, or what to do if there are none."""
    if close := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {close[0]}?"
    if not known:
        return how_to_add
    more = f" and {len(known) - _MAX_SHOWN} more" if len(known) > _MAX_SHOWN else ""
    return f"it has: {', '.join(known[:_MAX_SHOWN])}{more}"


# --- Sections of task.toml --------------------------------------------------------------------------------------------


def _no_section(name: str, config: TaskConfig) -> str:
    if name == "history" and config.history is None:
        return f"ctx.history needs [history] in {CONFIG_FILE}, such as: [history] days = 7"
    if name == "state" and config.state is None:
        return f"ctx.state needs [state] in {CONFIG_FILE}, such as: [state] version = 1"
    if name == "checkpoint" and config.training is None:
        return f"ctx.checkpoint needs [training] in {CONFIG_FILE}, such as: [training] when = {{ charging = true }}"
    if name in ("escalate", "features") and not any(place in _ON_CLOUD for place in config.phases.values()):
        return f'ctx.{name} needs a phase that may run in the cloud: [phases] execute = "auto" in {CONFIG_FILE}'
    return ""


def _unused_state(
    trees: Mapping[str, ast.Module], policy: StatePolicy, places: Mapping[tuple[str, ...], tuple[int, int]]
) -> Iterator[Finding]:
    """Yield a warning for each option of a state's entries, where no code uses a state."""
    if any(name == "state" for tree in trees.values() for name in _attributes(tree)):
        return
    for key in set(policy.to_json()) & set(_ENTRY_OPTIONS):
        line, column = places.get(("state", key), places.get(("state",), (0, 0)))
        message = f"[state] {key} has no effect: no code of the task uses ctx.state; use it, or remove [state]"
        yield Finding(file=CONFIG_FILE, line=line, column=column, code="section", message=message, level="warning")


def _attributes(tree: ast.Module) -> Iterator[str]:
    """Yield the names of all attributes: a function that gets ctx by another name may use its state."""
    return (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))


# --- Topics -----------------------------------------------------------------------------------------------------------


def _topics_put(trees: Mapping[str, ast.Module]) -> set[str] | None:
    """Return the topics that the task puts, None where one of them is made while it runs."""
    topics: set[str] = set()
    for tree in trees.values():
        texts = module_texts(tree)
        for use in context_uses(tree):
            if use.path == ("store", "put"):
                topic = use.text(texts, 0, "topic")
                if topic is None:
                    return None
                topics.add(topic.rpartition("/")[2])
            elif use.path == ("store",):  # the store is passed on
                return None
    return topics


def _no_topic(use: ContextUse, texts: Mapping[str, str], config: TaskConfig, puts: Collection[str]) -> str:
    topic = use.text(texts, 0, "topic")
    call = use.call
    if not topic or call is None or any(one.arg in ("task", None) for one in call.keywords):
        return ""  # another task's topic: [reads] is checked
    name = topic.rpartition("/")[2]
    if name in puts or topic.endswith(f"/{config.name}"):
        return ""
    how = "without a topic, ctx.store.query reads the task's outputs"
    return f"nothing of the task puts the topic {name!r}; {_hint(name, sorted(puts), how)}"
