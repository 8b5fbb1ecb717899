import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.livestream.quality import intervals as moments
from apps.livestream.quality import labels as labelling
from apps.livestream.quality import scores
from walle.errors import ConfigError

Interval = moments.Interval
FLAGS = st.lists(st.booleans(), max_size=40)


class TestCounts:
    def test_each_outcome_is_counted_once(self) -> None:
        counted = scores.count([True, True, False, False], [True, False, True, False])
        assert counted == scores.Counts(1, 1, 1, 1)
        assert (counted.precision, counted.recall, counted.f1) == (0.5, 0.5, 0.5)

    def test_without_positives_every_measure_is_1(self) -> None:
        counted = scores.count([False], [False])
        assert (counted.precision, counted.recall, counted.f1) == (1, 1, 1)

    @given(FLAGS)
    def test_right_answers_score_1(self, labels: list[bool]) -> None:
        assert scores.count(labels, labels).f1 == 1

    def test_lengths_must_agree(self) -> None:
        with pytest.raises(ValueError, match="shorter"):
            scores.count([True, False], [True])


class TestInterval:
    def test_it_holds_the_measure_and_narrows_with_more_blocks(self) -> None:
        rng = random.Random(1)
        labels = [rng.random() < 0.3 for _ in range(2000)]
        answers = [label if rng.random() < 0.9 else not label for label in labels]
        measure = scores.count(labels, answers).f1
        few = scores.interval(scores.blocks_of(labels[:100], answers[:100]), lambda c: c.f1, random.Random(2))
        many = scores.interval(scores.blocks_of(labels, answers), lambda c: c.f1, random.Random(2))
        assert many[0] < measure < many[1]
        assert many[1] - many[0] < few[1] - few[0]

    def test_blocks_have_every_second_once(self) -> None:
        labels = [True] * 7 + [False] * 5
        blocks = scores.blocks_of(labels, labels, seconds=5)
        assert [label for block, _ in blocks for label in block] == labels


class TestCalibration:
    def test_bins_hold_their_answers(self) -> None:
        found = scores.reliability([True, False, True], [0.05, 0.95, 1.0])
        assert [(each.answers, each.positive) for each in found] == [(1, 1.0), (2, 0.5)]

    def test_the_error_is_the_distance_weighted_by_answers(self) -> None:
        # Three answers of 0.25 without a positive, and one of 1.0 that is positive: 3/4 * 0.25.
        error = scores.calibration_error([False, False, False, True], [0.25, 0.25, 0.25, 1.0])
        assert error == pytest.approx(0.1875)


class TestIntervals:
    def test_neighbours_join_and_gaps_are_bridged(self) -> None:
        answers = [True, True, False, True, False, False, True]
        scored = [0.9, 0.6, 0.1, 0.7, 0, 0, 0.8]
        assert moments.intervals(answers, scored, bridge=1) == [Interval(0, 4, 0.9), Interval(6, 7, 0.8)]
        assert len(moments.intervals(answers)) == 3

    @given(FLAGS)
    def test_without_bridging_they_cover_just_the_seconds(self, answers: list[bool]) -> None:
        covered = {s for each in moments.intervals(answers) for s in range(int(each.start), int(each.end))}
        assert covered == {second for second, answer in enumerate(answers) if answer}

    def test_overlap_is_shared_time_over_joint_time(self) -> None:
        assert Interval(0, 4).overlap(Interval(2, 6)) == pytest.approx(2 / 6)
        assert Interval(0, 1).overlap(Interval(5, 6)) == 0


class TestAveragePrecision:
    def test_all_found_is_1_and_none_is_0(self) -> None:
        labels = [Interval(0, 3), Interval(8, 9)]
        assert moments.average_precision([(labels, labels)]) == 1
        assert moments.average_precision([(labels, [])]) == 0

    def test_a_confident_miss_costs_precision_at_every_recall(self) -> None:
        labels = [Interval(0, 2), Interval(4, 6)]
        predictions = [Interval(10, 12, 0.9), Interval(0, 2, 0.8), Interval(4, 6, 0.7)]
        assert moments.average_precision([(labels, predictions)]) == pytest.approx(2 / 3)

    def test_a_label_is_matched_once(self) -> None:
        twice = [Interval(0, 2, 0.9), Interval(0, 2, 0.8)]
        assert moments.average_precision([([Interval(0, 2), Interval(5, 6)], twice)]) == pytest.approx(0.5)

    def test_intervals_of_another_clip_do_not_match(self) -> None:
        clips = [([Interval(0, 2)], []), ([], [Interval(0, 2, 0.9)])]
        assert moments.average_precision(clips) == 0


class TestLabels:
    def write(self, tmp_path: Path, **clip: Any) -> Path:
        path = tmp_path / "labels.json"
        path.write_text(json.dumps({"clips": {"a": {"file": "a.mp4", "seconds": 4, "set": "test", **clip}}}))
        return path

    def test_seconds_are_read_from_ranges(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, passes=[{"highlight": "0-1, 3", "face": ""}])
        [clip] = labelling.read_labels(path)
        assert clip.labels("highlight") == [True, True, False, True]
        assert clip.is_test

    def test_a_second_outside_the_clip_is_refused_with_its_place(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, passes=[{"highlight": "4", "face": ""}])
        with pytest.raises(ConfigError, match=r"labels\.json: clip 'a': .*second 4 is labelled"):
            labelling.read_labels(path)

    def test_kappa_is_0_for_chance_and_1_for_equal_passes(self, tmp_path: Path) -> None:
        passes = [{"highlight": "0-1", "face": "0"}, {"highlight": "1-2", "face": "0"}]
        clips = labelling.read_labels(self.write(tmp_path, passes=passes))
        assert labelling.agreement(clips, "highlight") == labelling.Agreement(4, 0.5, 0.0)
        assert labelling.agreement(clips, "face") == labelling.Agreement(4, 1.0, 1.0)

    def test_the_apps_own_labels_are_whole_and_agree(self) -> None:
        clips = labelling.read_labels(labelling.LABELS)
        assert [clip.is_test for clip in sorted(clips, key=lambda clip: clip.name)] == [False, True] * 4
        assert labelling.agreement(clips, "highlight").equal == 1
        kappa = labelling.agreement(clips, "face").kappa
        assert kappa is not None
        assert kappa > 0.95
