"""Hostile tasks in a device's VMs: `python -m tests.sim.hostile --seconds 600`.

Each hostile task runs again and again in random order in one pool, beside an honest task whose calls must come back in
time and right throughout.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tests.sim.vm_task import write_task
from walle.engine_ext import _core
from walle.errors import VMError
from walle.vm import HostLost, VmHost, VMPool

LIMITS = {"memory_mb": 16, "output_kb": 64, "log_kb": 16, "recursion": 300}
DEADLINE_S = 0.25

ACCESS = """
import json
real = json.dumps.__globals__["__builtins__"]
load = real["__import__"]
sys = load("sys")

def run():
    return attack()
"""

ATTACKS = {
    "raises in a finalizer": """
class Bad:
    def __del__(self):
        raise ValueError("no")
def attack():
    for _ in range(100):
        Bad()
    cycle = Bad(); cycle.me = cycle
    return 1
""",
    "never ends a finalizer": """
class Bad:
    def __del__(self):
        while True: pass
def attack():
    bad = Bad(); bad.me = bad
    load("json").kept = bad
    return 1
""",
    "creates itself again": """
class Bad:
    def __del__(self):
        bad = type(self)(); bad.me = bad
        while True: pass
def attack():
    bad = Bad(); bad.me = bad
    return 1
""",
    "hooks audits indefinitely": """
def hook(*event):
    while True: pass
def attack():
    sys.addaudithook(hook)
    return 1
""",
    "leaves by SystemExit": "def attack(): raise SystemExit(1)\n",
    "leaves by sys.exit": "def attack(): sys.exit(3)\n",
    "interrupts": "def attack(): raise KeyboardInterrupt\n",
    "searches for os._exit": """
def attack():
    os = load("os")
    found = [name for name in ("_exit", "abort", "kill", "fork", "execv", "system", "close") if hasattr(os, name)]
    for name in ("posix", "faulthandler", "_signal", "signal", "ctypes", "_ctypes", "subprocess", "socket", "mmap"):
        sys.modules.pop(name, None)
        try:
            load(name)
            found.append(name)
        except (ImportError, AttributeError):
            pass
    if found: load("os")._exit(77) if "_exit" in found else load("json").loads(str(found))
    return 1
""",
    "allocates a giant": "def attack(): return len(bytearray(10**13))\n",
    "allocates giants": "def attack():\n    kept = []\n    while True: kept.append(bytearray(10**6))\n",
    "allocates despite errors": """
def attack():
    kept = []
    while True:
        try: kept.append("x" * 10**6 + str(len(kept)))
        except BaseException: pass
""",
    "counts indefinitely": "import itertools\ndef attack(): return list(itertools.count())\n",
    "generates indefinitely": "def numbers():\n    while True: yield 1\ndef attack(): return sum(numbers())\n",
    "catches all": """
def attack():
    while True:
        try:
            while True: pass
        except BaseException: pass
""",
    "recurses in repr": "class R:\n    def __repr__(self): return repr([self])\ndef attack(): return repr(R())\n",
    "recurses in getattr": """
class R:
    def __getattr__(self, name): return getattr(self, name)
def attack(): return R().x
""",
    "nests deeply": "def attack():\n    value = []\n    for _ in range(10**6): value = [value]\n    return value\n",
    "changes builtins": "def attack(): real['len'] = real['isinstance'] = real['__import__'] = None\n",
    "changes classes": """
def attack():
    import collections, enum
    enum.Enum.__new__ = None
    collections.UserDict.__init__ = None
    load("abc").ABCMeta.__instancecheck__ = None
    return 1
""",
    "empties sys.modules": "def attack(): sys.modules.clear(); sys.path.clear(); sys.meta_path.clear(); return 1\n",
    "hijacks the collector": """
def attack():
    gc = load("gc")
    gc.disable(); gc.callbacks.clear(); gc.set_threshold(0)
    gc.callbacks.append(lambda *args: 1 / 0)
    for found in gc.get_objects():
        if type(found) is dict and "dispatch" in found: found.clear()
    return 1
""",
    "walks frames": """
def attack():
    frame = sys._getframe()
    while frame.f_back is not None: frame = frame.f_back
    frame.f_globals.clear()
    return 1
""",
    "traces": """
def attack():
    sys.settrace(lambda *a: 1 / 0)
    sys.setprofile(lambda *a: 1 / 0)
    return attack.__name__
""",
    "starts threads": "def attack(): load('_thread').start_new_thread(print, (1,))\n",
    "prints indefinitely": "def attack():\n    while True: print('x' * 200)\n",
    "sleeps": "import time\ndef attack(): time.sleep(100)\n",
    "returns nonsense": "def attack(): return {1: object()}\n",
    "has no text": "class E(Exception):\n    def __str__(self): raise self\ndef attack(): raise E\n",
    "chains errors": """
def attack():
    error = None
    for number in range(10_000):
        try:
            raise ValueError("x" * 100) from error
        except ValueError as caught: error = caught
    raise error
""",
    "backtracks": "import re\ndef attack(): return re.match(r'(a+)+$', 'a' * 60 + 'b')\n",
    "leaves objects that survive": """
import weakref, abc
def attack():
    import collections
    class Key(collections.UserDict): pass
    collections.abc.Sequence.register(Key)
    load("weakref").finalize(Key, print, 1)
    load("atexit").register(print, 1)
    load("codecs").register(lambda name: None)
    return 1
""".replace("import weakref, abc\n", ""),
    "makes empty objects": """
def attack():
    import walle.np
    core = sys.modules["walle.engine_ext._core"]
    kinds = [core.ndarray, core.Session, core.Module, core.ndarray.__base__, type(core.unary.__self__)]
    for kind in kinds:
        for new in (kind.__new__, kind.__base__.__new__, object.__new__, type.__call__):
            try: core.Session.inputs(new(kind))
            except TypeError: pass
        try: type("T", (kind,), {"__init__": lambda self: None})()
        except TypeError: pass
    class Fake:
        __class__ = core.ndarray
        def _pybind11_conduit_v1_(self, *given): return given[1]
    try: core.ndarray.reshape(Fake(), 2)
    except TypeError: pass
    return Fake()
""",
    "calls the core": """
def attack():
    core = sys.modules["walle.engine_ext._core"]
    for name, value in list(vars(core).items()):
        for given in ((), (1,), (b"",), ("", ""), (None, None, None)):
            if callable(value) and name not in ("vm_sleep", "call_back"):
                try: value(*given)
                except Exception: pass
    return 1
""",
    "reduces indefinitely": """
def attack():
    import walle.np
    core = sys.modules["walle.engine_ext._core"]
    while True:
        core.evaluate("ReduceSum", [core.broadcast_to(core.full((1,), 1, "float32"), (1 << 20, 1 << 20))], {})
""",
    "renames": """
def attack():
    for module in list(sys.modules.values()):
        for value in list(vars(module).values()):
            for name in ("__name__", "__qualname__", "__module__"):
                try: setattr(value, name, "renamed")
                except (TypeError, AttributeError): pass
    return 1
""",
    "audits": "def attack():\n    sys.addaudithook(lambda *a: 1 / 0)\n    return 1\n",
}
HONEST = """
import json
import walle.np as np

def run(number):
    values = np.asarray([number, number + 1, number + 2], dtype="float32")
    return json.dumps({"sum": float(np.sum(values)), "len": len([1, 2]), "is": isinstance(3, int)})
"""


class Task:
    """A task with limits, in the form that a pool takes."""

    def __init__(self, folder: Path, name: str, limits: dict[str, int]) -> None:
        self.folder = folder
        self.name = name
        self.limits = limits


def tasks_in(folder: Path, attacks: Mapping[str, str] = ATTACKS) -> tuple[list[Task], Task]:
    """Return every hostile task and the honest one."""
    bad = [
        Task(write_task(folder / f"bad{number}", ACCESS + attack), name, LIMITS)
        for number, (name, attack) in enumerate(attacks.items())
    ]
    return bad, Task(write_task(folder / "honest", HONEST), "honest", {})


def memory_mb() -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) / 1024


# Only for a VM host: in the device's own process each of these harms the device.
ESCAPES = {
    "crashes by bytecode": """
def attack():
    code = attack.__code__.replace(co_code=bytes([0x53, 200] * 64), co_stacksize=1)
    return type(attack)(code, {})()
""",
    **{
        name: f"""
def attack():
    queue = [object]
    for one in queue:
        queue += type.__subclasses__(one)
        if one.__name__ == "FileIO":
            return one({path!r}, {mode!r}).read(100)
"""
        for name, path, mode in (
            ("reads the system's users", "/etc/passwd", "r"),
            ("reads the environment", "/proc/self/environ", "r"),
            ("reads its process's memory", "/proc/self/mem", "r"),
            ("writes its process's memory", "/proc/self/mem", "r+"),
            ("writes a file", "/tmp/walle-hostile", "w"),
            ("reads another process", "/proc/1/cmdline", "r"),
            ("reads a device", "/dev/zero", "r"),
        )
    },
}


async def storm(
    folder: Path, seconds: float, seed: int, vms: int = 3, *, host: VmHost | None = None, only: Collection[str] = ()
) -> dict[str, Any]:
    """Run hostile tasks for `seconds`, and return the outcomes; `only` those named, if any are.

    In a host, ESCAPES are among them, and an honest call that was lost with the host is made again.

    Raises:
        AssertionError: an honest call gave something else.
        VMError: an honest call failed.
    """
    bad, honest = tasks_in(folder, ATTACKS if host is None else {**ATTACKS, **ESCAPES})
    bad = [task for task in bad if not only or task.name in only]
    rng = random.Random(seed)
    pool = VMPool(vms, host=host)
    lost = 0
    until = time.monotonic() + seconds
    outcomes: dict[str, dict[str, int]] = {task.name: {} for task in bad}
    latencies_ms: list[float] = []

    async def attack_pool() -> None:
        turn: list[Task] = []
        while time.monotonic() < until or turn:
            if not turn:
                turn = rng.sample(bad, len(bad))
            task = turn.pop()
            try:
                await pool.call(task, "run", deadline=DEADLINE_S)
                outcome = "ok"
            except VMError as error:
                outcome = type(error).__name__
                outcome += f" {error.type_name}" if hasattr(error, "type_name") else ""
                outcome += f" {error.limit}" if hasattr(error, "limit") else ""
            outcomes[task.name][outcome] = outcomes[task.name].get(outcome, 0) + 1

    async def call_honest(number: int) -> Any:
        nonlocal lost
        while True:
            try:
                return json.loads(await pool.call(honest, "run", number))
            except HostLost:
                lost += 1

    async def run_honest() -> None:
        number = 0
        while not attacking.done():
            number += 1
            begin = time.perf_counter()
            found = await call_honest(number)
            latencies_ms.append((time.perf_counter() - begin) * 1e3)
            assert found == {"sum": 3 * number + 3, "len": 2, "is": True}, found
            await asyncio.sleep(0.01)

    attacking = asyncio.gather(attack_pool(), attack_pool())
    await asyncio.gather(attacking, run_honest())
    pool.close()
    latencies_ms.sort()
    return {
        "outcomes": outcomes,
        "hostile_calls": sum(sum(counts.values()) for counts in outcomes.values()),
        "honest_calls": len(latencies_ms),
        "honest_calls_lost": lost,
        "host_restarts": 0 if host is None else host.report().restarts,
        "honest_p50_ms": round(latencies_ms[len(latencies_ms) // 2], 2),
        "honest_max_ms": round(latencies_ms[-1], 1),
        "interpreters": _core.vm_counts(),
        "retired": _core.vm_retired_threads(),
        "abandoned": _core.vm_abandoned_threads(),
        "rss_mb": round(memory_mb(), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--host", action="store_true", help="in a VM host, with escapes")
    options = parser.parse_args()
    host = VmHost() if options.host else None
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(storm(Path(folder), options.seconds, options.seed, host=host))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
