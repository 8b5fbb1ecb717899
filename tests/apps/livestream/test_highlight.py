"""The highlight task: evidence and probability by themselves, and its phases in real VMs of a device and a cloud."""

import contextlib
import importlib.util
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.livestream.task_files import TASKS, add_modules
from tests.apps.livestream import reference
from tests.apps.livestream.conftest import running
from walle.task.format.config import TaskConfig
from walle.vm import VM, TaskError

FOLDER = TASKS / "highlight"
SETTINGS = json.loads((FOLDER / "resources/settings.json").read_text())
RULE: dict[str, Any] = {
    "portable": ["cup", "bottle"],
    "smallest": 0.1,
    "largest": 0.5,
    "closeup": 0.25,
    "person": 0.3,
    "touch": 0.05,
}
SIZE = (100, 200)  # height, width
RUN, PHASE = "walle.pipeline.stream.context:run", "walle.pipeline.stream.context:phase"

type Folders = Callable[..., Path]
type Escalate = Callable[[str, Any, int | None, float], Awaitable[tuple[str, Any]]]


def module(name: str) -> ModuleType:
    """Return one of the task's modules that import nothing of walle's."""
    spec = importlib.util.spec_from_file_location(f"highlight_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


EVIDENCE, DECISION = module("evidence"), module("decision")


def item(label: str, score: float, *box: float) -> dict[str, Any]:
    return {"label": label, "score": score, "box": list(box)}


NOTHING = {"held": 0.0, "closeup": 0.0, "handled": 0.0, "shown": 0.0, "label": "", "face": 0.0, "voice": 0.0}
CUP = item("cup", 0.6, 80, 40, 30, 30)


class TestEvidence:
    @pytest.mark.parametrize(
        ("person", "is_held"),
        [
            (item("person", 0.9, 90, 0, 60, 100), True),
            (item("person", 0.9, 110, 40, 60, 40), True),  # beside it: a hand that ends where the item begins
            (item("person", 0.9, 130, 0, 60, 100), False),
            (item("person", 0.9, 80, 75, 30, 20), False),  # below it
            (item("person", 0.2, 90, 0, 60, 100), False),  # hardly a person
            (item("dog", 0.9, 90, 0, 60, 100), False),
        ],
    )
    def test_a_portable_item_that_a_persons_box_touches_is_held(self, person: dict[str, Any], is_held: bool) -> None:
        found = EVIDENCE.frame_evidence([CUP, person], [], SIZE, RULE)
        assert (found["held"], found["label"]) == (0.6 if is_held else 0.0, "cup")

    @pytest.mark.parametrize(
        "other",
        [
            item("chair", 0.9, 80, 40, 30, 30),  # a chair is not portable
            item("cup", 0.9, 80, 40, 9, 9),  # too small, by both sides
            item("cup", 0.9, 0, 0, 180, 90),  # too large
        ],
    )
    def test_an_item_of_another_class_or_size_is_not_an_article(self, other: dict[str, Any]) -> None:
        found = EVIDENCE.frame_evidence([other, item("person", 0.9, 0, 0, 200, 100)], [], SIZE, RULE)
        assert found == {"held": 0.0, "closeup": 0.0, "handled": 0.0, "shown": None, "label": ""}

    def test_a_person_a_face_and_a_voice_without_an_article_are_no_evidence(self) -> None:
        """A close face that speaks, before a webcam: the first decision gave the person a weight."""
        head = [{"score": 0.95, "box": [60, 10, 70, 80]}]
        frames = [{"size": SIZE, "items": [item("person", 0.95, 20, 0, 160, 100)], "faces": head}] * 4
        found = {**EVIDENCE.second_evidence({"voice": 1.0, "frames": frames}, RULE), "kept": 0.0, "look": 0.0}
        assert (found["face"], found["voice"]) == (0.95, 1.0)
        nothing = dict.fromkeys(found, 0.0)
        for side in ("device", "cloud"):
            model = SETTINGS[side]
            assert DECISION.probability(found, model) == DECISION.probability(nothing, model) < model["threshold"]

    def test_a_box_that_covers_a_face_is_of_the_person_and_not_an_article(self) -> None:
        person = item("person", 0.9, 60, 0, 80, 100)
        assert EVIDENCE.frame_evidence([CUP, person], [[85, 45, 20, 20]], SIZE, RULE)["held"] == 0
        assert EVIDENCE.frame_evidence([CUP, person], [[85, 5, 20, 20]], SIZE, RULE)["held"] == 0.6

    def test_a_held_item_gives_its_name_before_a_better_one_on_the_table(self) -> None:
        lying = item("bottle", 0.9, 0, 0, 30, 30)
        found = EVIDENCE.frame_evidence([lying, CUP, item("person", 0.9, 90, 0, 60, 100)], [], SIZE, RULE)
        assert (found["held"], found["label"]) == (0.6, "cup")

    def test_a_closeup_counts_by_its_area_and_is_of_one_article_alone(self) -> None:
        def closeup(*items: dict[str, Any], faces: tuple[Any, ...] = ()) -> float:
            found: float = EVIDENCE.frame_evidence(items, faces, SIZE, RULE)["closeup"]
            return found

        large = item("cup", 0.8, 50, 0, 80, 75)  # 0.3 of the frame
        assert closeup(large) == 0.8
        assert closeup(CUP) == pytest.approx(0.6 * (900 / 20_000) / 0.25)
        assert closeup(large, item("bottle", 0.5, 70, 10, 30, 30)) == 0.8  # another name of a part of it
        assert closeup(large, item("bottle", 0.5, 0, 0, 30, 30)) == 0
        assert closeup(large, item("person", 0.26, 180, 0, 20, 20)) == 0
        assert closeup(large, faces=([0, 0, 20, 20],)) == 0

    def test_a_second_has_the_mean_of_its_two_best_frames(self) -> None:
        person = item("person", 0.9, 90, 0, 60, 100)
        faces = [{"score": 0.7, "box": [0, 0, 5, 5]}, {"score": 0.9, "box": [0, 0, 5, 5]}]
        frames: list[dict[str, Any]] = [
            {"size": SIZE, "items": [item("bottle", 0.4, 0, 0, 30, 30)], "faces": faces},
            {"size": SIZE, "items": [CUP, person]},
            {"size": SIZE, "items": [{**CUP, "score": 0.4}, person]},
            {"size": SIZE},  # the item run was dropped
        ]
        found = EVIDENCE.second_evidence({"voice": 0.25, "frames": frames}, RULE)
        assert found == {**NOTHING, "held": 0.5, "label": "cup", "face": 0.9, "voice": 0.25}
        flash = EVIDENCE.second_evidence({"frames": [frames[1], frames[0], frames[0]]}, RULE)
        assert flash["held"] == 0.3
        assert EVIDENCE.second_evidence({"frames": frames[1:2]}, RULE)["held"] == 0.6  # no more was analysed

    def test_a_second_of_nothing_has_no_evidence(self) -> None:
        found = EVIDENCE.second_evidence({"voice": None, "frames": []}, RULE)
        assert found == NOTHING


SCORES = st.floats(0, 1)
BOXES = st.tuples(st.floats(0, 150), st.floats(0, 80), st.floats(1, 60), st.floats(1, 60)).map(list)
ITEMS = st.lists(
    st.builds(item, st.sampled_from(["cup", "bottle", "person", "dog"]), SCORES).flatmap(
        lambda one: BOXES.map(lambda box: {**one, "box": box})
    ),
    max_size=4,
)
FOUND = st.lists(st.builds(lambda score, box: {"score": score, "box": box}, SCORES, BOXES), max_size=3)
MAPS = st.none() | st.builds(lambda centre, border: {"centre": centre, "border": border}, SCORES, SCORES)


class TestEvidenceOfPalmAndArticle:
    @settings(max_examples=100, deadline=None)
    @given(ITEMS, FOUND, FOUND, MAPS)
    def test_it_is_between_0_and_1_and_changes_nothing_of_the_other_evidence(
        self, items: list[Any], faces: list[Any], palms: list[Any], article: Any
    ) -> None:
        boxes = [face["box"] for face in faces]
        plain = EVIDENCE.frame_evidence(items, boxes, SIZE, RULE)
        found = EVIDENCE.frame_evidence(items, boxes, SIZE, RULE, palms, article)
        assert {kind: found[kind] for kind in ("held", "closeup")} == {
            kind: plain[kind] for kind in ("held", "closeup")
        }
        assert (
            0 <= found["handled"] <= max((one["score"] for one in items if one["label"] in RULE["portable"]), default=0)
        )
        assert found["handled"] <= max((palm["score"] for palm in palms), default=0)
        assert (found["shown"] is None) == (article is None)
        if article is not None:
            assert 0 <= found["shown"] <= max(0, article["centre"] - article["border"])
            assert found["shown"] == 0 or not faces
        assert plain["handled"] == 0

    @settings(max_examples=50, deadline=None)
    @given(ITEMS, FOUND, FOUND)
    def test_another_palm_does_not_lower_the_evidence_and_a_weaker_one_does_not_raise_it(
        self, items: list[Any], palms: list[Any], more: list[Any]
    ) -> None:
        def handled(*found: Any) -> float:
            value: float = EVIDENCE.frame_evidence(items, [], SIZE, RULE, list(found))["handled"]
            return value

        assert handled(*palms, *more) == max(handled(*palms), handled(*more))

    def test_an_article_near_a_palm_is_handled(self) -> None:
        palm = {"score": 0.5, "box": [120, 50, 12, 10]}  # the fingers reach 12 pixels further
        assert EVIDENCE.frame_evidence([CUP], [], SIZE, RULE, [palm])["handled"] == pytest.approx(0.3)
        assert EVIDENCE.frame_evidence([CUP], [], SIZE, RULE, [{**palm, "box": [150, 50, 12, 10]}])["handled"] == 0
        face = [122, 52, 6, 6]  # the detector takes faces for palms
        assert EVIDENCE.frame_evidence([CUP], [face], SIZE, RULE, [palm])["handled"] == 0

    def test_an_article_in_the_middle_counts_as_shown_without_a_person(self) -> None:
        def shown(items: tuple[Any, ...] = (), faces: tuple[Any, ...] = (), palms: tuple[Any, ...] = ()) -> float:
            article = {"centre": 0.9, "border": 0.1}
            found: float = EVIDENCE.frame_evidence(items, faces, SIZE, RULE, palms, article)["shown"]
            return found

        assert shown() == pytest.approx(0.8)
        assert shown((item("person", 0.75, 0, 0, 9, 9),)) == pytest.approx(0.2)
        assert shown(palms=({"score": 0.5, "box": [0, 0, 9, 9]},)) == pytest.approx(0.4)
        assert shown(faces=([0, 0, 9, 9],)) == 0
        assert EVIDENCE.frame_evidence([], [], SIZE, RULE, [], {"centre": 0.2, "border": 0.7})["shown"] == 0

    def test_a_frame_without_the_article_tasks_answer_does_not_count(self) -> None:
        frames: list[dict[str, Any]] = [
            {"size": SIZE, "items": [], "article": {"centre": 0.6, "border": 0.0}},
            {"size": SIZE, "items": [], "article": {"centre": 0.2, "border": 0.0}},
            {"size": SIZE, "items": []},
        ]
        assert EVIDENCE.second_evidence({"frames": frames}, RULE)["shown"] == pytest.approx(0.4)


def test_the_probability_is_the_logistic_function_of_the_weighted_evidence() -> None:
    model = {"bias": -2.0, "weights": {"held": 4.0, "voice": 1.0}}
    assert DECISION.probability({"held": 0.5, "voice": 0.0, "label": "cup"}, model) == 0.5
    assert DECISION.probability({"held": 1.0, "voice": 1.0}, model) == pytest.approx(1 / (1 + np.exp(-3.0)))
    assert 0 < DECISION.probability({"held": -1e9, "voice": 0.0}, model) < 1e-20  # no overflow


# --- in VMs -----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def vm_of(folder: Path) -> AsyncIterator[VM]:
    """Give the task in a VM, with the limits of its task.toml."""
    limits = TaskConfig.parse((folder / "task.toml").read_bytes(), "task.toml").limits
    vm = VM(add_modules(folder), name="highlight", limits=limits)
    try:
        yield vm
    finally:
        vm.close()
        assert await vm.wait_closed()


async def never(*_: object) -> tuple[str, Any]:
    raise AssertionError("nothing is to be sent")


async def run(
    vm: VM, escalate: Escalate, second: int, *frames: dict[str, Any], state: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return output and state of a run on a device whose escalations `escalate` answers."""
    contents = {"second": second, "pts_ms": 1000 * second, "voice": 0.5, "frames": list(frames)}
    event = {"event_id": "second", "page_id": "", "ts_ms": 1, "contents": contents}
    trigger = {"event": event, "position": 1, "visit": "none"}
    arguments: tuple[Any, ...] = ("live/highlight", trigger, [], {}, {}, state or {})
    result = await vm.call(RUN, *arguments, deadline=60.0, callbacks={"escalate": escalate})
    return result["output"], result["state"]


def frame(image: Any, *items: dict[str, Any]) -> dict[str, Any]:
    return {"size": list(image.shape[:2]), "items": list(items), "faces": [], "image": image}


BLACK = np.zeros((90, 160, 3), np.uint8)


@pytest.fixture
def unsure(task_folder: Folders) -> Path:
    """The task of a device that is never sure."""
    return task_folder("highlight", settings={"sure": [-1.0, 2.0]})


@pytest.fixture
def sure(task_folder: Folders) -> Path:
    return task_folder("highlight", settings={"sure": [2.0, 2.0]})


@pytest.mark.asyncio
@pytest.mark.parametrize("reason", ["away", "late", "full", "failed"])
async def test_without_an_answer_the_device_decides_and_says_why(unsure: Path, reason: str) -> None:
    async def escalate(phase: str, payload: Any, timeout_ms: int | None, _spent_ms: float) -> tuple[str, Any]:
        assert (phase, timeout_ms) == ("execute", SETTINGS["timeout_ms"])
        pictures = [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) for data in payload["jpegs"]]
        assert [picture is not None and picture.shape for picture in pictures] == [(90, 160, 3)]
        assert payload["images"] is None  # the images are sent once
        return reason, "no answer"

    async with vm_of(unsure) as vm:
        output, _ = await run(vm, escalate, 3, frame(BLACK))
    assert (output["decided"], output["why"]) == ("device alone", reason)
    assert (output["second"], output["pts_ms"], output["evidence"]["voice"]) == (3, 3000, 0.5)
    assert output["sent_bytes"] > 0


@pytest.mark.asyncio
async def test_a_second_without_a_picture_is_decided_by_the_device(unsure: Path) -> None:
    async with vm_of(unsure) as vm:
        output, _ = await run(vm, never, 3)
    assert (output["decided"], output["sent_bytes"], output["highlight"]) == ("device", 0, False)


@pytest.mark.asyncio
async def test_a_second_that_the_device_is_sure_of_is_not_sent(sure: Path) -> None:
    async with vm_of(sure) as vm:
        output, _ = await run(vm, never, 3, frame(BLACK))
    assert (output["decided"], output["sent_bytes"]) == ("device", 0)


@pytest.mark.asyncio
async def test_an_article_that_was_held_in_the_second_before_counts_while_it_is_held(sure: Path) -> None:
    person = item("person", 0.9, 90, 0, 60, 100)
    held = {"size": list(SIZE), "items": [CUP, person], "faces": []}
    weaker = {**held, "items": [{**CUP, "score": 0.4}, person]}
    async with vm_of(sure) as vm:
        first, state = await run(vm, never, 5, held)
        following, _ = await run(vm, never, 6, weaker, state=state)
        without, _ = await run(vm, never, 6, state=state)
        after_a_gap, _ = await run(vm, never, 7, weaker, state=state)  # the sixth was dropped
        upgraded, _ = await run(vm, never, 6, weaker, state={"second": 5, "score": 0.9})  # an older version's state
    kept = [one["evidence"]["kept"] for one in (first, following, without, after_a_gap, upgraded)]
    assert kept == [0, 0.4, 0, 0, 0]
    assert following["score"] > after_a_gap["score"]


@pytest.mark.asyncio
async def test_handled_and_shown_are_means_of_three_consecutive_seconds(sure: Path) -> None:
    def second(centre: float) -> dict[str, Any]:
        return {"size": list(SIZE), "items": [], "faces": [], "palms": [], "article": {"centre": centre, "border": 0.0}}

    async with vm_of(sure) as vm:
        state: dict[str, Any] = {"second": 4, "held": 0.0}  # an older version's
        shown = []
        for number, centre in ((5, 0.9), (6, 0.3), (7, 0.0), (8, 0.0), (10, 0.6)):
            output, state = await run(vm, never, number, second(centre), state=state)
            shown.append(output["evidence"]["shown"])
    assert shown == [0.9, 0.6, 0.4, 0.1, 0.6]  # the ninth was dropped


@pytest.mark.asyncio
async def test_the_closer_look_finds_what_is_small_in_the_whole_frame(
    unsure: Path, task_folder: Folders, images: Path
) -> None:
    """A photograph of a cup, pasted small into a large frame, and a man with a toy, of whom the device saw nothing."""
    large = np.full((1080, 1920, 3), 90, np.uint8)
    large[660:900, 1500:1860] = cv2.resize(reference.picture(images / "coffee.png"), (360, 240))
    async with running(task_folder("item", settings={"score": 0.25}), "item") as task:
        items = (await task.run(image=large))["items"]
    assert items == []

    async with vm_of(unsure) as device, vm_of(unsure) as cloud:

        async def escalate(phase: str, payload: Any, *_: object) -> tuple[str, Any]:
            answer = await cloud.call(PHASE, "live/highlight", phase, payload, {}, deadline=60.0)
            return "", answer["output"]

        cup, _ = await run(device, escalate, 3, frame(large, *items))
        toy, _ = await run(device, escalate, 4, frame(reference.picture(images / "face_with_toy.jpg")))
    assert (cup["decided"], cup["label"], cup["evidence"]["look"]) == ("cloud", "cup", 0)  # nobody holds it
    assert (toy["decided"], toy["label"]) == ("cloud", "teddy bear")
    assert toy["evidence"]["look"] > 0.6
    assert toy["score"] > cup["score"]
    assert toy["evidence"]["voice"] == 0.5  # the device's


@pytest.mark.asyncio
async def test_a_request_without_an_image_is_refused(unsure: Path) -> None:
    async with vm_of(unsure) as cloud:
        with pytest.raises(TaskError, match="is not a JPEG"):
            await cloud.call(
                PHASE, "live/highlight", "execute", {"jpegs": [b"GIF89a"], "faces": [[]]}, {}, deadline=60.0
            )
