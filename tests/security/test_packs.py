"""Pushes that ask for more than they have: the gateway's memory, the repository's lock, and what is left."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.night.cases import at_night
from tests.security import packs
from tests.security.attacked_gateway import AttackedGateway, HonestDevices
from tests.sim.git_host import address, git
from tests.sim.tasks import FILES

MAX_BYTES = 400_000_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedGateway]:
    with AttackedGateway.started(tmp_path_factory.mktemp("packs") / "cloud") as started:
        yield started


def leftovers(gateway: AttackedGateway) -> list[str]:
    objects = gateway.folder / "repos/shop.git/objects"
    return [path.name for path in (*objects.glob("incoming-*"), *objects.rglob("tmp_*"))]


@pytest.mark.parametrize(
    ("bomb", "reason"),
    [
        *at_night(
            (packs.delta_bomb(2_000_000_000), b"took more than 300 MiB of memory"),
            (packs.zip_bomb(300_000_000), b"it has a file of 300000000 bytes; at most 134217728 are accepted"),
            (packs.pack(count=50_000_000), b"it has 50000000 objects; at most 200000 are accepted in one push"),
            (packs.pack(packs.entry(packs.BLOB, 100, packs.zeros(50))), b"the pack could not be read"),
        ),
        (packs.broken_commit(), b"contains '.git'"),
        *at_night((packs.pack(), b"objects are missing from the push")),
    ],
    ids=["delta", "zip", "count", "cut", "fsck", "missing"],
)
def test_a_pack_is_refused_with_the_reason_and_nothing_is_left(
    gateway: AttackedGateway, bomb: bytes, reason: bytes
) -> None:
    assert len(bomb) < 2_000_000
    gateway.reset()
    honest = HonestDevices(gateway.target)
    answer = packs.push(gateway.target, bomb)
    assert b"ng refs/heads/x" in answer.content
    assert reason in answer.content
    assert not leftovers(gateway)
    assert gateway.peak_bytes < MAX_BYTES
    assert not honest.stop().failures


@pytest.mark.night
def test_no_object_of_a_refused_pack_is_read(gateway: AttackedGateway) -> None:
    size = 500_000_000  # git unpacks it in parts, but who reads the object has it whole in memory
    bomb, blob = packs.zip_bomb(size), packs.object_id(b"blob", bytes(size)).hex()
    gateway.reset()
    answer = packs.push(gateway.target, bomb, new=blob, ref="refs/tags/x/v1")
    assert b"ng refs/tags/x/v1" in answer.content
    assert b"it has a file of 500000000 bytes" in answer.content
    assert gateway.peak_bytes < MAX_BYTES


@pytest.mark.night
def test_a_push_does_not_wait_for_another_that_is_unpacked(gateway: AttackedGateway, tmp_path: Path) -> None:
    copy = tmp_path / "work"
    copy.mkdir()
    git(copy, "init", "-b", "ipv")
    for name, data in FILES.items():
        (copy / name).write_bytes(data)
    git(copy, "add", "-A")
    git(copy, "commit", "-qm", "work")
    bomb = packs.zip_bomb(1_000_000_000)
    ends: dict[str, float] = {}

    def attack() -> None:
        packs.push(gateway.target, bomb)
        ends["attack"] = time.monotonic()

    attacking = threading.Thread(target=attack)
    attacking.start()
    while not leftovers(gateway):
        time.sleep(0.01)
    git(copy, *gateway.git_trust, "push", address(gateway.target.url, gateway.target.token, "shop"), "ipv")
    ends["push"] = time.monotonic()
    attacking.join()
    assert ends["push"] < ends["attack"]
