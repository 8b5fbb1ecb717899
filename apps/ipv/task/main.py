"""The IPV task: a page visit's events become a feature of about 1.2 KB and an encoding of 128 bytes (§7.1).

`preprocess` aggregates the events, `execute` runs the recurrent encoder over them. `postprocess` keeps the feature in
the device's store and returns the encoding with the keys of the visit, which is uploaded. On a device of performance
class "low", a visit of more than `DEVICE_STEPS` events is encoded by the cloud, which runs the same `execute` over the
same steps: the encoding is the same in both places.
"""

import features
import steps

import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Context, Trigger

DEVICE_STEPS = 64  # the longest visit that a device of class "low" encodes itself
STATE_SIZE = 32
FEATURE_TOPIC = "feature"  # topic of the features in the device's store


def preprocess(ctx: "Context", trigger: "Trigger") -> "dict[str, Any]":
    """Return the feature, encoded, the visit's keys, and the visit as steps: float32 [T, 16], T a multiple of
    `steps.CHUNK`.
    """
    events = list(ctx.events)
    if len(events) > steps.MAX_STEPS:
        ctx.log(f"{len(events)} events in one visit: the encoding covers the last {steps.MAX_STEPS}")
    rows = np.asarray(steps.step_rows(events), dtype="float32")
    return {"feature": features.encoded_feature(ctx.events), "keys": features.visit_keys(ctx.events), "steps": rows}


def execute(ctx: "Context", x: "dict[str, Any]") -> "dict[str, Any]":
    """Return feature, keys and the encoder's last state; `x` is what `preprocess` made, on the device or escalated."""
    rows = np.asarray(x["steps"])
    if rows.shape[0] > DEVICE_STEPS and ctx.device.get("performance") == "low" and not x.get("escalated"):
        encoded: dict[str, Any] = ctx.escalate({**x, "escalated": True})
        return encoded
    encoder = ctx.session("encoder")
    state = encoding = np.zeros((1, STATE_SIZE), dtype="float32")
    for start in range(0, rows.shape[0], steps.CHUNK):
        outputs = encoder.run({"x": rows[start : start + steps.CHUNK], "state": state})
        state = outputs["next_state"]
        encoding = outputs.get("encoding", state)  # a smaller encoder projects its state
    return {"feature": x["feature"], "keys": x["keys"], "encoding": memoryview(encoding).tobytes()}


def postprocess(ctx: "Context", y: "dict[str, Any]") -> "dict[str, Any]":
    """Return the output, which is stored and uploaded: keys of the visit, and the encoding as 32 float32 = 128 bytes,
    little-endian. The user's key is the device's id, which the cloud knows of each upload.
    """
    ctx.store.put(FEATURE_TOPIC, y["feature"], upload=False)
    return {**y["keys"], "encoding": y["encoding"]}
