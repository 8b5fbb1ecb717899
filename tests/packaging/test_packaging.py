"""Files of packaging/: checked against schemas, and their commands against our own; nothing is deployed."""

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.sim.head_walk import RAY_SETTINGS
from walle.cli import app
from walle.cloud.api.routes import Caller, RouteTable
from walle.cloud.dashboard import Pages

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
KUBERNETES = PACKAGING / "kubernetes"
NODES = KUBERNETES / "nodes"
FOLDERS = pytest.mark.parametrize("folder", [KUBERNETES, NODES], ids=["kubernetes", "nodes"])
CONTAINERFILES = sorted((PACKAGING / "container").iterdir())
KUBERNETES_VERSION = "1.33"
INSTRUCTIONS = {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}

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


def ray_cluster(folder: Path = KUBERNETES) -> Any:
    return load(folder / "raycluster.yaml")


def groups(cluster: Any) -> list[Any]:
    spec = cluster["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def templates(cluster: Any) -> list[Any]:
    return [group["template"] for group in groups(cluster)]


def objects(folder: Path) -> list[Any]:
    """Return the objects of the files that a kustomization lists; it lists all."""
    kustomization = load(folder / "kustomization.yaml")
    assert set(kustomization) == {"apiVersion", "kind", "namespace", "resources"}
    assert (kustomization["apiVersion"], kustomization["kind"]) == (
        "kustomize.config.k8s.io/v1beta1",
        "Kustomization",
    )
    listed = [folder / name for name in kustomization["resources"]]
    assert {*listed, folder / "kustomization.yaml"} == set(folder.glob("*.yaml"))
    found = [one for path in listed for one in yaml.safe_load_all(path.read_text())]
    for one in found:
        if one["kind"] == "Namespace":
            assert one["metadata"]["name"] == kustomization["namespace"]
        else:
            assert one["metadata"]["namespace"] == kustomization["namespace"]
    return found


def of_kind(folder: Path, kind: str) -> list[Any]:
    return [one for one in objects(folder) if one["kind"] == kind]


def labels_of(cluster: Any, group: Any) -> dict[str, str]:
    """Return the labels of a group's pods: the operator's and the template's."""
    name = group.get("groupName", "headgroup")
    own = group["template"].get("metadata", {}).get("labels", {})
    node_type = "head" if "groupName" not in group else "worker"
    return {"ray.io/cluster": cluster["metadata"]["name"], "ray.io/group": name, "ray.io/node-type": node_type, **own}


def selected(cluster: Any, selector: dict[str, str]) -> list[Any]:
    return [group for group in groups(cluster) if selector.items() <= labels_of(cluster, group).items()]


def check_ray_cluster(cluster: Any) -> None:
    """Check a RayCluster by our schema, its pods by Kubernetes' own, and the whole by what Ray's autoscaler reads."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    jsonschema.validate(cluster, json.loads((KUBERNETES / "raycluster.schema.json").read_text()))
    for template in templates(cluster):
        metadata = {"name": "pod", **template.get("metadata", {})}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert _derive_autoscaling_config_from_ray_cr(cluster)["cluster_name"] == cluster["metadata"]["name"]


@FOLDERS
def test_the_ray_cluster_is_one(folder: Path) -> None:
    import ray

    cluster = ray_cluster(folder)
    check_ray_cluster(cluster)
    images = {one["image"] for template in templates(cluster) for one in template["spec"]["containers"]}
    assert len(images) == 1
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert head["containers"][0]["name"] == "ray-head"  # KubeRay takes the first for Ray's
    assert cluster["spec"]["rayVersion"].split(".")[0] == ray.__version__.split(".")[0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "name"), "1walle"),
        (("metadata", "name"), "w" * 54),
        (("spec", "headGroupSpecs"), {}),
        (("spec", "rayVersion"), 2.6),
        (("spec", "upgradeStrategy"), {"type": "Rolling"}),
        (("spec", "autoscalerOptions"), {"upscalingMode": "Fast"}),
        (("spec", "gcsFaultToleranceOptions"), {"redisPassword": {"value": "secret"}}),
        (("spec", "workerGroupSpecs", 0, "replicas"), "2"),
        (("spec", "workerGroupSpecs", 0, "maxReplicas"), 1 << 31),
        (("spec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "headGroupSpec", "rayStartParams", "labels"), "role=services"),
        (("spec", "headGroupSpec", "labels"), {"role": "for services"}),
        (("spec", "headGroupSpec", "template", "spec", "containers", 0, "imagePullPolice"), "Always"),
        (("spec", "headGroupSpec", "template", "spec", "containers", 1, "readinessProbe", "httpGet"), 8470),
        (("spec", "headGroupSpec", "template", "spec", "containers", 0, "readinessProbe", "grpc"), {"port": "gcs"}),
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


def test_resources_of_ray_are_stated_once() -> None:
    cluster = copy.deepcopy(ray_cluster())
    group = cluster["spec"]["workerGroupSpecs"][0]
    group["resources"] = {"CPU": "2"}
    check_ray_cluster(cluster)
    group["rayStartParams"]["num-cpus"] = "2"
    with pytest.raises(jsonschema.ValidationError):
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


def test_the_cloud_of_several_nodes_has_settings_that_fit_its_pods(tmp_path: Path) -> None:
    cluster = ray_cluster(NODES)
    (settings,) = of_kind(NODES, "ConfigMap")
    (tmp_path / "walle.toml").write_text(settings["data"]["walle.toml"])
    said = subprocess.run(
        [Path(sys.executable).parent / "walle", "cloud", "config", tmp_path / "walle.toml", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    config = tomllib.loads(settings["data"]["walle.toml"])
    gateways, tunnel, placement = config["gateways"], config["tunnel"], config["placement"]
    assert gateways["labels"] == tunnel["server_labels"] == config["cluster"]["service_labels"] == ["role=services"]
    services = [one for one in groups(cluster) if one.get("labels", {}).get("role") == "services"]
    inference = [one for one in groups(cluster) if f"role={one.get('labels', {}).get('role')}" in placement["labels"]]
    assert (len(services), len(inference)) == (2, 1)
    public = {one["metadata"]["name"]: one["spec"] for one in of_kind(NODES, "Service")}
    assert {one["groupName"] for one in selected(cluster, public["walle"]["selector"])} == {
        one["groupName"] for one in services
    }
    assert {port["name"]: port["port"] for port in public["walle"]["ports"]} == {
        "https": gateways["port"],
        "tunnel": tunnel["port"],  # port in join.json
    }
    for group in services:
        ports = {port["name"]: port["containerPort"] for port in group["template"]["spec"]["containers"][0]["ports"]}
        assert (ports["https"], ports["tunnel"]) == (gateways["port"], tunnel["server_port"])
        letter = group["groupName"].rpartition("-")[2]
        assert selected(cluster, public[f"walle-{letter}"]["selector"]) == [group]
        (port,) = public[f"walle-{letter}"]["ports"]
        assert group["labels"]["walle-tunnel-host"].split(".")[0] == letter
        assert group["labels"]["walle-tunnel-port"] == str(port["port"])
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][1]
    assert head["command"] == ["sh", "-c"]
    words = shlex.split(head["args"][0])
    assert words[0] == "walle"
    assert words[words.index("&&") :] == ["&&", "exec", "sleep", "infinity"]
    options = check_command(words[1 : words.index("&&")])
    (mounted,) = (one["mountPath"] for one in head["volumeMounts"] if one["name"] == "settings")
    assert options["config"] == f"{mounted}/walle.toml"
    # In the cluster, the address that a drained pod calls is a name of the cloud's certificate.
    command = services[0]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][2]
    host = re.findall(r"--url https://([^:]*):(\d+)", command)
    assert host == [("walle.walle.svc", str(gateways["port"]))]
    assert host[0][0] in gateways["names"]


@FOLDERS
def test_pods_are_probed_end_in_time_and_have_no_privileges(folder: Path) -> None:
    cluster = ray_cluster(folder)
    for group in groups(cluster):
        pod = group["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for number, container in enumerate(pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
            if number == 0:
                # Without them KubeRay's own are used, which ask a server that plain Ray does not have.
                ports = {"6379", group["rayStartParams"]["node-manager-port"]}
                assert str(container["livenessProbe"]["grpc"]["port"]) in ports
                assert {"startupProbe", "readinessProbe"} <= set(container)
        for hook in [one["lifecycle"]["preStop"]["exec"]["command"] for one in pod["containers"] if "lifecycle" in one]:
            limit_s = int(hook[1]) if hook[0] == "timeout" else None
            script = hook[-1]
            assert subprocess.run(["sh", "-n", "-c", script], check=False).returncode == 0
            if limit_s is None:
                (words,) = re.findall(r"walle (cloud drain .*)", script)
                limit_s = int(check_command(shlex.split(words))["wait_s"])
            assert pod["terminationGracePeriodSeconds"] >= limit_s + 15


def test_the_paths_of_probes_need_no_token() -> None:
    asked = set()
    for folder in (KUBERNETES, NODES):
        for template in templates(ray_cluster(folder)):
            for container in template["spec"]["containers"]:
                asked |= {
                    (container[probe]["httpGet"]["scheme"], container[probe]["httpGet"]["path"])
                    for probe in ("startupProbe", "readinessProbe", "livenessProbe")
                    if "httpGet" in container.get(probe, {})
                }
    assert asked == {("HTTPS", "/healthz"), ("HTTPS", "/dashboard/static/icon.svg")}
    table = RouteTable()
    for _, path in asked:
        rule = table.find("GET", path)
        assert rule is not None
        assert rule.caller is Caller.ANYONE
    assert "icon.svg" in Pages().static


@FOLDERS
def test_all_objects_are_those_of_the_kustomization(folder: Path) -> None:
    found = objects(folder)
    for one in found:
        if one["kind"] != "RayCluster":
            kubernetes_validate.validate(one, KUBERNETES_VERSION, strict=True)
    kinds = {one["kind"] for one in found}
    assert {"Namespace", "PersistentVolumeClaim", "RayCluster", "Service", "NetworkPolicy"} <= kinds
    cluster = ray_cluster(folder)
    claims = {one["metadata"]["name"] for one in found if one["kind"] == "PersistentVolumeClaim"}
    for template in templates(cluster):
        volumes = template["spec"]["volumes"]
        assert {
            one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one
        } <= claims
    # Each object that selects pods selects some, by ports that they have.
    for one in found:
        if one["kind"] == "PodDisruptionBudget":
            chosen = selected(cluster, one["spec"]["selector"]["matchLabels"])
            assert sum(group["replicas"] for group in chosen) > one["spec"]["minAvailable"] > 0
        if one["kind"] == "Service":
            chosen = selected(cluster, one["spec"]["selector"])
            assert chosen
            for group in chosen:
                ports = {
                    port["name"] for pod in group["template"]["spec"]["containers"] for port in pod.get("ports", [])
                }
                assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
        if one["kind"] == "NetworkPolicy":
            assert selected(cluster, one["spec"]["podSelector"]["matchLabels"]) == groups(cluster)
            inside, outside = one["spec"]["ingress"]
            assert inside == {"from": [{"podSelector": one["spec"]["podSelector"]}]}
            assert {port["port"] for port in outside["ports"]} == {"https", "tunnel"}


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
    assert kustomization["resources"] == ["../nodes", "redis.yaml"]
    (patch,) = kustomization["patches"]
    target = patch["target"]
    cluster = ray_cluster(NODES)
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
    for template in (*templates(ray_cluster()), *templates(ray_cluster(NODES))):
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
    assert len(commands) == 2  # one for the head, in a comment, and one for the others
    known = {option for one in start.params for option in one.opts}
    for command in commands:
        assert {word.partition("=")[0] for word in shlex.split(command)} <= known
        assert "--block" in command
    assert re.findall(r"^Restart=(.*)$", text, re.MULTILINE) == ["always"]


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
def test_container_files_have_known_instructions_and_defined_arguments(path: Path) -> None:
    found = instructions(path)
    assert {name for name, _ in found} <= INSTRUCTIONS
    stages: set[str] = set()
    arguments: dict[str, str] = {}
    for name, rest in found:
        if name == "ARG":
            argument, _, value = rest.partition("=")
            arguments[f"${{{argument}}}"] = value
        if name == "FROM":
            image, _, stage = rest.partition(" AS ")
            image = arguments.get(image, image)
            assert re.fullmatch(r"[a-z0-9./-]+:[a-z0-9.-]+", image), image
            assert not image.endswith(":latest")
            stages.add(stage)
        if name == "RUN":
            assert subprocess.run(["sh", "-n", "-c", rest], check=False).returncode == 0
            assert "pip install" not in rest or "--no-cache-dir" in rest
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
    check_units(tmp_path, "walle-device.service", wrong=("ProtectSystem=strict", "ProtectSystm=strict"))


def check_units(folder: Path, *names: str, wrong: tuple[str, str]) -> None:
    """Check units by systemd's own program, which finds the wrong text of the last one too."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here: the directives are not checked")
    for name in names:
        text = (PACKAGING / "systemd" / name).read_text()
        (folder / name).write_text(text.replace("/opt/walle/bin/walle", f"{Path(sys.executable).parent}/walle"))

    def verify() -> str:
        paths = [str(folder / name) for name in names]
        said = subprocess.run([analyze, "verify", "--man=no", *paths], capture_output=True, text=True, check=False)
        return said.stdout + said.stderr

    ours = [line for line in verify().splitlines() if any(name.partition(".")[0] in line for name in names)]
    assert ours == []
    last = folder / names[-1]
    assert wrong[0] in last.read_text()
    last.write_text(last.read_text().replace(*wrong))
    assert wrong[1].partition("=")[0] in verify()


def test_the_units_of_a_cloud(tmp_path: Path) -> None:
    service = (PACKAGING / "systemd" / "walle-cloud.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)
    program, *arguments = shlex.split(command)
    assert program == "/opt/walle/bin/walle"
    options = check_command(arguments)
    listening = re.findall(
        r"^ListenStream=(.*)$", (PACKAGING / "systemd" / "walle-cloud.socket").read_text(), re.MULTILINE
    )
    # `walle cloud up` takes a socket whose address and port are its options'.
    assert listening == [f"{options['host']}:{options[port]}" for port in ("http_port", "tunnel_port")]
    assert f"/var/lib/{re.findall(r'^StateDirectory=(.*)$', service, re.MULTILINE)[0]}/" in str(options["folder"])
    for line in ("Requires=walle-cloud.socket", "Also=walle-cloud.socket"):
        assert line in service.splitlines()
    check_units(
        tmp_path, "walle-cloud.service", "walle-cloud.socket", wrong=("ListenStream=0.0.0.0:8470", "ListenStrem=8470")
    )
