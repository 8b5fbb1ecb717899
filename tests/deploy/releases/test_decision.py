import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.release_world import table_of
from walle.deploy.releases.decision import Decision, Due, Place, cut
from walle.deploy.releases.table import ReleaseTable
from walle.protocol import Directive


def _directive(task: str, size: int = 1) -> Directive:
    return Directive(
        task=task, version="v1", manifest="", size_bytes=size, serial=1, expires_s=1, url="", release="", signature=""
    )


def _size(directive: Directive) -> int:
    return directive.size_bytes


_SETS = st.dictionaries(st.integers(0, 60), st.integers(1, 130), max_size=40)


@given(
    urgent=_SETS,
    ordinary=_SETS,
    stuck=st.sets(st.integers(0, 60)),
    later=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 130)), max_size=30),
)
def test_no_device_starves(
    urgent: dict[int, int], ordinary: dict[int, int], stuck: set[int], later: list[tuple[int, int]]
) -> None:
    """Each change comes within twice as many answers as changes are due, whatever the device cannot carry out.

    New changes come with each answer meanwhile.
    """
    max_bytes = 100
    waiting_urgent = {f"u{task:02}": size for task, size in urgent.items()}
    waiting = {f"o{task:02}": size for task, size in ordinary.items()}
    wanted = waiting_urgent.keys() | waiting.keys()
    is_stuck = {f"{kind}{task:02}" for kind in "uo" for task in stuck}
    new = iter(later)
    place = Place()
    got: set[str] = set()
    most = 2 * (len(wanted) + len(later))
    for _ in range(most):
        if not wanted - got:
            break
        due = Due(
            *(tuple(_directive(task, size) for task, size in sorted(one.items())) for one in (waiting_urgent, waiting))
        )
        chosen, following = cut(due, place, _size, max_bytes)
        total = sum(map(_size, chosen))
        assert total <= max_bytes or len(chosen) == 1
        place = Place.from_text(following.to_text()) if following is not None else Place()
        got |= {one.task for one in chosen}
        for one in chosen:
            if one.task not in is_stuck:
                waiting_urgent.pop(one.task, None)
                waiting.pop(one.task, None)
        if (change := next(new, None)) is not None:
            waiting[f"o{change[0]:02}"] = change[1]
    assert not wanted - got


@given(urgent=st.integers(1, 40), ordinary=st.integers(0, 40), place=st.builds(Place, st.text(), st.text()))
def test_rollbacks_go_first_and_leave_a_quarter(urgent: int, ordinary: int, place: Place) -> None:
    due = Due(
        tuple(_directive(f"u{number:02}", 10) for number in range(urgent)),
        tuple(_directive(f"o{number:02}", 10) for number in range(ordinary)),
    )
    chosen, _ = cut(due, place, _size, 100)
    kinds = "".join(one.task[0] for one in chosen)
    assert kinds == "u" * kinds.count("u") + "o" * kinds.count("o")
    assert kinds.count("u") >= min(urgent, 7)
    assert not ordinary or kinds.count("o") >= min(ordinary, 2)


def test_a_place_that_a_device_made_up_is_the_first_one() -> None:
    for text in ("", "[", "{}", "[1,2,3]", '["a","b"]', "[" * 100_000, '"abc"'):
        assert Place.from_text(text) == Place()
    assert Place.from_text(Place("a", "b", True).to_text()) == Place("a", "b", True)


def test_what_a_device_refused_is_left_out_until_there_is_a_newer_order() -> None:
    table = table_of(ipv="v2", cv="v2")
    (steps,) = table.steps(table.index.by_attributes("10", {}), 1)
    have = {"shop/ipv": "v1"}
    both = Decision.of(steps, have, {})
    assert [one.task for one in both.settled.ordinary] == ["shop/cv", "shop/ipv"]
    refused = {one.task: one.order for one in both.settled.ordinary if one.task == "shop/ipv"}
    assert [one.task for one in Decision.of(steps, have, refused).settled.ordinary] == ["shop/cv"]
    assert len(Decision.of(steps, have, {"shop/ipv": "0.1"}).settled.ordinary) == 2


def test_a_withdrawn_version_is_left_first_whatever_its_number() -> None:
    row = next(iter(table_of(ipv="v3").rows.values()))
    withdrawn = dataclasses.replace(row, withdrawn=frozenset({"v1"}))
    for table, is_urgent in ((ReleaseTable(1, [row]), False), (ReleaseTable(1, [withdrawn]), True)):
        (steps,) = table.steps(table.index.by_attributes("10", {}), 1)
        decision = Decision.of(steps, {"shop/ipv": "v1"}, {}).settled
        assert (len(decision.urgent), len(decision.ordinary)) == ((1, 0) if is_urgent else (0, 1))
    assert type(row).from_plain(withdrawn.to_plain()) == withdrawn
    assert type(row).from_plain(row.to_plain()) == row
