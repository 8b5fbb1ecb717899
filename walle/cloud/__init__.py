"""Nodes of the cloud, without Ray: gateway, releases, monitor, identities, fallback inference.

A node has `start(peers...)` and `close()`, and its service has async methods whose arguments and results are plain
values or frozen dataclasses. `Cloud` holds all five nodes in one process. `walle.actors` puts each into an actor and
passes handles with the same methods (docs/adr/0005-four-cloud-nodes.md).

Names are loaded on first use: `walle task simulate` needs the simulation, and not the packages of a cloud.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walle.cloud.config import CloudConfig
    from walle.cloud.gateway import GatewayAddress, GatewayNode
    from walle.cloud.home import CloudHome
    from walle.cloud.inference.node import InferenceNode
    from walle.cloud.monitor import MonitorNode
    from walle.cloud.one_process import Cloud
    from walle.cloud.release import ReleaseNode

_MODULE_OF = {
    "Cloud": "walle.cloud.one_process",
    "CloudConfig": "walle.cloud.config",
    "CloudHome": "walle.cloud.home",
    "GatewayAddress": "walle.cloud.gateway",
    "GatewayNode": "walle.cloud.gateway",
    "InferenceNode": "walle.cloud.inference.node",
    "MonitorNode": "walle.cloud.monitor",
    "ReleaseNode": "walle.cloud.release",
}

__all__ = [
    "Cloud",
    "CloudConfig",
    "CloudHome",
    "GatewayAddress",
    "GatewayNode",
    "InferenceNode",
    "MonitorNode",
    "ReleaseNode",
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'walle.cloud' has no attribute {name!r}")
