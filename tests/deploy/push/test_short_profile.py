"""Short profiles: parts by digest, asked for once, the same answers as full ones, and bounded memory."""

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.release_world import table_of
from walle.deploy.push.answerer import ERROR_HEADER, Answerer
from walle.deploy.push.directive_texts import Headers
from walle.deploy.push.part_decisions import MAX_DECIDED
from walle.protocol import (
    MAX_PARTS,
    TASKS_HEADER,
    Directive,
    Profile,
    ProtocolError,
    PushAnswer,
    ShortProfile,
    TaskPart,
    part_digest,
    parts_from_header,
    parts_of,
    parts_to_header,
)

_WORDS = ("item", "search", "video", "feed", "cart", "live", "user", "price", "image", "query", "intent", "quality")
NAMES = [f"{_WORDS[n % 5]}_{_WORDS[n // 5 % 12]}_{_WORDS[n // 60 % 12]}_{('model', 'rank')[n % 2]}" for n in range(348)]


class _Device:
    """A device that follows the answers of an answerer, and carries out what is not `stuck`."""

    def __init__(self, name: str, tasks: dict[str, str], stuck: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.tasks = tasks
        self.stuck = stuck
        self.refused: dict[str, str] = {}
        self.answer = PushAnswer()
        self.sent: list[int] = []  # bytes of the headers of each request

    def ask(self, answerer: Answerer) -> tuple[Directive, ...]:
        parts = parts_of(self.tasks, self.refused)
        digests = [part_digest(part) if part else "" for part in parts]
        profile = ShortProfile("10.0", {"os": "android"}, digests, self.answer.place).to_header().encode()
        have = parts_to_header([parts[number] for number in self.answer.unknown]).encode() or None
        headers = answerer.headers(profile, self.name, have)
        self.sent.append(len(profile) + len(have or b""))
        self.answer = _answer(headers)
        for one in self.answer.directives:
            if one.task not in self.stuck:
                self.tasks = {**self.tasks, one.task: one.version}
        return self.answer.directives

    def settle(self, answerer: Answerer, most: int = 100) -> int:
        """Check in until nothing is due; return how often."""
        for number in range(most):
            self.ask(answerer)
            if not (self.answer.directives or self.answer.unknown):
                return number
        raise AssertionError(self.answer)


def _answer(headers: Headers) -> PushAnswer:
    found = dict(headers)
    assert ERROR_HEADER.lower().encode() not in found, found
    header = found.get(TASKS_HEADER.lower().encode(), b"").decode()
    return PushAnswer.from_header(header) if header else PushAnswer()


def test_348_tasks_of_ordinary_names_fit_and_settle() -> None:
    answerer = Answerer(table_of(1, **dict.fromkeys(NAMES, "v12")))
    first = _Device("d0", {f"shop/{name}": "v11" for name in NAMES})
    first.settle(answerer)
    assert set(first.tasks.values()) == {"v12"}
    assert max(first.sent) < 8192
    first.ask(answerer)
    assert first.sent[-1] < 720
    second = _Device("d1", dict(first.tasks))
    asked = answerer.asked
    assert second.settle(answerer) == 0  # nothing is asked of a device with the same tasks
    assert answerer.asked == asked


@given(
    have=st.dictionaries(st.sampled_from(NAMES[:40]), st.sampled_from(["v1", "v2", "v3"])),
    table=st.dictionaries(st.sampled_from(NAMES[:40]), st.sampled_from(["v1", "v2", "v3"])),
)
def test_a_short_profile_is_answered_as_the_full_one(have: dict[str, str], table: dict[str, str]) -> None:
    made = table_of(1, **table)
    tasks = {f"shop/{name}": version for name, version in have.items()}
    answerer = Answerer(made, max_answer_bytes=1 << 20)
    device = _Device("d0", dict(tasks), frozenset(f"shop/{name}" for name in NAMES))
    device.ask(answerer)
    expected = made.answer(Profile("d0", "10.0", {"os": "android"}, tasks))
    if device.answer.unknown:
        device.ask(answerer)
    assert device.answer.directives == expected
    assert (
        _answer(answerer.headers(Profile("d0", "10.0", {"os": "android"}, tasks).to_header().encode(), "d0")).directives
        == expected
    )


def test_what_cannot_be_carried_out_hides_nothing() -> None:
    """30 tasks that a device cannot install hid all others, a rollback too."""
    stuck = frozenset(f"shop/{name}" for name in sorted(NAMES)[:30])
    answerer = Answerer(table_of(1, **dict.fromkeys(NAMES[:100], "v2")))
    device = _Device("d0", dict.fromkeys((f"shop/{name}" for name in NAMES[:100]), "v1"), stuck)
    device.tasks[f"shop/{NAMES[50]}"] = "v3"  # a version that was rolled back
    device.ask(answerer)
    first = device.ask(answerer)
    assert first[0].task == f"shop/{NAMES[50]}"
    for _ in range(20):
        device.ask(answerer)
    left = {task for task, version in device.tasks.items() if version != "v2"}
    assert left == stuck & device.tasks.keys()
    device.refused = {one.task: one.order for one in answerer.table.answer(Profile("d0", "10.0", {}, device.tasks))}
    assert device.settle(answerer) <= 1


def test_the_answers_to_an_older_device_are_spread() -> None:
    answerer = Answerer(table_of(1, **dict.fromkeys(NAMES[:100], "v2")))
    tasks = dict.fromkeys((f"shop/{name}" for name in NAMES[:100]), "v1")
    profile = Profile("d0", "10", {}, tasks).to_header().encode()
    seen: set[str] = set()
    for _ in range(60):
        seen |= {one.task for one in _answer(answerer.headers(profile, "d0")).directives}
    assert seen == tasks.keys()


def test_made_up_parts_remove_no_part_of_many_devices() -> None:
    answerer = Answerer(table_of(1, **dict.fromkeys(NAMES[:10], "v1")), parts_bytes=60_000)
    tasks = {f"shop/{name}": "v1" for name in NAMES[:10]}
    for name in ("d0", "d1"):
        _Device(name, dict(tasks)).settle(answerer)
    asked = answerer.asked
    attacker = _Device("attacker", {})
    for number in range(500):
        attacker.tasks = {f"shop/{name}": f"v{number + 5}" for name in NAMES[:10]}
        attacker.stuck = frozenset(attacker.tasks)
        attacker.ask(answerer)
        attacker.ask(answerer)
    assert answerer.parts.size_bytes <= 60_000
    answerer.swap(table_of(2, **dict.fromkeys(NAMES[:11], "v1")))
    asked = answerer.asked
    _Device("d2", dict(tasks)).ask(answerer)
    assert answerer.asked == asked


def test_long_names_count_with_their_length() -> None:
    """A name of 200,000 characters is 300 bytes when deflated."""
    answerer = Answerer(table_of(1, ipv="v1"), parts_bytes=1 << 20)
    for number in range(20):
        part = TaskPart({f"shop/{'a' * 200_000}{number}": "v1"}).to_bytes()
        header = ShortProfile("10", {}, [part_digest(part)]).to_header().encode()
        have = parts_to_header([part]).encode()
        assert len(have) < 500
        answerer.headers(header, "d0", have)
    assert len(answerer.parts) <= 3
    assert answerer.parts.size_bytes <= 1 << 20


def test_decisions_count_with_their_directives() -> None:
    """A device makes up parts, and full profiles, to each of which all tasks are due."""
    answerer = Answerer(table_of(1, **dict.fromkeys(NAMES, "v1")), cache_bytes=1 << 20)
    for number in range(1_000):
        part = TaskPart({"shop/made_up": f"v{number}"}).to_bytes()
        header = ShortProfile("10", {}, [part_digest(part)]).to_header().encode()
        answerer.headers(header, "d0", parts_to_header([part]).encode())
        answerer.headers(Profile("d0", "10", {"n": number}).to_header().encode(), "d0")
    cached = answerer.profiles.values()
    held = {id(one): one for one in (sent.decision for sent in cached)}
    assert (
        sum(len(one.decision.settled.ordinary) for one in answerer.decisions) <= answerer.decisions.size <= MAX_DECIDED
    )
    assert sum(one.size * 8 for one in held.values()) <= 1 << 20
    assert answerer.profiles.size_bytes == sum(sent.size_bytes for sent in cached) <= 1 << 20


def test_digests_alone_leave_nothing_but_the_header() -> None:
    answerer = Answerer(table_of(1, ipv="v1"), cache_bytes=100_000)
    for number in range(2_000):
        header = ShortProfile("10", {}, [f"made-up-{number:08}"]).to_header().encode()
        assert _answer(answerer.headers(header, "d0")).unknown == (0,)
    assert len(answerer.parts) == 0
    assert answerer.decisions.size == 0
    assert answerer.profiles.size_bytes <= 100_000


def test_a_part_of_another_digest_than_named_is_not_taken() -> None:
    answerer = Answerer(table_of(1, ipv="v1"))
    honest, other = TaskPart({"shop/ipv": "v1"}).to_bytes(), TaskPart({"shop/ipv": "v9"}).to_bytes()
    profile = ShortProfile("10", {}, [part_digest(honest)]).to_header().encode()
    assert _answer(answerer.headers(profile, "d0", parts_to_header([other]).encode())).unknown == (0,)
    assert len(answerer.parts) == 0
    assert answerer.headers(profile, "d0", parts_to_header([honest]).encode()) == ()
    assert answerer.headers(profile, "d1") == ()


@pytest.mark.parametrize(
    ("profile", "have", "why"),
    [
        (b'{"a":"1","p":"x","x":{}}', None, "X-Walle-Profile: Expected `array`"),
        (b'{"a":"1","p":[],"x":{}}', None, "0 parts, not a power of two"),
        (b'{"a":"1","p":["","",""],"x":{}}', None, "3 parts, not a power of two"),
        (b'{"a":"1","p":["a"],"x":{"y":[1]}}', None, "X-Walle-Profile: Expected"),
        (b'{"a":"1","x":{}}', None, "missing required field `p`"),
        (b'{"a":"1","p":["' + b"a" * 9000 + b'"],"x":{}}', None, "bytes"),
        (b'{"a":"1","p":["a"],"x":{}}', b"!", "X-Walle-Have"),
        (b'{"a":"1","p":["a"],"x":{}}', b"A" * 7000, "7000 bytes, more than"),
        (b'{"a":"1","p":["a"],"x":{}}', base64.urlsafe_b64encode(zlib.compress(b"a" * (1 << 21))), "unpacks to more"),
    ],
)
def test_broken_short_profiles_are_refused_with_the_reason(profile: bytes, have: bytes | None, why: str) -> None:
    answerer = Answerer(table_of(1, ipv="v1"))
    ((name, value),) = answerer.headers(profile, "d0", have)
    assert name == ERROR_HEADER.lower().encode()
    assert why in value.decode()
    assert answerer.broken == 1


@given(
    st.dictionaries(st.text(max_size=30), st.text(max_size=5)),
    st.dictionaries(st.text(max_size=30), st.text(max_size=5)),
)
def test_parts_hold_each_task_once(tasks: dict[str, str], refused: dict[str, str]) -> None:
    parts = parts_of(tasks, refused)
    assert len(parts).bit_count() == 1
    assert len(parts) <= MAX_PARTS
    read = [TaskPart.from_bytes(part) for part in parts if part]
    assert {key: value for part in read for key, value in part.tasks.items()} == tasks
    assert {key: value for part in read for key, value in part.refused.items()} == refused
    sent = [part for part in parts if part]
    if sent:
        assert parts_from_header(parts_to_header(sent).encode()) == sent[: len(sent)]


@pytest.mark.parametrize("text", ["3", '{"unknown":["a"]}', '{"place":7}', '{"tasks":{}}', '{"wait_s":"1"}', "{"])
def test_an_answer_that_is_wrong_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match=TASKS_HEADER):
        PushAnswer.from_header(text)
