"""One run of a task inside its VM: `ctx`, and a trigger's way through preprocess, execute and postprocess.

A device calls `run` in the task's VM, and `train` in the one that trains; the cloud's fallback inference calls `phase`
or `phase_batch`. What a phase gets and gives is plain data and arrays where it crosses to the cloud, and anything at
all where it does not.
"""

from __future__ import annotations

import time

from walle.engine_ext.vm import callbacks, dispatch
from walle.errors import PipelineError
from walle.pipeline.events.event import as_trigger
from walle.pipeline.features.topics import full_topic, own_topic
from walle.pipeline.stream import task_files
from walle.pipeline.stream.events import Events, decode_events
from walle.pipeline.stream.run_log import Log, close_log, open_log
from walle.pipeline.stream.task_files import TaskContextError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from walle.engine_ext.session import Module, Session

_PHASES = ("preprocess", "execute", "postprocess")  # walle.protocol.PHASES again: a task VM does not load that module
MAX_PUTS = 1_000  # limit of one run
MAX_METRICS = 16  # names of one run, as walle.protocol.Outcome.MAX_METRICS without the latency
_LATENCY = "latency_ms"  # walle.protocol.LATENCY_MS again: a task VM does not load that module
_MAX_NAME = 64

_NO_HISTORY = "the run has no ctx.history: add [history] to task.toml, and use it on the device"
_NO_RECENT = "the run has no ctx.recent: a phase in the cloud gets the result of the one before it, train has no event"
_NO_EXCLUSIVE = "the run has no ctx.exclusive: list the file under [[exclusive]] in task.toml, and use it on the device"
_NO_FEATURES = "the run has no ctx.features: only a phase in the cloud has, with views of walle cloud up --features"
_NO_STORE = "the run has no ctx.store.query: a phase that runs in the cloud has no feature store"
_NO_CHECKPOINT = "the run has no ctx.checkpoint: add [training] to task.toml, and use it on the device"
_INFINITE = float("inf")
_TEXTS: tuple[type, ...] = (str, bytes, bytearray)  # `float` makes numbers of these too
_clock_s = time.perf_counter
_cpu_s = time.thread_time  # clock of the thread to which the VM is pinned

_exclusive: dict[str, tuple[str, bytes]] = {}  # hash and contents of the exclusive files that a run has asked for
_checkpoint: dict[str, tuple[int, Any]] = {}  # number and value of the checkpoint that a run has asked for, by task


class EscalationError(PipelineError):
    """The cloud gave no result for `ctx.escalate`; a task catches it as `ctx.EscalationError`.

    `reason` is "away" (there is no connection to the cloud), "late" (no answer in time), "full" (the cloud had no room
    for the request) or "failed" (the cloud refused it, or its phase failed).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class Store:
    """`ctx.store`: features that a task puts beside its output, and queries to the device's feature store.

    A topic belongs to the task that puts it: `put("clicks", ...)` of task `shop/ipv` is stored as `shop/ipv/clicks`,
    and its output as `shop/ipv`.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self.puts: list[tuple[str, Any]] = []
        self.local: list[tuple[str, Any]] = []

    def put(self, topic: str, payload: Any, *, upload: bool = True) -> None:
        """Store a feature when the run succeeds; the payload is plain data and arrays.

        `topic` is a name, of letters, digits and `._-`, or the full name of a topic of this task. With `upload` False
        the feature stays in the device's feature store, where `query` finds it.

        Raises:
            TopicError: the topic is another task's, or not a name.
            TaskContextError: the run has put MAX_PUTS already.
        """
        topic = own_topic(self._task, topic)
        if len(self.puts) + len(self.local) >= MAX_PUTS:
            raise TaskContextError(f"a run may put {MAX_PUTS} features at most")
        (self.puts if upload else self.local).append((topic, payload))

    def query(
        self, topic: str = "", since_ms: int = 0, limit: int = 100, skip: int = 0, *, task: str = ""
    ) -> list[Any]:
        """Return payloads of stored features, oldest first: the latest `limit`, at most 10,000.

        `topic` is as in `put`; without it they are outputs. `task` is another task of the scenario, whose topic
        task.toml must list under [reads].

        They are at most 4 MiB, encoded, and 262,144 values, those in lists and dicts too. There are fewer than `limit`
        where they do not fit. For older ones, pass the number of those returned so far as `skip`, until none
        is returned.

        Raises:
            TopicError: the topic is not well formed.
            CallbackError: the task may not read the topic.
            TaskContextError: the phase runs on the cloud.
        """
        return _ask("store.query", _NO_STORE, full_topic(self._task, topic, task), since_ms, limit, skip)  # type: ignore[no-any-return]


class Context:
    """`ctx`, a task's view of its device. `task` is its full name, scenario/task, and `phase` the one that runs now.

    `place` is where that is, "device" or "cloud". `device` has the id and attributes of the device; in `execute_batch`,
    whose payloads are of several, it is empty, and `devices` has those of each payload.

    `events` are those of the event's page visit. `visit` is "whole" if they are complete, "cut" if the device dropped
    some of them (`events` then has only the event that triggered the run), and "none" if the page has no open visit.
    `recent` are the latest events of all pages, which the device sends when a run first asks for them.
    """

    EscalationError = EscalationError

    def __init__(
        self,
        task: str,
        events: Events,
        device: Mapping[str, Any],
        log: Log,
        visit: str = "none",
        state: dict[str, Any] | None = None,
        *,
        place: str = "device",
        devices: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.task = task
        self.events = events
        self._recent: Events | None = None
        self.visit = visit
        self.place = place
        self.device = dict(device)
        self.devices = [dict(one) for one in devices] or [self.device]
        self.log = log
        self.store = Store(task)
        self.phase = ""
        self.metrics: dict[str, float] = {}
        self._state = state
        self._own_checkpoint: list[Any] = []  # the one that `train` has read or assigned
        self._begun_s = _clock_s()

    @property
    def state(self) -> dict[str, Any]:
        """The task's state, a dict of plain data: as the last run that succeeded left it, empty before the first.

        Its changes are stored together with the run's outputs, and dropped if the run fails. Assigning a dict replaces
        it. [state] in task.toml has its bound (64 KiB, encoded), and the lifetime of its entries.

        Raises:
            TaskContextError: task.toml has no [state], or the phase runs on the cloud.
        """
        if self._state is None:
            why = "train has ctx.checkpoint" if self.phase == "train" else "add [state] to task.toml"
            raise TaskContextError(f"the task has no state here; {why}, and a phase that runs in the cloud has none")
        return self._state

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        if not isinstance(value, dict):
            raise TaskContextError(f"a task's state must be a dict, is {type(value).__name__}")
        _ = self.state
        self._state = value

    @property
    def checkpoint(self) -> Any:
        """The value that the last step of `train` that succeeded has left, plain data; None before the first.

        `train` assigns or changes it: `ctx.checkpoint = {"step": step.state_dict()}`. It is stored with what the step
        puts, or not at all: a step that fails or is cut short leaves the one before. Other phases read it alone.

        Raises:
            TaskContextError: task.toml has no [training], or the phase runs on the cloud.
        """
        if not self._own_checkpoint:
            known = (0, None) if self.phase == "train" else _checkpoint.get(self.task, (0, None))
            number, value = _ask("checkpoint.read", _NO_CHECKPOINT, known[0])
            if number == known[0]:
                return known[1]
            if self.phase != "train":
                _checkpoint[self.task] = number, value
                return value
            self._own_checkpoint.append(value)  # a step may change it, and fail
        return self._own_checkpoint[0]

    @checkpoint.setter
    def checkpoint(self, value: Any) -> None:
        if self.phase != "train":
            raise TaskContextError(f"{self.phase} cannot assign ctx.checkpoint; train(ctx) does")
        self._own_checkpoint = [value]

    def history(self, event_id: str = "", page_id: str = "", *, since_ms: int = 0, limit: int = 1000) -> Events:
        """Return older events of the device up to the one that triggered the run, oldest first; the latest `limit`.

        Those with the given event id, page id and times from `since_ms` on; at most 10,000, 4 MiB, and 524,288 values
        with those in lists and dicts, the latest that fit. The bounds are those of [history] in task.toml. The device
        reads them at this call.

        Raises:
            TaskContextError: task.toml has no [history], or the phase runs on the cloud.
        """
        return decode_events(_ask("events.history", _NO_HISTORY, event_id, page_id, since_ms, limit))

    @property
    def recent(self) -> Events:
        """The time-level sequence: the latest events of the device, with the one that triggered the run as the last.

        Raises:
            TaskContextError: a phase asks for it that runs in the cloud.
        """
        if self._recent is None:
            self._recent = decode_events(_ask("events.recent", _NO_RECENT))
        return self._recent

    def metric(self, name: str, value: float) -> None:
        """Report a number of this run, such as the confidence of a result, to the release of the version.

        The device reports the mean of its runs; `walle release start --gate 'guards=confidence > 0.95x'` has the gate
        compare it with that of the version before. Of several values of a run the last one counts, and none of a run
        that fails or of a phase that runs in the cloud. `name` is of lower-case letters, digits and `_`; a run may
        report MAX_METRICS of them. A run's time is reported as `latency_ms` without this.

        Raises:
            TaskContextError: the name is not well formed, is `latency_ms`, or is one too many; or the value is not a
                finite number.
        """
        is_name = isinstance(name, str) and name.isascii() and name.isidentifier() and name == name.lower()
        if not is_name or name[0] == "_" or len(name) > _MAX_NAME:
            rule = "lower-case letters, digits and _, at most 64, the first a letter"
            raise TaskContextError(f"{str(name)[:80]!r} is not a metric's name ({rule})")
        if name == _LATENCY:
            raise TaskContextError(f"the metric {name} is the device's own: it reports the time of each run")
        if name not in self.metrics and len(self.metrics) >= MAX_METRICS:
            raise TaskContextError(f"the metric {name} is refused: a run may report {MAX_METRICS} metrics")
        try:
            number = _INFINITE if isinstance(value, _TEXTS) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = _INFINITE
        if not -_INFINITE < number < _INFINITE:
            shown = f"{value!r}"[:80]
            raise TaskContextError(f"the metric {name} must be a finite number, is {shown}")
        self.metrics[name] = number

    def resource(self, name: str) -> memoryview:
        """Return the read-only bytes of `resources/NAME`, mapped from the file and loaded on access.

        Raises:
            TaskContextError: the task has no such file, or only the cloud has it and the phase runs on a device.
        """
        return task_files.resource(name)

    def exclusive(self, name: str) -> bytes | None:
        """Return the contents of the exclusive file that task.toml lists under [[exclusive]], as the device has it now.

        None if the device has no such file and it is not `required`. A file that was changed or removed in the cloud is
        so from a later run on, without a new version.

        Raises:
            CallbackError: task.toml does not list the file, or a required one is not here (it does not count against
                the version).
            TaskContextError: task.toml has no [[exclusive]], or the phase runs in the cloud.
        """
        known = _exclusive.get(name, ("", b""))
        sha256, data = _ask("exclusive.read", _NO_EXCLUSIVE, name, known[0])
        if not sha256:
            _exclusive.pop(name, None)
            return None
        if data is not None:
            known = _exclusive[name] = sha256, data
        return known[1]

    def session(self, name: str) -> Session | Module:
        """Return the `walle.Session` of the model `resources/NAME`, or the `walle.Module` of one with control flow.

        `.walle` may be left out. Loaded once: by `load` if the task's code has the name as a text, else here, where the
        time does not count against the deadline.

        Raises:
            TaskContextError: the task has no such file, or only the cloud has it and the phase runs on a device.
            EngineError: the engine cannot load it.
        """
        return task_files.session(name)

    def features(self, view: str, **key: Any) -> Any:
        """Return the latest feature that devices uploaded for a key of a view, None if there is none.

        Only in a phase that runs in the cloud: its operator names the views (`walle cloud up --features`).

        Raises:
            TaskContextError: the phase runs on the device.
            CallbackError: the view does not exist, or has another key.
        """
        return _ask("features", _NO_FEATURES, view, key)

    def escalate(self, payload: Any, *, timeout_ms: int | None = None) -> Any:
        """Have the cloud run the present phase on `payload`, which is plain data and arrays, and return its result.

        It waits `timeout_ms` at most, without it as long as the device is configured to; but always ends so long before
        the run's deadline that the task can still do without: a tenth of `deadline_ms`. The cloud runs requests whose
        time ends first before others, and none whose time is over.

        Raises:
            EscalationError: there is no result. `reason` is "away", "late", "full" or "failed".
            TypeError: the payload is not plain data.
        """
        if self.phase == "train":
            raise EscalationError("failed", "train runs on the device alone, and has no ctx.escalate")
        if self.place == "cloud":
            raise EscalationError(
                "failed", f"{self.phase} runs in the cloud already; ctx.place says where a phase runs"
            )
        if timeout_ms is not None and timeout_ms <= 0:
            raise EscalationError("late", f"timeout_ms is {timeout_ms}, so that there is no time for the cloud")
        spent_ms = (_clock_s() - self._begun_s) * 1000
        try:
            reason, result = callbacks.call("escalate", self.phase, payload, timeout_ms, spent_ms)
        except callbacks.CallbackError as error:
            raise EscalationError("failed", str(error)) from error
        if reason:
            raise EscalationError(reason, result)
        return result


def _ask(name: str, why_none: str, *args: Any) -> Any:
    """Return the result of the caller's callback.

    Raises:
        TaskContextError: the caller of this run does not answer this call, for the reason `why_none`.
        CallbackError: the callback raised.
    """
    try:
        return callbacks.call(name, *args)
    except callbacks.CallbackError as error:
        if error.type_name != "MissingCallback":
            raise
        raise TaskContextError(why_none) from None


def load(models: Iterable[str] = (), elsewhere: Iterable[str] = (), run_id: int = 0) -> dict[str, Any]:
    """Load what the task's runs need, running no phase; return {"phases": [those it has], "log": [(level, text)]}.

    That is its modules, what they import, the parts of `walle.np` and `walle.cv` whose names their code uses, and those
    of `models`, files below resources/, whose names are texts in it. What a name does not tell is loaded at first use.
    `elsewhere` are files below resources/ that only the cloud has, on a device. A model that cannot be loaded is
    logged: a run may do without it.

    Raises:
        TaskContextError: `main` has none of the phases.
    """
    log = open_log(run_id)
    task_files.set_elsewhere(elsewhere)
    phases = _load()
    task = dispatch.task()
    task.load_named_parts()
    for model in models:
        for name in (model.removesuffix(ending) for ending in task_files.MODEL_ENDINGS if model.endswith(ending)):
            if not task_files.is_open(name) and task.mentions(name):
                try:
                    task_files.session(name)
                except Exception as error:  # noqa: BLE001 -- of whatever kind; a run that needs it raises it again
                    why = str(error).removeprefix(f"model 'resources/{model}': ")
                    log.add(f"model resources/{model} could not be loaded: {why}", "warning")
    return {"phases": phases, "log": close_log(run_id)}


def load_migrating(models: Iterable[str] = (), elsewhere: Iterable[str] = (), run_id: int = 0) -> dict[str, Any]:
    """Load as `load` a task that must have a function `migrate`.

    Raises:
        TaskContextError: `main` has no phase, or no `migrate`.
    """
    loaded = load(models, elsewhere, run_id)
    _migration()
    return loaded


def _load() -> list[str]:
    main = dispatch.task().main()
    phases = [phase for phase in _PHASES if callable(getattr(main, phase, None))]
    if not phases:
        raise TaskContextError(f"main has none of {', '.join(_PHASES)}; a task needs at least one")
    return phases


def _migration() -> Callable[[int, dict[str, Any]], object]:
    migrate = getattr(dispatch.task().main(), "migrate", None)
    if not callable(migrate):
        raise TaskContextError('main has no migrate(old_version, state), which on_upgrade = "migrate" calls')
    return migrate  # type: ignore[no-any-return]


def migrate(old_version: int, state: dict[str, Any], run_id: int = 0) -> dict[str, Any]:
    """Return {"state": what the task's `migrate` made of an older version's state, "log": [(level, text)]}.

    Raises:
        TaskContextError: `main` has no `migrate`.
    """
    open_log(run_id)
    function = _migration()
    dispatch.enter_phase("migrate", getattr(function, "__code__", None))
    return {"state": function(old_version, state), "log": close_log(run_id)}


def run(
    task: str,
    trigger: Mapping[str, Any],
    events: bytes | Iterable[Mapping[str, Any]],
    device: Mapping[str, Any],
    phases: Mapping[str, str] | None = None,
    state: dict[str, Any] | None = None,
    run_id: int = 0,
) -> dict[str, Any]:
    """Take a trigger through the phases; return {"output", "puts", "local", "log", "cpu_s", "run_ms", "state"}.

    `task` is its full name. `puts` are the (topic, payload) pairs to store and upload, `local` those to store only.
    `log` are pairs (level, text). `cpu_s` are the seconds of CPU time that the run took on its VM's thread, `run_ms`
    the milliseconds that passed. What `ctx.metric` got is there as "metrics", if there is any.

    Each phase gets what the one before it returned, the first one the trigger; one that `main` lacks is skipped.
    `events` are the page's, as `walle.pipeline.stream.events.encode_events` encodes them. `state` is the task's, None
    if it has none; then the result has none either. A phase whose place in `phases` is "cloud" runs there. `run_id` is
    for `take_failure`.
    """
    return _run_phases(task, trigger, events, device, phases or {}, state, run_id, None)


def run_timed(
    task: str,
    trigger: Mapping[str, Any],
    events: bytes | Iterable[Mapping[str, Any]],
    device: Mapping[str, Any],
    phases: Mapping[str, str] | None = None,
    state: dict[str, Any] | None = None,
    run_id: int = 0,
) -> dict[str, Any]:
    """Run as `run`; the result has the time of each phase too, as "phase_ms" {phase: ms}."""
    times: dict[str, float] = {}
    result = _run_phases(task, trigger, events, device, phases or {}, state, run_id, times)
    return {**result, "phase_ms": times}


def _run_phases(
    task: str,
    trigger: Mapping[str, Any],
    events: bytes | Iterable[Mapping[str, Any]],
    device: Mapping[str, Any],
    phases: Mapping[str, str],
    state: dict[str, Any] | None,
    run_id: int,
    times: dict[str, float] | None,
) -> dict[str, Any]:
    begun_s, started_s = _cpu_s(), _clock_s()
    log = open_log(run_id)
    try:
        ctx = Context(task, decode_events(events), device, log, trigger.get("visit", "whole"), state)
        present = _load()
        main = dispatch.task().main()
        value = as_trigger(trigger)
        for ctx.phase in present:
            log.phase = ctx.phase
            function = getattr(main, ctx.phase)
            dispatch.enter_phase(ctx.phase, getattr(function, "__code__", None))
            start_s = _clock_s() if times is not None else 0.0
            value = ctx.escalate(value) if phases.get(ctx.phase) == "cloud" else function(ctx, value)
            if times is not None:
                times[log.phase] = (_clock_s() - start_s) * 1000
    finally:
        log.cpu_s = _cpu_s() - begun_s
    run_ms = (_clock_s() - started_s) * 1000
    result = {"output": value, "puts": ctx.store.puts, "local": ctx.store.local, "log": close_log(run_id)}
    if state is not None:
        result["state"] = ctx.state
    if ctx.metrics:
        result["metrics"] = ctx.metrics
    result["run_ms"] = run_ms
    result["cpu_s"] = log.cpu_s
    return result


def train(task: str, device: Mapping[str, Any], run_id: int = 0) -> dict[str, Any]:
    """Run the task's `train`, one step; return {"wants_more", "puts", "local", "log", "cpu_s", "run_ms"}.

    "wants_more" says whether it wants another step now. The value of `ctx.checkpoint`, if `train` has used it, is there
    as "checkpoint", and what `ctx.metric` got as "metrics", if there is any.

    Raises:
        TaskContextError: `main` has no `train`.
    """
    begun_s, started_s = _cpu_s(), _clock_s()
    log = open_log(run_id)
    try:
        ctx = Context(task, Events(), device, log)
        function = getattr(dispatch.task().main(), "train", None)
        if not callable(function):
            raise TaskContextError("main has no train(ctx), which [training] in task.toml calls")
        ctx.phase = log.phase = "train"
        dispatch.enter_phase("train", getattr(function, "__code__", None))
        wants_more = bool(function(ctx))
    finally:
        log.cpu_s = _cpu_s() - begun_s
    run_ms = (_clock_s() - started_s) * 1000
    result = {"wants_more": wants_more, "puts": ctx.store.puts, "local": ctx.store.local, "log": close_log(run_id)}
    if ctx._own_checkpoint:
        result["checkpoint"] = ctx._own_checkpoint[0]
    if ctx.metrics:
        result["metrics"] = ctx.metrics
    return {**result, "run_ms": run_ms, "cpu_s": log.cpu_s}


def phase(task: str, name: str, payload: Any, device: Mapping[str, Any], run_id: int = 0) -> dict[str, Any]:
    """Run one phase on a payload that a device handed over; return {"output", "log": [(level, text)]}.

    `run_id` is for `take_failure`.

    Raises:
        TaskContextError: the task does not have the phase.
    """
    log = open_log(run_id)
    ctx = Context(task, Events(), device, log, place="cloud")
    present = _load()
    if name not in present:
        raise TaskContextError(f"the task has no phase {name!r}")
    ctx.phase = log.phase = name
    function = getattr(dispatch.task().main(), name)
    dispatch.enter_phase(name, getattr(function, "__code__", None))
    output = function(ctx, as_trigger(payload) if name == present[0] else payload)
    return {"output": output, "log": close_log(run_id)}


def phase_batch(
    task: str, payloads: list[Any], devices: Iterable[Mapping[str, Any]], run_id: int = 0
) -> dict[str, Any]:
    """Run `execute_batch` on payloads of several devices; return {"outputs": [(error, result)], "log"}.

    `error` is None or, where the result has an exception in a payload's place, its description. "outputs" is None if
    the task has no `execute_batch`.

    Raises:
        TaskContextError: it returned another number of results than there were payloads, or no list.
    """
    log = open_log(run_id)
    present = _load()
    function = getattr(dispatch.task().main(), "execute_batch", None)
    if not callable(function):
        return {"outputs": None, "log": close_log(run_id)}
    ctx = Context(task, Events(), {}, log, place="cloud", devices=devices)
    ctx.phase, log.phase = "execute", "execute_batch"
    results = function(ctx, [as_trigger(one) for one in payloads] if present[0] == "execute" else payloads)
    if not isinstance(results, list) or len(results) != len(payloads):
        given = f"{len(results)} results" if isinstance(results, list) else f"a {type(results).__name__}"
        raise TaskContextError(f"execute_batch returned {given} for {len(payloads)} payloads; return a list, one each")
    outputs = [(dispatch.describe(one), None) if isinstance(one, BaseException) else (None, one) for one in results]
    return {"outputs": outputs, "log": close_log(run_id)}
