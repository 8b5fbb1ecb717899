"""Which process of a cloud belongs on which of its nodes, and what is to be done next about those that do not.

A `Plan` is what an operator asked for: nodes that are drained, and processes that are to be started again. It is kept
in the cloud's folder, so that whoever looks after the nodes continues it.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from walle.base.durable_file import write_file
from walle.errors import ConfigError, DeployError

PLAN_FILE = "nodes.json"
ID_CHARS = 8  # characters of a node's id, in the name of a process that belongs to it
_TURNS = ("identities", "monitor", "releases", "gateway")


class UnknownNodeError(DeployError):
    """No node of the cloud, or more than one, has this id or host name. HTTP answers 404."""

    status = 404

    def __init__(self, node: str, why: str) -> None:
        super().__init__(node, why)
        self.node = node
        self.why = why

    def __str__(self) -> str:
        return f"node {self.node!r}: {self.why}"


class DrainRefusedError(DeployError):
    """A node whose work no other node can take over. HTTP answers 409."""

    status = 409


@dataclasses.dataclass(frozen=True)
class Node:
    """A live machine of the cloud."""

    id: str
    host: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class NodeKind:
    """A kind of process of which `count` run on each node that has the `labels`."""

    name: str
    count: int
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def belongs_on(self, node: Node) -> bool:
        """Return whether the node has the labels."""
        return all(node.labels.get(name) == value for name, value in self.labels.items())


@dataclasses.dataclass(frozen=True)
class Process:
    """A process that runs: `kind` is empty for those of which there is one in the cloud, or some anywhere."""

    name: str
    node: str
    pid: int
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Drained:
    """A drained node; `over_s` are the seconds over which its devices leave."""

    host: str
    over_s: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """Order of an operator. `restarting` are processes, as they were then: done when another is in its place."""

    drained: Mapping[str, Drained] = dataclasses.field(default_factory=dict)
    restarting: tuple[Process, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the plan of the cloud in `folder`. Raises ConfigError where the file is damaged."""
        path = folder / PLAN_FILE
        try:
            plain = json.loads(path.read_text())
            drained = {node: Drained(str(one["host"]), float(one["over_s"])) for node, one in plain["drained"].items()}
            return cls(drained, tuple(Process(**one) for one in plain["restarting"]))
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is damaged: {error}; remove it, and drain nodes again") from error

    def save(self, folder: Path) -> None:
        """Write the plan, for the next one that looks after the nodes."""
        write_file(folder / PLAN_FILE, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    def left(self, processes: Iterable[Process]) -> tuple[Process, ...]:
        """Return those that are still to be started again."""
        present = set(processes)
        return tuple(one for one in self.restarting if one in present)


@dataclasses.dataclass(frozen=True)
class Start:
    """Start a process of a kind on a node."""

    kind: str
    node: str
    name: str


@dataclasses.dataclass(frozen=True)
class Forget:
    """End what is left of a process whose node is gone, or whose kind the node should not have."""

    name: str


@dataclasses.dataclass(frozen=True)
class Leave:
    """Have a process leave within `over_s` seconds, then end it."""

    name: str
    over_s: float


@dataclasses.dataclass(frozen=True)
class Replace:
    """Start another process of the kind on the node, then have the one before it leave."""

    kind: str
    node: str
    name: str
    successor: str


@dataclasses.dataclass(frozen=True)
class Move:
    """End a process, and start it on another node."""

    name: str


@dataclasses.dataclass(frozen=True)
class Restart:
    """End a process, so that another takes its place."""

    name: str


type Action = Start | Forget | Leave | Replace | Move | Restart


def member_name(kind: str, node: str, number: int) -> str:
    """Return the name of the process of a kind on a node."""
    return f"{kind}-{node[:ID_CHARS]}-{number}"


def parse_member(name: str) -> tuple[str, str] | None:
    """Return the kind and the start of the node's id in the name of a process of a node, None for another name."""
    kind, _, rest = name.partition("-")
    node, _, number = rest.partition("-")
    return (kind, node) if len(node) == ID_CHARS and number.isdigit() else None


def find_node(nodes: Sequence[Node], text: str) -> Node:
    """Return the node whose id begins with the text, or whose host name it is.

    Raises:
        UnknownNodeError: there is none, or more than one.
    """
    found = [one for one in nodes if text and (one.id.startswith(text) or one.host == text)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{one.id[:12]} ({one.host})" for one in nodes) or "none"
    raise UnknownNodeError(text, f"{len(found)} nodes match; there are {known}")


def urgent(
    plan: Plan, nodes: Sequence[Node], kinds: Sequence[NodeKind], processes: Sequence[Process]
) -> list[Start | Forget]:
    """Return what is to be done at once: nodes get the processes that they lack, and those of dead nodes go."""
    found: list[Start | Forget] = []
    alive = {one.id: one for one in nodes}
    members = [one for one in processes if one.kind]
    by_kind = {one.name: one for one in kinds}
    for one in members:
        kind, node = by_kind.get(one.kind), alive.get(one.node)
        if kind is None or node is None or not kind.belongs_on(node):
            found.append(Forget(one.name))
    for kind in kinds:
        for node in nodes:
            if node.id in plan.drained or not kind.belongs_on(node):
                continue
            present = {one.name for one in members if (one.kind, one.node) == (kind.name, node.id)}
            for _ in range(kind.count - len(present)):
                name = _free_name(kind.name, node.id, present)
                present.add(name)
                found.append(Start(kind.name, node.id, name))
    return found


def in_turn(plan: Plan, kinds: Sequence[NodeKind], processes: Sequence[Process]) -> list[Action]:
    """Return what the plan asks for, of which the first is to be done; the rest is what remains.

    Of a drained node the processes leave first, each with the devices that it has, then those go that run elsewhere
    as well as there. One that starts again does so alone, so that the others answer meanwhile.
    """
    found: list[Action] = [
        Leave(one.name, plan.drained[one.node].over_s) for one in processes if one.kind and one.node in plan.drained
    ]
    found += [Move(one.name) for one in _turns(processes) if not one.kind and one.node in plan.drained]
    counts = {kind.name: kind.count for kind in kinds}
    left = [one for one in plan.left(processes) if one.node not in plan.drained]
    for one in left:
        if one.kind not in counts:
            continue
        siblings = [other for other in processes if (other.kind, other.node) == (one.kind, one.node)]
        if len(siblings) > counts[one.kind]:  # a successor runs already
            found.append(Leave(one.name, 0.0))
        else:
            names = {other.name for other in siblings}
            found.append(Replace(one.kind, one.node, one.name, _free_name(one.kind, one.node, names)))
    found += [Restart(one.name) for one in _turns(left) if not one.kind]
    return found


def progress(
    plan: Plan, kinds: Sequence[NodeKind], processes: Sequence[Process], doing: str, fault: str = ""
) -> dict[str, Any]:
    """Return how far the plan is, as JSON: what each drained node still has, and what is to be started again."""
    drained = {
        node: {"host": one.host, "left": [process.name for process in processes if process.node == node]}
        for node, one in plan.drained.items()
    }
    left = [one.name for one in plan.left(processes)]
    remaining = len(in_turn(plan, kinds, processes))
    return {"drained": drained, "restarting": left, "remaining": remaining, "doing": doing, "fault": fault}


def _free_name(kind: str, node: str, taken: set[str]) -> str:
    number = 0
    while (name := member_name(kind, node, number)) in taken:
        number += 1
    return name


def _turns(processes: Iterable[Process]) -> list[Process]:
    """Return processes in the order in which they start again."""
    order = {name: turn for turn, name in enumerate(_TURNS)}
    return sorted(processes, key=lambda one: (order.get(one.name, len(order)), one.name))
