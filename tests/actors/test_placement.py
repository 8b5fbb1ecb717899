"""Placement of actors: the options that Ray gets."""

from pathlib import Path

import pytest
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from walle.actors.layout import SERVICES, service_options
from walle.actors.members import member_kinds
from walle.actors.placement import cloud_name, of_replicas, of_services
from walle.actors.process import KEEPER
from walle.actors.service import Place
from walle.cloud import CloudConfig
from walle.errors import ConfigError

HERE = "a" * 56
VIEW = ("shop/last=shop/count/visit:user",)


def test_replicas_are_spread_and_take_what_is_asked_for() -> None:
    options = of_replicas(CloudConfig(folder=Path("cloud")), HERE)
    assert options["scheduling_strategy"] == "SPREAD"
    assert options["max_restarts"] == -1
    assert 0 < options["num_cpus"] < 0.01
    config = CloudConfig(folder=Path("cloud"), inference_resources=("CPU=2", "GPU=0.5", "fast=1"))
    options = of_replicas(config, HERE)
    assert (options["num_cpus"], options["num_gpus"], options["resources"]) == (2, 0.5, {"fast": 1})
    with pytest.raises(ConfigError, match="NAME=AMOUNT"):
        of_replicas(CloudConfig(folder=Path("cloud"), inference_resources=("fast",)), HERE)


def test_replicas_whose_tasks_read_features_stay_where_the_file_is() -> None:
    place = of_replicas(CloudConfig(folder=Path("cloud"), features=VIEW), HERE)["scheduling_strategy"]
    assert isinstance(place, NodeAffinitySchedulingStrategy)
    assert (place.node_id, place.soft) == (HERE, False)
    elsewhere = CloudConfig(folder=Path("cloud"), features=VIEW, uploads="postgresql://u@h/d")
    assert of_replicas(elsewhere, HERE)["scheduling_strategy"] == "SPREAD"


def test_clouds_on_a_node_have_different_names() -> None:
    names = {cloud_name(CloudConfig(folder=Path(folder))) for folder in ("/a", "/b")}
    assert len(names) == 2
    assert all(name.isalnum() for name in names)


def test_services_take_what_is_asked_for_and_the_keeper_nothing() -> None:
    config = CloudConfig(folder=Path("cloud"), service_resources=("CPU=1", "memory=1000000000", "walle=0.5"))
    place = Place("ns", "/nowhere", cloud_id="c1")
    for name in SERVICES:
        options = service_options(config, place, name)
        assert (options["num_cpus"], options["memory"], options["resources"]) == (1, 1_000_000_000, {"walle": 0.5})
    assert service_options(config, place, KEEPER)["num_cpus"] == 0
    assert "resources" not in service_options(config, place, KEEPER)
    with pytest.raises(ConfigError, match="NAME=AMOUNT"):
        of_services(CloudConfig(folder=Path("cloud")), ("walle",))


def test_edges_and_tunnel_servers_take_what_is_asked_for() -> None:
    config = CloudConfig(
        folder=Path("cloud"), gateways=1, gateway_resources=("CPU=1",), tunnel_servers=2, tunnel_server_resources=()
    )
    assert {kind.name: kind.options["num_cpus"] for kind in member_kinds(config)} == {"edge": 1, "tunnel": 0}
