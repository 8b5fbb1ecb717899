"""Messages between processes of two versions of Walle, one minor version apart, while a cloud takes the newer one.

The record of the version before is messages.json: python -m tests.sim.messages > tests/actors/messages.json writes it.
They are pickled: a dataclass as the dictionary of its fields. A field that the other version does not know is kept and
not read; one that the other version has not sent is the class's default, if that is a plain one.
"""

import dataclasses
import enum
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import walle
from tests.sim.messages import is_fixed, is_open, message_types, names_of
from walle.cloud import CloudConfig
from walle.cloud.nodes.tunnel_servers import TunnelReport
from walle.pipeline.ingest.processes import sum_ended
from walle.pipeline.tunnel.server.ring import RingMember

RECORD = json.loads((Path(__file__).parent / "messages.json").read_text())
TYPES = message_types()


def test_the_record_is_of_this_minor_version_or_the_one_before() -> None:
    recorded, present = ([int(part) for part in text.split(".")[:2]] for text in (RECORD["version"], walle.__version__))
    assert recorded[0] == present[0]
    assert present[1] - recorded[1] in (0, 1), (
        "write it again: python -m tests.sim.messages > tests/actors/messages.json"
    )


@pytest.mark.parametrize("name", RECORD["types"])
def test_the_previous_version_and_this_one_read_each_others_messages(name: str) -> None:
    # Until the recorded version is released, a type may move or go: the record is written again.
    assert name in TYPES, "the version before still sends it: remove it one minor version later"
    kind: Any = TYPES[name]
    before, now = RECORD["types"][name], names_of(kind)
    if issubclass(kind, enum.Enum):
        assert set(before) <= set(now), "the version before still sends this value"
    elif is_fixed(kind):
        assert before == now, "it is pickled by the order of its fields: make another type for more"
    else:
        assert is_open(kind)
        assert set(before) <= set(now), "the version before still reads this field"
        for added in dataclasses.fields(kind):
            if added.name not in before:
                assert hasattr(kind, added.name), f"{added.name} needs a plain default: the version before sends none"


def test_no_type_is_left_out_that_carries_most() -> None:
    names = {kind.__name__ for kind in TYPES.values()}
    assert {"CloudConfig", "Place", "TunnelReport", "OutcomeBatch", "Release", "Step", "IdentityKeys"} <= names


def _report() -> TunnelReport:
    return TunnelReport(
        member=RingMember("tunnel-0", "127.0.0.1", 7443),
        node="n",
        is_leaving=False,
        state=sum_ended([]),
        generation=0,
        sent_on=0,
        delays_ms=[],
        traced=[],
    )


@pytest.mark.parametrize("message", [CloudConfig(folder=Path("/srv/shop"), gateways=2), _report()])
def test_a_field_that_is_not_known_and_one_that_was_not_sent_do_no_harm(message: Any) -> None:
    message.__dict__["of_the_next_version"] = 5
    read = pickle.loads(pickle.dumps(message))
    assert read == message
    assert dataclasses.replace(read) == message
    older = pickle.loads(pickle.dumps(CloudConfig(folder=Path("/srv/shop"))))
    del older.__dict__["gateways"]
    read = pickle.loads(pickle.dumps(older))
    assert "gateways" not in vars(read)
    assert read.gateways == 0
    assert dataclasses.replace(read, http_port=1).gateways == 0
