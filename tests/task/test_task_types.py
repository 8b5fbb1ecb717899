"""`walle.task`: types of `ctx`, `trigger` and events: checked by mypy on real tasks, compared with a real run."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.testing import CliRunner

import walle.task
from apps.livestream import task_files
from tests.sim.vm_task import write_task
from walle.cli import app
from walle.engine_ext.vm.vm import VM
from walle.pipeline.events.event import Event
from walle.pipeline.stream import context
from walle.pipeline.trigger.task_queue import Trigger

ROOT = Path(__file__).parents[2]

# Each wrong line, and what mypy says of it.
WRONG_USES = {
    "ctx.event": '"Context" has no attribute "event"',
    "ctx.session('a').rum({})": 'has no attribute "rum"',
    "ctx.events.key_by(1)": "No overload variant",
    "ctx.events.named('click').colum('ts_ms')": '"Events" has no attribute "colum"',
    "ctx.store.put('topic')": 'Missing positional argument "payload"',
    "ctx.log.warn('x')": '"Log" has no attribute "warn"',
    "ctx.history(limit='5')": 'Argument "limit" to "history"',
    "trigger['page']": 'TypedDict "Trigger" has no key "page"',
    "trigger['event']['page']": 'No overload variant of "__getitem__" of "TriggerEvent"',
    "trigger['event'].page": '"TriggerEvent" has no attribute "page"',
    "trigger['event'].ts_ms + 'x'": "Unsupported operand types",
    "ctx.events[0]['page']": 'No overload variant of "__getitem__" of "Event"',
    "ctx.events[0]['ts_ms'] + 'x'": "Unsupported operand types",
    "trigger['position'] + 'x'": "Unsupported operand types",
    "ctx.events[0].page": '"Event" has no attribute "page"',
    "np.arange(3).shap": '"ndarray" has no attribute "shap"',
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy-cache")


def mypy(folder: Path, cache: Path) -> tuple[int, list[str]]:
    """Return the exit status and lines of a strict run on a task's folder, as its author would start it there."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "."],
        cwd=folder,
        env={**os.environ, "MYPYPATH": f"{ROOT}{os.pathsep}{task_files.TASKS / task_files.MODULES}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.night
@pytest.mark.timeout(300)
def test_the_template_and_the_reference_apps_tasks_pass_mypy_strict(tmp_path: Path, cache: Path) -> None:
    assert CliRunner().invoke(app, ["task", "new", "dwell", "--folder", str(tmp_path / "dwell")]).exit_code == 0
    livestream = [tmp_path / name for name in task_files.NAMES]
    for folder in livestream:
        task_files.write_sources(folder.name, folder)
    for folder in (tmp_path / "dwell", ROOT / "apps" / "ipv" / "task", *livestream):
        status, lines = mypy(folder, cache)
        assert status == 0, lines


@pytest.mark.night
@pytest.mark.timeout(300)
def test_mypy_finds_each_wrong_use(tmp_path: Path, cache: Path) -> None:
    head = [
        "import walle.np as np",
        "TYPE_CHECKING = False",
        "if TYPE_CHECKING:",
        "    from walle.task import Context, Trigger",
        'def execute(ctx: "Context", trigger: "Trigger") -> None:',
    ]
    (tmp_path / "main.py").write_text("\n".join([*head, *(f"    {use}" for use in WRONG_USES)]) + "\n")
    status, lines = mypy(tmp_path, cache)
    assert status == 1
    for number, (use, message) in enumerate(WRONG_USES.items(), len(head) + 1):
        found = [line for line in lines if line.startswith(f"main.py:{number}:")]
        assert any(message in line for line in found), (use, found)


def test_the_classes_are_those_that_run() -> None:
    assert walle.task.Context is context.Context
    public = {name: getattr(walle.task, name) for name in walle.task.__all__}
    names = public | {"Mapping": dict, "Iterable": list, "Any": Any}
    assert get_type_hints(context.Context.__init__, names)["events"] is walle.task.Events
    for name in walle.task.__all__:
        assert getattr(walle.task, name).__module__.startswith("walle."), name


@pytest.mark.asyncio
async def test_a_phase_gets_a_context_and_a_trigger_of_these_types(tmp_path: Path) -> None:
    write_task(
        tmp_path,
        """
        def execute(ctx, trigger):
            members = {name for name in dir(ctx) if not name.startswith("_")}
            kinds = {name: type(value).__name__ for name, value in trigger["event"].items()}
            return {
                "members": sorted(members), "trigger": {key: type(value).__name__ for key, value in trigger.items()},
                "event": kinds, "visit": trigger["visit"], "events": type(ctx.events).__name__,
                "log": type(ctx.log).__name__, "store": type(ctx.store).__name__,
            }
        """,
    )
    event = Event("page_exit", "item", 1, {})
    plain = Trigger(event, 3, (event,), ()).to_plain()
    events = plain.pop("page_events")
    vm = VM(tmp_path)
    try:
        found = (await vm.call("walle.pipeline.stream.context:run", "shop/visits", plain, events, {}, deadline=30.0))[
            "output"
        ]
    finally:
        vm.close()
        assert await vm.wait_closed()
    declared = get_type_hints(walle.task.Trigger)
    assert found["trigger"] == {"event": "TriggerEvent", "position": declared["position"].__name__, "visit": "str"}
    assert found["trigger"].keys() == declared.keys()
    assert found["visit"] in get_args(declared["visit"])
    assert set(get_args(declared["visit"])) == {"whole", "cut", "none"}
    assert found["event"].keys() == walle.task.TriggerEvent.__annotations__.keys()
    assert found["event"] == {"event_id": "str", "page_id": "str", "ts_ms": "int", "contents": "dict"}
    assert (found["events"], found["log"], found["store"]) == ("Events", "Log", "Store")
    public = {name for name in vars(walle.task.Context) if not name.startswith("_")}
    assert public < set(found["members"])
