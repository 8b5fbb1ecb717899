"""Exit of a process with busy VMs: no hang, no crash, and the exit code is the program's."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.night.cases import at_night
from tests.sim.vm_task import DEEP_SLEEP, write_task

MAIN = (
    DEEP_SLEEP.replace("(seconds)", "(seconds=100)", 1)
    + """
import re

def ready():
    return 1

def loop():
    while True:
        pass

def swallow():
    while True:
        try:
            loop()
        except BaseException:
            pass

def regex():
    re.match(r"(a+)+$", "a" * 60 + "b")

class Lingering:
    def __del__(self):
        loop()

kept = [Lingering()]
"""
)

PROGRAM = """
import asyncio, sys, threading
from walle.vm import VM, DeadlineExceeded

async def main(folder, function, deadline):
    vm, unused, idle = VM(folder), VM(folder), VM(folder)
    await idle.call("ready")
    await vm.call("ready")
    if function:
        call = asyncio.ensure_future(vm.call(function, deadline=float(deadline) if deadline else None))
        await asyncio.sleep(0.05)
        if deadline:
            try:
                await call
            except DeadlineExceeded:
                print("stopped")
        else:
            print("busy")
            sys.exit(5)
    keep.append((vm, unused, idle))

keep = []
if sys.argv[4] == "thread":
    thread = threading.Thread(target=lambda: asyncio.run(main(*sys.argv[1:4])))
    thread.start()
    thread.join()
else:
    asyncio.run(main(*sys.argv[1:4]))
sys.exit(5)
"""


@pytest.mark.parametrize(
    ("function", "deadline", "said", "where"),
    [
        ("", "", "", "main"),
        ("", "", "", "thread"),
        ("loop", "0.02", "stopped", "main"),
        ("loop", "", "busy", "main"),
        *at_night(
            ("loop", "", "busy", "thread"),
            ("swallow", "", "busy", "main"),
            ("sleep", "0.02", "stopped", "main"),
            ("sleep", "", "busy", "main"),
            ("regex", "", "busy", "main"),
        ),
        ("regex", "0.02", "stopped", "thread"),
    ],
)
def test_a_process_exits_with_its_status_whatever_its_vms_do(
    tmp_path: Path, function: str, deadline: str, said: str, where: str
) -> None:
    folder = write_task(tmp_path, MAIN)
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(PROGRAM), folder, function, deadline, where],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (result.returncode, result.stdout.strip(), result.stderr.strip()) == (5, said, "")


def test_a_killed_event_loop_leaves_a_clean_exit(tmp_path: Path) -> None:
    folder = write_task(tmp_path, MAIN)
    program = f"""
    import asyncio
    from walle.engine_ext.vm.vm import VM
    vms = [VM({str(folder)!r}) for _ in range(4)]
    loop = asyncio.new_event_loop()
    calls = [loop.create_task(vm.call("loop")) for vm in vms]
    loop.run_until_complete(asyncio.sleep(0.05))
    raise SystemExit("over")
    """
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "Fatal" not in result.stderr


def test_vms_that_are_just_starting_do_not_hold_up_the_exit(tmp_path: Path) -> None:
    folder = write_task(tmp_path, MAIN)
    program = f"""
    import sys
    from walle.engine_ext.vm.vm import VM
    vms = [VM({str(folder)!r}) for _ in range(40)]
    sys.exit(5)
    """
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (5, "")


def test_other_libraries_can_take_the_gil_after_a_stuck_vm_was_detached(tmp_path: Path) -> None:
    """PyGILState_Ensure aborts the process where the thread's own state was forgotten. A ctypes callback calls it."""
    folder = write_task(tmp_path, MAIN)
    program = f"""
    import atexit, asyncio, ctypes, sys
    callback = ctypes.PYFUNCTYPE(None)(lambda: print("called back"))  # is called with the GIL
    atexit.register(callback)  # before the VMs' own handler, and so called after it
    from walle.vm import VM, DeadlineExceeded

    async def main():
        vm = VM({str(folder)!r})
        await vm.call("ready")
        try:
            await vm.call("sleep", deadline=0.02)
        except DeadlineExceeded:
            keep.append(vm)

    keep = []
    asyncio.run(main())
    sys.exit(5 if keep else 6)
    """
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (5, "called back\n", "")
