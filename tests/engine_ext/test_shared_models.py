"""Every ONNX model beside the checkout against ONNX Runtime, on inputs from real images and recordings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

from tests.sim.real_inputs import DATA, grey, log_mel, picture, sound, spectra
from walle.onnx_backend import Backend

MODELS = DATA / "models"
FRAMES = 12


def mobilenet() -> list[dict[str, Any]]:
    names = ("hot_dog.jpg", "cat_720p.jpg", "grace_hopper.bmp")
    return [
        {"input": (picture(name, 128, 128).transpose(1, 2, 0)[None] / 127.5 - 1).astype(np.float32)} for name in names
    ]


def ultraface() -> list[dict[str, Any]]:
    return [{"input": (picture(name, 240, 320)[None] - 127) / 128} for name in ("face_with_toy.jpg", "astronaut.png")]


def yunet() -> list[dict[str, Any]]:
    return [{"input": picture("face_with_toy.jpg", 320, 320, channels="BGR")[None]}]


def nanodet() -> list[dict[str, Any]]:
    mean, spread = np.array([103.53, 116.28, 123.675]), np.array([57.375, 57.12, 58.395])
    image = picture("cat_720p.jpg", 320, 320, channels="BGR")
    return [{"input.1": ((image - mean[:, None, None]) / spread[:, None, None])[None].astype(np.float32)}]


def fastestdet() -> list[dict[str, Any]]:
    return [{"input.1": picture("coffee.png", 352, 352, channels="BGR")[None] / 255}]


def imagenet(name: str) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [{name: (picture("chelsea.png", 224, 224)[None] / 255 - 0.45) / 0.226}]


def mnist() -> list[dict[str, Any]]:
    return [{"Input3": grey(name, 28, 28)[None, None]} for name in ("hot_dog.jpg", "coffee.png")]


def dnsmos() -> list[dict[str, Any]]:
    samples, rate = sound("speech_read_a.wav")
    mel = log_mel(np.resize(samples, 160 * 900 + 320), rate, size=320, hop=160, bands=120)[:900]
    pair = np.stack([mel, mel[::-1]])
    return [{"input_1": (pair + 40) / 40}, {"input_1": (pair[:1] + 40) / 40}]


def autoencoder() -> list[dict[str, Any]]:
    samples, rate = sound("noise_1s.wav")
    mel = log_mel(samples, rate, size=1024, hop=512, bands=128)
    return [{"input": mel[start : start + 5].reshape(1, 640)} for start in range(0, len(mel) - 4, 5)]


def dtln() -> list[dict[str, Any]]:
    samples, _ = sound("noisy_speech_16k.wav")
    magnitudes = np.abs(spectra(samples, 512, 128)).astype(np.float32)[40 : 40 + FRAMES]
    return [{"input_2": one.reshape(1, 1, 257), "input_3": np.zeros((1, 2, 128, 2), np.float32)} for one in magnitudes]


def gtcrn() -> list[dict[str, Any]]:
    samples, _ = sound("noisy_speech_16k.wav")
    frames = spectra(samples, 512, 256)[20 : 20 + FRAMES]
    caches = {"conv_cache": (2, 1, 16, 16, 33), "tra_cache": (2, 3, 1, 1, 16), "inter_cache": (2, 1, 33, 16)}
    return [
        {"mix": np.stack([one.real, one.imag], -1).astype(np.float32).reshape(1, 257, 1, 2)}
        | {name: np.zeros(shape, np.float32) for name, shape in caches.items()}
        for one in frames
    ]


def silero() -> list[dict[str, Any]]:
    samples, _ = sound("speech_silence_padded.wav")
    first = 62 * 512  # start of the sentence
    pieces = [samples[start - 64 : start + 512] for start in range(first, first + FRAMES * 512, 512)]
    state, rate = np.zeros((2, 1, 128), np.float32), np.array(16000, np.int64)
    return [{"input": piece[None], "state": state, "sr": rate} for piece in pieces]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with its inputs. `carry` maps outputs to inputs of the next run, so that errors of a stream may add up.

    The tolerance of an element is `rtol` of its size plus `atol` of the largest element of its output.
    """

    file: str
    feeds: Callable[[], list[dict[str, Any]]]
    carry: Mapping[str, str] = field(default_factory=dict)
    rtol: float = 1e-4
    atol: float = 1e-5


CASES = [
    Case(file="ad01_autoencoder.onnx", feeds=autoencoder),
    Case(file="audio_dnsmos_p808.onnx", feeds=dnsmos),
    Case(file="cls_mobilenet_v1_0.25_128.onnx", feeds=mobilenet),
    Case(file="denoise_dtln_1.onnx", feeds=dtln, carry={"tf_op_layer_stack_2": "input_3"}),
    Case(
        file="denoise_gtcrn_simple.onnx",
        feeds=gtcrn,
        carry={"conv_cache_out": "conv_cache", "tra_cache_out": "tra_cache", "inter_cache_out": "inter_cache"},
        atol=1e-4,
    ),
    Case(file="det_fastestdet_352.onnx", feeds=fastestdet, atol=1e-4),
    Case(file="det_nanodet_m_320.onnx", feeds=nanodet, atol=1e-4),
    Case(file="face_rfb320.onnx", feeds=ultraface),
    Case(file="face_yunet_n_320.onnx", feeds=yunet, atol=1e-4),
    Case(file="light_shufflenet.onnx", feeds=imagenet("gpu_0/data_0")),
    Case(file="light_squeezenet.onnx", feeds=imagenet("data_0")),
    Case(file="mnist_cnn.onnx", feeds=mnist),
    Case(file="vad_silero_16k_op15.onnx", feeds=silero, carry={"stateN": "state"}, atol=1e-4),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file.removesuffix(".onnx"))
def test_agrees_with_onnx_runtime(case: Case) -> None:
    if not (MODELS / case.file).exists():
        pytest.skip(f"{case.file} is not beside this checkout")
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    theirs = ort.InferenceSession(str(MODELS / case.file), options, providers=["CPUExecutionProvider"])
    ours = Backend.prepare(onnx.load(str(MODELS / case.file)))
    names = [one.name for one in theirs.get_outputs()]
    our_state: dict[str, Any] = {}
    their_state: dict[str, Any] = {}
    for feed in case.feeds():
        found = dict(zip(names, ours.run(feed | our_state), strict=True))
        expected = dict(zip(names, theirs.run(None, feed | their_state), strict=True))
        our_state = {into: found[name] for name, into in case.carry.items()}
        their_state = {into: expected[name] for name, into in case.carry.items()}
        for name in names:
            largest = float(np.abs(expected[name]).max())
            assert found[name].dtype == expected[name].dtype
            np.testing.assert_allclose(
                found[name], expected[name], rtol=case.rtol, atol=case.atol * largest, err_msg=name
            )


def test_every_model_is_listed() -> None:
    if not MODELS.exists():
        pytest.skip("no models beside this checkout")
    assert {path.name for path in MODELS.glob("*.onnx")} == {case.file for case in CASES}
