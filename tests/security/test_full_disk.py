"""A cloud whose disk is full: what is refused and how, what goes on, and that it goes on as before with space."""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.security.attacked_gateway import AttackedGateway, check_in
from tests.sim.git_host import address, git
from tests.sim.tasks import FILES
from walle.cloud.api.routes import ROUTES
from walle.protocol import DEVICE_HEADER

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
    end_s = time.monotonic() + 60
    while (shown := api(gateway, "GET", f"/v1/releases/{release}").json())["state"] == "simulating":
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert shown["state"] == "beta", shown
    return release


# Each request that writes, what it answers on a full disk, and a word of the text that says what to do.
WRITES: dict[tuple[str, str], tuple[dict[str, object], int, str]] = {
    ("POST", "/v1/releases"): ({"scenario": "shop", "task": "ipv", "version": "v1"}, 507, "free some"),
    ("POST", "/v1/releases/{release_id}/start"): ({}, 507, "free some"),
    ("POST", "/v1/releases/{release_id}/resume"): ({}, 507, "free some"),
    # There is none: the test below rolls one back.
    ("POST", "/v1/releases/{release_id}/pause"): ({}, 404, "does not exist"),
    ("POST", "/v1/releases/{release_id}/rollback"): ({}, 404, "does not exist"),
    ("POST", "/v1/releases/{release_id}/retry"): ({}, 404, "does not exist"),
    ("POST", "/v1/releases/retire"): ({"scenario": "shop"}, 200, "[]"),  # there is none; it helps to free some
    ("POST", "/v1/versions/{scenario}/{task}/{version}/signatures"): ({"signatures": {}}, 422, "does not exist"),
    ("POST", "/v1/identity/certificate"): ({"device_id": "a", "request": "", "token": ""}, 422, "not a certificate"),
    ("POST", "/v1/identity/challenge"): ({}, 200, ""),  # nothing is written
    ("POST", "/v1/identity/session"): ({"device_id": "a", "challenge": "", "signature": ""}, 401, "challenge"),
    ("POST", "/v1/identity/revoke"): ({"device_id": "stolen", "reason": "lost"}, 200, "lost"),
    ("POST", "/v1/cloud/nodes/drain"): ({"node": "a"}, 409, "no keeper"),  # the gateway is one process, without keeper
    ("POST", "/v1/cloud/nodes/undrain"): ({"node": "a"}, 409, "no keeper"),
    ("POST", "/v1/cloud/nodes/restart"): ({"node": ""}, 409, "no keeper"),
    ("POST", "/v1/tokens"): ({"name": "new", "roles": {"shop": "reader"}}, 507, "free some"),
    ("DELETE", "/v1/tokens/{name:path}"): ({}, 404, "none"),
    ("PUT", "/v1/groups/{group}/{scenario}"): ({}, 422, "does not exist"),  # an unknown group; one that exists: below
    ("DELETE", "/v1/groups/{group}/{scenario}"): ({}, 404, "not in the group"),
    # Of files that there are: test_exclusive_files.py, tests/deploy/exclusive_files/test_exclusive_store.py.
    ("PUT", "/v1/exclusive/{scenario}/{task}/{name}"): ({}, 422, "device"),
    ("DELETE", "/v1/exclusive/{scenario}/{task}/{name}"): ({}, 422, "device"),
    ("PUT", "/v1/attributes/{key}"): ({}, 422, "neither device_id"),
    ("DELETE", "/v1/attributes/{key}"): ({}, 404, "does not exist"),
    ("POST", "/v1/push-sightings"): ({"seen": []}, 200, "taken"),  # the registry is written later
    ("POST", "/v1/preview"): ({}, 422, "required"),  # nothing is written
    # A session writes nothing; what its forms do is what the routes above do.
    ("POST", "/dashboard/login"): ({}, 403, "nothing was done"),
    ("POST", "/dashboard/logout"): ({}, 401, "session"),
    ("POST", "/dashboard/links/{release_id}"): ({}, 401, "session"),
    ("POST", "/dashboard/releases/{release_id}/{verb}"): ({}, 401, "session"),
    ("POST", "/v1/checkin"): ({}, 401, "session"),  # sent by no device; a device's: below
    ("POST", "/v1/outcomes"): ({}, 401, "session"),
    ("POST", "/v1/tuning/{scenario}/{task}"): ({}, 422, "required"),  # models are kept in memory
}
BY_GIT = {"/git/{scenario}/git-upload-pack", "/git/{scenario}/git-receive-pack"}  # below
BY_GIT |= {"/git/{scenario}/info/lfs/objects/batch", "/git/{scenario}/info/lfs/objects/{sha256}"}
BY_GIT |= {path.replace("/git/", "/git/{group}/") for path in BY_GIT}


def test_each_request_that_writes_says_what_to_do_and_stolen_devices_are_revoked(gateway: AttackedGateway) -> None:
    writing = {
        (method, rule.path)
        for rule in ROUTES
        for method in rule.methods.split()
        if method not in {"GET", "HEAD"} and rule.path not in BY_GIT
    }
    assert writing == {*WRITES, ("POST", "/v1/identity/tokens")}
    token = api(gateway, "POST", "/v1/identity/tokens", device_id="stolen", uses=1, life_s=60.0).json()["token"]
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    pem = request.public_bytes(serialization.Encoding.PEM).decode()
    enrolled = api(gateway, "POST", "/v1/identity/certificate", device_id="stolen", request=pem, token=token)
    assert enrolled.status_code == 200, enrolled.text
    balloon = Balloon(gateway)
    balloon.fill()
    try:
        other = []
        for (method, path), (body, status, word) in WRITES.items():
            answer = api(gateway, method, re.sub(r"{[^}]*}", "none", path), **body)
            if answer.status_code != status or word not in answer.text:
                other.append((path, answer.status_code, answer.text))
        assert not other
        moved = api(gateway, "PUT", "/v1/groups/market/shop")
        assert (moved.status_code, "free some" in moved.text) == (507, True)
        assert api(gateway, "GET", "/v1/groups").json()[0]["group"] == ""
        # Its file has room kept for revocations; what is written into the audit log first may still fit or not.
        made = api(gateway, "POST", "/v1/identity/tokens", device_id="new", uses=1, life_s=60.0)
        assert made.status_code == 201 or (made.status_code == 507 and "make room" in made.text)
        assert asyncio.run(check_in(gateway.target, "honest-0")) == 204
        headers = {DEVICE_HEADER: gateway.target.sessions["honest-0"]}
        sent = b'{"device_id": "honest-0", "batch_id": "b1", "outcomes": []}'
        url = f"{gateway.target.url}/v1/outcomes"
        assert httpx.post(url, content=sent, headers=headers, timeout=60, verify=False).status_code == 204
        assert api(gateway, "GET", "/v1/identity/devices").json()["devices"][0]["revoked_s"] is not None
    finally:
        balloon.free()


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
    model = f"/git/shop.git/info/lfs/objects/{'0' * 64}"
    sent = httpx.put(f"{gateway.target.url}{model}", content=b"m", auth=("x", gateway.target.token), verify=False)
    assert (sent.status_code, "free some" in sent.json()["message"]) == (507, True)
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


def test_tokens_are_revoked_on_a_full_disk(gateway: AttackedGateway) -> None:
    """A stolen token must not outlive the day on which its thief fills the disk."""
    made = {}
    for name in ("stolen", "stolen too"):
        answer = api(gateway, "POST", "/v1/tokens", name=name, roles={"shop": "author"})
        assert answer.status_code == 201, answer.text
        made[name] = answer.json()["token"]
    balloon = Balloon(gateway)
    balloon.fill()
    try:
        refused = api(gateway, "POST", "/v1/tokens", name="another", roles={"shop": "reader"})
        assert refused.status_code == 507
        for name, token in made.items():
            answer = api(gateway, "DELETE", f"/v1/tokens/{name}")
            assert answer.status_code == 204, answer.text
            headers = {"authorization": f"Bearer {token}"}
            asked = httpx.get(f"{gateway.target.url}/v1/whoami", headers=headers, timeout=60, verify=False)
            assert asked.status_code == 401
    finally:
        balloon.free()
    view = Path(f"/proc/{gateway.process.pid}/root{gateway.folder}")
    assert (view / "access.spare").stat().st_size > 0
    assert (view / "access.spare").stat().st_mode & 0o077 == 0
