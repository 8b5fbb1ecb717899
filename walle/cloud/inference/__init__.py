"""Fallback inference: phases that devices hand over (`ctx.escalate`, §7.1 Fig. 9), batched, by deadline, on replicas.

`request` reads what a device sends, `versions` finds the version that it names, `scheduler` holds the requests that
wait (`request_queue`) and gives batches to an engine: `vm_engine`, task VMs of this process's VM host, or
`process_engine`, processes that each have such VMs (`replica_server`), on this node or others (`replica_address`,
`node_cache`). `watch` shows their state; the inference node connects them.
"""

from walle.cloud.inference.failures import (
    InferenceError,
    InferenceFullError,
    InferenceLateError,
    NoRoomError,
    ReplicaLostError,
)

__all__ = [
    "InferenceError",
    "InferenceFullError",
    "InferenceLateError",
    "NoRoomError",
    "ReplicaLostError",
]
