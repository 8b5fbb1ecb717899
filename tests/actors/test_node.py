"""Errors that cross between processes, without Ray: an actor's answer is pickled here as Ray would pickle it."""

import asyncio
import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from walle.actors.node import NodeActor, Raised, Remote, returns_errors
from walle.cloud import CloudConfig
from walle.cloud.inference import InferenceError
from walle.deploy.git.repo import RepoError
from walle.deploy.policies.attribute_schema import SchemaError
from walle.deploy.policies.rule import RuleError
from walle.deploy.policies.rule_budget import PatternBudgetError
from walle.deploy.releases.errors import TaskBusyError, TooManyGroupsError, UnknownReleaseError
from walle.deploy.releases.release import TransitionError
from walle.deploy.releases.request import ReleaseRequestError
from walle.engine_ext.vm.loop_calls import DeadlineExceeded, TaskError, VMClosedError
from walle.errors import ConfigError
from walle.protocol import ProtocolError
from walle.store.errors import StateError

ERRORS = [
    TransitionError("count-v1-1", "full", "Start", ("Rollback",)),
    UnknownReleaseError("count-v1-1"),
    TaskBusyError("shop/count", "count-v1-1", "beta"),
    TaskBusyError("shop/count", "count-v1-1", "beta", True),
    TooManyGroupsError("shop/count"),
    PatternBudgetError("shop", "releases", 5_900, 220),
    ReleaseRequestError("beta", "too many"),
    RuleError("os == 3", 3, "'==' does not take (string, int)"),
    SchemaError("attributes.toml", "is not UTF-8"),
    RepoError("shop/count/v9", "no such version"),
    StateError("releases.db", "the disk is full"),
    InferenceError("never released"),
    TaskError("count", "ValueError", "broken", "Traceback"),
    DeadlineExceeded("count", 0.5, "main.py:3"),
    VMClosedError("count", "the pool is closed"),
    ProtocolError("batch", "not JSON"),
    ConfigError("no such app"),
    OSError(98, "Address already in use"),
    KeyError("x"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.asyncio
async def test_an_error_of_another_process_keeps_its_class(error: Exception) -> None:
    @returns_errors
    async def method() -> None:
        raise error

    answer = pickle.loads(pickle.dumps(await method()))
    assert isinstance(answer, Raised)
    there = answer.error()
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert there.args == error.args
    assert {name: value for name, value in vars(there).items() if name != "__notes__"} == vars(error)
    assert "in method" in there.__notes__[0]
    if isinstance(error, OSError):
        assert isinstance(there, OSError)
        assert there.errno == error.errno


@pytest.mark.asyncio
async def test_a_result_is_returned_unchanged_and_a_cancellation_is_raised() -> None:
    @returns_errors
    async def method(answer: object) -> object:
        if answer is None:
            await asyncio.sleep(3600)
        return answer

    assert await method(5) == 5
    waiting = asyncio.create_task(method(None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.asyncio
async def test_a_node_that_is_not_there_yet_is_an_error_and_not_a_crash(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    actor = NodeActor(CloudConfig(folder=tmp_path_factory.mktemp("cloud")))
    answer = await actor.call("get", "x")
    assert isinstance(answer, Raised)
    assert answer.kind is AttributeError
    assert await actor.close() is None


@pytest.mark.parametrize("method", ["retire", "get"])  # one that is repeated after a lost call, and one that is not
@pytest.mark.asyncio
async def test_positional_and_keyword_arguments_reach_the_other_process(tmp_path: Path, method: str) -> None:
    async def called(*args: object, **named: object) -> tuple[object, object]:
        return args, named

    actor = NodeActor(CloudConfig(folder=tmp_path))
    actor._node = SimpleNamespace(retire=called, get=called)
    handle: Any = SimpleNamespace(call=SimpleNamespace(remote=actor.call))
    assert await getattr(Remote(handle), method)("shop", dry_run=True) == (("shop",), {"dry_run": True})


def test_a_handle_can_be_copied_and_pickled() -> None:
    remote = Remote("any handle")  # type: ignore[arg-type]
    assert copy.copy(remote)._actor == "any handle"
    assert pickle.loads(pickle.dumps(remote))._actor == "any handle"
    with pytest.raises(AttributeError):
        remote._no_such_thing  # noqa: B018 - looking it up is the test
