"""Speech in the sound of a stream. Which model detects it is a setting: Silero VAD, or the app's own.

    {"start_ms", "windows": [probability of each 32 ms window], "seconds": [{"second", "mean", "windows"}], "restarted"}

Sound comes in chunks of any length; samples that do not fill a window wait for the next chunk. The model's state, the
samples before the window that it sees again, and these samples are kept between runs in `ctx.state`, so that a stream's
probabilities do not depend on its chunks. `start_ms` is the time of the first window, and `seconds` has the mean of
each second that a window of this run begins in, over its windows so far: the last word on a second is in the last run
that names it.
Where the sound has a gap (a chunk was dropped, or the source jumped) everything begins again, with `restarted`.
"""

import math

import own_voice
import silero
from settings import settings

import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Context, Trigger

RATE = 16_000
WINDOW = 512  # samples, 32 ms
MAX_SAMPLES = 60 * RATE  # longest chunk
GAP_MS = 20  # a chunk that begins farther from the last one's end does not continue it
_MS = RATE // 1000
DETECTORS = {"silero": silero, "own": own_voice}


def preprocess(ctx: "Context", trigger: "Trigger") -> "dict[str, Any]":
    """Return the stream's state before the chunk, and its new samples."""
    contents = trigger["event"]["contents"]
    samples, pts_ms = _checked(contents)
    state = ctx.state
    restarted = not state or abs(pts_ms - (state["origin_ms"] + state["samples"] // _MS)) > GAP_MS
    if restarted:
        detector = _detector(ctx)
        state = {
            "origin_ms": pts_ms,
            "samples": 0,
            "pending": b"",
            "context": bytes(4 * detector.CONTEXT),
            "memory": bytes(4 * math.prod(detector.STATE)),
            "second": [pts_ms // 1000, 0.0, 0],
        }
    return {"state": state, "samples": samples, "restarted": restarted}


def execute(ctx: "Context", x: "dict[str, Any]") -> "dict[str, Any]":
    """Return the probabilities of the windows that are full now, and the state after them."""
    state, new, detector = x["state"], x["samples"], _detector(ctx)
    before = detector.CONTEXT
    pending = np.frombuffer(state["pending"], dtype="float32")
    samples = np.concatenate([np.frombuffer(state["context"], dtype="float32"), pending, new])
    count = (pending.shape[0] + new.shape[0]) // WINDOW
    memory = np.frombuffer(state["memory"], dtype="float32").reshape(*detector.STATE)
    vad = ctx.session("vad")
    windows = []
    for start in range(0, count * WINDOW, WINDOW):
        window = samples[start : start + before + WINDOW].reshape(1, before + WINDOW)
        probability, memory = detector.step(vad, window, memory)
        windows.append(probability)
    used = count * WINDOW
    after = {
        "origin_ms": state["origin_ms"],
        "samples": state["samples"] + new.shape[0],
        "pending": _bytes(samples[before + used :]),
        "context": _bytes(samples[used : used + before]),
        "memory": _bytes(memory),
        "second": state["second"],
    }
    first = (state["samples"] - pending.shape[0]) // WINDOW
    return {"state": after, "windows": windows, "first": first, "restarted": x["restarted"]}


def postprocess(ctx: "Context", y: "dict[str, Any]") -> "dict[str, Any]":
    """Return the output, and keep the state."""
    state = y["state"]
    second, total, count = state["second"]
    seconds: list[dict[str, Any]] = []
    for number, probability in enumerate(y["windows"], y["first"]):
        now = (state["origin_ms"] + number * WINDOW // _MS) // 1000
        if now != second:
            second, total, count = now, 0.0, 0
        total, count = total + probability, count + 1
        if seconds and seconds[-1]["second"] == now:
            seconds.pop()
        seconds.append({"second": now, "mean": round(total / count, 4), "windows": count})
    ctx.state = {**state, "second": [second, total, count]}
    return {
        "start_ms": state["origin_ms"] + y["first"] * WINDOW // _MS,
        "windows": y["windows"],
        "seconds": seconds,
        "restarted": y["restarted"],
    }


def _detector(ctx: "Context") -> "Any":
    name = settings(ctx).get("detector")
    if name not in DETECTORS:
        raise ValueError(f"setting detector is {name!r}, must be one of {', '.join(DETECTORS)}")
    return DETECTORS[name]


def _checked(contents: "dict[str, Any]") -> "tuple[np.ndarray, int]":
    """Return samples and time of a sound's contents.

    Raises:
        ValueError: they have another form; one infinite sample would spoil all later windows.
    """
    samples, pts_ms = contents.get("samples"), contents.get("pts_ms")
    shape = getattr(samples, "shape", None)
    if samples is None or shape is None:
        raise ValueError("a sound's contents need `samples`, an array float32 [n], mono at 16 kHz")
    if str(samples.dtype) != "float32" or len(shape) != 1 or shape[0] > MAX_SAMPLES:
        raise ValueError(
            f"a sound's samples must be float32 [n], n at most {MAX_SAMPLES}; are {samples.dtype} {list(shape)}"
        )
    if type(pts_ms) is not int:
        raise ValueError("a sound's contents need `pts_ms`, an int: the time of its first sample")
    if shape[0] and not bool(np.all(np.isfinite(samples))):
        raise ValueError("a sound's samples must be finite numbers")
    return samples, pts_ms


def _bytes(values: "np.ndarray") -> bytes:
    return memoryview(np.ascontiguousarray(values)).tobytes()
