"""The choice of frames by change and budget: what is analysed, why others are not, and what it may cost."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.livestream.cpu_budget import CpuBudget
from apps.livestream.frame_choice import CUT, LONGEST_GAP_MS, Choice, FrameChooser, mean_difference, thumbnail

STEP_MS = 250
TASKS = {"item", "face"}
ANALYSED, UNCHANGED, BUDGET = Choice.ANALYSED, Choice.UNCHANGED, Choice.BUDGET


def scene(seed: int) -> Any:
    """Return a picture of large blocks; those of different seeds differ everywhere."""
    blocks = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return np.kron(blocks, np.ones((60, 80, 1), np.uint8))


def moving(number: int) -> Any:
    """Return a frame of a shot: a white square on grey that moves by its own size from frame to frame."""
    image = np.full((180, 320, 3), 90, np.uint8)
    left = 40 * (number % 7)
    image[60:100, left : left + 40] = 255
    return image


def run(chooser: FrameChooser, images: list[Any], cost_s: float, *, start_ms: int = 0) -> list[Choice]:
    """Play frames of four a second, each of whose two tasks takes half the cost."""
    found = []
    for number, image in enumerate(images):
        pts_ms = start_ms + number * STEP_MS
        found.append(chooser.choose(pts_ms, image))
        if found[-1] is ANALYSED:
            chooser.begin(pts_ms, TASKS)
            for task in sorted(TASKS):
                chooser.end(task, pts_ms, cost_s / 2)
    return found


class TestChange:
    def test_a_frame_like_the_last_analysed_one_is_not_analysed_again(self) -> None:
        image = scene(1)
        noisy = np.clip(image + np.random.default_rng(0).normal(0, 4, image.shape), 0, 255).astype(np.uint8)
        small = image.copy()
        small[70:90, 20:50] = np.where(small[70:90, 20:50] < 128, 255, 0)  # a small object
        images = [image, noisy, small, small, (small * 0.7).astype(np.uint8)]
        assert run(FrameChooser(), images, 0.01) == [ANALYSED, UNCHANGED, ANALYSED, UNCHANGED, ANALYSED]

    def test_slow_changes_add_up(self) -> None:
        """Frames are compared with the last one that was analysed, not with the one before."""
        image = scene(1).astype(np.float32)
        found = run(FrameChooser(), [(image * (1 - 0.015 * step)).astype(np.uint8) for step in range(20)], 0.01)
        assert found[1] is UNCHANGED
        assert found.count(ANALYSED) >= 3

    def test_another_size_is_another_picture(self) -> None:
        image = scene(1)
        assert run(FrameChooser(), [image, image[:-4]], 0.01) == [ANALYSED, ANALYSED]

    @pytest.mark.parametrize("lost_by", ["drop", "failure of 5 ms", "failure of an unknown time"])
    def test_a_frame_whose_answer_was_lost_stands_for_no_other(self, lost_by: str) -> None:
        chooser = FrameChooser(0.5)
        assert chooser.choose(0, scene(1)) is ANALYSED
        chooser.begin(0, TASKS)
        chooser.end("item", 0, 0.01)
        if lost_by == "drop":
            chooser.drop("face", 0)
        else:
            chooser.fail("face", 0, 0.005 if "5 ms" in lost_by else None)
        assert chooser.choose(250, scene(1)) is ANALYSED
        chooser.begin(250, set())  # the frame triggered nothing
        assert chooser.choose(500, scene(1)) is ANALYSED

    def test_scenes_of_these_tests_are_cuts_and_shots(self) -> None:
        assert mean_difference(thumbnail(scene(1)), thumbnail(scene(2))) >= CUT
        assert mean_difference(thumbnail(moving(1)), thumbnail(moving(2))) < CUT

    @pytest.mark.parametrize("shape", [(1, 1, 3), (1, 4000, 3), (2000, 1, 3), (1080, 1920, 3)])
    def test_any_shape_has_a_thumbnail(self, shape: tuple[int, int, int]) -> None:
        assert thumbnail(np.full(shape, 200, np.uint8)).shape == (18, 32)


class TestBudget:
    def test_without_one_each_changed_frame_is_analysed(self) -> None:
        assert set(run(FrameChooser(), [moving(n) for n in range(40)], 10.0)) == {ANALYSED}

    def test_a_moving_stream_takes_its_share_at_equal_distances(self) -> None:
        """Half of four frames a second can be paid: two, after what was saved is spent."""
        chooser = FrameChooser(0.02)
        found = run(chooser, [moving(n) for n in range(400)], 0.01)
        steady = found[200:]
        assert steady.count(ANALYSED) == pytest.approx(100, abs=2)
        places = [n for n, choice in enumerate(steady) if choice is ANALYSED]
        assert {b - a for a, b in itertools.pairwise(places)} <= {1, 2, 3}
        spent_s = sum(chooser.cpu_s.values())
        assert spent_s <= 0.02 * 100 + 2 * 0.02 * 4
        assert chooser.counts[ANALYSED] + chooser.counts[BUDGET] == 400

    def test_a_cut_is_analysed_at_once_and_another_movement_waits(self) -> None:
        chooser = FrameChooser(0.02)
        run(chooser, [moving(n) for n in range(200)], 0.02)  # nothing is saved now
        found = run(chooser, [scene(1), moving(1), moving(2)], 0.02, start_ms=200 * STEP_MS)
        assert found[:2] == [ANALYSED, ANALYSED]  # both are cuts
        assert found[2] is BUDGET

    def test_a_stream_of_cuts_does_not_outspend_the_budget(self) -> None:
        """A source that flashes is a way to take more than is due; two seconds without a frame are the bound."""
        chooser = FrameChooser(0.01)
        found = run(chooser, [scene(n) for n in range(160)], 0.05)
        assert sum(chooser.cpu_s.values()) <= 0.01 * 4 + 40 * 0.05 * 1000 / LONGEST_GAP_MS + 0.1
        assert found.count(BUDGET) > 130

    @pytest.mark.parametrize(("item_s", "face_s"), [(0.05, None), (0.05, 0.05), (0.0, 0.1)])
    def test_frames_on_which_a_task_fails_do_not_outspend_the_budget(self, item_s: float, face_s: float | None) -> None:
        """A task that fails on each frame of a stream, such as one that is too slow for its deadline."""
        chooser, found, taken_s = FrameChooser(0.01), list[Choice](), 0.0
        for number in range(160):
            found.append(chooser.choose(number * STEP_MS, moving(number)))
            if found[-1] is ANALYSED:
                chooser.begin(number * STEP_MS, TASKS)
                chooser.end("item", number * STEP_MS, item_s)
                chooser.fail("face", number * STEP_MS, face_s)
                taken_s += item_s + (face_s or 0.0)
        assert taken_s == pytest.approx(sum(chooser.cpu_s.values()))
        assert taken_s <= 0.01 * 4 + 40 * (item_s + (face_s or 0.0)) * 1000 / LONGEST_GAP_MS + 0.2
        assert found.count(BUDGET) > 130

    def test_a_stream_on_which_every_task_fails_has_a_budget_too(self) -> None:
        chooser, found = FrameChooser(0.01), list[Choice]()
        for number in range(160):
            found.append(chooser.choose(number * STEP_MS, moving(number)))
            if found[-1] is ANALYSED:
                chooser.begin(number * STEP_MS, TASKS)
                for task in TASKS:
                    chooser.fail(task, number * STEP_MS, 0.05)
        assert found.count(BUDGET) > 130
        assert sum(chooser.cpu_s.values()) <= 0.01 * 4 + 40 * 0.1 * 1000 / LONGEST_GAP_MS + 0.2

    def test_the_least_is_a_frame_in_two_seconds_of_a_stream_that_changes(self) -> None:
        found = run(FrameChooser(0.000_001), [moving(n) for n in range(80)], 0.5)
        places = [n for n, choice in enumerate(found) if choice is ANALYSED]
        assert max(b - a for a, b in itertools.pairwise(places)) * STEP_MS == LONGEST_GAP_MS
        assert len(places) <= 13

    def test_unchanged_frames_save_for_later(self) -> None:
        chooser = FrameChooser(0.02)
        run(chooser, [moving(n) for n in range(100)], 0.02)
        still = run(chooser, [moving(99)] * 16, 0.02, start_ms=100 * STEP_MS)
        assert set(still[1:]) == {UNCHANGED}
        after = run(chooser, [moving(n) for n in range(100, 104)], 0.02, start_ms=116 * STEP_MS)
        assert after.count(ANALYSED) >= 3

    def test_sound_is_paid_from_the_same_budget(self) -> None:
        alone, with_sound = FrameChooser(0.04), FrameChooser(0.04)
        for second in range(40):
            images = [moving(4 * second + n) for n in range(4)]
            for chooser in (alone, with_sound):
                run(chooser, images, 0.02, start_ms=1000 * second)
            with_sound.spend("voice", 0.02)
        assert with_sound.counts[ANALYSED] < 0.7 * alone.counts[ANALYSED]
        assert with_sound.cpu_s["voice"] == pytest.approx(0.8)

    def test_costs_that_are_not_known_teach_nothing(self) -> None:
        chooser = FrameChooser(0.02)
        run(chooser, [moving(n) for n in range(4)], 0.01)
        chooser.choose(1000, moving(4))
        chooser.begin(1000, TASKS)
        chooser.end("item", 1000, None)
        chooser.end("face", 1000, 5.0)
        chooser.end("face", 99, 0.01)  # an unknown frame
        budget: Any = chooser._budget
        assert budget.frame_cost_s == pytest.approx(0.01)


@given(st.floats(0.001, 4), st.lists(st.tuples(st.integers(0, 3000), st.floats(0, 2), st.booleans()), max_size=60))
def test_a_budget_stays_within_its_bounds(share: float, steps: list[tuple[int, float, bool]]) -> None:
    """Check that at most what was due is taken, with what was saved at first and may be taken in advance."""
    budget = CpuBudget(share)
    now_ms, taken_s = 0, 0.0
    budget.advance(0)
    for passed_ms, cost_s, is_frame in steps:
        now_ms += passed_ms
        budget.advance(now_ms)
        budget.advance(now_ms - 500)  # time that goes back adds nothing
        if budget.saved_s <= 0:
            continue
        if is_frame:
            budget.settle(budget.reserve(), cost_s, is_whole=True)
        else:
            budget.spend(cost_s)
        taken_s += cost_s
        assert -budget.capacity_s <= budget.saved_s <= budget.capacity_s
    carried_s = sum(max(0.0, cost_s - budget.capacity_s) for _, cost_s, _ in steps)
    assert taken_s <= share * now_ms / 1000 + 2 * budget.capacity_s + carried_s + 1e-6
