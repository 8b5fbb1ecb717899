"""Placement of the cloud's actors on the nodes of a Ray cluster."""

import hashlib
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from walle.cloud import CloudConfig
from walle.cloud.folder.config import parse_labels, parse_resources
from walle.cloud.folder.shared_folder import read_cloud_id

_LEAST_CPU = 0.001  # reserves no core: Ray places by turns what needs something, and anywhere what needs nothing
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def beside_driver(resources: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options of actors that keep the cloud's folder: on this process's node, where that is.

    Raises:
        ConfigError: as `parse_resources`.
    """
    node = ray.get_runtime_context().get_node_id()
    return {**taking(resources), "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node, soft=False)}


def taking(resources: Iterable[str], *, least_cpu: float = 0.0) -> dict[str, Any]:
    """Return the options of actors that take these resources of a node each, such as CPU=1; `least_cpu` if no CPU.

    Raises:
        ConfigError: as `parse_resources`.
    """
    amounts = parse_resources(resources)
    options: dict[str, Any] = {"num_cpus": least_cpu}
    options |= {option: amounts.pop(name) for name, option in _OPTIONS.items() if name in amounts}
    return {**options, "resources": amounts} if amounts else options


def of_services(config: CloudConfig, resources: Iterable[str] = (), *, avoid: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options of actors that may run on any node with their labels; on those to `avoid` if no other is left.

    Raises:
        ConfigError: as `parse_labels` and `parse_resources`.
    """
    return {**taking(resources), **_selector(parse_labels(config.service_labels), avoid)}


def of_replicas(config: CloudConfig, scheduler_node: str, *, avoid: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options of replica processes: spread over the nodes that have the resources and labels of each.

    On those to `avoid` if no other is left. Where tasks read features that are in the cloud's folder, on the
    scheduler's node.

    Raises:
        ConfigError: as `parse_resources` and `parse_labels`.
    """
    options = taking(config.inference_resources, least_cpu=_LEAST_CPU)
    options |= {"max_restarts": -1, "scheduling_strategy": "SPREAD"}
    options |= _selector(parse_labels(config.inference_labels), avoid)
    if config.features and not config.uploads:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=scheduler_node, soft=False)
    return options


def _selector(labels: Mapping[str, str], avoid: Iterable[str]) -> dict[str, Any]:
    """Return the options of Ray that say which nodes are suitable.

    Options of an actor are for its life, and a node that it should avoid now may be the only one that is left later.
    """
    if nodes := ",".join(sorted(avoid)):
        suitable = {**labels, "ray.io/node-id": f"!in({nodes})"}
        return {"label_selector": suitable, "fallback_strategy": [{"label_selector": dict(labels)}]}
    return {"label_selector": dict(labels)} if labels else {}


def cloud_name(config: CloudConfig) -> str:
    """Return a name that tells this cloud from others on a node: of its id, or else of its host and folder."""
    if config.shared_folder:
        return read_cloud_id(config.folder)
    return hashlib.sha256(f"{socket.gethostname()}:{config.folder}".encode()).hexdigest()[:16]
