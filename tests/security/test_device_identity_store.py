"""The contract of the file of identities: tokens that are counted down, ids that are bound to keys, revocation."""

import concurrent.futures
import sqlite3
import stat
from pathlib import Path

import pytest

from walle.clock import ManualClock
from walle.cloud.identity.store import (
    RENEWAL_GRACE_S,
    IdentityRefusedError,
    IdentityStore,
    IdentityStoreError,
    KeyRevokedError,
    UnknownIdentityError,
)
from walle.deploy.cloud.api import error_status
from walle.errors import ConfigError
from walle.identity import DeviceIdentity, Revocations

_DAY_S = 86_400.0


class Identities:
    """A store with a clock, and enrolments in short."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.store = IdentityStore(path, clock=self.clock).open()

    def token(self, device_id: str = "", uses: int = 1) -> str:
        return self.store.make_token(device_id, uses=uses, life_s=_DAY_S)

    def enrol(self, device_id: str, key: bytes, token: str = "") -> int:
        return self.store.certify(device_id, key, token, expires_s=self.clock.time() + 30 * _DAY_S).generation


@pytest.fixture
def identities(tmp_path: Path) -> Identities:
    return Identities(tmp_path / "identities.db")


def test_a_token_is_used_up_and_the_same_key_needs_none_again(identities: Identities) -> None:
    token = identities.token()
    assert identities.enrol("a", b"key a", token) == 1
    assert identities.enrol("a", b"key a", token) == identities.enrol("a", b"key a") == 1  # an answer was lost
    with pytest.raises(IdentityRefusedError, match="used up"):
        identities.enrol("b", b"key b", token)
    with pytest.raises(IdentityRefusedError, match="not enrolled"):
        identities.enrol("b", b"key b")
    with pytest.raises(IdentityRefusedError, match="not known"):
        identities.enrol("b", b"key b", "guessed")


def test_a_token_expires_and_is_for_its_device_alone(identities: Identities) -> None:
    token = identities.token("a")
    with pytest.raises(IdentityRefusedError, match="another device") as raised:
        identities.enrol("b", b"key b", token)
    assert raised.value.status == 403
    identities.clock._now_s += _DAY_S + 1
    with pytest.raises(IdentityRefusedError, match="expired"):
        identities.enrol("a", b"key a", token)


def test_a_token_for_any_device_takes_no_id_that_has_a_key(identities: Identities) -> None:
    token = identities.token(uses=3)
    identities.enrol("a", b"key a", token)
    with pytest.raises(IdentityRefusedError, match="another key"):
        identities.enrol("a", b"key of a thief", token)
    assert identities.enrol("b", b"key b", token) == 1  # the failed one was not counted
    assert identities.enrol("c", b"key c", token) == 1
    with pytest.raises(IdentityRefusedError, match="used up"):
        identities.enrol("d", b"key d", token)


def test_another_key_for_an_id_revokes_the_one_before(identities: Identities) -> None:
    identities.enrol("a", b"old", identities.token("a"))
    assert identities.store.revocations(0) == (0, {})
    assert identities.enrol("a", b"new", identities.token("a")) == 2
    version, lowest = identities.store.revocations(0)
    assert lowest == {"a": 2}
    assert identities.store.revocations(version) == (version, {})
    with pytest.raises(IdentityRefusedError, match="not enrolled"):
        identities.enrol("a", b"old")


def test_a_revoked_key_stays_revoked_and_a_new_one_needs_a_token_made_afterwards(identities: Identities) -> None:
    identities.enrol("a", b"key a", identities.token("a"))
    waiting = identities.token("a")
    record = identities.store.revoke("a", "stolen")
    assert (record.reason, record.revoked_s) == ("stolen", identities.clock.time())
    assert identities.store.revoke("a", "again") == record
    assert identities.store.revocations(0)[1] == {"a": 2}
    for token in ("", waiting, identities.token()):
        with pytest.raises(KeyRevokedError, match="revoked"):
            identities.enrol("a", b"key a", token)
        with pytest.raises(IdentityRefusedError):
            identities.enrol("a", b"another key", token)
    with pytest.raises(KeyRevokedError):
        identities.store.current_key("a")
    assert identities.enrol("a", b"another key", identities.token("a")) == 2
    assert identities.store.records()[0].revoked_s is None
    with pytest.raises(UnknownIdentityError):
        identities.store.revoke("b", "")


def test_revocations_and_used_tokens_survive_a_restart(identities: Identities) -> None:
    token = identities.token()
    identities.enrol("a", b"key a", token)
    identities.store.revoke("a", "stolen")
    again = Identities(identities.store.path)
    assert again.store.revocations(0)[1] == {"a": 2}
    with pytest.raises(IdentityRefusedError, match="used up"):
        again.enrol("b", b"key b", token)


def test_what_no_certificate_needs_any_more_is_removed(identities: Identities) -> None:
    identities.enrol("a", b"key a", identities.token("a"))
    identities.store.revoke("a", "")
    identities.clock._now_s += 33 * _DAY_S
    identities.store.open()
    assert identities.store.revocations(0) == (0, {})
    with pytest.raises(KeyRevokedError):  # which is not forgotten
        identities.enrol("a", b"key a")


def test_a_device_renews_until_it_was_away_for_too_long(identities: Identities) -> None:
    identities.enrol("a", b"key a", identities.token("a"))
    identities.clock._now_s += 30 * _DAY_S + RENEWAL_GRACE_S - 1
    assert identities.enrol("a", b"key a") == 1
    identities.clock._now_s += 30 * _DAY_S + RENEWAL_GRACE_S + 1
    with pytest.raises(IdentityRefusedError, match="180 days"):
        identities.enrol("a", b"key a")
    token = identities.token("a")  # what the error asks for
    assert identities.enrol("a", b"key a", token) == 1
    with pytest.raises(IdentityRefusedError, match="used up"):
        identities.enrol("a", b"another", token)


def test_what_the_lost_cloud_decided_is_ended_by_the_restored_one(identities: Identities) -> None:
    """Keys, tokens and revocations of the time after the backup: certificates of that time are still valid for TLS."""
    before, store = identities.token(uses=2), identities.store
    identities.enrol("a", b"key a", identities.token("a"))
    identities.enrol("b", b"key b", identities.token("b"))
    identities.clock._now_s += 1e9
    store.follow_restore()
    with pytest.raises(IdentityRefusedError, match="not known"):
        identities.enrol("thief", b"key", before)  # it was used up after the backup
    lost = DeviceIdentity("a", 7)  # its key of the lost time
    generation = identities.enrol("a", b"another key", identities.token("a"))
    store.revoke("b", "stolen")
    store.revoke("enrolled after the backup", "stolen")
    fresh = DeviceIdentity("c", identities.enrol("c", b"key c", identities.token("c")))
    revocations = Revocations(*store.revocations(0))
    assert not revocations.allows(lost)
    assert revocations.allows(DeviceIdentity("a", generation))
    assert not revocations.allows(DeviceIdentity("b", 7))
    assert not revocations.allows(DeviceIdentity("enrolled after the backup", 1))
    assert revocations.allows(fresh)
    with pytest.raises(KeyRevokedError):
        store.current_key("enrolled after the backup")
    back = identities.enrol("b", b"new key b", identities.token("b"))
    revocations.update(*store.revocations(revocations.version))
    assert revocations.allows(DeviceIdentity("b", back))
    store.follow_restore()  # of the same backup again, at the same time
    assert identities.enrol("d", b"key d", identities.token("d")) > generation
    with pytest.raises(ConfigError):
        store.revoke("\n", "")


def test_two_enrolments_at_once_with_one_token_are_one(identities: Identities) -> None:
    """Of eight threads, each with connections of its own as processes have, one enrols its key."""
    token = identities.token()

    def enrol(number: int) -> bool:
        try:
            identities.enrol(f"device-{number}", b"key %d" % number, token)
        except IdentityRefusedError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(enrol, range(8))) == 1
    assert len(identities.store.records()) == 1


def test_only_hashes_of_tokens_are_stored_and_a_purpose_has_one(identities: Identities) -> None:
    first = identities.store.make_token(uses=5, life_s=60.0, purpose="join.json")
    second = identities.store.make_token(uses=5, life_s=60.0, purpose="join.json")
    with pytest.raises(IdentityRefusedError):
        identities.enrol("a", b"key a", first)
    identities.enrol("a", b"key a", second)
    path = identities.store.path
    for file in path.parent.iterdir():
        assert second.encode() not in file.read_bytes()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("device_id", ["", "x" * 257, "a\nb", "a\x1b[2J", "\ud800"])
def test_an_id_that_no_device_can_have_is_refused(identities: Identities, device_id: str) -> None:
    with pytest.raises(ConfigError):
        identities.enrol(device_id, b"key", identities.token())


@pytest.mark.parametrize(
    ("device_id", "uses", "life_s"), [("", 0, 60.0), ("", 10**6, 60.0), ("a", 2, 60.0), ("", 1, 0.0)]
)
def test_a_token_has_bounds(identities: Identities, device_id: str, uses: int, life_s: float) -> None:
    with pytest.raises(ConfigError):
        identities.store.make_token(device_id, uses=uses, life_s=life_s)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "identities.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(IdentityStoreError, match=r"identities\.db") as raised:
        IdentityStore(path).open()
    assert error_status(raised.value) == 503  # the cloud's fault, and not the device's


def test_a_full_disk_is_said_as_such(identities: Identities, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite ends the transaction itself then; that it cannot be ended again must not hide the reason."""
    connect, token = sqlite3.connect, identities.token()

    def connect_to_full(*args: object, **kwargs: object) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*args, **kwargs)  # type: ignore[call-overload]
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")
        return database

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect_to_full)
        with pytest.raises(IdentityStoreError, match="full") as caught:
            identities.enrol("a", b"k" * 100_000, token)
    assert caught.value.status == 507
