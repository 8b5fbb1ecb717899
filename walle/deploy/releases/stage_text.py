"""Words for the states and stages of a release, as people read them. Pure.

The API, the journal and the metrics keep the names: the state `gray` is a percentage rollout, the stage `gray 0.25` its
step to 25 % of the devices.
"""

_GRAY = "gray"
_STATES = {_GRAY: "percentage rollout"}


def state_text(state: str) -> str:
    """Return a state such as `rolled_back` or `gray` in words."""
    return _STATES.get(state, state.replace("_", " "))


def stage_text(stage: str) -> str:
    """Return a stage in words: `25 % step` for `gray 0.25`, else its state."""
    name, _, share = stage.partition(" ")
    if name != _GRAY or not share:
        return state_text(stage)
    try:
        return f"{100 * float(share):.6g} % step"
    except ValueError:  # a newer cloud has other stages
        return stage
