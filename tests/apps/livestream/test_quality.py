import hashlib
import json
import random
from pathlib import Path
from typing import Any, ClassVar

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.livestream.collect_clips import collect
from apps.livestream.media import Frame
from apps.livestream.quality import derived, plots, scores
from apps.livestream.quality import intervals as moments
from apps.livestream.quality import labels as labelling
from apps.livestream.quality.bands import Evidence, Model, bands
from apps.livestream.quality.clip_files import find_clips
from tests.apps.livestream.media_files import DATA, read
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
    def test_only_right_answers_give_scores_of_1(self, labels: list[bool]) -> None:
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
    def test_average_precision_is_1_if_all_are_found_and_0_if_none_is(self) -> None:
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
        entry = {"file": "a.mp4", "seconds": 4, "set": "test", "sha256": "0" * 64, **clip}
        path.write_text(json.dumps({"clips": {"a": entry}}))
        return path

    def test_seconds_are_read_from_ranges(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, passes=[{"highlight": "0-1, 3", "face": ""}])
        [clip] = labelling.read_labels(path)
        assert clip.labels("highlight") == [True, True, False, True]
        assert clip.set == "test"

    def test_a_second_outside_the_clip_is_refused_with_its_place(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, passes=[{"highlight": "4", "face": ""}])
        with pytest.raises(ConfigError, match=r"labels\.json: clip 'a': .*second 4 is labelled"):
            labelling.read_labels(path)

    def test_kappa_is_0_for_chance_and_1_for_equal_passes(self, tmp_path: Path) -> None:
        passes = [{"highlight": "0-1", "face": "0"}, {"highlight": "1-2", "face": "0"}]
        clips = labelling.read_labels(self.write(tmp_path, passes=passes))
        assert labelling.agreement(clips, "highlight") == labelling.Agreement(4, 0.5, 0.0)
        assert labelling.agreement(clips, "face") == labelling.Agreement(4, 1.0, 1.0)

    def test_an_unknown_set_and_a_box_that_is_none_are_refused(self, tmp_path: Path) -> None:
        passes = [{"highlight": "", "face": ""}]
        with pytest.raises(ConfigError, match="'tune', not one of tuning, judging, test"):
            labelling.read_labels(self.write(tmp_path, passes=passes, set="tune"))
        with pytest.raises(ConfigError, match="not left, top, width and height"):
            labelling.read_labels(self.write(tmp_path, passes=passes, crop=[0, 0, 0, 5]))
        with pytest.raises(ConfigError, match=r"the zoom 0\.2 is not between"):
            labelling.read_labels(self.write(tmp_path, passes=passes, zoom=0.2))

    def test_the_apps_own_labels_are_whole_and_agree(self) -> None:
        clips = labelling.read_labels(labelling.LABELS)
        first = sorted((clip for clip in clips if not clip.source and not clip.crop), key=lambda clip: clip.name)
        assert [clip.set for clip in first] == ["tuning", "test"] * 4
        added = sorted((clip for clip in clips if clip.source and not clip.crop), key=lambda clip: clip.name)
        fresh, unseen, stills = ([clip for clip in clips if clip.set == name] for name in labelling.SETS[3:])
        later = (*fresh, *unseen, *stills)
        added = [clip for clip in added if clip not in later]
        assert [clip.set for clip in added] == ["tuning", "judging"] * 7
        assert all(clip.source and clip.seconds <= 20 for clip in later)
        assert all(clip.zoom == 1 for clip in clips if clip not in stills)
        assert labelling.agreement(first, "highlight").equal == 1
        for clips_of, least in ((first, 0.95), (added, 0.95), (fresh, 0.95), (unseen, 0.9), (stills, 0.9)):
            for kind in labelling.KINDS:
                kappa = labelling.agreement(clips_of, kind).kappa
                assert kappa is not None
                assert kappa > least

    @pytest.mark.asyncio
    async def test_seconds_are_those_of_the_apps_clock(self) -> None:
        """The first frame of this clip is at 0.83 s: the shot with the laptop is in seconds 24 to 26 of the app."""
        path = DATA / "video/googlework_short.mp4"
        if not path.exists():
            pytest.skip("shared/data/video is not beside the checkout")
        [interview] = [clip for clip in labelling.read_labels(labelling.LABELS) if clip.name == "googlework_short"]
        labels = interview.labels("highlight")
        items, _ = await read(path, frames_per_second=4, max_side=64)
        frames = [item for item in items if isinstance(item, Frame)]
        laptop = next(frame.image for frame in frames if frame.pts_ms >= 25_400).astype(int)
        like = {frame.pts_ms // 1000 for frame in frames if np.abs(frame.image - laptop).mean() < 12}
        assert like == {second for second, label in enumerate(labels) if label}

    def test_clips_of_the_last_judgement_share_no_file_and_no_package_with_others(self) -> None:
        clips = labelling.read_labels(labelling.LABELS)
        last = [clip for clip in clips if clip.set in ("unseen", "stills")]
        others = [clip for clip in clips if clip not in last]
        assert len({clip.sha256 for clip in last}) == len(last)
        assert not {clip.sha256 for clip in last} & {clip.sha256 for clip in others}
        packages = [{clip.source.split(":")[0] for clip in each} for each in (last, others)]
        assert not packages[0] & packages[1]

    def test_crops_are_of_tuning_clips_at_seconds_without_a_highlight(self) -> None:
        clips = labelling.read_labels(labelling.LABELS)
        whole = {clip.file: clip for clip in clips if not clip.crop}
        crops = [clip for clip in clips if clip.crop and clip.set not in ("fresh", "unseen")]
        assert len(crops) == 7
        for clip in crops:
            of = whole[clip.file]
            assert (clip.set, of.set, clip.sha256) == ("tuning", "tuning", of.sha256)
            assert not any(of.labels("highlight")[clip.start : clip.start + clip.seconds])


def clip(name: str = "a", file: str = "a.png", content: bytes = b"x", **changed: Any) -> labelling.Clip:
    fields: dict[str, Any] = {"name": name, "file": file, "seconds": 1, "set": "tuning", "passes": (), "source": ""}
    return labelling.Clip(**{**fields, "sha256": hashlib.sha256(content).hexdigest(), **changed})


class TestCollect:
    def test_clips_are_found_by_their_content_and_get_their_labelled_names(self, tmp_path: Path) -> None:
        package = tmp_path / "unpacked/package/videos"
        package.mkdir(parents=True)
        (package / "video.mp4").write_bytes(b"x")
        (package / "other.mp4").write_bytes(b"not labelled")
        (package / "c.mp4").write_bytes(b"another content than c's")
        wanted = [clip("b", "b.mp4", source="package"), clip("c", "c.mp4", content=b"y", source="package")]
        assert collect(wanted, tmp_path / "unpacked", tmp_path / "clips") == [tmp_path / "clips/b.mp4"]
        assert (tmp_path / "clips/b.mp4").read_bytes() == b"x"
        assert [path.name for path in (tmp_path / "clips").iterdir()] == ["b.mp4"]

    def test_a_folder_that_does_not_exist_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="not a folder; unpack"):
            collect([], tmp_path / "none", tmp_path / "clips")


class TestClipFiles:
    def test_the_first_folder_that_has_the_file_counts_and_absent_clips_are_named(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "b.mp4").write_bytes(b"x")
        lacking = clip("c", "c.mp4", source="Python package thing 1.0: data/c.mp4", seconds=7)
        found = find_clips([clip("b", "b.mp4"), lacking], [tmp_path / "one", tmp_path / "two"])
        assert found.paths == {"b": tmp_path / "one/b.mp4"}
        assert found.absences() == ["c (tuning, 7 s) is absent: c.mp4, from Python package thing 1.0: data/c.mp4"]

    def test_a_file_of_another_content_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(b"other")
        with pytest.raises(ConfigError, match=r"a\.png: SHA-256 is .*, that of the labelled file .* labels of 'a'"):
            find_clips([clip()], [tmp_path])

    def test_no_folder_and_no_clip_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="not a folder"):
            find_clips([clip()], [tmp_path / "none"])
        with pytest.raises(ConfigError, match=r"none of the 1 clips of labels\.json is here, such as a\.png"):
            find_clips([clip()], [tmp_path])


class TestDerivedClips:
    @pytest.fixture
    def picture(self, tmp_path: Path) -> Path:
        path = tmp_path / "a.png"
        image = np.random.default_rng(1).integers(0, 256, (48, 65, 3), np.uint8)
        with av.open(str(path), "w", format="image2") as container:
            stream = container.add_stream("png", rate=1)
            stream.width, stream.height, stream.pix_fmt = 65, 48, "rgb24"
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode(None))
        self.image = image
        return path

    def read(self, path: Path) -> list[Any]:
        with av.open(str(path)) as container:
            return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]

    def test_a_picture_is_shown_unchanged_for_its_second(self, picture: Path, tmp_path: Path) -> None:
        frames = self.read(derived.playable(clip(), picture, tmp_path))
        assert len(frames) == 4
        assert all((frame == self.image).all() for frame in frames)

    def test_a_zoom_cuts_a_picture_towards_its_middle_at_its_size(self, picture: Path, tmp_path: Path) -> None:
        frames = self.read(derived.playable(clip(seconds=2, zoom=0.75), picture, tmp_path))
        assert [frame.shape for frame in frames] == [(48, 65, 3)] * 8
        assert (frames[0] == self.image).all()
        middle = self.image[6:42, 8:57]  # three quarters of 48 and of 65
        corners = [(0, 0), (0, -1), (-1, 0), (-1, -1)]
        distance = [abs(int(frames[-1][at].mean()) - int(middle[at].mean())) for at in corners]
        assert max(distance) < 50
        assert len({frame.tobytes() for frame in frames}) == 8

    def test_a_crop_is_the_part_of_its_frames_from_its_first_second_on(self, picture: Path, tmp_path: Path) -> None:
        whole = derived.playable(clip("whole", seconds=3), picture, tmp_path)
        part = derived.playable(clip("part", crop=(5, 3, 20, 10), start=1, seconds=2), whole, tmp_path)
        frames = self.read(part)
        assert len(frames) == 8
        assert (frames[0] == self.image[3:13, 5:25]).all()
        with pytest.raises(ConfigError, match="ends before the 3 seconds"):
            derived.playable(clip("long", crop=(5, 3, 20, 10), start=1, seconds=3), whole, tmp_path)
        with pytest.raises(ConfigError, match="reaches out of its frames"):
            derived.playable(clip("wide", crop=(50, 3, 20, 10)), whole, tmp_path)

    def test_a_damaged_picture_is_refused_and_a_clip_is_played_itself(self, tmp_path: Path) -> None:
        broken = tmp_path / "a.png"
        broken.write_bytes(b"x")
        with pytest.raises(ConfigError, match="not a clip or picture that can be read"):
            derived.playable(clip(), broken, tmp_path)
        assert derived.playable(clip(file="a.mp4"), tmp_path / "a.mp4", tmp_path) == tmp_path / "a.mp4"


class TestParts:
    def test_no_interval_is_cut_and_all_together_are_those_of_the_clip(self) -> None:
        rng = random.Random(3)
        for _ in range(50):
            labels = [rng.random() < 0.3 for _ in range(40)]
            answers = [rng.random() < 0.3 for _ in range(40)]
            ranks = [rng.random() for _ in range(40)]
            found = moments.parts(labels, answers, ranks, bridge=1)
            assert sum(len(labelled) for labelled, _ in found) == len(moments.intervals(labels, bridge=1))
            assert sum(len(predicted) for _, predicted in found) == len(moments.intervals(answers, bridge=1))
            whole = [(moments.intervals(labels, bridge=1), moments.intervals(answers, ranks, bridge=1))]
            assert moments.average_precision(found) == pytest.approx(moments.average_precision(whole))

    def test_the_bootstrap_holds_the_value(self) -> None:
        right, wrong = [Interval(0, 3)], [Interval(5, 9, 0.5)]
        found = [(right, right)] * 20 + [(right, wrong)] * 10
        low, high = moments.bootstrap(found, random.Random(1))
        assert 0.3 < low < moments.average_precision(found) < high < 1
        assert moments.bootstrap([], random.Random(1)) == (0.0, 1.0)


class TestBands:
    DEVICE: ClassVar[Model] = {"bias": -2.0, "weights": {"held": 4.0}, "threshold": 0.5}
    CLOUD: ClassVar[Model] = {"bias": -2.0, "weights": {"look": 4.0}, "threshold": 0.5}

    def test_the_least_sure_seconds_go_first_and_the_cloud_decides_them(self) -> None:
        sure = [Evidence({"held": 0.0, "look": 1.0}, label=False), Evidence({"held": 1.0, "look": 0.0}, label=True)]
        unsure = [Evidence({"held": 0.45, "look": 1.0}, label=True), Evidence({"held": 0.55, "look": 0.0}, label=False)]
        none, half, every = bands([*sure, *unsure], self.DEVICE, self.CLOUD, shares=(0.0, 0.5, 1.0))
        assert (none.passed, none.precision, none.recall) == (None, 0.5, 0.5)
        assert (half.passed, half.precision, half.recall) == (0.5, 1.0, 1.0)
        assert (every.passed, every.precision, every.recall) == (0.5, 0.5, 0.5)

    def test_without_a_look_its_weight_counts_nothing(self) -> None:
        assert Evidence({"held": 1.0}, label=True).log_odds(self.CLOUD) == -2.0


def test_the_picture_of_an_evaluation_has_a_page_with_its_numbers(tmp_path: Path) -> None:
    found = {
        "seconds": 4,
        "calibration_error": 0.25,
        "reliability": [{"answers": 4, "confidence": 0.5, "positive": 0.625}],
        "thresholds": [{"threshold": 0.5, "recall": 1.0, "precision": 0.667}],
    }
    path = tmp_path / "out" / "quality.png"
    plots.draw({"test": found}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    page = path.with_suffix(".html").read_text("utf-8")
    assert all(text in page for text in ("quality.png", "0.625", "0.667"))
