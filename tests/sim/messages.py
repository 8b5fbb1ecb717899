"""Types of what the processes of a cloud send each other: `python -m tests.sim.messages` prints them as JSON.

The output of a version is kept in tests/actors/messages.json, with which tests/actors/test_version_skew.py compares the
present types. It is written again with each minor version, once that is released.
"""

import dataclasses
import enum
import inspect
import json
import sys
import typing
from collections.abc import Iterator
from typing import Any

import walle
from walle.actors.edge import EdgeActor
from walle.actors.gateway import GatewayActor
from walle.actors.inference import InferenceActor
from walle.actors.node import Raised
from walle.actors.nodes import NodesActor
from walle.actors.service import Place
from walle.actors.tunnel import TunnelActor
from walle.cloud import CloudConfig
from walle.cloud.api import interfaces as peers
from walle.cloud.inference.request import PhaseRequest
from walle.cloud.nodes.tunnel_node import TunnelGatewayPeer
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.table import TaskRow

_ACTORS = (EdgeActor, GatewayActor, InferenceActor, NodesActor, TunnelActor)
_LATE = {"PhaseRequest": PhaseRequest, "Policy": Policy}  # types that their users import late
_ALWAYS = (CloudConfig, Place, Raised, TaskRow)  # arguments of actors, errors, and rows of a release table


def message_types() -> dict[str, type]:
    """Return the dataclasses, named tuples and enumerations of Walle's in the calls between processes, by name."""
    found: dict[str, type] = {}
    for kind in _ALWAYS:
        _visit(kind, found)
    protocols = [kind for name, kind in vars(peers).items() if name.endswith("Peer")]
    for kind in (*protocols, TunnelGatewayPeer, *_ACTORS):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                for hint in typing.get_type_hints(method, localns=_LATE).values():
                    _visit(hint, found)
    return found


def _visit(hint: Any, found: dict[str, type]) -> None:
    if isinstance(hint, typing.TypeAliasType):
        _visit(hint.__value__, found)
        return
    for argument in typing.get_args(hint):
        for one in argument if isinstance(argument, list) else (argument,):
            _visit(one, found)
    kind = typing.get_origin(hint) or hint
    if not inspect.isclass(kind) or not kind.__module__.startswith("walle."):
        return
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in found or not (is_open(kind) or is_fixed(kind) or issubclass(kind, enum.Enum)):
        return
    found[name] = kind
    if not issubclass(kind, enum.Enum):
        for one in typing.get_type_hints(kind, localns=_LATE).values():
            _visit(one, found)


def is_open(kind: type) -> bool:
    """Return whether a type may have further fields: pickle restores a dictionary of those that were sent."""
    return dataclasses.is_dataclass(kind) and "__slots__" not in vars(kind)


def is_fixed(kind: type) -> bool:
    """Return whether a type is pickled by the order of its fields."""
    return (dataclasses.is_dataclass(kind) and "__slots__" in vars(kind)) or hasattr(kind, "_fields")


def names_of(kind: type) -> list[str]:
    """Return the fields of a type, or the values of an enumeration."""
    if issubclass(kind, enum.Enum):
        return [str(one.value) for one in kind]
    return list(_names(kind))


def _names(kind: Any) -> Iterator[str]:
    if hasattr(kind, "_fields"):
        yield from kind._fields
    else:
        yield from (one.name for one in dataclasses.fields(kind))


if __name__ == "__main__":
    types = {name: names_of(kind) for name, kind in sorted(message_types().items())}
    sys.stdout.write(json.dumps({"version": walle.__version__, "types": types}, indent=1) + "\n")
