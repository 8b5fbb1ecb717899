"""Which process belongs on which node, and in which order a plan is carried out."""

from pathlib import Path

import pytest

from walle.cloud.folder.shared_folder import OtherFolderError, check_cloud_id, make_cloud_id
from walle.cloud.nodes.node_plan import (
    PLAN_FILE,
    Drained,
    Forget,
    Leave,
    Move,
    Node,
    NodeKind,
    Plan,
    Process,
    Replace,
    Restart,
    Start,
    UnknownNodeError,
    find_node,
    in_turn,
    parse_member,
    progress,
    urgent,
)
from walle.errors import ConfigError

A = Node("aaaaaaaa11", "one", {"zone": "x"})
B = Node("bbbbbbbb22", "two")
EDGE = NodeKind("edge", 2)
EDGES_OF_A = [Process(f"edge-aaaaaaaa-{number}", A.id, 10 + number, "edge") for number in range(2)]
SERVICES = [Process(name, A.id, 30, "") for name in ("gateway", "inference-0", "monitor", "releases")]


def test_each_node_gets_the_processes_that_it_lacks_and_those_of_a_dead_node_go() -> None:
    gone = Process("edge-cccccccc-0", "cccccccc", 1, "edge")
    assert urgent(Plan(), [A, B], [EDGE], [EDGES_OF_A[1], gone, *SERVICES]) == [
        Forget("edge-cccccccc-0"),
        Start("edge", A.id, "edge-aaaaaaaa-0"),
        Start("edge", B.id, "edge-bbbbbbbb-0"),
        Start("edge", B.id, "edge-bbbbbbbb-1"),
    ]
    assert urgent(Plan(), [A], [EDGE], EDGES_OF_A) == []


def test_only_nodes_with_the_labels_that_are_not_drained_get_processes() -> None:
    kind = NodeKind("edge", 1, {"zone": "x"})
    assert urgent(Plan(), [A, B], [kind], []) == [Start("edge", A.id, "edge-aaaaaaaa-0")]
    assert urgent(Plan({A.id: Drained("one", 5)}), [A, B], [kind], []) == []
    assert urgent(Plan(), [A], [], EDGES_OF_A[:1]) == [Forget("edge-aaaaaaaa-0")]


def test_a_drained_node_is_left_by_devices_first_and_then_by_what_can_run_elsewhere() -> None:
    plan = Plan({A.id: Drained("one", 5.0)})
    keeper = Process("nodes", A.id, 40)
    assert in_turn(plan, [EDGE], [keeper, *SERVICES, *EDGES_OF_A]) == [
        Leave("edge-aaaaaaaa-0", 5.0),
        Leave("edge-aaaaaaaa-1", 5.0),
        *(Move(name) for name in ("monitor", "releases", "gateway", "inference-0", "nodes")),
    ]
    assert in_turn(plan, [EDGE], [Process("gateway", B.id, 2)]) == []


def test_a_restart_takes_each_process_once_and_a_successor_comes_before_its_predecessor_leaves() -> None:
    running = [*SERVICES, *EDGES_OF_A]
    plan = Plan(restarting=tuple(running))
    done = []
    for _ in range(20):
        actions = in_turn(plan, [EDGE], running)
        if not actions:
            break
        done.append(action := actions[0])
        match action:
            case Replace(kind, node, name, successor):
                assert successor not in {one.name for one in running}
                running = [one for one in running if one.name != name] + [Process(successor, node, 90, kind)]
            case Restart(name):
                running = [one for one in running if one.name != name] + [Process(name, A.id, 91)]
            case _:
                raise AssertionError(action)
    assert [one.name for one in done] == [
        *("edge-aaaaaaaa-0", "edge-aaaaaaaa-1"),
        *("monitor", "releases", "gateway", "inference-0"),
    ]
    assert sum(one.kind == "edge" for one in running) == 2
    assert progress(plan, [EDGE], running, "")["remaining"] == 0


def test_a_restart_that_was_broken_off_beside_its_predecessor_continues() -> None:
    successor = Process("edge-aaaaaaaa-2", A.id, 20, "edge")
    plan = Plan(restarting=tuple(EDGES_OF_A[:1]))
    assert in_turn(plan, [EDGE], [*EDGES_OF_A, successor]) == [Leave("edge-aaaaaaaa-0", 0.0)]


def test_a_plan_is_kept_in_the_folder_and_damage_is_said(tmp_path: Path) -> None:
    assert Plan.load(tmp_path) == Plan()
    plan = Plan({A.id: Drained("one", 5.0)}, tuple(EDGES_OF_A))
    plan.save(tmp_path)
    assert Plan.load(tmp_path) == plan
    (tmp_path / PLAN_FILE).write_text("[]")
    with pytest.raises(ConfigError, match="damaged"):
        Plan.load(tmp_path)


def test_a_node_is_found_by_the_start_of_its_id_or_its_host() -> None:
    assert find_node([A, B], "aaa") == A
    assert find_node([A, B], "two") == B
    for text in ("", "c", "o"):
        with pytest.raises(UnknownNodeError, match="0 nodes match"):
            find_node([A, B], text)
    with pytest.raises(UnknownNodeError, match="2 nodes"):
        find_node([A, Node("aaaa", "three")], "aa")


def test_names_of_members_are_recognised() -> None:
    assert parse_member("edge-aaaaaaaa-12") == ("edge", "aaaaaaaa")
    assert [parse_member(name) for name in ("gateway", "inference-0", "edge-aaa-0")] == [None] * 3


def test_a_node_that_sees_another_folder_is_refused(tmp_path: Path) -> None:
    made = make_cloud_id(tmp_path)
    assert make_cloud_id(tmp_path) == made
    check_cloud_id(tmp_path, made)
    check_cloud_id(tmp_path / "absent", "")
    with pytest.raises(OtherFolderError, match="no cloud on this node"):
        check_cloud_id(tmp_path / "absent", made)
    with pytest.raises(OtherFolderError, match="mount the cloud's folder"):
        check_cloud_id(tmp_path, "other")
