"""tracemalloc and VMs in one process: a clear error in place of a crash."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from tests.sim.traced_memory import traced_memory
from tests.sim.vm_task import write_task
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.vm import VM
from walle.errors import VMError

BUSY = "def text(n):\n    for i in range(n):\n        last = [str(i)] * 3\n    return last[0]\n"

# In a process of its own, which a missing guard ends with SIGSEGV within a few hundred starts.
PROGRAM = """
import asyncio, contextlib, sys, tracemalloc
from walle.errors import VMError
from walle.vm import VM

async def main():
    vm = VM(sys.argv[1])
    call = asyncio.create_task(vm.call("text", 3_000_000))
    refused = 0
    while not call.done():
        try:
            tracemalloc.start()
        except VMError:
            refused += 1
        held = [bytes(1_000) for _ in range(10_000)]
        await asyncio.sleep(0.002)
        tracemalloc.stop()
    print(await call, refused > 0)

asyncio.run(main())
"""


@pytest.mark.night
def test_a_program_that_traces_memory_while_a_task_runs_is_not_crashed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(write_task(tmp_path, BUSY))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2999999 True\n", "")


@pytest.mark.asyncio
async def test_memory_is_traced_again_once_vms_are_closed(tmp_path: Path) -> None:
    vm = VM(write_task(tmp_path, BUSY))
    assert await vm.call("text", 3) == "2"
    with pytest.raises(VMError, match=r"tracemalloc would crash this process, in which .* open; close the VMs first"):
        tracemalloc.start()
    assert not tracemalloc.is_tracing()
    vm.close()
    assert await vm.wait_closed()
    with traced_memory():
        assert tracemalloc.is_tracing()


@pytest.mark.asyncio
async def test_a_vm_is_refused_where_memory_is_traced_and_one_in_a_host_is_not(tmp_path: Path, host: VmHost) -> None:
    folder = write_task(tmp_path, BUSY)
    with traced_memory():
        with pytest.raises(VMError, match=r"call tracemalloc\.stop\(\) first, or give `host` a VmHost"):
            VM(folder)
        vm = VM(folder, host=host)
        assert await vm.call("text", 3) == "2"
        vm.close()
        assert await vm.wait_closed()
