"""Nodes of the cloud, without Ray: gateway, releases, monitor, identities, fallback inference.

A node has `start(peers...)` and `close()`, and its service has async methods whose arguments and results are plain
values or frozen dataclasses. `Cloud` holds all five nodes in one process. `walle.actors` puts each into an actor and
passes handles with the same methods (docs/adr/0027-cluster.md).

Names are loaded on first use: `walle task simulate` needs the simulation, and not the packages of a cloud.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walle.cloud.folder.config import CloudConfig
    from walle.cloud.folder.folder import CloudHome
    from walle.cloud.nodes.gateway import GatewayAddress, GatewayNode
    from walle.cloud.nodes.inference import InferenceNode
    from walle.cloud.nodes.monitor import MonitorNode
    from walle.cloud.nodes.one_process import Cloud
    from walle.cloud.nodes.releases import ReleaseNode

_MODULE_OF = {
    "Cloud": "walle.cloud.nodes.one_process",
    "CloudConfig": "walle.cloud.folder.config",
    "CloudHome": "walle.cloud.folder.folder",
    "GatewayAddress": "walle.cloud.nodes.gateway",
    "GatewayNode": "walle.cloud.nodes.gateway",
    "InferenceNode": "walle.cloud.nodes.inference",
    "MonitorNode": "walle.cloud.nodes.monitor",
    "ReleaseNode": "walle.cloud.nodes.releases",
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
