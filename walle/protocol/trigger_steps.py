"""Steps of a condition's sequence in task.toml: ids that occur several times, or need not occur (ADR 19)."""

from collections.abc import Collection, Mapping, Sequence

from walle.protocol.fields import ProtocolError, shorten

MAX_IDS = 64  # ids of a sequence
MAX_SEQUENCES = 64  # sequences that optional steps stand for
_WHERE = "trigger.sequence"


def parse_steps(steps: Sequence[object]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the trigger ids of the steps in order, and the indices of those that need not occur.

    A step is a trigger id, or a table of `id` and `times`, a number or [least, most], or of `id` and `optional`.

    Raises:
        ProtocolError: a step is wrong, or there are more than MAX_IDS ids.
    """
    ids: list[str] = []
    optional: list[int] = []
    for index, step in enumerate(steps):
        where = f"{_WHERE}[{index}]"
        trigger_id, least, most = step, 1, 1
        if isinstance(step, Mapping):
            trigger_id, (least, most) = step.get("id"), _times(step, where)
        if not isinstance(trigger_id, str) or not trigger_id:
            raise ProtocolError(where, f"must be an event id or page id, is {shorten(trigger_id)}")
        optional += range(len(ids) + least, len(ids) + most)
        ids += [trigger_id] * most
        if len(ids) > MAX_IDS and len(steps) <= MAX_IDS:
            raise ProtocolError(where, f"makes the sequence longer than {MAX_IDS} events; ask for fewer times")
    return tuple(ids), tuple(optional)


def _times(step: Mapping[object, object], where: str) -> tuple[int, int]:
    if set(step) == {"id", "optional"}:
        if type(step["optional"]) is not bool:
            raise ProtocolError(f"{where}.optional", f"must be true or false, is {shorten(step['optional'])}")
        return (0, 1) if step["optional"] else (1, 1)
    if set(step) != {"id", "times"}:
        what = 'must be an id, or a table such as { id = "click", times = 3 } or { id = "click", optional = true }'
        raise ProtocolError(where, f"{what}, is {shorten(step)}")
    times = step["times"]
    bounds = times if isinstance(times, Sequence) and not isinstance(times, str) else [times, times]
    numbers = [one for one in bounds if type(one) is int]  # a bool is none
    if len(numbers) == len(bounds) == 2 and 0 <= numbers[0] <= numbers[1] <= MAX_IDS and numbers[1]:
        return numbers[0], numbers[1]
    what = f"must be a number from 1 to {MAX_IDS}, or [least, most] of them, is {shorten(times)}"
    raise ProtocolError(f"{where}.times", what)


def to_steps(trigger_ids: Sequence[str], optional: Collection[int]) -> list[object]:
    """Return the steps, of which each is one event."""
    return [{"id": one, "optional": True} if index in optional else one for index, one in enumerate(trigger_ids)]


def sequences(trigger_ids: Sequence[str], optional: Collection[int]) -> list[tuple[str, ...]]:
    """Return the distinct sequences that the ids stand for, each with and without the optional ones.

    Raises:
        ProtocolError: there are more than MAX_SEQUENCES.
    """
    found: dict[tuple[str, ...], None] = {(): None}
    for index, trigger_id in enumerate(trigger_ids):
        longer = {(*one, trigger_id): None for one in found}
        found = {**found, **longer} if index in optional else longer
        if len(found) > MAX_SEQUENCES:
            what = (
                f"stands for more than {MAX_SEQUENCES} sequences; have fewer optional steps, or times closer together"
            )
            raise ProtocolError(_WHERE, what)
    return list(found)
