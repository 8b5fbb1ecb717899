"""Attacks on the identity of devices at a whole cloud, over real sockets: enrolment, sessions, revocation."""

import asyncio
import base64
import contextlib
import json
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.night.cases import at_night
from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from walle.access.audit import read_records
from walle.access.identity.authority import Authority
from walle.access.identity.refusals import RENEWAL_GRACE_S
from walle.access.identity.service import UsedChallenges
from walle.access.identity.sessions import SessionRefusedError, SessionSigner, SessionVerifier
from walle.base.clock import Clock, ManualClock, SystemClock
from walle.base.device_identity import DeviceIdentity, Revocations
from walle.base.http_roots import http_tls
from walle.cloud import Cloud, CloudConfig
from walle.cloud.nodes.identity import IdentityNode
from walle.device import credentials as credentials_module
from walle.device.credentials import CloudRefusalError, DeviceCredentials
from walle.protocol import (
    DEVICE_HEADER,
    PROFILE_HEADER,
    TASKS_HEADER,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    Profile,
    session_proof,
)

_DAY_S = 86_400.0
_WITHIN_S = 5.0  # longest time for a revocation to act everywhere


def _request(key: Any, signed_by: Any = None) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    data = bytearray(request.public_bytes(serialization.Encoding.DER))
    if signed_by is None:
        return request.public_bytes(serialization.Encoding.PEM).decode()
    data[-1] ^= 1
    text = base64.encodebytes(bytes(data)).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{text}-----END CERTIFICATE REQUEST-----\n"


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class Attacker:
    """HTTP calls of a device that says what it likes."""

    def __init__(self, cloud: Cloud, http: httpx.AsyncClient) -> None:
        self.cloud = cloud
        self.http = http

    def token(self, device_id: str = "", uses: int = 1) -> str:
        return self.cloud.home.identities().make_token(device_id, uses=uses, life_s=_DAY_S)

    async def certify(self, device_id: str, request: str, token: str = "") -> httpx.Response:
        body = {"device_id": device_id, "request": request, "token": token}
        return await self.http.post("/v1/identity/certificate", json=body)

    async def session(self, device_id: str, key: ec.EllipticCurvePrivateKey, challenge: str = "") -> httpx.Response:
        if not challenge:
            challenge = (await self.http.post("/v1/identity/challenge")).json()["challenge"]
        signature = key.sign(session_proof(device_id, challenge), ec.ECDSA(hashes.SHA256()))
        body = {"device_id": device_id, "challenge": challenge, "signature": base64.b64encode(signature).decode()}
        return await self.http.post("/v1/identity/session", json=body)

    async def enrolled(self, device_id: str) -> tuple[ec.EllipticCurvePrivateKey, dict[str, str]]:
        """Return the key and the session headers of a device that is enrolled now."""
        key = _key()
        assert (await self.certify(device_id, _request(key), self.token(device_id))).status_code == 200
        return key, {DEVICE_HEADER: (await self.session(device_id, key)).json()["token"]}

    async def report(self, device_id: str, headers: dict[str, str], batch_id: str = "b") -> httpx.Response:
        outcome = Outcome(task="shop/count", version="v1", release="r", kind=OutcomeKind.RUN, ok=1)
        body = OutcomeBatch(device_id, batch_id, (outcome,)).to_json()
        return await self.http.post("/v1/outcomes", json=body, headers=headers)


@contextlib.asynccontextmanager
async def attacked(folder: Path, *, clock: Clock | None = None, **config: Any) -> AsyncIterator[Attacker]:
    """Give a cloud, whose identity node may have a clock of its own."""
    cloud = Cloud(CloudConfig(folder=folder, vm_host=False, **config))
    if clock is not None:
        cloud._identity_node = IdentityNode(cloud.config, clock=clock)
    async with cloud, httpx.AsyncClient(base_url=cloud.address.url) as http:
        yield Attacker(cloud, http)


def credentials(http: httpx.AsyncClient, folder: Path, token: str, clock: Clock | None = None) -> DeviceCredentials:
    return DeviceCredentials(
        folder.name,
        folder,
        http,
        clock or SystemClock(),
        random.Random(1),
        token=token,
        on_certificate=lambda certificate, key: None,
    )


# --- speaking for another ---------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_no_device_reports_or_votes_for_another(tmp_path: Path) -> None:
    async with attacked(tmp_path) as attacker:
        _, mine = await attacker.enrolled("mine")
        await attacker.enrolled("victim")
        refused = await attacker.report("victim", mine)
        assert (refused.status_code, "'victim'" in refused.json()["error"]) == (403, True)
        assert (await attacker.report("mine", mine)).status_code == 204
        assert (await attacker.report("mine", {})).status_code == 401
        admin = {"Authorization": f"Bearer {attacker.cloud.home.admin_token}"}
        known = (await attacker.http.get("/v1/devices", headers=admin)).json()["devices"]
        assert [device["device_id"] for device in known] == ["mine"]


@pytest.mark.asyncio
async def test_a_profile_of_another_device_gets_no_directives_and_is_not_noted(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1")
        await shop.until(await shop.release("v1", beta=["victim"]), "beta")
        profile = {PROFILE_HEADER: Profile("victim", "10", {}, {}).to_header()}
        own = {**profile, **session_headers(shop.cloud.home, "victim")}

        async def is_answered() -> bool:  # once the gateway has the table
            return TASKS_HEADER in (await shop.http.get("/", headers=own)).headers

        await until(is_answered)
        shop.cloud.gateway._answers.answerer.devices.take()
        for headers in ({}, session_headers(shop.cloud.home, "thief")):
            answer = await shop.http.get("/", headers={**profile, **headers})
            assert TASKS_HEADER not in answer.headers
            assert answer.headers["x-walle-error"]
        assert shop.cloud.gateway._answers.answerer.devices.take() == {}
        assert (await shop.http.post("/v1/checkin", headers=profile)).status_code == 401


@pytest.mark.asyncio
@pytest.mark.parametrize("forge", ["another key", "cut", "extended", "garbage", "huge", "empty"])
async def test_a_forged_session_is_refused(tmp_path: Path, forge: str) -> None:
    async with attacked(tmp_path / "cloud") as attacker:
        _, headers = await attacker.enrolled("a")
        real = headers[DEVICE_HEADER]
        stranger = SessionSigner(tmp_path).sign(DeviceIdentity("a", 1), time.time() + 3600)
        claim = base64.urlsafe_b64encode(b'["a",1,99999999999]').rstrip(b"=").decode()
        forged = {
            "another key": stranger,
            "cut": real[:-5],
            "extended": f"{claim}.{real.partition('.')[2]}",
            "garbage": "\xff.!",
            "huge": "A" * 5000,
            "empty": "",
        }[forge]
        refused = await attacker.report("a", {DEVICE_HEADER: forged.encode("latin-1")})  # type: ignore[dict-item]
        assert refused.status_code == 401
        assert (await attacker.report("a", headers)).status_code == 204


def test_a_session_ends_and_the_cache_is_bounded(tmp_path: Path) -> None:
    signer, clock, revocations = SessionSigner(tmp_path), ManualClock(), Revocations()
    verifier = SessionVerifier(signer.public_key, revocations, cache_bytes=10_000, now=clock.time)
    token = signer.sign(DeviceIdentity("a", 1), clock.time() + 60).encode()
    assert [verifier.device_id(token) for _ in range(3)] == ["a"] * 3
    assert verifier.verified == 1
    clock._now_s += 61
    for _ in range(2):
        with pytest.raises(SessionRefusedError, match="expired"):
            verifier.device_id(token)
    for number in range(100):
        verifier.device_id(signer.sign(DeviceIdentity(f"d{number}", 1), clock.time() + 60).encode())
    assert len(verifier._known) < 20
    assert verifier._known_bytes <= 10_000
    revocations.update(1, {"d99": 2})
    with pytest.raises(SessionRefusedError, match="revoked"):
        verifier.device_id(next(reversed(verifier._known)))


# --- enrolment --------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_token_is_used_once_also_by_several_at_once(tmp_path: Path) -> None:
    async with attacked(tmp_path) as attacker:
        token, keys = attacker.token(), [_key() for _ in range(6)]
        answers = await asyncio.gather(
            *(attacker.certify(f"device-{number}", _request(key), token) for number, key in enumerate(keys))
        )
        assert sorted(answer.status_code for answer in answers) == [200, *[401] * 5]
        refused = next(answer for answer in answers if answer.status_code == 401)
        assert "used up" in refused.json()["error"]
        assert len(read_records(tmp_path / "audit")) == 1  # strangers' attempts leave none
        assert "walle device enrol" in refused.json()["error"]


@pytest.mark.asyncio
async def test_an_id_belongs_to_its_key(tmp_path: Path) -> None:
    async with attacked(tmp_path) as attacker:
        key, headers = await attacker.enrolled("a")
        thief = _key()
        assert (await attacker.certify("a", _request(thief))).status_code == 401
        assert (await attacker.certify("a", _request(thief), attacker.token(uses=9))).status_code == 403
        assert (await attacker.certify("a", _request(thief), attacker.token("b"))).status_code == 403
        assert (await attacker.session("a", thief)).status_code == 401
        assert (await attacker.certify("a", _request(key))).status_code == 200  # the device's own key: a renewal
        await attacker.enrolled("a")  # another key and a token for this id: the old key is over

        async def is_refused() -> bool:
            return (await attacker.report("a", headers)).status_code == 401

        await until(is_refused, _WITHIN_S)
        assert (await attacker.session("a", key)).status_code == 401


@pytest.mark.asyncio
async def test_anything_but_a_request_for_a_certificate_is_refused_by_name(tmp_path: Path) -> None:
    async with attacked(tmp_path) as attacker:
        token = attacker.token(uses=9)
        wrong_curve = _request(ec.generate_private_key(ec.SECP384R1()))
        for request in ("", "x", _request(_key(), signed_by="nobody"), wrong_curve, "A" * 5000):
            answer = await attacker.certify("a", request, token)
            assert (answer.status_code, answer.json()["type"]) == (422, "IdentityRefusedError"), request[:50]
        for body in (b"", b"[]", b"[" * 10_000, b"{}", b'{"device_id": 1}', b"x" * 16_000):
            answer = await attacker.http.post("/v1/identity/certificate", content=body)
            expected = (413, "HttpLimitError") if len(body) > 16_384 else (422, "ProtocolError")
            assert (answer.status_code, answer.json()["type"]) == expected, body[:50]
        assert (await attacker.certify("a\x1b[2J", _request(_key()), token)).status_code == 422
        assert (await attacker.certify("a", _request(_key()), token)).status_code == 200


@pytest.mark.asyncio
async def test_a_proof_is_of_a_fresh_challenge_of_this_cloud_and_this_device(tmp_path: Path) -> None:
    clock = ManualClock(time.time())
    async with attacked(tmp_path, clock=clock) as attacker:
        key, _ = await attacker.enrolled("a")
        await attacker.enrolled("b")
        assert (await attacker.session("b", key)).status_code == 401
        challenge = (await attacker.http.post("/v1/identity/challenge")).json()["challenge"]
        forged = challenge.replace(challenge.partition(".")[0], "99999999999")
        assert (await attacker.session("a", key, forged)).status_code == 401
        for made_up in ("x", "1.2.3", "nan.a.b", "\ud800", "é.é.é"):
            body = {"device_id": "a", "challenge": made_up, "signature": "AAAA"}
            answer = await attacker.http.post("/v1/identity/session", content=json.dumps(body))
            assert answer.status_code in (401, 422)
        assert (await attacker.session("a", key, challenge)).status_code == 200
        clock._now_s += 61
        stale = await attacker.session("a", key, challenge)
        assert (stale.status_code, "expired" in stale.json()["error"]) == (401, True)


@pytest.mark.asyncio
async def test_a_proof_counts_once_also_where_it_is_sent_twice_at_once(tmp_path: Path) -> None:
    async with attacked(tmp_path) as attacker:
        key, _ = await attacker.enrolled("a")
        other, _ = await attacker.enrolled("b")

        async def challenge() -> str:
            text: str = (await attacker.http.post("/v1/identity/challenge")).json()["challenge"]
            return text

        older, read = await challenge(), await challenge()
        answers = await asyncio.gather(*(attacker.session("a", key, read) for _ in range(8)))
        assert sorted(answer.status_code for answer in answers) == [200, *[401] * 7]
        assert "challenge was already used" in next(one for one in answers if one.status_code == 401).json()["error"]
        assert (await attacker.session("a", key, older)).status_code == 401
        assert (await attacker.session("b", other, older)).status_code == 200, "of another device"
        assert (await attacker.session("b", key, await challenge())).status_code == 401
        assert (await attacker.session("a", key)).status_code == 200


@pytest.mark.asyncio
async def test_a_caller_without_a_key_does_not_learn_which_devices_exist(tmp_path: Path) -> None:
    async with attacked(tmp_path) as attacker:
        await attacker.enrolled("here")
        revoked, _ = await attacker.enrolled("gone")
        attacker.cloud.home.identities().revoke("gone", "")
        for ask in (attacker.session, lambda device, key: attacker.certify(device, _request(key))):
            said = set()
            for device_id in ("here", "gone", "none"):
                answer = await ask(device_id, _key())
                said.add((answer.status_code, answer.text.replace(device_id, "ID")))
            assert len(said) == 1, said
        answer = await attacker.session("gone", revoked)
        assert (answer.status_code, answer.json()["type"]) == (403, "KeyRevokedError"), "its owner is told"


@pytest.mark.asyncio
async def test_a_key_whose_certificate_ended_long_ago_gets_no_session(tmp_path: Path) -> None:
    clock = ManualClock(time.time())
    async with attacked(tmp_path, clock=clock) as attacker:
        key, _ = await attacker.enrolled("a")
        clock._now_s += 30 * _DAY_S + RENEWAL_GRACE_S - 10
        assert (await attacker.session("a", key)).status_code == 200
        clock._now_s += 20
        answer = await attacker.session("a", key)
        assert (answer.status_code, "walle device enrol" in answer.json()["error"]) == (403, True)
        assert answer.json()["type"] == "IdentityRefusedError", "by which a device tries its token"


def test_used_challenges_take_memory_by_devices_of_the_last_minute() -> None:
    used = UsedChallenges()
    for number in range(1, 10_001):
        assert used.use(f"d{number % 10}", number, now_s=number / 1000)
    assert len(used) == 10
    assert not used.use("d1", 1, now_s=70)
    assert used.use("d1", 10_001, now_s=80)
    assert len(used) == 1


@pytest.mark.asyncio
async def test_only_an_administrator_makes_tokens_lists_and_revokes(tmp_path: Path) -> None:
    async with attacked(tmp_path) as attacker:
        key, device = await attacker.enrolled("a")
        calls: list[Callable[[dict[str, str]], Any]] = [
            lambda headers: attacker.http.post("/v1/identity/tokens", json={"life_s": 60.0}, headers=headers),
            lambda headers: attacker.http.post("/v1/identity/revoke", json={"device_id": "a"}, headers=headers),
            lambda headers: attacker.http.get("/v1/identity/devices", headers=headers),
        ]
        for headers in ({}, device, {"Authorization": f"Bearer {device[DEVICE_HEADER]}"}):
            assert [(await call(headers)).status_code for call in calls] == [401] * 3
        assert (await attacker.session("a", key)).status_code == 200
        admin = {"Authorization": f"Bearer {attacker.cloud.home.admin_token}"}
        assert [(await call(admin)).status_code for call in calls] == [201, 200, 200]


# --- the device's side ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_device_that_dies_before_it_has_its_certificate_finishes_with_the_same_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise KilledError

    async with attacked(tmp_path / "cloud") as attacker:
        token, folder = attacker.token(), tmp_path / "phone"
        first = credentials(attacker.http, folder, token)
        await first.start()
        with monkeypatch.context() as patch:
            patch.setattr(credentials_module, "write_file", die)
            with pytest.raises(KilledError):
                await first.session()
        assert not (folder / "identity" / "certificate.pem").exists()
        other = credentials(attacker.http, tmp_path / "other", token)
        await other.start()
        with pytest.raises(CloudRefusalError, match="used up"):  # the device that died used the token
            await other.session()
        again = credentials(attacker.http, folder, token)
        await again.start()
        assert await again.session()
        files = {path.name: path.stat().st_mode & 0o777 for path in (folder / "identity").iterdir()}
        assert files == {"key.pem": 0o600, "certificate.pem": 0o600}


@pytest.mark.asyncio
@pytest.mark.parametrize("now_s", [0.0, 4e9])
async def test_a_device_whose_clock_is_wrong_is_served(tmp_path: Path, now_s: float) -> None:
    async with attacked(tmp_path / "cloud") as attacker:
        device = credentials(attacker.http, tmp_path / "phone", attacker.token(), ManualClock(now_s))
        await device.start()
        assert (await attacker.report("phone", {DEVICE_HEADER: await device.session()})).status_code == 204


@pytest.mark.asyncio
async def test_a_certificate_is_renewed_before_it_ends_and_after(tmp_path: Path) -> None:
    cloud_clock, device_clock = ManualClock(time.time()), ManualClock()
    async with attacked(tmp_path / "cloud", clock=cloud_clock) as attacker:
        device = credentials(attacker.http, tmp_path / "phone", attacker.token(), device_clock)
        await device.start()
        path = tmp_path / "phone" / "identity" / "certificate.pem"
        sessions, certificates = [await device.session()], [path.read_text()]
        for days in (1, 20, 60):
            cloud_clock._now_s += days * _DAY_S
            device_clock._now_s += days * _DAY_S
            sessions.append(await device.session())
            certificates.append(path.read_text())
        assert len(set(sessions)) == 4
        assert certificates[0] == certificates[1]
        assert len(set(certificates[1:])) == 3
        ends = [x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc for text in certificates]
        assert (ends[2] - ends[0]).days == 21
        assert (ends[3] - ends[0]).days == 81


@pytest.mark.asyncio
@pytest.mark.parametrize("lost", ["its identity", "its latest key"])
async def test_a_token_readmits_a_device_that_a_restored_cloud_does_not_know(tmp_path: Path, lost: str) -> None:
    """It enrolled after the backup: it has a certificate already, and must use its token all the same."""
    async with attacked(tmp_path / "cloud") as attacker:
        if lost == "its latest key":
            await attacker.enrolled("phone")
        database = attacker.cloud.home.identities_db
        with (
            contextlib.closing(sqlite3.connect(database)) as source,
            contextlib.closing(sqlite3.connect(":memory:")) as copy,
        ):
            source.backup(copy)
            device = credentials(attacker.http, tmp_path / "phone", attacker.token("phone"))
            await device.start()
            await device.session()
            copy.backup(source)
        attacker.cloud.home.identities().follow_restore()
        again = credentials(attacker.http, tmp_path / "phone", "")
        await again.start()
        with pytest.raises(CloudRefusalError):
            await again.session()
        again = credentials(attacker.http, tmp_path / "phone", attacker.token("phone"))
        await again.start()
        assert (await attacker.report("phone", {DEVICE_HEADER: await again.session()})).status_code == 204


# --- revocation -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("processes", [1, *at_night(2)])
async def test_a_revoked_device_is_out_within_5_s_and_keeps_its_tasks(tmp_path: Path, processes: int) -> None:
    async with shop_cloud(tmp_path, tunnel_processes=processes) as shop:
        await shop.push("v1")
        await shop.release("v1", beta=["d0"])
        async with shop.device(tmp_path / "d0") as device, shop.device(tmp_path / "d1") as other:
            user = User(device)
            await user.until(lambda: user.has("v1"))
            await until(lambda: device.tunnel.connected and other.tunnel.connected)
            headers, began_s = device.request_headers(), time.monotonic()
            await _revoke_on_the_folder(shop, "d0")

            async def is_out() -> bool:
                return (await shop.http.post("/v1/checkin", headers=headers)).status_code == 401

            await until(is_out, _WITHIN_S)
            await until(lambda: not device.tunnel.connected, _WITHIN_S)
            assert time.monotonic() - began_s < _WITHIN_S
            replayed = await shop.http.get("/", headers=headers)
            assert TASKS_HEADER not in replayed.headers
            assert "revoked" in replayed.headers["x-walle-error"]
            # The device may have tried its enrolment token with another key meanwhile, which is refused as well.
            with pytest.raises(httpx.HTTPStatusError, match=r"revoked|this key is not enrolled"):
                await device.checkin()
            assert device.tasks == {"shop/count": "v1"}
            assert other.tunnel.connected
            await other.checkin()


async def _revoke_on_the_folder(shop: ShopCloud, device_id: str) -> None:
    """Revoke as the command line does, in a store of its own."""
    await asyncio.to_thread(lambda: shop.cloud.home.identities().revoke(device_id, "stolen"))


@pytest.mark.asyncio
async def test_a_device_whose_folder_was_deleted_gets_the_command_to_run(tmp_path: Path) -> None:
    async with attacked(tmp_path / "cloud") as attacker:
        for name, advice in (("phone", "walle device enrol phone --cloud"), ("a b", "walle device enrol ID --output")):
            for number, folder in enumerate(("before", "after")):
                device = credentials(attacker.http, tmp_path / folder / name, attacker.token())
                await device.start()
                if number:
                    with pytest.raises(CloudRefusalError, match=rf"was its folder deleted\?.*{advice}"):
                        await device.session()
                else:
                    assert await device.session()


@pytest.mark.asyncio
async def test_a_revocation_survives_a_restart_and_a_token_for_the_id_admits_a_new_key(tmp_path: Path) -> None:
    folder = tmp_path / "cloud"
    async with attacked(folder) as attacker:
        device = credentials(attacker.http, tmp_path / "phone", attacker.token())
        await device.start()
        headers = {DEVICE_HEADER: await device.session()}
        attacker.cloud.home.identities().revoke("phone", "lost")
    async with attacked(folder) as attacker:
        refused = await attacker.report("phone", headers)
        assert (refused.status_code, "revoked" in refused.json()["error"]) == (401, True)
        before = (tmp_path / "phone" / "identity" / "key.pem").read_bytes()
        for token, error in (("", "revoked"), (attacker.token(), "another key"), (attacker.token("phone"), "")):
            again = credentials(attacker.http, tmp_path / "phone", token)
            await again.start()
            if error:
                with pytest.raises(CloudRefusalError, match=error):
                    await again.session()
            else:
                assert await again.session()
        assert (tmp_path / "phone" / "identity" / "key.pem").read_bytes() != before
        assert (await attacker.report("phone", {DEVICE_HEADER: await again.session()})).status_code == 204


@pytest.mark.asyncio
async def test_a_gateway_that_hears_nothing_of_revocations_says_so_and_forgets_none(tmp_path: Path) -> None:
    async with attacked(tmp_path) as attacker:
        _, headers = await attacker.enrolled("a")
        identity = attacker.cloud.gateway._callers.identity
        attacker.cloud.home.identities().revoke("a", "")
        await identity._ask()
        identity._asked_s -= 60.0
        health = identity.health()
        assert (health["ok"], health["revocations"]) == (False, 1)
        assert (await attacker.report("a", headers)).status_code == 401


# --- where keys are, and whom a device trusts -------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_gateway_serves_without_the_keys_that_make_identities(tmp_path: Path) -> None:
    """The identity node has another folder, as on another machine: the gateway's has no key of devices at all."""
    cloud = Cloud(CloudConfig(folder=tmp_path / "gateway", vm_host=False))
    cloud._identity_node = IdentityNode(CloudConfig(folder=tmp_path / "identities"))
    (tmp_path / "identities").mkdir()
    async with cloud, httpx.AsyncClient(base_url=cloud.address.url) as http:
        attacker = Attacker(cloud, http)
        token = await cloud.identities.make_token("a", 1, 60.0)
        device = credentials(attacker.http, tmp_path / "a", token)
        await device.start()
        assert (await attacker.report("a", {DEVICE_HEADER: await device.session()})).status_code == 204
        assert sorted(path.name for path in (tmp_path / "identities" / "identity").iterdir()) == [
            "devices.pem",
            "sessions.pem",
        ]
        assert not (tmp_path / "gateway" / "identity").exists()
        assert not (tmp_path / "gateway" / "identities.db").exists()


@pytest.mark.asyncio
async def test_a_device_gives_its_token_to_no_server_of_another_authority(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        body = b'{"error": "heard", "type": "X"}'
        writer.write(
            b"HTTP/1.1 401 X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        writer.close()

    real, impostor = Authority(tmp_path / "real"), Authority(tmp_path / "impostor")
    heard = {}
    for name, authority in (("real", real), ("impostor", impostor)):
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=authority.server_context())
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = httpx.AsyncClient(base_url=url, verify=http_tls(real.ca_path.read_text()))
        async with server, client as http:
            device = credentials(http, tmp_path / name / "a", "secret")
            await device.start()
            with pytest.raises(httpx.HTTPError) as raised:
                await device.session()
            heard[name] = (type(raised.value), str(raised.value))
    assert heard["real"] == (CloudRefusalError, "certificate: heard")
    assert heard["impostor"][0] is httpx.ConnectError
    assert "CERTIFICATE_VERIFY_FAILED" in heard["impostor"][1]
    assert all(b"POST /v1/identity/certificate" in request for request in asked)
    assert not any(b"secret" in request for request in asked)  # neither in the address nor in a header
