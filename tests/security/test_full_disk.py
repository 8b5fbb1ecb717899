"""A cloud whose disk is full: what is refused and how, what goes on, and that it goes on as before with space."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.security.attacked_gateway import AttackedGateway
from tests.sim.git_host import address, git
from tests.sim.tasks import FILES

_LEAST_BYTES = 4096
CONFIG = FILES["task.toml"].replace(b"[trigger]", b"[trigger]\nwithout_visit = true")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedGateway]:
    try:
        with AttackedGateway.started(tmp_path_factory.mktemp("disk") / "small/cloud", "--small-disk") as started:
            yield started
    except ValueError:
        pytest.skip("the kernel gives no mount namespace, which a small disk needs")


class Balloon:
    """A file on the gateway's disk that takes what is left, or all but a part."""

    def __init__(self, gateway: AttackedGateway) -> None:
        self._path = Path(f"/proc/{gateway.process.pid}/root{gateway.folder.parent}/balloon")

    def fill(self, leave_bytes: int = 0) -> None:
        with self._path.open("ab") as file:
            disk = os.statvfs(self._path)
            size_bytes = disk.f_bavail * disk.f_frsize - leave_bytes
            while size_bytes >= _LEAST_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size_bytes)
                except OSError:
                    size_bytes //= 2
                else:
                    size_bytes = 0 if leave_bytes else size_bytes

    def free(self) -> None:
        self._path.unlink(missing_ok=True)


def api(gateway: AttackedGateway, method: str, path: str, **body: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {gateway.target.token}"}
    url = f"{gateway.target.url}{path}"
    return httpx.request(method, url, json=body or None, headers=headers, timeout=60, verify=False)


def begin(gateway: AttackedGateway, version: str) -> str:
    """Create and start a release; return its id once it is on its way to devices."""
    made = api(gateway, "POST", "/v1/releases", scenario="shop", task="ipv", version=version, beta=["d"], steps=[1.0])
    assert made.status_code == 201, made.text
    release: str = made.json()["id"]
    assert api(gateway, "POST", f"/v1/releases/{release}/start").status_code == 200
    end_s = time.monotonic() + 60
    while (shown := api(gateway, "GET", f"/v1/releases/{release}").json())["state"] == "simulating":
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert shown["state"] == "beta", shown
    return release


def test_a_rollback_works_on_a_full_disk_and_new_work_is_refused_with_507(
    gateway: AttackedGateway, tmp_path: Path
) -> None:
    copy = tmp_path / "work"
    copy.mkdir()
    git(copy, "init", "-b", "ipv")
    for name, data in {**FILES, "main.py": b"def execute(ctx, *events):\n    return 1\n"}.items():
        (copy / name).write_bytes(data)
    git(copy, "add", "-A")
    git(copy, "commit", "-qm", "work")
    for number in (1, 2):
        git(copy, "tag", f"ipv/v{number}")
    remote = address(gateway.target.url, gateway.target.token, "shop")
    git(copy, *gateway.git_trust, "push", remote, "ipv", "ipv/v1", "ipv/v2")
    bad = begin(gateway, "v1")
    balloon = Balloon(gateway)
    balloon.fill()

    refused = api(gateway, "POST", "/v1/releases", scenario="shop", task="ipv", version="v2")
    assert refused.status_code == 507
    assert "releases can be rolled back and paused meanwhile" in refused.json()["error"]
    git(copy, "tag", "ipv/v3")
    push = git(copy, *gateway.git_trust, "push", remote, "ipv/v3", check=False)
    assert push.returncode != 0
    assert "507" in push.stderr
    done = api(gateway, "POST", f"/v1/releases/{bad}/rollback", reason="it is bad")
    assert done.status_code == 200, done.text
    assert done.json()["state"] == "rolled_back"
    end_s = time.monotonic() + 30
    while api(gateway, "GET", "/healthz").json()["generation"] < 2:  # the table without it is published
        assert time.monotonic() < end_s
        time.sleep(0.05)

    balloon.free()
    balloon.fill(32 << 20)  # less than the reserve
    assert api(gateway, "POST", "/v1/releases", scenario="shop", task="ipv", version="v2").status_code == 507
    balloon.free()
    git(copy, *gateway.git_trust, "push", remote, "ipv/v3")
    begin(gateway, "v3")
    view = Path(f"/proc/{gateway.process.pid}/root{gateway.folder}")
    assert not list(view.glob("repos/shop.git/objects/incoming-*"))
    git(tmp_path, *gateway.git_trust, "clone", "--mirror", remote, "mirror")
    git(tmp_path / "mirror", "fsck", "--strict")
