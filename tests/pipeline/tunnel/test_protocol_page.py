"""docs/protocol.md: its tables are complete; its test vectors agree with the code and the second implementation."""

import ast
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from scripts.protocol_vectors import read_vectors, vectors
from tests.sim import plain_tunnel
from walle import pipeline, protocol
from walle.pipeline.tunnel.dictionaries import Dictionary
from walle.pipeline.tunnel.frames import Decoder, Encoder
from walle.pipeline.tunnel.layouts import BY_NUMBER

_PAGE = Path(__file__).parents[3] / "docs/protocol.md"
_VECTORS = read_vectors()
_FRAMES = [vector for vector in _VECTORS if "frame" in vector]


def _with_bytes(fields: dict[str, Any]) -> dict[str, Any]:
    values = dict(fields)
    if "payload" in values:
        values["payload"] = bytes.fromhex(values["payload"])
    if "uploads" in values:
        values["uploads"] = [_with_bytes(upload) for upload in values["uploads"]]
    return values


def _message(vector: dict[str, Any]) -> protocol.Frame:
    values = _with_bytes(vector["fields"])
    if "uploads" in values:
        values["uploads"] = tuple(protocol.Upload(**upload) for upload in values["uploads"])
    message: protocol.Frame = getattr(protocol, vector["message"])(**values)
    return message


def test_page_and_vectors_have_every_kind_of_frame_and_what_the_script_writes() -> None:
    assert {bytes.fromhex(vector["frame"])[4] for vector in _FRAMES} == set(BY_NUMBER)
    written = vectors()
    assert len(written) == len(_VECTORS)
    for ours, theirs in zip(written, _VECTORS, strict=True):
        if not ours.get("compressed"):  # zstd's bytes depend on its version
            assert ours == theirs
    numbers = {int(number) for number in re.findall(r"^\| (\d+) \|", _PAGE.read_text(), re.MULTILINE)}
    assert numbers >= set(BY_NUMBER) - {5, 6, 7, 10, 11}


def test_the_page_has_every_code_of_a_refusal() -> None:
    codes = set()
    for path in Path(pipeline.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                place = {"refuse": 0, "disconnect": 2}.get(node.func.attr)
                if place is not None and isinstance(code := node.args[place], ast.Constant):
                    codes.add(code.value)
    page = _PAGE.read_text().partition("### Refusals")[2].partition("### Dictionaries")[0]
    named = {code for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)}
    assert named == codes


@pytest.mark.parametrize("vector", _FRAMES, ids=lambda vector: f"{vector['message']}-{vector['frame'][:16]}")
def test_both_implementations_read_and_write_each_vector(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["frame"])
    learned = bytes.fromhex(vector.get("dictionary", ""))
    decoder = Decoder()
    decoder.has_versions = vector["protocol"] >= 4
    if learned:
        decoder.dictionaries = {1: Dictionary(learned)}
    assert decoder.feed(data) == [_message(vector)]
    name, values = plain_tunnel.decode(data, {1: learned}, version=vector["protocol"])
    assert name == vector["message"]
    assert values == {key: value for key, value in _with_bytes(vector["fields"]).items() if key in values}
    if vector["protocol"] >= 3:
        assert values.keys() == vector["fields"].keys()
    if not vector.get("compressed"):
        assert Encoder().encode(_message(vector), version=vector["protocol"]) == data
        assert plain_tunnel.encode(name, values, version=vector["protocol"]) == data


def test_the_second_implementation_computes_the_chain_of_the_page() -> None:
    (vector,) = [vector for vector in _VECTORS if "chain" in vector]
    chain = zlib.crc32(vector["epoch"].encode())
    chains = [chain]
    for upload in vector["uploads"]:
        chain = plain_tunnel.next_chain(chain, _with_bytes(upload))
        chains.append(chain)
    assert chains == vector["chain"]
