"""Files of packaging/: checked against schemas, and their commands against our own; nothing is deployed."""

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.sim.head_walk import RAY_SETTINGS
from walle.cli import app

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
KUBERNETES = PACKAGING / "kubernetes"
CONTAINERFILES = sorted((PACKAGING / "container").iterdir())
KUBERNETES_VERSION = "1.33"
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}

yaml = pytest.importorskip("yaml")
jsonschema = pytest.importorskip("jsonschema")
kubernetes_validate = pytest.importorskip("kubernetes_validate")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def check_command(arguments: list[str]) -> dict[str, Any]:
    """Return the options of a command of ours; fails on an option or command that does not exist."""
    command: Any = typer.main.get_command(app)
    left = list(arguments)
    while hasattr(command, "commands"):
        assert left[0] in command.commands, left[0]
        command = command.commands[left.pop(0)]
    context = typer.Context(command)
    options, rest, _ = command.make_parser(context).parse_args(left)
    assert not rest
    return dict(options)


def ray_cluster() -> Any:
    return load(KUBERNETES / "raycluster.yaml")


def templates(cluster: Any) -> list[Any]:
    spec = cluster["spec"]
    return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def check_ray_cluster(cluster: Any) -> None:
    """Check a RayCluster by our schema, its pods by Kubernetes' own, and the whole by what Ray's autoscaler reads."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    jsonschema.validate(cluster, json.loads((KUBERNETES / "raycluster.schema.json").read_text()))
    for template in templates(cluster):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **template}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert _derive_autoscaling_config_from_ray_cr(cluster)["cluster_name"] == cluster["metadata"]["name"]


def test_the_ray_cluster_is_one() -> None:
    import ray

    cluster = ray_cluster()
    check_ray_cluster(cluster)
    images = {one["image"] for template in templates(cluster) for one in template["spec"]["containers"]}
    assert len(images) == 1
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert head["containers"][0]["name"] == "ray-head"  # KubeRay takes the first for Ray's
    assert cluster["spec"]["rayVersion"].split(".")[0] == ray.__version__.split(".")[0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "headGroupSpecs"), {}),
        (("spec", "rayVersion"), 2.6),
        (("spec", "workerGroupSpecs", 0, "replicas"), "2"),
        (("spec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "headGroupSpec", "template", "spec", "containers", 0, "imagePullPolice"), "Always"),
        (("spec", "headGroupSpec", "template", "spec", "containers", 1, "readinessProbe", "tcpSocket"), 8470),
        (("spec", "headGroupSpec", "template", "spec", "containers", 0, "volumeMounts", 0, "name"), "absent"),
    ],
)
def test_a_wrong_field_of_a_ray_cluster_is_found(path: tuple[str | int, ...], value: object) -> None:
    cluster = copy.deepcopy(ray_cluster())
    place = cluster
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError, AssertionError)):
        check_ray_cluster(cluster)


def test_the_cloud_of_the_cluster_has_options_that_exist() -> None:
    head = ray_cluster()["spec"]["headGroupSpec"]["template"]["spec"]
    _, cloud = head["containers"]
    assert cloud["command"] == ["walle"]
    options = check_command(cloud["args"])
    assert (options["ray"], options["address"]) == (True, "auto")
    (claim,) = [volume for volume in head["volumes"] if "persistentVolumeClaim" in volume]
    mounts = {mount["mountPath"]: mount["name"] for mount in cloud["volumeMounts"]}
    assert mounts["/data"] == claim["name"]
    assert claim["persistentVolumeClaim"]["claimName"] == load(KUBERNETES / "storage.yaml")["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in head["containers"][0]["ports"]}
    assert (str(ports["https"]), str(ports["tunnel"])) == (str(options["http_port"]), str(options["tunnel_port"]))
    service = load(KUBERNETES / "service.yaml")["spec"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == {
        name: ports[name] for name in ("https", "tunnel")
    }
    assert service["selector"] == {"ray.io/cluster": "walle", "ray.io/node-type": "head"}


def patched(thing: Any, patch: list[Any]) -> Any:
    """Return a copy with a JSON Patch of additions (RFC 6902) applied."""
    found = copy.deepcopy(thing)
    for one in patch:
        assert set(one) == {"op", "path", "value"}
        assert one["op"] == "add"
        *parents, name = one["path"].removeprefix("/").split("/")
        place = found
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        assert name not in place
        place[name] = one["value"]
    return found


def test_the_kustomization_with_a_redis_gives_the_ray_cluster_its_address_and_password() -> None:
    folder = KUBERNETES / "redis"
    kustomization = load(folder / "kustomization.yaml")
    assert kustomization["resources"] == ["..", "redis.yaml"]
    (patch,) = kustomization["patches"]
    target = patch["target"]
    cluster = ray_cluster()
    assert cluster["apiVersion"] == f"{target['group']}/{target['version']}"
    assert (cluster["kind"], cluster["metadata"]["name"]) == (target["kind"], target["name"])
    with_redis = patched(cluster, load(folder / patch["path"]))
    check_ray_cluster(with_redis)
    service, server = yaml.safe_load_all((folder / "redis.yaml").read_text())
    for thing in (service, server):
        kubernetes_validate.validate(thing, KUBERNETES_VERSION, strict=True)
        assert thing["metadata"]["namespace"] == kustomization["namespace"]
    options = with_redis["spec"]["gcsFaultToleranceOptions"]
    assert options["redisAddress"] == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert container["env"][0]["valueFrom"] == options["redisPassword"]["valueFrom"]
    wrong = copy.deepcopy(with_redis)
    wrong["spec"]["gcsFaultToleranceOptions"]["redisAdress"] = "redis:6379"
    with pytest.raises(jsonschema.ValidationError):
        check_ray_cluster(wrong)


def test_every_machine_of_a_cluster_has_the_settings_of_ray_that_are_tried() -> None:
    for template in templates(ray_cluster()):
        ray_container = template["spec"]["containers"][0]
        found = {one["name"]: one["value"] for one in ray_container["env"] if one["name"].startswith("RAY_")}
        assert found == RAY_SETTINGS
    config = load(PACKAGING / "ray" / "cluster.yaml")
    for name in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert dict(re.findall(r"(RAY_[a-z_]+)=(\d+)", config[name][-1])) == RAY_SETTINGS
    unit = (PACKAGING / "systemd" / "ray-node.service").read_text()
    assert dict(re.findall(r"^Environment=(RAY_[a-z_]+)=(\d+)$", unit, re.MULTILINE)) == RAY_SETTINGS


def test_the_unit_of_ray_starts_it_with_options_that_exist() -> None:
    from ray.scripts.scripts import start

    text = (PACKAGING / "systemd" / "ray-node.service").read_text()
    commands = re.findall(r"/opt/walle/bin/ray start (.*)$", text, re.MULTILINE)
    assert len(commands) == 2  # of the head, in a comment, and of the others
    known = {option for one in start.params for option in one.opts}
    for command in commands:
        assert {word.partition("=")[0] for word in shlex.split(command)} <= known
        assert "--block" in command
    assert re.findall(r"^Restart=(.*)$", text, re.MULTILINE) == ["always"]


def test_all_objects_are_those_of_the_kustomization() -> None:
    kustomization = load(KUBERNETES / "kustomization.yaml")
    assert set(kustomization) == {"apiVersion", "kind", "namespace", "resources"}
    assert (kustomization["apiVersion"], kustomization["kind"]) == (
        "kustomize.config.k8s.io/v1beta1",
        "Kustomization",
    )
    listed = [KUBERNETES / name for name in kustomization["resources"]]
    assert {*listed, KUBERNETES / "kustomization.yaml"} == set(KUBERNETES.glob("*.yaml"))
    for path in listed:
        thing = load(path)
        if thing["kind"] != "RayCluster":
            kubernetes_validate.validate(thing, KUBERNETES_VERSION, strict=True)
        if thing["kind"] == "Namespace":
            assert thing["metadata"]["name"] == kustomization["namespace"]
        else:
            assert thing["metadata"]["namespace"] == kustomization["namespace"]


def test_ray_up_takes_the_cluster_of_machines() -> None:
    import ray
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = load(PACKAGING / "ray" / "cluster.yaml")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    # Ray's own preparation turns the short form of machines of one's own into node types; then its check has no error.
    prepared = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    known = set(schema["properties"]) | {"min_workers"}
    assert set(config) <= known
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**prepared, "head_start": []}, schema)
    for line in (*config["head_start_ray_commands"], *config["worker_start_ray_commands"]):
        assert subprocess.run(["sh", "-n", "-c", line], check=False).returncode == 0


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a container file, with continued lines joined and comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    found = [line.strip().partition(" ") for line in text.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in found]


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_container_files(path: Path) -> None:
    found = instructions(path)
    assert {name for name, _ in found} <= INSTRUCTIONS
    stages: set[str] = set()
    for name, rest in found:
        if name == "FROM":
            image, _, stage = rest.partition(" AS ")
            assert re.fullmatch(r"[a-z0-9./-]+:[a-z0-9.-]+", image), image
            assert not image.endswith(":latest")
            stages.add(stage)
        if name == "RUN":
            assert subprocess.run(["sh", "-n", "-c", rest], check=False).returncode == 0
            if "apt-get install" in rest:
                assert "--no-install-recommends" in rest
                assert "rm -rf /var/lib/apt/lists/*" in rest
        if name == "COPY" and rest.startswith("--from="):
            assert rest.removeprefix("--from=").split()[0] in stages
    last = found[max(at for at, (name, _) in enumerate(found) if name == "FROM") :]
    final = dict(last)
    assert final["USER"] != "0"
    assert not any("pip install" in rest or "g++" in rest for _, rest in last)
    check_command(json.loads(final["CMD"]))
    assert json.loads(final["ENTRYPOINT"]) == ["walle"]


def test_the_unit_of_a_device(tmp_path: Path) -> None:
    text = (PACKAGING / "systemd" / "walle-device.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *arguments = shlex.split(command)
    assert program == "/opt/walle/bin/walle"
    options = check_command(arguments)
    assert "walle" in re.findall(r"^StateDirectory=(.*)$", text, re.MULTILINE)
    assert str(options["folder"]).startswith("/var/lib/walle/")
    names = re.findall(r"^LoadCredential=([^:]*):", text, re.MULTILINE)
    assert options["join"] == f"%d/{names[0]}"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here: the directives are not checked")
    unit = tmp_path / "walle-device.service"
    unit.write_text(text.replace(program, f"{Path(sys.executable).parent}/walle"))
    said = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    ours = [line for line in (said.stdout + said.stderr).splitlines() if "walle-device" in line]
    assert ours == []
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystm=strict"))
    said = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert "ProtectSystm" in said.stdout + said.stderr
