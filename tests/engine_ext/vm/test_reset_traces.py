"""Traces in no object that a reset must undo: state set by finalizers that it runs, CPython's caches of attributes."""

from pathlib import Path

import pytest

from tests.sim.poison_tasks import TaskPair
from tests.sim.vm_task import write_task
from walle.engine_ext.vm.host import VmHost

REACH = """
import json

load = json.dumps.__globals__["__builtins__"]["__import__"]
sys, gc = load("sys"), load("gc")
"""

# Garbage whose finalizer creates further garbage, `n` times, which the next collection finds.
CHAIN = """
import decimal, random

class Garbage:
    def __init__(self, n):
        self.me, self.n = self, n

    def __del__(self, sys=sys, decimal=decimal, random=random, print=print):
        if self.n:
            type(self)(self.n - 1)
        else:
            {}

kept = Garbage(1)

def run(): pass
"""

# A generator in a library module whose end puts another there, `n` times. It refers to nothing of the task.
REPLACED = """
import textwrap, types

whole = load("textwrap")

def suspended(n, put, function, code, module, sys):
    try:
        yield
    finally:
        if n:
            put(n - 1, put, function, code, module, sys)
        else:
            sys.setrecursionlimit(77)

def put_next(n, put, function, code, module, sys):
    module.zz = function(code, module.__dict__)(n, put, function, code, module, sys)
    next(module.zz)

def run():
    put = types.FunctionType(put_next.__code__, vars(whole))
    put(3, put, types.FunctionType, suspended.__code__, whole, sys)
"""

DEPTH = """
import textwrap

def depth(n):
    return n and 1 + depth(n - 1)

def run():
    return depth(100), textwrap.dedent("  a")
"""

# What a hostile task does, then what a later task returns, and what is right.
ATTACKS = {
    "limit of recursion": (CHAIN.format("sys.setrecursionlimit(77)"), DEPTH, (100, "a")),
    "limit of recursion in the last round": (REPLACED, DEPTH, (100, "a")),
    "decimal context, random numbers": (
        CHAIN.format("decimal.DefaultContext.prec = 2; random.seed(1)"),
        """
import decimal, random

def run():
    return decimal.DefaultContext.prec, random.random() == random.Random(1).random()
""",
        (28, False),
    ),
    "property": (
        """
import fractions

Fraction = fractions.Fraction
numerator = Fraction.__dict__["numerator"]

def run():
    getter, other = numerator.fget, Fraction.__dict__["denominator"].fget
    property.__init__(numerator, other, None, None, numerator.__doc__)
    for _ in range(300):
        Fraction(Fraction(1, 2))
    property.__init__(numerator, getter)
    numerator.__set_name__(Fraction, "numerator")
""",
        """
import fractions

def run():
    return str(fractions.Fraction(fractions.Fraction(1, 2)))
""",
        "1/2",
    ),
    "method of a class that has had all its versions": (
        """
import collections

kind = collections.UserDict
chain = collections.ChainMap(kind(a=5))

def run():
    before = kind.__dict__["__getitem__"]
    for _ in range(300):
        chain["a"]
    for number in range(3000):
        kind.zz = number
        kind().zz
    kind.__getitem__ = kind.__contains__
    for _ in range(3000):
        chain["a"]
    kind.__getitem__ = before
    del kind.zz
""",
        """
import collections

def run():
    return collections.ChainMap(collections.UserDict(a=5))["a"]
""",
        5,
    ),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ATTACKS)
async def test_a_later_task_finds_no_trace(tmp_path: Path, host: VmHost, name: str) -> None:
    attack, look, right = ATTACKS[name]
    pair = TaskPair(tmp_path, host)
    assert await pair.run(write_task(tmp_path / "before", look), "run") == (right, "")
    result, _ = await pair.run(write_task(tmp_path / "attacking", REACH + attack), "run")
    assert result is None, result  # the attack took place
    for folder in ("first", "second"):
        assert await pair.run(write_task(tmp_path / folder, look), "run") == (right, "")
