"""Sessions of the dashboard and read-only links: made by this cloud only, for as long as they and their token last."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.access.access import ANY_SCENARIO, Access, Role
from walle.access.ended_sessions import MAX_EACH, SESSION_S, EndedSessions
from walle.base.clock import ManualClock
from walle.cloud.dashboard.sealing import Sealer
from walle.cloud.dashboard.sessions import COOKIE, LOGIN_COOKIE, Sessions

KEY = b"k" * 32


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.access = Access(clock=self.clock)
        self.token = self.access.issue("anna", {ANY_SCENARIO: Role.READER})
        self.sessions = self.gateway()

    def gateway(self, key: bytes = KEY) -> Sessions:
        """Return the sessions of another gateway of the cloud, or of this one after a restart."""
        ended = EndedSessions(self.folder / "ended.json", self.clock, session_s=SESSION_S)
        return Sessions(key, self.access, self.clock, ended)

    def cookie(self) -> str:
        begun = self.sessions.begin(self.token)
        assert begun is not None
        return f"{COOKIE}={begun[1]}"


def test_a_session_is_its_tokens_owner_in_every_gateway_of_the_cloud(tmp_path: Path) -> None:
    world = World(tmp_path)
    cookie = world.cookie()
    for sessions in (world.sessions, world.gateway()):
        found = sessions.find(f"other=1; {cookie}")
        assert found is not None
        assert found.identity.name == "anna"
        assert world.token not in cookie
    assert world.gateway(b"j" * 32).find(cookie) is None


@pytest.mark.parametrize("other", ['seen={"a": 1}', "a b=c", "flag", "x@y=1", 'open="', "=", ""])
def test_no_cookie_of_another_app_on_this_host_hides_a_session(tmp_path: Path, other: str) -> None:
    world = World(tmp_path)
    cookie = world.cookie()
    for header in (f"{other}; {cookie}", f"{cookie}; {other}"):
        assert world.sessions.find(header) is not None


@pytest.mark.asyncio
async def test_a_session_ends_with_its_token_at_its_time_and_by_logout(tmp_path: Path) -> None:
    world = World(tmp_path)
    cookie = world.cookie()
    session = world.sessions.find(cookie)
    assert session is not None
    world.sessions.end(session)
    assert world.sessions.find(cookie) is None
    again = world.cookie()
    await world.clock.advance(SESSION_S + 1)
    assert world.sessions.find(again) is None
    late = world.cookie()
    world.access.remove("anna")
    assert world.sessions.find(late) is None
    assert world.sessions.begin(world.token) is None


@pytest.mark.asyncio
async def test_a_link_shows_its_release_until_it_expires_or_its_makers_token_is_revoked(tmp_path: Path) -> None:
    world = World(tmp_path)
    identity = world.access.identify(world.token)
    assert identity is not None
    link, expires_s = world.sessions.share("count-v1-1", identity, hours=1)
    shared = world.sessions.shared(link)
    assert shared is not None
    assert (shared.release_id, shared.expires_s) == ("count-v1-1", expires_s)
    assert world.sessions.find(f"{COOKIE}={link}") is None  # a link is not a session, nor a session a link
    assert world.sessions.shared(world.cookie().partition("=")[2]) is None
    await world.clock.advance(3601)
    assert world.sessions.shared(link) is None
    link, _ = world.sessions.share("count-v1-1", identity, hours=24)
    world.access.remove("anna")
    assert world.sessions.shared(link) is None


def ended_by_logout(world: World) -> str:
    cookie = world.cookie()
    session = world.sessions.find(cookie)
    assert session is not None
    world.sessions.end(session)
    return cookie


@pytest.mark.asyncio
async def test_an_ended_session_is_refused_by_each_gateway_and_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    other = world.gateway()
    alive = world.cookie()
    assert other.find(alive) is not None
    dead = ended_by_logout(world)
    assert (tmp_path / "ended.json").stat().st_mode & 0o777 == 0o600
    assert world.token not in (tmp_path / "ended.json").read_text()
    await world.clock.advance(1.0)
    for sessions in (world.sessions, other, world.gateway()):
        assert sessions.find(dead) is None
        assert sessions.find(alive) is not None


@pytest.mark.asyncio
async def test_ended_sessions_are_bounded_by_token_and_none_becomes_valid(tmp_path: Path) -> None:
    world = World(tmp_path)
    bob = world.access.issue("bob", {ANY_SCENARIO: Role.READER})
    begun = world.sessions.begin(bob)
    assert begun is not None
    dead = []
    for _ in range(MAX_EACH + 20):
        dead.append(ended_by_logout(world))
        await world.clock.advance(1.0)
    alive = world.cookie()
    size_bytes = (tmp_path / "ended.json").stat().st_size
    assert size_bytes < 100 * MAX_EACH
    for sessions in (world.sessions, world.gateway()):
        assert [cookie for cookie in dead if sessions.find(cookie) is not None] == []
        assert sessions.find(alive) is not None
        assert sessions.find(f"{COOKIE}={begun[1]}") is not None  # another token's
    await world.clock.advance(SESSION_S + 1)
    ended_by_logout(world)
    assert (tmp_path / "ended.json").stat().st_size < 300  # those that have expired are gone


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"before_s": 1}', '{"before_s": 0, "upto_s": {}, "sessions": {"a": 1}}']
)
async def test_a_damaged_file_of_ended_sessions_ends_all(tmp_path: Path, text: str) -> None:
    world = World(tmp_path)
    cookie = world.cookie()
    await world.clock.advance(2.0)
    (tmp_path / "ended.json").write_text(text)
    other = world.gateway()
    for sessions in (world.sessions, other):
        assert sessions.find(cookie) is None
    await world.clock.advance(2.0)
    assert other.find(world.cookie()) is not None  # one that began later
    ended_by_logout(world)
    await world.clock.advance(2.0)
    assert world.gateway().find(cookie) is None
    assert world.gateway().find(world.cookie()) is not None


@pytest.mark.asyncio
async def test_a_restored_cloud_ends_earlier_sessions(tmp_path: Path) -> None:
    world = World(tmp_path)
    cookie = world.cookie()
    await world.clock.advance(2.0)
    EndedSessions(tmp_path / "ended.json", world.clock, session_s=SESSION_S).end_all()
    assert world.sessions.find(cookie) is None
    assert world.sessions.find(world.cookie()) is not None


def test_a_form_of_the_login_belongs_to_one_browser(tmp_path: Path) -> None:
    world = World(tmp_path)
    key, cookie = world.sessions.login_form("")
    header = f"other=1; {LOGIN_COOKIE}={cookie}"
    assert world.gateway().is_own_login(header, key)
    assert world.sessions.login_form(header)[0] == key  # the form of another tab has the same key
    other_key, _ = world.sessions.login_form("")
    session = world.cookie().partition("=")[2]
    for wrong in ("", other_key, key + "x", "é"):
        assert not world.sessions.is_own_login(header, wrong)
    for wrong in ("", f"{LOGIN_COOKIE}=x.y", f"{LOGIN_COOKIE}={session}", f"{COOKIE}={cookie}"):
        assert not world.sessions.is_own_login(wrong, key)
    assert world.sessions.find(f"{COOKIE}={cookie}") is None


def test_a_form_belongs_to_one_session(tmp_path: Path) -> None:
    world = World(tmp_path)
    mine, other = world.sessions.find(world.cookie()), world.sessions.find(world.cookie())
    assert mine is not None
    assert other is not None
    assert world.sessions.is_own_form(mine, mine.form_key)
    for wrong in (other.form_key, "", "é", mine.form_key + "x"):
        assert not world.sessions.is_own_form(mine, wrong)


@given(st.text(max_size=80), st.integers(0, 200), st.characters())
def test_a_changed_seal_does_not_open(text: str, place: int, letter: str) -> None:
    sealer = Sealer(KEY, "session")
    sealed = sealer.seal({"text": text})
    assert sealer.open(sealed) == {"text": text}
    place %= len(sealed)
    changed = sealed[:place] + letter + sealed[place + 1 :]
    if changed != sealed:
        assert sealer.open(changed) is None
    assert Sealer(KEY, "link").open(sealed) is None


@pytest.mark.parametrize("text", ["", ".", "a.b", "é.é", "x" * 5000, "\udcff.a"])
def test_unsealed_text_does_not_open(text: str) -> None:
    assert Sealer(KEY, "session").open(text) is None
