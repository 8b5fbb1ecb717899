"""Speech by the app's own GRU: the probability of each window of 512 samples (own_models.py, vad)."""

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    import walle
    import walle.np as np

CONTEXT = 256  # samples before the window that the model sees again
STATE = (1, 1, 36)


def step(session: "walle.Session", samples: "np.ndarray", state: "np.ndarray") -> "tuple[float, np.ndarray]":
    """Return the probability of speech in a window, of its samples [1, 256 + 512], and the state after it."""
    outputs = session.run({"input": samples, "state": state})
    return float(outputs["output"][0, 0]), outputs["stateN"]
