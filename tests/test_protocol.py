"""Round trips and refusals of the messages between device and cloud."""

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.protocol import (
    MAX_ID_CHARS,
    ContentsTest,
    Destination,
    Directive,
    Envelope,
    ExclusiveFile,
    Failure,
    FileEntry,
    FullPolicy,
    Manifest,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    OutputPolicy,
    Profile,
    ProtocolError,
    QueuePolicy,
    TrainingPolicy,
    TriggerCondition,
    canonical_json,
    directives_from_header,
    directives_to_header,
)

HASH = "ab" * 32
words = st.text(max_size=20)
counts = st.integers(0, Outcome.MAX_COUNT)
attributes = st.dictionaries(words, st.one_of(words, st.integers(-(2**53), 2**53), st.booleans()), max_size=5)
directives = st.builds(
    Directive,
    task=words,
    version=words,
    manifest=st.just(HASH),
    size_bytes=st.integers(0, 2**40),
    serial=st.integers(0, 2**40),
    expires_s=st.integers(0, 2**40),
    url=words,
    release=words,
    signature=words,
)
manifests = st.builds(
    Manifest,
    scenario=words,
    task=words,
    version=words,
    commit=words,
    bytecode=st.tuples(words),
    trigger=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4).map(TriggerCondition.of),
    phases=st.dictionaries(words, words, max_size=3),
    limits=st.dictionaries(words, st.integers(0, 2**31), max_size=3),
    files=st.just((FileEntry("main.pyc", HASH, 3), FileEntry("resources/a.walle", HASH, 0))),
    exclusive=st.sampled_from(
        [(), (ExclusiveFile(name="gallery.json"), ExclusiveFile(name="a", required=False, max_bytes=7))]
    ),
    output=st.builds(OutputPolicy, destination=st.sampled_from(Destination)),
    training=st.none()
    | st.builds(TrainingPolicy, when=st.dictionaries(words.filter(bool), st.booleans() | words, max_size=3)),
)


def manifest_of(files: tuple[FileEntry, ...]) -> Manifest:
    return Manifest(
        scenario="s",
        task="t",
        version="v1",
        commit="c",
        bytecode=("cpython-313",),
        trigger=TriggerCondition(("page_exit",)),
        phases={},
        limits={},
        files=files,
    )


def outcome_of(*, ok: int = 0, error: str = "", place: str = "", log: str = "") -> Outcome:
    return Outcome(task="t", version="v", release="r", kind=OutcomeKind.RUN, ok=ok, error=error, place=place, log=log)


@given(
    st.builds(Profile, device_id=words, app_version=words, attributes=attributes, tasks=st.dictionaries(words, words))
)
def test_a_profile_survives_its_header(profile: Profile) -> None:
    header = profile.to_header()
    assert header.isascii()
    assert "\n" not in header
    assert Profile.from_header(header) == profile


@given(st.lists(directives, max_size=4))
def test_directives_survive_their_header(some: list[Directive]) -> None:
    assert directives_from_header(directives_to_header(some)) == some


@given(manifests)
def test_a_manifest_survives_its_bytes(manifest: Manifest) -> None:
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


def test_a_manifest_of_format_1_is_read_still() -> None:
    manifest = manifest_of((FileEntry("main.pyc", HASH, 3),))
    value = json.loads(manifest.to_bytes())
    value |= {"format": 1, "sequence": value.pop("trigger")["sequence"]}
    assert Manifest.from_bytes(json.dumps(value).encode()) == manifest


def test_a_walle_that_would_upload_an_output_that_stays_refuses_its_manifest() -> None:
    manifest = manifest_of(())
    sent = json.loads(manifest.to_bytes())
    assert (sent["format"], "output" in sent) == (2, False)  # the form of an older walle
    assert Manifest.from_bytes(json.dumps(sent).encode()).output.destination is Destination.CLOUD
    kept = dataclasses.replace(manifest, output=OutputPolicy(destination=Destination.DEVICE))
    value = json.loads(kept.to_bytes())
    assert (value["format"], value["output"]) == (3, {"destination": "device"})
    with pytest.raises(ProtocolError, match=r"manifest\.format: must be 1 to 6, is 7; a newer walle may read it"):
        Manifest.from_bytes(json.dumps(value | {"format": 7}).encode())


def test_a_walle_that_does_not_know_training_refuses_a_manifest_with_it() -> None:
    manifest = dataclasses.replace(manifest_of(()), training=TrainingPolicy(when={"charging": True}, cpu_percent=50))
    value = json.loads(manifest.to_bytes())
    assert (value["format"], value["training"]) == (5, {"when": {"charging": True}, "cpu_percent": 50})
    for table, message in (
        ({}, r"manifest\.training\.when: is missing: give attributes of the device"),
        ({"when": ["charging"]}, r"manifest\.training\.when: must be a table of 16 attributes at most"),
        ({"when": {"": 1}}, r"manifest\.training\.when: must have a text, a whole number, true or false for ''"),
        ({"when": {}, "step_ms": 0}, r"manifest\.training\.step_ms: must be a whole number from 1 to 60000, is 0"),
    ):
        with pytest.raises(ProtocolError, match=message):
            Manifest.from_bytes(json.dumps(value | {"training": table}).encode())


def test_a_walle_that_does_not_know_exclusive_files_refuses_a_manifest_with_them() -> None:
    manifest = dataclasses.replace(manifest_of(()), exclusive=(ExclusiveFile(name="gallery.json", required=False),))
    value = json.loads(manifest.to_bytes())
    listed = {"name": "gallery.json", "required": False, "max_bytes": 1 << 20}
    assert (value["format"], value["exclusive"]) == (4, [listed])
    for wrong, error in (
        ([listed, listed], r"manifest\.exclusive\.2\.name: 'gallery.json' is listed twice"),
        ([listed | {"name": "a/b"}], r"manifest\.exclusive\.1\.name: must be letters"),
        ({}, r"manifest\.exclusive: must be a list of tables"),
        ([listed | {"name": str(number)} for number in range(101)], "lists 101 files, more than 100"),
    ):
        with pytest.raises(ProtocolError, match=error):
            Manifest.from_bytes(json.dumps(value | {"exclusive": wrong}).encode())


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ([], "output: must be an object, is list"),
        ({"upload": False}, "output: has an unknown key 'upload'; known are destination"),
        ({"destination": "phone"}, "output.destination: must be one of cloud, device, app; is 'phone'"),
        ({"destination": ["app"]}, "output.destination: must be one of cloud, device, app; is ['app']"),
    ],
)
def test_a_destination_that_is_wrong_is_refused_by_field(table: object, error: str) -> None:
    value = json.loads(manifest_of(()).to_bytes()) | {"output": table}
    with pytest.raises(ProtocolError) as caught:
        Manifest.from_bytes(json.dumps(value).encode())
    assert str(caught.value) == f"manifest.{error}"


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({}, "trigger.sequence: is missing"),
        ([], "trigger: must be an object, is list"),
        ({"sequence": []}, "trigger.sequence: must be a list of 1 to 64 trigger ids, is []"),
        ({"sequence": "page_exit"}, "trigger.sequence: must be a list of 1 to 64 trigger ids, is 'page_exit'"),
        ({"sequence": ["a"] * 65}, "trigger.sequence: must be a list of 1 to 64 trigger ids, is ["),
        ({"sequence": ["a", ""]}, "trigger.sequence[1]: must be an event id or page id, is ''"),
        ({"sequence": ["a", 3]}, "trigger.sequence[1]: must be an event id or page id, is 3"),
        ({"sequence": ["a"], "without_visit": "yes"}, "trigger.without_visit: must be true or false, is 'yes'"),
        ({"sequence": ["a"], "within": 5}, "trigger: has an unknown key 'within'; known are sequence, within_ms"),
        ({"sequence": ["a"], "within_ms": -1}, "trigger.within_ms: must be a number of milliseconds, is -1"),
        ({"sequence": ["a"], "within_ms": True}, "trigger.within_ms: must be a number of milliseconds, is True"),
        ({"sequence": ["a"], "cooldown_ms": 1.5}, "trigger.cooldown_ms: must be a number of milliseconds, is 1.5"),
        ({"sequence": ["a"], "skip_till_next": 1}, "trigger.skip_till_next: must be true or false, is 1"),
        ({"sequence": ["a"], "where": {"field": "n"}}, "trigger.where: must be a table of field, is, value"),
        ({"sequence": ["a"], "where": {"field": "n.", "is": "==", "value": 1}}, "trigger.where.field: must be a field"),
        ({"sequence": ["a"], "where": {"field": "n", "is": "~", "value": 1}}, "trigger.where.is: must be one of == !="),
        ({"sequence": ["a"], "where": {"field": "n", "is": "<", "value": True}}, "trigger.where.is: must be == or !="),
        ({"sequence": ["a"], "where": {"field": "n", "is": "<", "value": []}}, "trigger.where.value: must be text"),
        ({"sequence": [], "idle_s": 5}, "trigger.sequence: must be a list of 1 to 64 trigger ids, is []"),
        ({"idle_s": -1}, "trigger.idle_s: must be a whole number of seconds, 1 to 31622400, is -1"),
        ({"every_s": 1.5}, "trigger.every_s: must be a whole number of seconds, 1 to 31622400, is 1.5"),
        ({"every_s": 31_622_401}, "trigger.every_s: must be a whole number of seconds, 1 to 31622400"),
        ({"idle_s": 5, "idle": "device"}, "trigger.idle: must be one of page, stream; is 'device'"),
        ({"sequence": ["a"], "idle": "stream"}, "trigger.idle: needs idle_s"),
        ({"every_s": 5, "within_ms": 4}, "trigger.within_ms: needs a sequence"),
        ({"every_s": 5, "absent": "b", "absent_s": 4}, "trigger.absent: needs a sequence"),
        ({"window_s": 0.5}, "trigger.window_s: must be a whole number of seconds, 1 to 31622400, is 0.5"),
        ({"every_s": 5, "grace_s": 4}, "trigger.grace_s: needs window_s"),
        ({"every_s": 5, "window_of": ["a"]}, "trigger.window_of: needs window_s"),
        ({"window_s": 5, "window_of": "a"}, "trigger.window_of: must be a list of 1 to 64 event ids or page ids"),
        ({"window_s": 5, "window_of": ["a", ""]}, "trigger.window_of[1]: must be an event id or page id, is ''"),
        ({"window_s": 60, "window_every_s": 25}, "trigger.window_every_s: must divide window_s, 60, and be a 100th"),
        ({"window_s": 60, "window_every_s": 90}, "trigger.window_every_s: must divide window_s, 60"),
        ({"window_s": 202, "window_every_s": 1}, "trigger.window_every_s: must divide window_s, 202, and be a 100th"),
        ({"window_s": 1, "grace_s": 1000}, "trigger.grace_s: must be at most 999 seconds, so that at most 1000"),
        ({"sequence": ["a"], "absent": "b"}, "trigger.absent: needs absent_s"),
        ({"sequence": ["a"], "absent_s": 9}, "trigger.absent_s: needs absent"),
        ({"sequence": ["a"], "absent": 1, "absent_s": 9}, "trigger.absent: must be an event id or page id, is 1"),
        ({"sequence": ["a", "b"], "key": "item."}, "trigger.key: must be a field of the contents, is 'item.'"),
        ({"sequence": ["a"], "key": "item"}, "trigger.key: needs a sequence of two or more ids, or absent"),
    ],
)
def test_a_trigger_condition_that_is_wrong_is_refused_by_field(table: object, error: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        TriggerCondition.parse(table)
    assert str(caught.value).startswith(error)
    value = json.loads(manifest_of(()).to_bytes()) | {"trigger": table}
    with pytest.raises(ProtocolError, match=r"manifest\.trigger"):
        Manifest.from_bytes(json.dumps(value).encode())


def test_a_trigger_condition_survives_its_table() -> None:
    condition = TriggerCondition(("page_enter", "item/7", "page_exit"))
    assert TriggerCondition.parse(condition.to_json()) == condition
    assert condition.to_json() == {"sequence": ["page_enter", "item/7", "page_exit"]}
    optional = dataclasses.replace(condition, without_visit=True)
    assert TriggerCondition.parse(optional.to_json()) == optional
    assert str(condition) == "page_enter → item/7 → page_exit"


@pytest.mark.parametrize(
    "table",
    [
        {"idle_s": 1800},
        {"every_s": 3600},
        {"sequence": ["page_exit"], "idle_s": 1800},
        {"cooldown_ms": 9, "without_visit": True, "idle_s": 60, "idle": "stream", "every_s": 5},
        {"sequence": ["cart"], "key": "item.id", "absent": "purchase", "absent_s": 1800},
        {"window_s": 60, "window_every_s": 20, "grace_s": 5},
    ],
)
def test_a_time_condition_round_trips_and_omits_unused_keys(table: dict[str, object]) -> None:
    condition = TriggerCondition.parse(table)
    assert condition.to_json() == table
    assert str(condition).endswith(", ".join(f"{key} {table[key]}" for key in table if key != "sequence"))


def test_a_condition_of_windows_survives_its_table() -> None:
    table = {"sequence": ["a"], "window_s": 60, "window_of": ["click", "page"]}
    condition = TriggerCondition.parse(table)
    assert TriggerCondition.parse(json.loads(json.dumps(condition.to_json()))) == condition
    assert condition.to_json() == table
    assert str(condition) == "a, window_s 60, window_of click, page"


def test_a_trigger_condition_with_options_survives_its_table() -> None:
    condition = TriggerCondition(
        ("page_enter", "*", "page_exit"), 5000, skip_till_next=True, cooldown_ms=9, where=ContentsTest("a.b", ">", 1.5)
    )
    assert TriggerCondition.parse(json.loads(json.dumps(condition.to_json()))) == condition
    assert str(condition) == (
        "page_enter → * → page_exit, within_ms 5000, skip_till_next True, cooldown_ms 9, where a.b > 1.5"
    )


@pytest.mark.parametrize(
    ("test", "contents", "passes"),
    [
        (("n", "==", 1), {"n": 1}, True),
        (("n", "==", 1), {"n": 1.0}, True),
        (("n", "==", 1), {"n": True}, False),
        (("n", "!=", 1), {"n": 2}, True),
        (("n", "!=", 1), {"n": "2"}, False),
        (("n", "!=", 1), {}, False),
        (("n", "<", 1), {"n": None}, False),
        (("n", ">=", 1.5), {"n": 2}, True),
        (("n", "<=", 1.5), {"n": float("nan")}, False),
        (("on", "==", True), {"on": True}, True),
        (("on", "==", True), {"on": 1}, False),
        (("name", "==", "é"), {"name": "é"}, True),
        (("item.price", ">", 10), {"item": {"price": 11}}, True),
        (("item.price", ">", 10), {"item": 11}, False),
        (("item.price", ">", 10), {"item.price": 11}, False),
    ],
)
def test_a_contents_test_compares_a_field_with_a_constant(
    test: tuple[str, str, Any], contents: dict[str, Any], passes: bool
) -> None:
    assert ContentsTest(*test)(contents) is passes


def test_a_manifest_without_policies_has_the_defaults_and_others_are_checked() -> None:
    manifest = manifest_of(())
    fields = json.loads(manifest.to_bytes())
    del fields["policies"]
    old = Manifest.from_bytes(canonical_json(fields))
    assert (old, old.queue_policy) == (manifest, QueuePolicy())
    policies = {"queue_full": "block", "outbox_full": "drop-newest"}
    new = dataclasses.replace(
        manifest, trigger=TriggerCondition(("a",), without_visit=True), limits={"queue": 3}, policies=policies
    )
    assert Manifest.from_bytes(new.to_bytes()) == new
    expected = QueuePolicy(queue=3, queue_full=FullPolicy.BLOCK, outbox_full=FullPolicy.DROP_NEWEST)
    assert new.queue_policy == expected
    for changes, error in (
        ({"limits": {"queue": 0}}, r"manifest\.limits\.queue: must be a whole number from 1 to 1024, is 0"),
        ({"policies": {"queue_full": "spill"}}, "'spill' is not a valid FullPolicy; install a newer walle"),
        ({"policies": {"outbox_full": "drop-oldest"}}, r"manifest\.limits\.outbox_full: must be one of block"),
    ):
        with pytest.raises(ProtocolError, match=error):
            Manifest.from_bytes(canonical_json({**fields, **changes}))


def test_an_outcome_keeps_the_head_of_its_error_and_the_tail_of_its_log() -> None:
    outcome = outcome_of(error="e" * 5000, place="p" * 5000, log="old\n" * 5000 + "the last line")
    (read,) = OutcomeBatch.from_json(json.loads(json.dumps(OutcomeBatch("d", "b", (outcome,)).to_json()))).outcomes
    assert (len(read.error), len(read.place), len(read.log)) == (
        Failure.MAX_ERROR_CHARS,
        Failure.MAX_PLACE_CHARS,
        Failure.MAX_LOG_CHARS,
    )
    assert read.log.endswith("the last line")


def test_an_outcome_of_an_older_device_has_no_place_and_no_log() -> None:
    plain = json.loads(json.dumps(OutcomeBatch("d", "b", (outcome_of(ok=1, place="main.py:1", log="x"),)).to_json()))
    for key in ("place", "log", "failures"):
        del plain["outcomes"][0][key]
    assert OutcomeBatch.from_json(plain).outcomes == (outcome_of(ok=1),)


@pytest.mark.parametrize(
    ("failures", "why"),
    [
        ([{}] * (Outcome.MAX_FAILURES + 1), r"failures: 11 failures, more than 10"),
        (["x"], r"failures\[0\]: must be an object, is str"),
        ([{"error_type": "E", "error": "x", "count": 0}], r"failures\[0\]\.count: must be from 1 to 1000000000, is 0"),
        ([{"error_type": "E", "error": "x", "count": 10**400}], r"failures\[0\]\.count"),
        ([{"error_type": "E", "error": "\ud800", "count": 1}], r"failures\[0\]\.error: holds half a character"),
        ([{"error_type": "E", "count": 1}], r"failures\[0\]\.error: is missing"),
        ({}, r"failures: must be list, is dict"),
    ],
)
def test_failures_that_would_harm_the_cloud_are_refused(failures: object, why: str) -> None:
    plain = json.loads(json.dumps(OutcomeBatch("d", "b", (outcome_of(ok=1),)).to_json()))
    plain["outcomes"][0]["failures"] = failures
    with pytest.raises(ProtocolError, match=why):
        OutcomeBatch.from_json(plain)


def test_the_texts_of_a_failure_are_bounded() -> None:
    plain = dict.fromkeys(("error_type", "error", "place", "traceback", "log"), "x" * 10000 + "end")
    read = Failure.from_json({**plain, "count": 3}, "failure")
    assert (len(read.error_type), len(read.error), len(read.place)) == (200, 2000, 300)
    assert (len(read.traceback), len(read.log), read.traceback[-3:], read.log[-3:]) == (4000, 2000, "end", "end")


@given(st.binary(max_size=50), st.dictionaries(words, st.binary(max_size=64), max_size=3))
def test_an_envelope_keeps_bytes_as_they_were(payload: bytes, signatures: dict[str, bytes]) -> None:
    envelope = Envelope(payload, signatures)
    assert Envelope.from_bytes(envelope.to_bytes()) == envelope


@given(
    st.builds(
        Outcome,
        task=words,
        version=words,
        release=words,
        kind=st.sampled_from(OutcomeKind),
        ok=counts,
        failed=counts,
        error=words,
        place=words,
        log=words,
        failures=st.lists(
            st.builds(
                Failure,
                error_type=words,
                error=words,
                place=words,
                traceback=words,
                log=words,
                count=st.integers(1, Outcome.MAX_COUNT),
            ),
            max_size=Outcome.MAX_FAILURES,
        ).map(tuple),
    )
)
def test_an_outcome_batch_survives_json(outcome: Outcome) -> None:
    batch = OutcomeBatch("device", "batch", (outcome,))
    assert OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json()))) == batch


@given(st.text(max_size=200))
def test_arbitrary_headers_are_refused_or_read_never_worse(text: str) -> None:
    for read in (Profile.from_header, directives_from_header):
        with contextlib.suppress(ProtocolError):
            read(text)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_read_never_worse(data: bytes) -> None:
    for read in (Manifest.from_bytes, Envelope.from_bytes):
        with pytest.raises(ProtocolError):
            read(data)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\\b", "a\0b"])
def test_a_path_that_leaves_the_bundle_is_refused(path: str) -> None:
    files = (FileEntry(path, HASH, 1),)
    manifest = manifest_of(files)
    with pytest.raises(ProtocolError, match=r"files\[0\]\.path"):
        Manifest.from_bytes(manifest.to_bytes())


def test_a_refusal_names_the_part() -> None:
    with pytest.raises(ProtocolError, match=r"X-Walle-Profile\.t\.ipv: must be str, is int"):
        Profile.from_header('{"d":"x","a":"1","x":{},"t":{"ipv":3}}')
    with pytest.raises(ProtocolError, match=r"batch\.outcomes\[0\]: ok and failed"):
        OutcomeBatch.from_json(json.loads(json.dumps(OutcomeBatch("d", "b", (outcome_of(ok=-1),)).to_json())))
    with pytest.raises(ProtocolError, match="more than"):
        Profile.from_header("x" * 10_000)


@pytest.mark.parametrize(
    ("part", "value", "why"),
    [
        ("device_id", "d" * (MAX_ID_CHARS + 1), r"batch\.device_id: 257 characters"),
        ("batch_id", "b" * (MAX_ID_CHARS + 1), r"batch\.batch_id: 257 characters"),
        ("ok", Outcome.MAX_COUNT + 1, r"outcomes\[0\]: ok and failed .* at most"),
        ("failed", 10**400, r"outcomes\[0\]: ok and failed .* at most"),
        ("error", "half \ud800", r"outcomes\[0\]\.error: holds half a character"),
        ("device_id", "\udfff", r"batch\.device_id: holds half a character"),
    ],
)
def test_a_report_that_would_harm_the_cloud_that_keeps_it_is_refused(part: str, value: object, why: str) -> None:
    plain = OutcomeBatch("d", "b", (outcome_of(ok=1, error="é𝄞"),)).to_json()
    assert OutcomeBatch.from_json(json.loads(json.dumps(plain)))
    (plain if part in plain else plain["outcomes"][0])[part] = value
    with pytest.raises(ProtocolError, match=why):
        OutcomeBatch.from_json(json.loads(json.dumps(plain)))


@pytest.mark.parametrize("device_id", ["\ud800", "d" * (MAX_ID_CHARS + 1)])
def test_a_profile_of_no_possible_device_is_refused(device_id: str) -> None:
    with pytest.raises(ProtocolError, match=r"X-Walle-Profile\.d: "):
        Profile.from_header(Profile(device_id, "1").to_header())


def test_the_groups_of_a_batch_are_read_and_bounded() -> None:
    groups = {"app_version": "10.1", "os": "12"}
    batch = OutcomeBatch("d", "b", (outcome_of(ok=1),), groups=groups)
    plain = json.loads(json.dumps(batch.to_json()))
    assert OutcomeBatch.from_json(plain) == batch
    del plain["groups"]  # earlier devices do not send them
    assert OutcomeBatch.from_json(plain).groups == {}
    for wrong in ({str(number): "x" for number in range(9)}, {"os": "x" * 65}, {"x" * 65: "12"}, {"os": 12}, ["os"]):
        with pytest.raises(ProtocolError, match="groups"):
            OutcomeBatch.from_json({**plain, "groups": wrong})
