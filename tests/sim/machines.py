"""Machines in namespaces of this one, each with an IP address and a host name of its own, on one bridge.

Run the program that uses them by UNSHARE: there it is root, and ends with all processes that it started. It is at
OUTSIDE on the bridge, and every machine has the same files, PostgreSQL's socket among them.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child"]
UNSHARE += ["--mount-proc"]
OUTSIDE = "10.77.0.1"
_BRIDGE = "walle0"
_FIRST = 10  # last number of the first machine's address


def why_no_machines() -> str:
    """Return why this machine can have no others in it, empty where it can."""
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    command = [*UNSHARE, "ip", "link", "add", _BRIDGE, "type", "bridge"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return "" if tried.returncode == 0 else f"no namespaces: {tried.stderr.strip()}"


# The first process of a machine: it ends what nobody else waits for.
_INIT = """\
import os, socket, sys, time
socket.sethostname(sys.argv[1])
print("ready", flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.05)
"""


class Machine:
    """A machine called `name` at `address`. `folder` is its own folder for temporary files; its path is short."""

    def __init__(self, number: int, folder: Path, env: Mapping[str, str]) -> None:
        self.name = f"m{number}"
        self.address = address_of(number)
        self.folder = folder / self.name
        self.folder.mkdir()
        self._env = {**env, "TMPDIR": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        self._link = f"link{number}"
        apart = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen([*apart, sys.executable, "-c", _INIT, self.name], stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            raise RuntimeError(f"machine {self.name} does not start")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        self._init = int(children)
        self._enter = ["nsenter", f"--target={self._init}", "--net", "--uts", "--mount", "--pid"]

    def make_link(self) -> None:
        """Give the machine its address, and connect it with the bridge."""
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", str(self._init))
        _run("ip", "link", "set", self._link, "up", "master", _BRIDGE)
        _run(*self._enter, "ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            _run(*self._enter, "ip", "link", "set", interface, "up")
        _run(*self._enter, "ip", "route", "add", "default", "via", OUTSIDE)

    def cut(self) -> None:
        """Lose every packet from and to this machine, without a word to either side."""
        _run("ip", "link", "set", self._link, "nomaster")

    def mend(self) -> None:
        """Connect the machine again."""
        _run("ip", "link", "set", self._link, "master", _BRIDGE)

    def start(self, *command: str | Path, log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program on this machine; what it prints is appended to a file."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._enter, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._env, **(env or {})},
                start_new_session=True,
            )

    def run(self, *command: str | Path, limit_s: float = 120.0) -> str:
        """Return what a program on this machine prints. Raises RuntimeError if it fails."""
        return _run(*self._enter, *command, env=self._env, limit_s=limit_s)

    def pids(self) -> list[int]:
        """Return the processes that run here, as they are called outside; without the machine's own."""
        here = Path(f"/proc/{self._init}/ns/net").readlink()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (folder / "ns/net").readlink() == here and int(folder.name) not in (self._holder.pid, self._init):
                    found.append(int(folder.name))
        return found

    def kill(self) -> None:
        """Kill every process at once, as when the machine loses its power."""
        while pids := [pid for pid in self.pids() if not _is_zombie(pid)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill everything, the namespaces too."""
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


def address_of(number: int) -> str:
    """Return the address of the machine with a number, which begin with 0."""
    return f"10.77.0.{_FIRST + number}"


class Machines:
    """`count` machines within `with`, each with the variables of `env`.

    `names` are host names, each with the numbers of the machines whose addresses it stands for.
    """

    def __init__(self, count: int, env: Mapping[str, str], names: Mapping[str, Sequence[int]]) -> None:
        self._count = count
        self._env = env
        self._names = names
        self._undo = contextlib.ExitStack()
        self.folder: Path
        self.all: list[Machine] = []

    def __enter__(self) -> Self:
        with self._undo:
            self.folder = Path(tempfile.mkdtemp(prefix="wm-", dir="/tmp"))  # sockets have short paths
            self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", _BRIDGE, "type", "bridge", "forward_delay", "0")
            self._undo.callback(_run, "ip", "link", "delete", _BRIDGE)
            _run("ip", "address", "add", f"{OUTSIDE}/24", "dev", _BRIDGE)
            _run("ip", "link", "set", _BRIDGE, "up")
            hosts = ["127.0.0.1 localhost"]
            hosts += [f"{address_of(one)} {name}" for name, numbers in self._names.items() for one in numbers]
            (self.folder / "hosts").write_text("\n".join(hosts) + "\n")
            _run("mount", "--bind", self.folder / "hosts", "/etc/hosts")
            for number in range(self._count):
                machine = Machine(number, self.folder, self._env)
                self._undo.callback(machine.end)
                machine.make_link()
                self.all.append(machine)
            self._undo = self._undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()


def _run(*command: str | Path, env: Mapping[str, str] | None = None, limit_s: float = 60.0) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if done.returncode:
        what = " ".join(map(str, command))
        raise RuntimeError(f"{what} failed: {done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
