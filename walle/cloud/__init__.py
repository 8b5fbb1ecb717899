"""Nodes of the cloud, without Ray: gateway, releases, monitor, fallback inference.

A node has `start(peers...)` and `close()`, and its service has async methods whose arguments and results are plain
values or frozen dataclasses. `Cloud` holds all four nodes in one process. `walle.actors` puts each into an actor and
passes handles with the same methods (docs/adr/0005-four-cloud-nodes.md).
"""

from walle.cloud.config import CloudConfig
from walle.cloud.gateway import GatewayAddress, GatewayNode
from walle.cloud.home import CloudHome
from walle.cloud.inference import InferenceNode
from walle.cloud.monitor import MonitorNode
from walle.cloud.one_process import Cloud
from walle.cloud.release import ReleaseNode

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
