"""Runs are stopped by deadline, cancel and signals, also within one long operator, and their session stays usable."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.engine_ext.sanitizer import SLOWDOWN
from tests.night.cases import at_night
from tests.sim.endless_models import ENDLESS_MODELS, EndlessModel
from walle.engine_ext.errors import RunCancelled, RunDeadlineExceeded
from walle.engine_ext.session import Module, Session, load

STOPPED_WITHIN_S = (
    1.0 * SLOWDOWN
)  # CPU time of the thread that runs, so that a busy machine fails no test; 0.1 s and less

pytestmark = pytest.mark.parametrize("kind", list(ENDLESS_MODELS))


def opened(kind: str, threads: int = 1) -> tuple[EndlessModel, Session | Module]:
    endless = ENDLESS_MODELS[kind]()
    return endless, load(endless.model, threads=threads)


def check_usable(session: Session | Module, endless: EndlessModel) -> None:
    found = session.run(endless.short)
    for name, value in endless.results.items():
        np.testing.assert_array_equal(np.asarray(found[name]), value)


@pytest.mark.parametrize("threads", [*at_night(1), 3])
def test_a_deadline_stops_a_run(kind: str, threads: int) -> None:
    endless, session = opened(kind, threads)
    for deadline in (0.0, 0.1, 0.25):
        began = time.thread_time()
        with pytest.raises(RunDeadlineExceeded, match="deadline"):
            session.run(endless.long, deadline=deadline)
        assert time.thread_time() - began - deadline < STOPPED_WITHIN_S
        check_usable(session, endless)
    check_usable(session, endless)


def test_another_thread_cancels_the_runs_in_progress_and_no_later_one(kind: str) -> None:
    endless, session = opened(kind)
    session.cancel()  # no run in progress
    check_usable(session, endless)
    began, is_ended = time.thread_time(), threading.Event()
    clock = time.pthread_getcpuclockid(threading.get_ident())

    def cancel_once_it_runs() -> None:
        """Cancel after 0.2 s of CPU time of the thread that runs: on a busy machine a run may begin late."""
        while time.clock_gettime(clock) - began < 0.2:
            if is_ended.wait(0.01):
                return
        session.cancel()

    other = threading.Thread(target=cancel_once_it_runs)
    other.start()
    try:
        with pytest.raises(RunCancelled, match="cancelled"):
            session.run(endless.long)
    finally:
        is_ended.set()
        other.join()
    assert time.thread_time() - began - 0.2 < STOPPED_WITHIN_S
    check_usable(session, endless)


PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored where a shell runs tests in the background
from tests.sim.endless_models import ENDLESS_MODELS
from walle.engine_ext.session import load
endless = ENDLESS_MODELS[sys.argv[1]]()
session = load(endless.model)
session.run(endless.short)
print("ready", flush=True)
began = time.thread_time()
try:
    session.run(endless.long)
except KeyboardInterrupt:
    cpu_s = time.thread_time() - began
    print(cpu_s, session.run(endless.short)["y"].tolist() == endless.results["y"].tolist(), flush=True)
    raise
"""


def test_ctrl_c_stops_a_run(kind: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        ready = time.monotonic()
        time.sleep(0.3)  # within the long run
        waited = time.monotonic() - ready
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
    cpu_s, is_right = out.split()
    assert float(cpu_s) - waited < STOPPED_WITHIN_S
    assert is_right == "True"
    assert "KeyboardInterrupt" in err
    assert child.returncode == -signal.SIGINT
