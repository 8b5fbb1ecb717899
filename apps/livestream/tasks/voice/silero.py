"""Speech by Silero VAD: the probability of each window of 512 samples (models.toml, voice_silero)."""

import walle.np as np

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    import walle

CONTEXT = 64  # samples before the window that the model sees again
STATE = (2, 1, 128)
_RATE_INPUT = np.asarray(16_000, dtype="int64")


def step(session: "walle.Session", samples: "np.ndarray", state: "np.ndarray") -> "tuple[float, np.ndarray]":
    """Return the probability of speech in a window, of its samples [1, 64 + 512], and the state after it."""
    outputs = session.run({"input": samples, "state": state, "sr": _RATE_INPUT})
    return float(outputs["output"][0, 0]), outputs["stateN"]
