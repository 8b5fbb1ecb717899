"""Variants of a version: other files for the devices of a rule, in one release with one gate and one rollback."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sim.release_world import ReleaseWorld, tree, verify
from walle.base.clock import ManualClock
from walle.deploy.gate.gate import Gate
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.explanation import explain
from walle.deploy.releases.journal import Journal
from walle.deploy.releases.reachability import find_reachable
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.releases.request import ReleaseRequest, ReleaseRequestError
from walle.protocol import Attribute, Directive, Envelope, Profile, directives_from_header

TRIAL = Gate(trial_runs=10_000)
TABLES = """
[files]
"resources/model.bin" = "shared"
"resources/words.txt" = "shared"
[variants.tiny]
rule = "memory_mb < 256"
files = {"resources/model.bin" = "resources/tiny.bin"}
[variants.small]
rule = "memory_mb < 1024"
files = {"resources/model.bin" = "resources/small.bin"}
"""
RESOURCES = {
    "resources/model.bin": b"large" * 100,
    "resources/small.bin": b"small" * 20,
    "resources/tiny.bin": b"tiny",
    "resources/words.txt": b"words",
}


@contextlib.asynccontextmanager
async def _world(folder: Path) -> AsyncIterator[ReleaseWorld]:
    async with Journal.in_file(folder / "journal.sqlite") as journal:
        world = ReleaseWorld(folder, ManualClock(), journal)
        world.trees |= {version: tree(version, TABLES, RESOURCES) for version in ("v2", "v3")}
        async with world.monitor, world.service:
            await world.service.settled()
            yield world


def _due(world: ReleaseWorld, memory_mb: int | None, have: str = "", device_id: str = "d1") -> Directive | None:
    attributes: dict[str, Attribute] = {} if memory_mb is None else {"memory_mb": memory_mb}
    profile = Profile(device_id, "10", attributes, {"shop/ipv": have} if have else {})
    headers = world.answerer.headers(profile.to_header().encode(), device_id)
    if not headers:
        return None
    (directive,) = directives_from_header(headers[0][1].decode())
    verify(directive)
    return directive


def _model(world: ReleaseWorld, memory_mb: int | None, have: str = "") -> bytes:
    """Return the bytes of the model to which a device is led."""
    directive = _due(world, memory_mb, have)
    assert directive is not None
    manifest = Envelope.from_bytes(world.files.read(directive.manifest)).manifest
    (entry,) = (one for one in manifest.files if one.path == "resources/model.bin")
    assert directive.version == "v2"
    assert [one.path for one in manifest.files if one.path.startswith("resources/")] == [
        "resources/model.bin",
        "resources/words.txt",
    ]
    return world.files.read(entry.sha256)


async def _released(world: ReleaseWorld, version: str, to: str = "full", **changes: object) -> Release:
    values = {
        "scenario": "shop",
        "task": "ipv",
        "version": version,
        "beta": 0,
        "steps": (1.0,),
        "gate": TRIAL,
        **changes,
    }
    release = await world.service.create(ReleaseRequest(**values))  # type: ignore[arg-type]
    release = await world.reached(release.id, "gray 1.0")
    while release.stage != to:
        await world.report(release.id, 1000, 0)
        release = await world.service.get(release.id)
    return release


@pytest.mark.asyncio
async def test_each_device_gets_the_files_of_the_first_variant_whose_rule_admits_it(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        await _released(world, "v2", to="gray 1.0")
        for _ in range(2):  # under way, then full
            assert _model(world, 128) == RESOURCES["resources/tiny.bin"]
            assert _model(world, 512) == RESOURCES["resources/small.bin"]
            assert _model(world, 4096) == _model(world, None) == RESOURCES["resources/model.bin"]
            (release,) = await world.service.all()
            await world.report(release.id, 1000, 0)
        assert world.simulated == ["v2", "v2@tiny", "v2@small"]
        assert (await world.service.get(release.id)).state is ReleaseState.FULL


@pytest.mark.asyncio
async def test_a_device_moves_between_variants_of_a_version_when_its_attributes_change(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        await _released(world, "v2")
        serials = []
        have = "v2@small"
        assert _due(world, 512, have) is None
        for memory_mb, name in ((128, "tiny"), (4096, ""), (128, "tiny")):
            directive = _due(world, memory_mb, have)
            assert directive is not None
            serials.append(directive.serial)
            have = f"v2@{name}" if name else "v2"
            assert _due(world, memory_mb, have) is None
        assert serials[:2] == sorted(serials[:2])  # there and back once; the next move waits for newer serials


@pytest.mark.asyncio
async def test_a_paused_release_moves_no_device(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        await _released(world, "v1")
        release = await _released(world, "v2", to="gray 1.0")
        await world.service.pause(release.id)
        await world.service.settled()
        assert _due(world, 128, "v2@tiny") is None
        assert _due(world, 128, "v2@small") is None
        assert _due(world, 128, "v2") is None
        assert _due(world, 128, "v1") is None


@pytest.mark.asyncio
async def test_a_rollback_takes_every_variant_away(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        first = await _released(world, "v1")
        release = await _released(world, "v2", to="gray 1.0")
        await world.service.rollback(release.id, "tester", "too slow")
        await world.service.settled()
        for memory_mb, have in ((128, "v2@tiny"), (512, "v2@small"), (4096, "v2")):
            directive = _due(world, memory_mb, have)
            assert directive is not None
            assert (directive.version, directive.manifest) == ("v1", first.manifest)
            row = world.answerer.table.rows["shop/ipv"]
            assert row.is_urgent(directive, have)


@pytest.mark.asyncio
async def test_a_newer_version_keeps_each_device_in_its_variant(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        await _released(world, "v2")
        release = await _released(world, "v3", to="gray 1.0")
        names = dict(zip(("tiny", "small"), release.variants, strict=True))
        directive = _due(world, 128, "v2@tiny")
        assert directive is not None
        assert (directive.version, directive.manifest) == ("v3", names["tiny"].manifest)
        assert _due(world, 512, "v3@small") is None


@pytest.mark.asyncio
async def test_a_uniform_beta_finds_devices_that_have_a_variant(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        await _released(world, "v2")
        _due(world, 128, "v2@tiny", "small-device")
        assert world.answerer.recent(1, Policy(), "shop/ipv") == ("small-device",)


@pytest.mark.asyncio
async def test_a_release_by_rule_joins_its_rule_with_those_of_the_variants(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        release = await _released(world, "v2", policy=Policy(rule="os == 'a'"))
        assert [one.policy.rule for one in release.variants] == [
            "(os == 'a'\n) && (memory_mb < 256\n)",
            "(os == 'a'\n) && (memory_mb < 1024\n)",
        ]
        assert _due(world, 128) is None


@pytest.mark.asyncio
async def test_an_explanation_names_the_variant(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        release = await _released(world, "v2")
        profile = Profile("d1", "10", {"memory_mb": 512}, {"shop/ipv": "v2"})
        (found,) = explain(world.answerer.table, profile, [release])
        assert (found.has, found.gets) == ("v2", "v2@small")
        assert found.because == (
            f"{release.id} is the first release that is for it, and variant small the first of its variants;"
            " it gets the version at its next request"
        )
        assert [(one.version, one.kind, one.applies) for one in found.releases] == [
            ("v2@tiny", "uniform", False),
            ("v2@small", "uniform", True),
            ("v2", "uniform", True),
        ]
        assert found.releases[0].result == "not for this device: memory_mb < 256 (memory_mb is 512)"
        assert found.releases[2].result.endswith("it gets the files of variant small, which goes before")


@pytest.mark.asyncio
async def test_a_variant_that_fails_its_simulation_fails_the_release(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        world.failing_variant = "small"
        release = await world.service.create(ReleaseRequest(scenario="shop", task="ipv", version="v2"))
        release = await world.reached(release.id, "failed")
        assert release.reason == "3 of 3 simulated runs of variant small failed: ValueError: too small"


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("ram_gb < 2", "ram_gb"),
        ("memory_mb <", "memory_mb <"),
        ("memory_mb < 'a'", "memory_mb"),
        ("memory_mb < 256) || (true", "memory_mb < 256) || (true"),
    ],
)
@pytest.mark.asyncio
async def test_a_rule_that_the_cloud_cannot_use_is_refused_before_anything_runs(
    tmp_path: Path, rule: str, what: str
) -> None:
    async with _world(tmp_path) as world:
        world.trees["v2"] = tree("v2", TABLES.replace("memory_mb < 1024", rule), RESOURCES)
        policy = Policy(rule="memory_mb > 4000")
        request = ReleaseRequest(scenario="shop", task="ipv", version="v2", policy=policy)
        with pytest.raises(ReleaseRequestError, match=r"the rule of \[variants.small\] in its task.toml") as caught:
            await world.service.create(request)
        assert what in str(caught.value)
        assert not await world.service.all()


@pytest.mark.asyncio
async def test_files_of_variants_are_kept_while_devices_may_have_them(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        release = await _released(world, "v2")
        reached = find_reachable([release], world.files.read).files
        stored = {one.sha256 for one in world.files.files()}
        assert stored == set(reached)
        assert {one.manifest for one in release.variants} <= set(reached)


@pytest.mark.asyncio
async def test_variants_survive_a_restart_of_the_cloud(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        before = await _released(world, "v2")
    async with _world(tmp_path) as world:
        assert (await world.service.get(before.id)).variants == before.variants
        assert _model(world, 128) == RESOURCES["resources/tiny.bin"]
