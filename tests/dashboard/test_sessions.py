"""Sessions of the dashboard and read-only links: made by this cloud only, for as long as they and their token last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.clock import ManualClock
from walle.deploy.cloud.access import ANY_SCENARIO, Access, Role
from walle.deploy.cloud.dashboard.sealing import Sealer
from walle.deploy.cloud.dashboard.sessions import COOKIE, SESSION_S, Sessions

KEY = b"k" * 32


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.access = Access(clock=self.clock)
        self.token = self.access.issue("anna", {ANY_SCENARIO: Role.READER})
        self.sessions = Sessions(KEY, self.access, self.clock)

    def cookie(self) -> str:
        begun = self.sessions.begin(self.token)
        assert begun is not None
        return f"{COOKIE}={begun[1]}"


def test_a_session_is_its_tokens_owner_in_every_gateway_of_the_cloud() -> None:
    world = World()
    cookie = world.cookie()
    for sessions in (world.sessions, Sessions(KEY, world.access, world.clock)):
        found = sessions.find(f"other=1; {cookie}")
        assert found is not None
        assert found.identity.name == "anna"
        assert world.token not in cookie
    assert Sessions(b"j" * 32, world.access, world.clock).find(cookie) is None


@pytest.mark.parametrize("other", ['seen={"a": 1}', "a b=c", "flag", "x@y=1", 'open="', "=", ""])
def test_no_cookie_of_another_app_on_this_host_hides_a_session(other: str) -> None:
    world = World()
    cookie = world.cookie()
    for header in (f"{other}; {cookie}", f"{cookie}; {other}"):
        assert world.sessions.find(header) is not None


@pytest.mark.asyncio
async def test_a_session_ends_with_its_token_at_its_time_and_by_logout() -> None:
    world = World()
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
async def test_a_link_shows_its_release_until_it_expires_or_its_makers_token_is_revoked() -> None:
    world = World()
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


def test_a_form_belongs_to_one_session() -> None:
    world = World()
    mine, other = world.sessions.find(world.cookie()), world.sessions.find(world.cookie())
    assert mine is not None
    assert other is not None
    assert world.sessions.is_own_form(mine, mine.form_key)
    for wrong in (other.form_key, "", "é", mine.form_key + "x"):
        assert not world.sessions.is_own_form(mine, wrong)


@given(st.text(max_size=80), st.integers(0, 200), st.characters())
def test_what_was_changed_does_not_open(text: str, place: int, letter: str) -> None:
    sealer = Sealer(KEY, "session")
    sealed = sealer.seal({"text": text})
    assert sealer.open(sealed) == {"text": text}
    place %= len(sealed)
    changed = sealed[:place] + letter + sealed[place + 1 :]
    if changed != sealed:
        assert sealer.open(changed) is None
    assert Sealer(KEY, "link").open(sealed) is None


@pytest.mark.parametrize("text", ["", ".", "a.b", "é.é", "x" * 5000, "\udcff.a"])
def test_what_is_not_sealed_does_not_open(text: str) -> None:
    assert Sealer(KEY, "session").open(text) is None
