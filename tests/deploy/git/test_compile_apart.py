"""Sources of strangers, compiled in a process with limits: what one cannot do to the cloud that compiles it."""

import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sim.processes import alive, descendants
from tests.sim.tasks import task_version
from tests.task.format.test_bundle import SIGNER, WITH_MODEL
from walle.engine_ext.vm.bytecode import BytecodeError
from walle.task.format import compilers
from walle.task.format.bundle import build_bundle, build_unsigned
from walle.task.format.bundle_error import BundleError
from walle.task.format.compilers import CompileLimits, OtherPython, compile_apart, compile_here
from walle.task.format.source_facts import Import, Query

SOURCES = {
    "shop/ipv/v1/main.py": b"import walle.np as np\nfrom walle import cv\nvalue = [1, 'a', (2.5, None)]\n"
    b"def execute(ctx, x):\n    return ctx.store.query('clicks', task='browse')\n",
    "shop/ipv/v1/pkg/part.py": b"# coding: latin-1\nname = '\xe9'\ndef f(x, *, y=3): return lambda: x + y\n",
}
LIMIT_S = 10.0
HONEST = {"a/main.py": b"x = 1\n"}


def test_a_process_finds_what_this_one_does() -> None:
    found = compile_apart(SOURCES)
    assert found == compile_here(SOURCES)
    main = found["shop/ipv/v1/main.py"]
    assert main.imports == (Import("walle.np", "", 1, 8), Import("walle.cv", "", 2, 19))
    assert main.queries == (Query("browse/clicks", 5),)
    apart = build_unsigned(task_version(WITH_MODEL), compile_sources=compile_apart)
    assert apart.manifest == build_bundle(task_version(WITH_MODEL), SIGNER).manifest


HEAVY = b"x = [" + b"a," * 400_000 + b"]\n"  # 0.8 MB, of which the tree takes 200 MB and the processor a second


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (CompileLimits(memory_bytes=150 << 20), "needs more memory to compile than it may have; split the file"),
        (CompileLimits(cpu_s=1), "cannot be compiled: it took more than 1 s of CPU time; split the file"),
        (CompileLimits(wall_s=0.3), "cannot be compiled: it took more than 0.3 s; split the file"),
    ],
)
def test_a_source_that_takes_too_much_is_named_and_costs_this_process_nothing(limits: CompileLimits, says: str) -> None:
    heavy = HEAVY * 2 if limits.cpu_s == 1 else HEAVY
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(BytecodeError) as caught:
        compile_apart({**HONEST, "a/heavy.py": heavy}, limits)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert (caught.value.file, caught.value.problem) == ("a/heavy.py", says)
    assert after.ru_utime - before.ru_utime < 0.5
    assert after.ru_maxrss - before.ru_maxrss < 50 << 10  # KiB
    assert compile_apart(HONEST) == compile_here(HONEST)


def program(folder: Path, *, instead: str) -> Path:
    """Return a compiling program that was taken over by the second source that it looks at."""
    text = Path(compilers._PROGRAM).read_text()
    line = "            found = facts_of(source, name)\n"
    assert text.count(line) == 1
    path = folder / "taken_over.py"
    path.write_text(text.replace(line, f"            if not name.endswith('main.py'): {instead}\n{line}"))
    return path


@pytest.mark.parametrize(
    ("instead", "says"),
    [
        ("__import__('os').abort()", "cannot be compiled: it ended its compiler by SIGABRT"),
        ("__import__('os').kill(0, 9)", "cannot be compiled: its compiler ended"),  # signals reach nobody
        ("sys.stdout.buffer.write(b'[1]\\n' * 9)", "cannot be compiled: its process sent an invalid message"),
        ("_say({'size': -1})", "cannot be compiled: its process sent an invalid message"),
        ("_say({'size': 1 << 40})", "larger than a bundle may be"),
        ("_say({'size': 9, 'imports': [['m']], 'queries': []}, b'123456789')", "sent an invalid message"),
        ("_say({'error': ['x', float('inf')]})", "sent an invalid message"),
        ("_say({'size': 0, 'imports': [['m', '', 1e999, 1]], 'queries': []})", "sent an invalid message"),
        ("sys.stdout.buffer.write(b'[' * 100_000 + b'\\n')", "sent an invalid message"),
    ],
)
def test_a_source_that_takes_its_compiler_over_fails_its_version_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: str, says: str
) -> None:
    monkeypatch.setattr(compilers, "_PROGRAM", program(tmp_path, instead=instead))
    with pytest.raises(BytecodeError) as caught:
        compile_apart({**HONEST, "a/bad.py": b"y = 2\n"})
    assert caught.value.file == "a/bad.py"
    assert says in caught.value.problem
    version = task_version({**WITH_MODEL, "other.py": b"y = 2\n"})
    with pytest.raises(BundleError, match="cannot be compiled"):
        build_unsigned(version, compile_sources=compile_apart)


@pytest.mark.vm_host
@pytest.mark.parametrize(
    "attempt",
    [
        "open({secret!r}).read()",
        "open({secret!r}, 'w')",
        "open('/etc/passwd').read()",
        "open('/proc/self/environ').read()",
        "__import__('os').listdir('/')",
        "__import__('os').fork()",
        "__import__('os').execv('/bin/sh', ['sh'])",
        "__import__('os').kill(1, 0)",
    ],
)
def test_a_compiler_that_was_taken_over_is_within_the_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: str
) -> None:
    secret = tmp_path / "release.pem"
    secret.write_text("the key")
    instead = f"raise SourceError(repr({attempt.format(secret=str(secret))}))"
    monkeypatch.setattr(compilers, "_PROGRAM", program(tmp_path, instead=instead))
    with pytest.raises(BytecodeError, match=r"its compiler ended|ended its compiler") as caught:
        compile_apart({**HONEST, "a/bad.py": b"y = 2\n"})
    assert "the key" not in str(caught.value)
    assert secret.read_text() == "the key"


def test_the_end_by_a_signal_without_a_name_is_said() -> None:
    assert compilers._why(-41, False, CompileLimits()) == "it ended its compiler by signal 41"


def test_another_python_has_the_limits_too() -> None:
    same = OtherPython.__new__(OtherPython)
    same.executable, same.tag, same._limits = sys.executable, "cpython-000", CompileLimits(memory_bytes=150 << 20)
    assert same.compile(HONEST) == {file: facts.pyc for file, facts in compile_here(HONEST).items()}
    with pytest.raises(BytecodeError, match=r"more memory to compile .* \(by cpython-000\)"):
        same.compile({"a/heavy.py": HEAVY})


def test_several_versions_compile_at_once_and_leave_no_process() -> None:
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(compile_apart, [SOURCES] * 8))
    assert all(one == done[0] for one in done)
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            assert b"source_facts" not in Path(f"/proc/{child}/cmdline").read_bytes()


PARENT = """
import sys
from pathlib import Path
from walle.task.format import compilers
compilers._PROGRAM = Path(sys.argv[1])
compilers.compile_apart({"a/main.py": b"x = 1", "a/bad.py": b"y = 2"})
"""


def test_a_compiler_that_was_taken_over_ends_when_its_cloud_is_killed(tmp_path: Path) -> None:
    taken_over = program(tmp_path, instead="__import__('time').sleep(60)")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(taken_over)])
    try:
        until_s = time.monotonic() + 6 * LIMIT_S  # until it is imported, on a busy machine
        while not (compiling := [one for one in alive(descendants([parent.pid])) if " -I -S -B " in one]):
            assert time.monotonic() < until_s
            time.sleep(0.05)
        pids = [int(one.split()[0]) for one in compiling]
        time.sleep(1)  # the process reads its sources, and enters the layers
        assert alive(pids) != []
    finally:
        parent.kill()
        parent.wait()
    until_s = time.monotonic() + LIMIT_S
    while (left := alive(pids)) and time.monotonic() < until_s:
        time.sleep(0.05)
    if left:
        os.kill(pids[0], signal.SIGKILL)
    assert left == []
