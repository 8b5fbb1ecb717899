"""Ray nodes of one machine: `python -m loadtest.cluster_nodes COUNT`.

Prints their address as JSON, and ends them at the end of its input. Run it in a network namespace of its own: the nodes
of a test must not meet those of another.
"""

import json
import sys
from typing import Any

_NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


def main(count: int) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=_NODE)
    try:
        for _ in range(count - 1):
            cluster.add_node(**_NODE)
        sys.stdout.write(json.dumps({"address": cluster.address}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(int(sys.argv[1]))
