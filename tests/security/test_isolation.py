"""Attacks by task code in simulation, before anybody has released it, on a real cloud (docs/security.md)."""

import asyncio
import concurrent.futures
import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.security.conftest import CONFIG, EVENT, AttackedCloud
from tests.sim.engineer import Engineer
from tests.sim.git_host import address, git
from tests.sim.shop_cloud import shop_cloud
from walle.cloud import Cloud, CloudConfig
from walle.cloud.simulation.isolation import IsolationError, check_layers, missing_layers
from walle.cloud.simulation.simulation import Simulator
from walle.deploy.releases.release import MAX_REASON_CHARS, GateRejected, Rollback, SimulationFailed
from walle.engine_ext.vm.host import LAYERS, HostReport, VmHost
from walle.task.format.bundle import Bundle, TaskVersion, build_bundle
from walle.task.format.tree import TaskTree
from walle.trust.signing import Signer

# The attack of the issue: the class for files is reached by the graph of objects, and what it reads becomes the reason.
SIX_LINES = """\
def execute(ctx, trigger):
    queue = [object]
    for one in queue:
        queue += type.__subclasses__(one)
    files = next(one for one in queue if one.__name__ == "FileIO")
    raise ValueError(b" ".join(files(path).read() for path in {paths!r}).decode())
"""
# Every way of reading, writing and reaching out that Python code has; the reason lists those that worked.
ATTEMPTS = """\
import json
real = json.dumps.__globals__["__builtins__"]
load = real["__import__"]
queue = [object]
for one in queue:
    queue += type.__subclasses__(one)
files = next(one for one in queue if one.__name__ == "FileIO")
FOLDER = {folder!r}
PARENT = {parent!r}

def read(path):
    return lambda: files(path).read(64)

def module(name):
    def attempt():
        load("sys").modules.pop(name, None)
        return load(name)
    return attempt

def call(name, *arguments):
    return lambda: getattr(load("posix"), name)(*arguments)

PATHS = [
    FOLDER + "/offline-keys/root.pem", FOLDER + "/offline-keys/scenario-shop.pem", FOLDER + "/keys/release.pem",
    FOLDER + "/keys/timestamp.pem", FOLDER + "/identity/devices.pem", FOLDER + "/identities.db",
    FOLDER + "/admin.token",
    FOLDER + "/join.json", FOLDER + "/access.toml", FOLDER + "/releases.db", FOLDER + "/uploads.db",
    FOLDER + "/devices.db", FOLDER + "/repos/bank.git/config", FOLDER + "/authority/ca.pem",
    "/proc/self/root" + FOLDER + "/admin.token", "/proc/thread-self/root" + FOLDER + "/admin.token",
    "/proc/" + PARENT + "/root" + FOLDER + "/admin.token", "/proc/" + PARENT + "/cwd/admin.token",
    "/proc/" + PARENT + "/environ", "/proc/" + PARENT + "/mem", "/proc/" + PARENT + "/maps",
    "/proc/" + PARENT + "/cmdline", "/proc/self/environ", "/proc/self/mem", "/proc/self/maps", "/proc/1/environ",
    "/etc/passwd", "/etc/shadow", "/dev/mem", "/dev/kmsg", "/dev/zero", "/sys/kernel/security/lsm",
]
ATTEMPTS = {{path: read(path) for path in PATHS}}
ATTEMPTS |= {{"descriptor " + str(number): read(number) for number in range(3, 128)}}
ATTEMPTS |= {{"descriptor file " + str(n): read("/proc/self/fd/" + str(n)) for n in range(1, 64)}}
for path in (FOLDER, "/", "/tmp", "/proc", "/home", "/root", "/proc/" + PARENT + "/fd", "/proc/self/fd"):
    ATTEMPTS["list " + path] = call("listdir", path)
    ATTEMPTS["scan " + path] = call("scandir", path)
    ATTEMPTS["write in " + path] = lambda path=path: files(path + "/walle-attack", "w").write(b"x")
for path in (FOLDER + "/access.toml", FOLDER + "/releases.db", "/proc/self/oom_score_adj", "/proc/self/mem"):
    ATTEMPTS["write " + path] = lambda path=path: files(path, "r+").write(b"x")
for name in ("_socket", "socket", "ssl", "_ssl", "ctypes", "_ctypes", "subprocess", "_posixsubprocess", "signal",
             "_signal", "mmap", "resource", "fcntl", "_multiprocessing", "multiprocessing", "select", "asyncio",
             "_interpreters", "faulthandler", "_posixshmem", "sqlite3", "cffi", "walle.cloud", "walle.deploy"):
    ATTEMPTS["import " + name] = module(name)
for name, arguments in (
    ("open", ("/etc/passwd", 0)), ("fork", ()), ("forkpty", ()), ("kill", (int(PARENT), 9)), ("kill", (0, 9)),
    ("execv", ("/bin/sh", ["sh"])), ("posix_spawn", ("/bin/sh", ["sh"], {{}})), ("system", ("id",)), ("pipe", ()),
    ("dup", (3,)), ("pidfd_open", (int(PARENT),)), ("memfd_create", ("x",)), ("unshare", (0x10000000,)),
    ("symlink", (FOLDER + "/admin.token", "/tmp/walle-attack")), ("unlink", (FOLDER + "/admin.token",)),
    ("rename", (FOLDER + "/admin.token", "/tmp/walle-attack")), ("chmod", (FOLDER + "/admin.token", 0o777)),
    ("setuid", (0,)), ("chroot", ("/",)), ("_exit", (0,)), ("abort", ()), ("ptrace", ()), ("sendfile", (3, 4, 0, 9)),
):
    ATTEMPTS["call " + name] = call(name, *arguments)

def execute(ctx, trigger):
    worked = []
    for name, attempt in ATTEMPTS.items():
        try:
            worked.append(name + repr(attempt()))
        except (OSError, AttributeError, ImportError):
            pass
    for name, value in load("os").environ.items():
        if name != "LC_CTYPE":  # which Python sets by itself
            worked.append(name + "=" + value)
    raise ValueError("tried " + str(len(ATTEMPTS)) + ", worked: " + repr(worked))
"""
GREEDY = {
    "loops": "def execute(ctx, trigger):\n    while True: pass\n",
    "loops-in-c": "import itertools\ndef execute(ctx, trigger):\n    return any(itertools.repeat(0))\n",
    "memory": "def execute(ctx, trigger):\n    kept = []\n    while True: kept.append(bytearray(1 << 20))\n",
    "giant-error": 'def execute(ctx, trigger):\n    raise ValueError("\\x1b[2J\\u202e\\r\\n" + "x" * 10_000_000)\n',
}
HONEST = "def execute(ctx, trigger):\n    return 1\n"
POISON = """\
import collections, contextlib, dataclasses, fractions, json, random, statistics, string, textwrap, types

def execute(ctx, trigger):
    for one in (string.Template, string.Formatter, textwrap.TextWrapper, collections.UserDict, collections.ChainMap,
                json.JSONEncoder, json.JSONDecoder, fractions.Fraction, statistics.NormalDist, random.Random):
        one.__new__ = lambda *args, **options: "of the attacker"
        if one is not string.Template:
            del one.__new__
    return 1
"""
USER_OF_LIBRARY = """\
import collections, dataclasses, fractions, json, random, statistics, string, textwrap

@dataclasses.dataclass
class Record:
    name: str

def execute(ctx, trigger):
    assert repr(Record("a")).endswith("Record(name='a')")
    assert string.Template("$a").substitute(a=1) == "1" and textwrap.fill("a b", 2) == "a\\nb"
    assert json.loads(json.dumps({"a": [1.5, "b"]})) == {"a": [1.5, "b"]}
    assert dict(collections.UserDict(a=1)) == dict(collections.ChainMap({"a": 1})) == {"a": 1}
    assert fractions.Fraction(1, 3) * 3 == 1 and statistics.NormalDist(0, 1).mean == 0
    return random.Random(1).random()
"""


def bundle_of(main: str) -> Bundle:
    files = {
        "task.toml": CONFIG.format(task="attack").encode(),
        "main.py": main.encode(),
        "simulation/events.jsonl": EVENT.encode(),
    }
    tree = TaskTree(scenario="shop", task="attack", version="v1", commit="c" * 40, files=files)
    return build_bundle(TaskVersion.parse(tree), Signer.generate())


def hosts_of(pid: int) -> list[int]:
    """Return the VM hosts of a process: its children that run the start program of a host."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            with contextlib.suppress(OSError):
                if b"HostServer" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def test_six_lines_read_the_keys_where_no_host_is_around_them(tmp_path: Path) -> None:
    """The control: without the VM host the attack works, so the tests below can fail."""
    secret = tmp_path / "bundle.pem"
    secret.write_text("the key")

    async def simulate(*, vm_host: bool) -> str:
        simulator = Simulator(1, vm_host=vm_host)
        result = await simulator.run(bundle_of(SIX_LINES.format(paths=[str(secret)])), EVENT.encode())
        assert not result.ok
        return result.first_error

    assert "the key" in asyncio.run(simulate(vm_host=False))
    assert "PermissionError" in asyncio.run(simulate(vm_host=True))


@pytest.mark.system
@pytest.mark.vm_host
def test_six_lines_publish_no_key_and_no_token(attacked_cloud: AttackedCloud) -> None:
    paths = [str(attacked_cloud.folder / name) for name in ("offline-keys/scenario-shop.pem", "admin.token")]
    release = attacked_cloud.release("six", SIX_LINES.format(paths=paths))
    assert release["state"] == "failed"
    assert "PermissionError" in release["reason"]
    assert len(attacked_cloud.secrets) >= 7, attacked_cloud.secrets.keys()
    assert attacked_cloud.secrets_in(attacked_cloud.walle("release", "status", release["id"])) == []


@pytest.mark.night
@pytest.mark.system
@pytest.mark.vm_host
def test_a_version_that_poisons_its_interpreter_fails_and_five_honest_ones_pass(attacked_cloud: AttackedCloud) -> None:
    hostile = attacked_cloud.release("poison", POISON)
    assert hostile["state"] == "failed"
    assert "it changed its interpreter, which had to be discarded" in hostile["reason"]
    honest = [attacked_cloud.release(f"user-{n}", USER_OF_LIBRARY, scenario="bank") for n in range(5)]
    assert {(release["state"], release["reason"]) for release in honest} == {("gray", "")}


@pytest.mark.system
@pytest.mark.vm_host
def test_every_attempt_to_read_write_or_connect_fails(attacked_cloud: AttackedCloud) -> None:
    before = attacked_cloud.secrets
    main = ATTEMPTS.format(folder=str(attacked_cloud.folder), parent=str(attacked_cloud.said["pid"]))
    release = attacked_cloud.release("attempts", main)
    assert release["state"] == "failed"
    tried, _, worked = release["reason"].partition(", worked: ")
    assert worked.startswith("[]"), release["reason"]
    assert int(tried.rpartition("tried ")[2]) > 250
    assert attacked_cloud.secrets == before
    assert not list(attacked_cloud.folder.rglob("walle-attack"))
    assert not Path("/tmp/walle-attack").exists()


@pytest.mark.night
@pytest.mark.system
@pytest.mark.vm_host
def test_each_simulation_and_inference_have_a_process_with_nothing_of_the_cloud(attacked_cloud: AttackedCloud) -> None:
    main = "import time\ndef execute(ctx, trigger):\n    time.sleep(5)\n    return 1\n"
    config = CONFIG + "[limits]\ndeadline_ms = 20000\n"
    with concurrent.futures.ThreadPoolExecutor() as threads:
        releasing = threads.submit(attacked_cloud.release, "slow", main, config=config)
        hosts: list[int] = []
        while not releasing.done() and len(hosts) < 2:
            hosts = hosts_of(attacked_cloud.said["pid"])
            time.sleep(0.02)
        assert len(hosts) == 2, "one for the simulation and one for fallback inference"
        time.sleep(0.5)  # for the new one to enter its layers
        check_processes(attacked_cloud, hosts)
        assert releasing.result()["state"] == "gray"
    assert len(hosts_of(attacked_cloud.said["pid"])) == 1, "a simulation's process ends with it"


def check_processes(attacked_cloud: AttackedCloud, hosts: list[int]) -> None:
    """Fail where a VM host lacks a limit or has something of the cloud."""
    for host in hosts:
        proc = Path(f"/proc/{host}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
        limits = {line[:26].strip(): line[26:].split() for line in (proc / "limits").read_text().splitlines()[1:]}
        assert status["NoNewPrivs"].strip() == "1"
        assert status["Seccomp"].strip() == "2"
        assert int(status["CapEff"], 16) & ~(1 << 2) == 0  # reading of its own libraries, which Landlock bounds
        assert int(status["CapPrm"], 16) & ~(1 << 2) == 0
        assert limits["Max core file size"][:2] == ["0", "0"]
        assert int(limits["Max open files"][1]) <= 4096
        assert int(limits["Max file size"][1]) <= 1 << 30
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert int(limits["Max data size"][1]) <= memory_bytes // 2
        if os.geteuid() == 0:  # nobody else may look: it is not dumpable
            names = {one.partition(b"=")[0] for one in (proc / "environ").read_bytes().split(b"\0")}
            assert names <= {b"", b"TZ"}
            targets = [str(fd.readlink()) for fd in (proc / "fd").iterdir()]
            assert not [target for target in targets if str(attacked_cloud.folder) in target]
    assert attacked_cloud.said["layers"].keys() == set(LAYERS)


@pytest.mark.system
@pytest.mark.vm_host
@pytest.mark.parametrize("task", GREEDY)
def test_a_task_that_exhausts_its_limits_is_stopped_and_the_cloud_continues(
    attacked_cloud: AttackedCloud, task: str
) -> None:
    release = attacked_cloud.release(task, GREEDY[task])
    assert release["state"] == "failed"
    assert len(release["reason"]) <= MAX_REASON_CHARS
    assert release["reason"].isprintable()
    assert isinstance(attacked_cloud.walle("release", "status"), list)


@pytest.mark.system
@pytest.mark.vm_host
def test_an_honest_version_passes_after_the_attacks(attacked_cloud: AttackedCloud) -> None:
    assert attacked_cloud.release("honest", HONEST)["state"] == "gray"


@pytest.mark.system
def test_a_link_in_a_pushed_task_is_refused(attacked_cloud: AttackedCloud, tmp_path: Path) -> None:
    """Else the cloud, which lays a bundle out, would read through it."""
    remote = address(attacked_cloud.url, attacked_cloud.token, "shop")
    git(tmp_path, "init", "-q", "work")
    work = tmp_path / "work"
    (work / "task.toml").write_text(CONFIG.format(task="link"))
    (work / "main.py").write_text(HONEST)
    (work / "simulation").mkdir()
    (work / "simulation/events.jsonl").symlink_to(attacked_cloud.folder / "admin.token")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "v1")
    git(work, "tag", "link/v1")
    pushed = git(work, "push", remote, "link/v1", check=False)
    assert pushed.returncode != 0
    assert "symbolic link" in pushed.stderr


@pytest.mark.night
@pytest.mark.system
def test_a_version_that_takes_much_to_compile_takes_it_from_no_process_of_the_cloud(
    attacked_cloud: AttackedCloud, tmp_path: Path
) -> None:
    """0.8 MB of source, whose tree takes 200 MB: it was compiled in the gateway's process, at the push of anybody."""
    status = Path(f"/proc/{attacked_cloud.said['pid']}/status")

    def highest_kib() -> int:
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1])

    files = {
        "task.toml": CONFIG.format(task="heavy"),
        "main.py": HONEST,
        "heavy.py": "x = [" + "a," * 400_000 + "]\n",
        "bad.py": "import socket\n",
        "simulation/events.jsonl": EVENT,
    }
    work = tmp_path / "work"
    work.mkdir()
    before = highest_kib()
    with pytest.raises(AssertionError, match=r"bad\.py:1: imports socket"):
        Engineer(work, attacked_cloud.url, "shop", attacked_cloud.token).push("heavy", "v1", files)
    assert highest_kib() - before < 60 << 10
    assert isinstance(attacked_cloud.walle("release", "status"), list)


# --- layers -----------------------------------------------------------------------------------------------------------


class _HostWithout(VmHost):
    """A VM host on a kernel that lacks a layer."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self._layer = layer

    def report(self) -> HostReport:
        return HostReport(1, 0, {**super().report().layers, self._layer: 0})


@pytest.mark.asyncio
@pytest.mark.vm_host
@pytest.mark.parametrize("layer", LAYERS)
async def test_untrusted_authors_need_every_layer(tmp_path: Path, layer: str) -> None:
    host = _HostWithout(layer)
    try:
        await check_layers(CloudConfig(folder=tmp_path), host)
        with pytest.raises(IsolationError, match=rf"without {layer}; use a Linux kernel") as caught:
            await check_layers(CloudConfig(folder=tmp_path, untrusted_authors=True), host)
    finally:
        host.close()
    assert caught.value.missing == (layer,)


@pytest.mark.asyncio
async def test_a_cloud_for_untrusted_authors_does_not_start_without_a_vm_host(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match="landlock"):
        async with Cloud(CloudConfig(folder=tmp_path, vm_host=False, untrusted_authors=True)):
            pass


def test_missing_layers_are_named_in_order() -> None:
    assert missing_layers({"landlock": 7, "not_dumpable": True}) == ("seccomp", "no_new_privileges")


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_simulation_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """Each run is within its own deadline, and there are many."""
    slow = "import time\ndef execute(ctx, trigger):\n    time.sleep(0.2)\n"
    events = "".join(EVENT.replace("1000", str(1000 + number)) for number in range(1000))
    files = {"config": CONFIG.format(task="count"), "simulation/events.jsonl": events}
    async with shop_cloud(tmp_path, simulation_s=0.5) as shop:
        await shop.push("v1", main=slow, **files)
        release = await shop.until(await shop.release("v1", beta=0), "failed")
    assert "the simulation took more than 0.5 s; push fewer simulation events" in release["reason"]


def test_reasons_of_tasks_devices_and_people_are_bounded_and_printable() -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\u202egnp.exe\r\n\ud800" + "x" * 100_000
    for event in (SimulationFailed(1.0, hostile), GateRejected(1.0, hostile), Rollback(1.0, "anna", hostile)):
        assert len(event.reason) <= MAX_REASON_CHARS
        assert event.reason.isprintable()
        assert event.reason.startswith("\\x1b]0;title\\x07")
