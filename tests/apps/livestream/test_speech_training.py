"""Training of the voice detector: mixtures of sounds, and a network whose model gives the same answers step by step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.livestream.own_models import WINDOW
from apps.livestream.train import speech
from apps.livestream.train.install import differences, install
from apps.livestream.train.mixtures import Mixtures

WINDOWS = 90


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack of a voice that comes and goes, and of a noise."""
    rng = np.random.default_rng(1)
    time_s = np.arange(WINDOWS * WINDOW) / 16_000
    speaks = np.repeat(np.arange(WINDOWS) % 30 < 15, WINDOW)
    voice = sum(np.sin(2 * np.pi * 150 * k * time_s) / k for k in range(1, 12)) * speaks * 4000
    noise = rng.normal(size=len(time_s)) * 1000
    sounds: dict[str, tuple[Any, Any]] = {
        "real/voice": (voice, speaks[::WINDOW]),
        "held_out/voice": (voice + noise, speaks[::WINDOW]),
    }
    sounds["real/noise"] = noise, np.zeros(WINDOWS)
    parts = {f"{name}/samples": samples.astype(np.int16) for name, (samples, _) in sounds.items()}
    labels = {f"{name}/speech": np.asarray(windows, np.float16) for name, (_, windows) in sounds.items()}
    np.savez(tmp_path / "sounds.npz", allow_pickle=False, **parts, **labels)
    return tmp_path


def test_equal_seeds_give_equal_mixtures_with_a_label_for_each_window(pack: Path) -> None:
    one, other = (Mixtures(pack, np.random.default_rng(3)).batch(6, 20) for _ in range(2))
    samples, labels = one
    assert samples.dtype == labels.dtype == np.float32
    assert (samples.shape, labels.shape) == ((6, 20 * WINDOW), (6, 20))
    assert np.abs(samples).max() <= 1
    assert np.isfinite(samples).all()
    assert 0 < labels.mean() < 1
    assert all(np.array_equal(mine, yours) for mine, yours in zip(one, other, strict=True))


def test_the_held_out_sounds_are_in_no_mixture(pack: Path) -> None:
    mixtures = Mixtures(pack, np.random.default_rng(3))
    assert list(mixtures.held_out) == ["held_out/voice"]
    assert mixtures.seconds == pytest.approx({"real": WINDOWS * WINDOW / 16_000, "noise": WINDOWS * WINDOW / 16_000})


def test_training_finds_speech_and_its_model_answers_as_the_network(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, models = tmp_path / "run", tmp_path / "models"
    options = ["--data", str(pack), "--out", str(run), "--steps", "90", "--batch", "8", "--windows", "30"]
    monkeypatch.setattr("sys.argv", ["speech", *options])
    speech.main()
    models.mkdir()
    install(run, models, names=["voice"])
    assert differences(run, models, names=["voice"])["voice"] < 0.01  # weights are stored as float16
    mixtures, network = Mixtures(pack, np.random.default_rng(3)), speech.Voice()
    with np.load(run / "voice.npz") as weights:
        network.load_state_dict({name: weights[name] for name in weights.files})
    found = speech.evaluate_voice(mixtures, network.eval())["held_out/voice"]
    assert found["windows"] == WINDOWS
    assert found["agreement"] > 0.65
