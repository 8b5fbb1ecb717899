import itertools
import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.livestream.seconds import SecondBuilder, best_picture

IMAGE = np.zeros((9, 16, 3), np.uint8)


def item(label: str, score: float) -> dict[str, object]:
    return {"label": label, "score": score, "box": [0, 0, 1, 1]}


def answer_frame(builder: SecondBuilder, pts_ms: int, items: Iterable[dict[str, object]] = ()) -> None:
    builder.answer("item", pts_ms, {"items": list(items)})
    builder.answer("face", pts_ms, {"faces": []})


def test_a_second_waits_for_the_stream_and_for_every_task() -> None:
    builder = SecondBuilder()
    builder.end("sound")
    builder.frame(250, IMAGE, ("item", "face"))
    builder.answer("item", 250, {"items": [item("cup", 0.5)]})
    builder.frame(1250, IMAGE, ("item", "face"))
    assert builder.ready() == []  # the face task has not answered
    builder.failure("face", 250)
    [second] = builder.ready()
    assert second["second"] == 0
    assert second["frames"][0]["items"] == [item("cup", 0.5)]
    assert "faces" not in second["frames"][0]
    assert builder.counts.failed == {"face": 1}


def test_the_voice_of_a_second_is_the_last_word_on_it() -> None:
    builder = SecondBuilder()
    builder.end("frame")
    for pts_ms in (0, 900, 1000):
        builder.sound(pts_ms, ("voice",))
    builder.answer("voice", 0, {"seconds": [{"second": 0, "mean": 0.1}]})
    builder.answer("voice", 900, {"seconds": [{"second": 0, "mean": 0.4}]})
    assert builder.ready() == []  # a window that begins in second 0 may end in the next chunk
    builder.answer("voice", 1000, {"seconds": [{"second": 0, "mean": 0.5}, {"second": 1, "mean": 0.9}]})
    assert [second["voice"] for second in builder.ready()] == [0.5]
    builder.end("sound")
    assert [second["voice"] for second in builder.ready()] == [0.9]
    assert builder.ready() == []


def test_seconds_without_anything_are_there() -> None:
    builder = SecondBuilder()
    builder.end("sound")
    builder.frame(3500, IMAGE, ("item", "face"))
    answer_frame(builder, 3500)
    assert [second["second"] for second in builder.ready()] == [0, 1, 2]
    builder.end("frame")
    assert [len(second["frames"]) for second in builder.ready()] == [1]


def test_the_frames_with_most_to_see_keep_their_image() -> None:
    builder = SecondBuilder(images=1)
    builder.end("sound")
    for pts_ms, label, score in ((0, "person", 0.9), (300, "cup", 0.3), (600, "cup", 0.6)):
        builder.frame(pts_ms, IMAGE, ("item", "face"))
        answer_frame(builder, pts_ms, [item(label, score)])
    builder.end("frame")
    [second] = builder.ready()
    assert ["image" in frame for frame in second["frames"]] == [False, False, True]


def test_the_picture_of_a_second_shows_a_person_with_something() -> None:
    person = {"items": [item("cup", 0.5), item("person", 0.6)], "image": "both"}
    frames = [{"items": [item("cup", 0.7)], "image": "cup"}, person, {"items": [item("person", 0.9)]}]
    assert best_picture({"frames": frames}) == "both"
    assert best_picture({"frames": frames[2:]}) is None


@given(st.integers(0, 10_000), st.lists(st.integers(0, 8000), unique=True, max_size=20))
def test_the_order_of_answers_does_not_matter(seed: int, times: list[int]) -> None:
    rng = random.Random(seed)
    builder = SecondBuilder()
    builder.end("sound")
    for pts_ms in sorted(times):
        builder.frame(pts_ms, IMAGE, ("item", "face"))
    builder.end("frame")
    answers = list(itertools.product(times, ("item", "face")))
    rng.shuffle(answers)
    seconds = list(builder.ready())
    for pts_ms, task in answers:
        builder.answer(task, pts_ms, {"items": [], "faces": []})
        seconds += builder.ready()
    assert [second["second"] for second in seconds] == list(range(max(times) // 1000 + 1 if times else 0))
    assert sum(len(second["frames"]) for second in seconds) == len(times)


def test_a_task_that_was_not_triggered_is_not_waited_for() -> None:
    builder = SecondBuilder()
    builder.frame(0, IMAGE, ())
    builder.sound(0, ())
    builder.end("frame")
    builder.end("sound")
    assert [second["voice"] for second in builder.ready()] == [None]


@pytest.mark.parametrize("kind", ["frame", "sound"])
def test_a_stream_of_one_kind_ends(kind: str) -> None:
    builder = SecondBuilder()
    builder.end("sound" if kind == "frame" else "frame")
    builder.end(kind)
    assert builder.ready() == []


class TestReuse:
    def builder(self) -> SecondBuilder:
        builder = SecondBuilder()
        builder.end("sound")
        builder.frame(0, IMAGE, ("item", "face"))
        return builder

    def test_an_unchanged_frame_has_the_answers_of_the_last_analysed_one(self) -> None:
        builder = self.builder()
        builder.reuse(500, IMAGE, has_changed=False)
        builder.reuse(1500, IMAGE, has_changed=False)
        builder.end("frame")
        assert builder.ready() == []  # the first frame's answers are not there
        answer_frame(builder, 0, [item("cup", 0.5)])
        for second in builder.ready():
            assert all(frame["items"] == [item("cup", 0.5)] and frame["faces"] == [] for frame in second["frames"])
        assert builder.counts.answered == {"item": 1, "face": 1}

    def test_a_guess_serves_a_second_that_has_nothing_better(self) -> None:
        builder = self.builder()
        answer_frame(builder, 0, [item("cup", 0.5)])
        builder.reuse(500, IMAGE, has_changed=True)
        builder.reuse(1500, IMAGE, has_changed=True)
        builder.frame(2000, IMAGE, ("item", "face"))
        builder.reuse(2500, IMAGE, has_changed=True)
        answer_frame(builder, 2000)
        builder.end("frame")
        found = [[len(frame.get("items", ())) for frame in second["frames"]] for second in builder.ready()]
        assert found == [[1, 0], [1], [0, 0]]

    def test_answers_about_another_size_are_not_taken(self) -> None:
        builder = self.builder()
        answer_frame(builder, 0, [item("cup", 0.5)])
        builder.reuse(1500, np.zeros((16, 9, 3), np.uint8), has_changed=True)
        builder.end("frame")
        assert ["items" in frame for second in builder.ready() for frame in second["frames"]] == [True, False]

    def test_answers_that_were_lost_are_missing_in_both(self) -> None:
        builder = self.builder()
        builder.reuse(500, IMAGE, has_changed=False)
        builder.answer("face", 0, {"faces": []})
        builder.drop("item", 0)
        builder.end("frame")
        [second] = builder.ready()
        assert [sorted(frame) for frame in second["frames"]] == [["faces", "image", "size"]] * 2
