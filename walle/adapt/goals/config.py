"""Files of adaptation goals: TOML, and the paper's JSON (Fig. 3)."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from walle.adapt.costs.hardware import Hardware
from walle.adapt.goals.goal import UNITS, Goal
from walle.adapt.goals.quantity import quantity
from walle.errors import ConfigError

_JSON_NAMES = {"FLOP": "operations", "num_of_params": "parameters", "memory": "memory", "latency": "latency"}
_JSON_KEYS = {"id", "model", "dataset", "algorithm", "adaptation_goal", "hardware"}
_TABLES = {"model", "data", "algorithm", "hardware", "training", "goals", "seed"}
_GOAL_KEYS = {*UNITS, "accuracy", "rule"}
_JSON_OPTIONS = {"init_population": "population"}
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*')
_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[\]}])')
_MAX_GOALS = 10_000
_MAX_WHOLE = 1 << 53
_MOST_WIDER = 16
_FILE_NAME = re.compile(r"\w[\w .+-]*")
_MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True)
class Training:
    """Training of weights: steps for each goal, batch, and learning rate. `loss` is of walle.nn.functional, `metric` is
    "accuracy"; both may be functions of outputs and labels, "file.py:function".

    `widen` is how many times the channels of the given model one for a looser goal may have; 1 keeps its own.
    """

    loss: str = "cross_entropy"
    metric: str = "accuracy"
    steps: int = 400
    batch: int = 64
    learning_rate: float = 0.05
    widen: float = 2.0


@dataclass(frozen=True, slots=True)
class Adaptation:
    """One model, its data, an algorithm, and the goals that fitted models must meet."""

    model: str
    train: str
    test: str
    algorithm: str
    settings: Mapping[str, Any]
    goals: tuple[Goal, ...]
    hardware: Hardware | None
    training: Training = field(default_factory=Training)
    seed: int = 0
    folder: Path = Path()  # base of relative paths


def read_config(path: Path) -> list[Adaptation]:
    """Return the adaptations of a file: one of a TOML file, one for each model and algorithm of a JSON file.

    Raises:
        ConfigError: the file is missing or wrong; the message names file and place.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse_config(text, path.parent, str(path), is_json=path.suffix == ".json")


def parse_config(text: str, folder: Path, where: str, *, is_json: bool) -> list[Adaptation]:
    """Return the adaptations of a text; see `read_config`."""
    try:
        document = json.loads(_without_comments(text)) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from error
    found = _of_json(document, folder, where) if is_json else [_of_toml(document, folder, where)]
    for one in found:
        if not one.goals:
            raise ConfigError(f"{where} has no goals; add a table [goals.NAME]")
        if len(one.goals) > _MAX_GOALS:
            raise ConfigError(f"{where} has {len(one.goals)} goals; at most {_MAX_GOALS} are adapted at once")
        if one.hardware is None and any("latency" in goal.budgets for goal in one.goals):
            raise ConfigError(f"{where} has goals of latency and no [hardware]; give compute and bandwidth, or a class")
    return found


def _without_comments(text: str) -> str:
    """Return JSON of a text with comments, "// …", and commas after the last entry, as Fig. 3 has them."""
    return _LAST_COMMA.sub(r"\1", _COMMENT.sub(r"\1", text))


def _of_json(document: object, folder: Path, where: str) -> list[Adaptation]:
    if not isinstance(document, list):
        raise ConfigError(f"{where} is not a list of configurations")
    jobs: dict[str, tuple[dict[str, Any], list[Goal]]] = {}
    for place, entry in enumerate(document):
        here = f"{where}, configuration {place + 1}"
        table = _table(entry, here, _JSON_KEYS)
        goal = _table(table.get("adaptation_goal"), f"{here}, adaptation_goal", {*_JSON_NAMES, "accuracy"})
        renamed = {_JSON_NAMES.get(name, name): value for name, value in goal.items()}
        name = str(table.get("id", place + 1))
        shared = {name: table.get(name) for name in ("model", "dataset", "algorithm", "hardware")}
        jobs.setdefault(json.dumps(shared, sort_keys=True), (shared, []))[1].append(_goal(name, renamed, here))
    made = []
    for shared, goals in jobs.values():
        data = _table(shared["dataset"], f"{where}, dataset", {"train", "test"})
        algorithm = _table(shared["algorithm"] or {"name": "morphnet"}, f"{where}, algorithm", {"name", "config"})
        given = {} if algorithm.get("config") is None else algorithm["config"]
        options = _table(given, f"{where}, algorithm, config", None)
        made.append(
            Adaptation(
                _text(shared, "model", where), _text(data, "train", f"{where}, dataset"),
                _text(data, "test", f"{where}, dataset"), _algorithm(_text(algorithm, "name", f"{where}, algorithm")),
                {_JSON_OPTIONS.get(name, name): value for name, value in options.items()},
                _distinct(goals, where), _hardware(shared["hardware"], where),
                folder=folder,
            )
        )  # fmt: skip
    return made


def _of_toml(document: dict[str, Any], folder: Path, where: str) -> Adaptation:
    table = _table(document, where, _TABLES)
    data = _table(table.get("data"), f"{where}, [data]", {"train", "test"})
    algorithm = dict(_table(table.get("algorithm", {}), f"{where}, [algorithm]", None))
    goals = [
        goal
        for name, given in _table(table.get("goals", {}), f"{where}, [goals]", None).items()
        for goal in _goals(name, given, f"{where}, [goals.{name}]")
    ]
    return Adaptation(
        _text(table, "model", where), _text(data, "train", f"{where}, [data]"), _text(data, "test", f"{where}, [data]"),
        _algorithm(str(algorithm.pop("name", "morphnet"))), algorithm, _distinct(goals, where),
        _hardware(table.get("hardware"), where), _training(table.get("training", {}), f"{where}, [training]"),
        _whole(table.get("seed", 0), f"{where}, seed", 0), folder,
    )  # fmt: skip


def _algorithm(name: str) -> str:
    """Return a name in small letters ("MorphNet"); "file.py:Class" unchanged."""
    return name if ":" in name else name.lower()


def _goals(name: str, given: object, where: str) -> Iterator[Goal]:
    """Yield a goal; several where budgets are ranges {from, to, steps}, which go up side by side."""
    table = _table(given, where, _GOAL_KEYS)
    ranges = {
        key: _range(value, UNITS[key], f"{where}, {key}")
        for key, value in table.items()
        if isinstance(value, dict) and key in UNITS
    }
    if not ranges:
        yield _goal(name, table, where)
        return
    counts = {len(values) for values in ranges.values()}
    if len(counts) > 1:
        raise ConfigError(f"{where} has ranges of {' and '.join(map(str, sorted(counts)))} steps; give them as many")
    for at in range(counts.pop()):
        budgets = {key: values[at] for key, values in ranges.items()}
        yield _goal(f"{name}-{at + 1}", {**table, **budgets}, where)


def _range(given: dict[str, Any], unit: str, where: str) -> list[float]:
    table = _table(given, where, {"from", "to", "steps"})
    first, last = (quantity(table.get(key), unit, f"{where}.{key}") for key in ("from", "to"))
    steps = _whole(table.get("steps", 2), f"{where}.steps", 2)
    if steps > _MAX_GOALS:
        raise ConfigError(f"{where}.steps is {steps}; at most {_MAX_GOALS} goals are adapted at once")
    return [first * (last / first) ** (at / (steps - 1)) for at in range(steps)]


def _goal(name: str, table: Mapping[str, Any], where: str) -> Goal:
    budgets = {key: quantity(table[key], unit, f"{where}, {key}") for key, unit in UNITS.items() if key in table}
    if not budgets:
        raise ConfigError(f"{where} has no budget; give one of {', '.join(UNITS)}")
    accuracy = table.get("accuracy")
    if accuracy is not None:
        accuracy = quantity(accuracy, "", f"{where}, accuracy")
        if accuracy > 1:
            raise ConfigError(f"{where}, accuracy is {accuracy:g}; it is a share, from 0 to 1")
    rule = table.get("rule", "")
    if not isinstance(rule, str):
        raise ConfigError(f'{where}, rule is {rule!r:.80}; give a text, such as "ram_mb < 512"')
    return Goal(name, budgets, accuracy, rule)


def _distinct(goals: list[Goal], where: str) -> tuple[Goal, ...]:
    seen: set[str] = set()
    for goal in goals:
        if not _FILE_NAME.fullmatch(goal.name) or len(goal.name.encode()) > _MAX_NAME_BYTES:
            raise ConfigError(
                f"{where} has a goal {goal.name!r:.80}; its name is that of a file: up to {_MAX_NAME_BYTES} bytes of "
                "letters, digits, spaces and ._+-, the first a letter or digit"
            )
        if goal.name in seen:
            raise ConfigError(f"{where} has two goals of the name {goal.name!r}")
        seen.add(goal.name)
    return tuple(goals)


def _hardware(given: object, where: str) -> Hardware | None:
    if given is None:
        return None
    table = _table(given, f"{where}, [hardware]", {"compute", "bandwidth", "class"})
    if "class" in table:
        return Hardware.of_class(_text(table, "class", f"{where}, [hardware]"))
    return Hardware.of_rates(
        quantity(table.get("compute"), "FLOP", f"{where}, [hardware], compute"),
        quantity(table.get("bandwidth"), "B", f"{where}, [hardware], bandwidth"),
    )


def _training(given: object, where: str) -> Training:
    table = _table(given, where, {"loss", "metric", "steps", "batch", "learning_rate", "widen"})
    default = Training()
    widen = quantity(table.get("widen", default.widen), "", f"{where}, widen")
    if not 1 <= widen <= _MOST_WIDER:
        raise ConfigError(f"{where}, widen is {widen:g}; give a number from 1, for none, to {_MOST_WIDER}")
    return Training(
        str(table.get("loss", default.loss)),
        str(table.get("metric", default.metric)),
        _whole(table.get("steps", default.steps), f"{where}, steps", 1),
        _whole(table.get("batch", default.batch), f"{where}, batch", 1),
        quantity(table.get("learning_rate", default.learning_rate), "", f"{where}, learning_rate"),
        widen,
    )


def _table(given: object, where: str, known: set[str] | None) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} is missing" if given is None else f"{where} is not a table")
    unknown = sorted(set(given) - known) if known is not None else []
    if unknown:
        raise ConfigError(f"{where} has {unknown[0]!r}, which is not known; it takes {', '.join(sorted(known or ()))}")
    return given


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}, {key} is {value!r}; give a text")
    return value


def _whole(value: object, where: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_WHOLE:
        raise ConfigError(f"{where} is {value!r:.80}; give a whole number, at least {least}")
    return value
