"""Forks of a process with VMs: the child has none, says so, can create its own, and ends; the parent's go on."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.night.cases import at_night
from tests.sim.vm_task import write_task

MAIN = """
import json
import walle.np as np

def run(times):
    for number in range(times):
        json.dumps({"sum": float(np.sum(np.ones((50, 50)))), "bytes": len(bytearray(70_000))})
    return times
"""

# Forks while three VMs and their callers are busy, and the child ends as any program does.
PROGRAM = """
import asyncio, os, subprocess, sys, threading, warnings
from walle.vm import VM, VMClosedError, VMPool

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which this is about
folder, way, times = sys.argv[1], sys.argv[2], int(sys.argv[3])

async def ask_dead(vm, pool):
    assert not vm.alive and not vm.abandoned and await vm.wait_closed(1)
    try:
        await vm.call("run", 1)
    except VMClosedError as error:
        assert "forked" in error.reason, error
    else:
        raise AssertionError("a VM answered in the child of a fork")
    assert await pool.call(folder, "run", 3) == 3
    try:
        await closed.call(folder, "run", 1)
    except VMClosedError:
        pass
    else:
        raise AssertionError("a pool that was closed is open in the child of a fork")
    own = VM(folder)
    assert await own.call("run", 2) == 2
    own.close()
    assert await own.wait_closed(30)

def fork_once(vms, pool):
    if way == "popen":
        with subprocess.Popen([sys.executable, "-c", "pass"], preexec_fn=lambda: bytearray(100_000)) as process:
            return process.wait(30)
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        asyncio.run(ask_dead(vms[0], pool))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(3)
    sys.exit(7)  # through atexit handlers and the end of the interpreter

async def serve(vms, pool, done):
    while not done.is_set():
        assert await asyncio.gather(*[vm.call("run", 20) for vm in vms], pool.call(folder, "run", 5)) == [20, 20, 20, 5]

done, vms, pool = threading.Event(), [VM(folder) for _ in range(3)], VMPool(2)
parent, closed = os.getpid(), VMPool(1)
closed.close()
serving = threading.Thread(target=lambda: asyncio.run(serve(vms, pool, done)))
serving.start()
try:
    for _ in range(times):
        code = fork_once(vms, pool)
        assert code == (0 if way == "popen" else 7), code
finally:
    if os.getpid() == parent:
        done.set()
        serving.join()
for vm in vms:
    vm.close()
pool.close()
print("ok")
"""


@pytest.mark.parametrize(("way", "times"), [*at_night(("popen", 20)), ("fork", 8)])
def test_a_child_of_a_fork_has_no_vms_and_does_not_hang(tmp_path: Path, way: str, times: int) -> None:
    folder = write_task(tmp_path, MAIN)
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), way, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
