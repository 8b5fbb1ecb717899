"""The cloud's services wired together, without Ray: gateway, releases, monitor, fallback inference.

Each is one node with a start, a close, and async methods whose arguments and results are plain values or frozen
dataclasses; a node takes its peers as objects with such methods. `Cloud` holds all four in one process; `walle.actors`
puts each into an actor of its own and hands out handles that look the same (docs/adr/0005-four-cloud-nodes.md).
"""

from walle.cloud.config import CloudConfig
from walle.cloud.gateway import GatewayAddress, GatewayNode
from walle.cloud.home import CloudHome
from walle.cloud.inference import InferenceNode
from walle.cloud.one_process import Cloud
from walle.cloud.releases import release_node
from walle.cloud.rollback import rollback_node

__all__ = [
    "Cloud",
    "CloudConfig",
    "CloudHome",
    "GatewayAddress",
    "GatewayNode",
    "InferenceNode",
    "release_node",
    "rollback_node",
]
