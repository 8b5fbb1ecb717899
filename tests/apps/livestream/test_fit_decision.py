import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from apps.livestream import fit_decision
from apps.livestream.drawn_clip import SECONDS, shown_seconds
from apps.livestream.evaluate import ClipResult, clips_of
from apps.livestream.fit_decision import (
    KINDS,
    best_threshold,
    check_whole,
    drawn_clips,
    fit,
    fit_clips,
    fitted,
    left_out,
    left_out_together,
    unsure_band,
)
from apps.livestream.own_models import OwnModels
from apps.livestream.player import Decision
from apps.livestream.quality import labels
from apps.livestream.quality.bands import Evidence
from apps.livestream.quality.labels import LABELS, Clip, read_labels
from apps.livestream.task_files import Models, settings_of
from walle.errors import ConfigError
from walle.model_files import ModelFolder

CLIP = Clip(name="talk", file="talk.mp4", seconds=9, set="tuning", passes=(), sha256="", source="")


def test_the_evidence_that_separates_the_answers_gets_the_weight() -> None:
    rng = np.random.default_rng(1)
    evidence = rng.random((400, 3))
    answers = evidence[:, 1] > 0.5
    weights, bias = fit(evidence, answers, penalty=0.1)
    assert weights[1] > 5
    assert max(weights[0], weights[2]) < 0.3 * weights[1]
    assert ((evidence @ weights + bias > 0) == answers).mean() > 0.95


def test_the_fit_is_at_the_optimum_also_for_evidence_of_small_values() -> None:
    """Plain gradient descent had a slope of 1e-3 there after 20,000 steps, and half of the weight."""
    rng = np.random.default_rng(4)
    evidence = rng.random((400, 2)) * np.asarray([0.1, 1.0])
    answers = evidence @ [30.0, 3.0] - 3 + rng.logistic(size=400) > 0
    weights, bias = fit(evidence, answers)
    error = 1 / (1 + np.exp(-(evidence @ weights + bias))) - answers
    slopes = evidence.T @ error / 400 + fit_decision.PENALTY * weights / 400
    assert np.abs([*slopes, error.mean()]).max() < 1e-7


@pytest.mark.parametrize("judged", ["test", "judging", "unseen"])
def test_a_fit_reads_no_clip_that_judges_and_no_other_part_of_its_file(judged: str) -> None:
    clips = [dataclasses.replace(CLIP, name=name, set=name, sha256=name) for name in ("tuning", "fresh", judged)]
    assert [clip.name for clip in fit_clips(clips)] == ["tuning", "fresh"]
    with pytest.raises(ConfigError, match=f"clip 'tuning' is of the same file as '{judged}', which is not for fits"):
        fit_clips([*clips[:2], dataclasses.replace(clips[2], sha256="tuning")])
    fit_clips(read_labels(LABELS))  # the app's own labels pass


@pytest.mark.parametrize("chosen", ["unseen", "judging", "tuning"])
def test_the_clips_of_a_set_are_taken_and_those_of_others_are_not_even_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    none = {"highlight": "", "face": ""}
    clips = {
        name: {"file": f"{name}.png", "seconds": 1, "set": name, "sha256": hashlib.sha256(name.encode()).hexdigest(),
               "passes": [none, none]}
        for name in ("tuning", "judging", "unseen")
    }  # fmt: skip
    (tmp_path / "labels.json").write_text(json.dumps({"clips": clips}))
    monkeypatch.setattr(labels, "LABELS", tmp_path / "labels.json")
    (tmp_path / f"{chosen}.png").write_bytes(chosen.encode())
    for other in clips.keys() - {chosen}:
        (tmp_path / f"{other}.png").write_bytes(b"a file that would be refused")
    found, files = clips_of([tmp_path], (chosen,))
    assert [clip.name for clip in found] == list(files.paths) == [chosen]
    assert files.absent == ()


def test_no_weight_is_negative() -> None:
    evidence = np.random.default_rng(2).random((100, 1))
    weights, _ = fit(evidence, evidence[:, 0] < 0.5)
    assert weights[0] == 0


def test_the_threshold_is_where_the_expected_f1_is_best() -> None:
    probabilities = np.random.default_rng(5).beta(0.3, 1.0, 300)

    def expected_f1(cut: float) -> float:
        taken = probabilities[probabilities >= cut]
        return float(2 * taken.sum() / (len(taken) + probabilities.sum()))

    best = best_threshold(probabilities)
    assert expected_f1(best) == pytest.approx(max(expected_f1(cut) for cut in probabilities))
    assert best_threshold(np.asarray([0.0, 0.0, 1.0])) == 0.5


def test_the_unsure_band_holds_the_share_nearest_to_the_threshold() -> None:
    probabilities = np.linspace(0.01, 0.99, 99)
    low, high = unsure_band(probabilities, 0.5, share=0.2)
    assert 0.17 < ((probabilities > low) & (probabilities < high)).mean() < 0.23
    assert np.isclose(low + high, 1, atol=0.01)


def clips() -> dict[str, list[Evidence]]:
    """Three clips in which a held article is a highlight, and a face is in all seconds."""
    rng = np.random.default_rng(4)
    made = {}
    for name in ("a", "b", "c"):
        held = rng.random(40)
        made[name] = [
            Evidence({"held": one, "closeup": 0.0, "kept": 0.0, "look": one, "face": 0.9}, bool(one > 0.6))
            for one in held
        ]
    return made


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_decision, "_STEPS", 2_000)


@pytest.mark.usefixtures("short")
def test_each_clip_is_judged_by_a_fit_of_the_others() -> None:
    honest = left_out(clips(), KINDS["device"])
    assert honest["f1"] > 0.8
    assert set(honest["by_file"]) == {"a", "b", "c"}
    # 400 seconds without a highlight would outweigh the others in their own fit.
    odd = [Evidence({"held": 0.9, "closeup": 0.0, "kept": 0.0}, label=False)] * 400
    found = left_out(clips() | {"odd": odd}, KINDS["device"])
    assert found["by_file"]["odd"] == {"seconds": 400, "right": 0, "false": 400, "missed": 0}
    assert found["log_loss"] > honest["log_loss"]
    assert left_out({"odd": odd}, KINDS["device"])["log_loss"] is None


@pytest.mark.usefixtures("short")
def test_device_and_cloud_are_scored_together_by_fits_of_the_other_files() -> None:
    together = left_out_together(clips(), KINDS)
    assert together["f1"] > 0.8
    assert 0.1 <= together["sent"] <= 0.15  # the share of the paper
    # What only the cloud sees decides no second that the device is sure of.
    blind = {
        name: [dataclasses.replace(one, values={**one.values, "look": float(one.label)}) for one in seconds]
        for name, seconds in clips().items()
    }
    asked, alone = left_out_together(blind, KINDS), left_out(blind, KINDS["device"])
    assert alone["f1"] <= asked["f1"] < left_out(blind, KINDS["cloud"])["f1"] + 1e-9


@pytest.mark.usefixtures("short")
def test_the_settings_get_weights_of_articles_only() -> None:
    found = fitted(clips())
    assert set(found["device"]["weights"]) == {"held", "closeup", "kept"}
    assert set(found["cloud"]["weights"]) == {"held", "closeup", "kept", "look"}
    low, high = found["sure"]
    assert low < found["device"]["threshold"] < high


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Decision(second=3, output=None, why="dropped"), "dropped"),
        (Decision(second=3, output={"decided": "device alone", "why": "late"}), "late"),
    ],
)
def test_a_fit_from_seconds_that_lack_evidence_is_refused(decision: Decision, why: str) -> None:
    whole = Decision(second=2, output={"decided": "cloud", "why": ""})
    check_whole([ClipResult(CLIP, (whole,))])
    with pytest.raises(ConfigError, match=rf"1 seconds have no evidence .*talk, second 3: {why}; nothing was written"):
        check_whole([ClipResult(CLIP, (whole, decision))])


@pytest.mark.parametrize("models", [OwnModels(), ModelFolder(Path("not fetched"))], ids=["own", "public"])
def test_the_settings_of_both_sets_of_models_weigh_the_present_evidence(models: Models) -> None:
    settings = settings_of("highlight", models)
    for side, kinds in KINDS.items():
        assert set(settings[side]["weights"]) == set(kinds)
    low, high = settings["sure"]
    assert low < settings["device"]["threshold"] < high


def test_drawn_clips_have_the_labels_of_their_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fit_decision, "write_clip", lambda path, seed: path)
    first, second = drawn_clips(tmp_path, (4, 5))
    assert [first.file, second.file] == ["drawn_4.mp4", "drawn_5.mp4"]
    assert first.labels("highlight") == [number in shown_seconds() for number in range(SECONDS)]
