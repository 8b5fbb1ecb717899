"""Parts of rules that CEL evaluates, by the columns that they read: many at a time, and each set of values once.

What was found for a combination of values is remembered, for the latest ones: fleets have few models and systems. For
a new one, the parts are evaluated some 16 at a time, as one CEL expression whose value has a bit for each of them. An
unknown part, of which a column is missing, makes the whole expression an error; then they are evaluated one by one.
"""

import collections
import logging
import zlib
from collections.abc import Mapping

from cel_expr_python import cel

from walle.deploy.policies.attribute_schema import Columns, value_of
from walle.deploy.policies.rule import Rule, RuleError, activation, compile_bits
from walle.protocol import Attribute, Profile

_LOG = logging.getLogger(__name__)

MAX_REMEMBERED = 1_024  # combinations of values of the same columns
_MAX_TEXT_CHARS = 100  # limit of a value that is remembered
_WORTH = 4  # parts, above which they are evaluated together
_BATCH = 16  # parts of a batch on average
_MAX_BATCH = 32  # most parts of a batch


class _Batch:
    """Parts that are evaluated together: `bits` are those of their policies, in the order of the expression's bits."""

    def __init__(self, rules: Mapping[int, Rule]) -> None:
        self.mask = sum(rules)
        self._bits = tuple(rules)
        self._rules = tuple(rules.values())
        self._expression: cel.Expression | None = None
        self._is_compiled = False

    def holding(self, values: cel.Activation) -> int | None:
        """Return the policies whose parts hold, None where some part is unknown or they cannot be evaluated so."""
        if not self._is_compiled:
            self._is_compiled = True
            try:
                self._expression = compile_bits(self._rules)
            except RuleError as error:  # the rules together are near the library's bounds
                _LOG.debug("rules are evaluated one by one: %s", error)
        if self._expression is None:
            return None
        found = self._expression.eval(values).value()
        if type(found) is not int:
            return None
        held = 0
        while found:
            low = found & -found
            found ^= low
            held |= self._bits[low.bit_length() - 1]
        return held


class ColumnRules:
    """Parts of rules that read the same columns, by the bits of their policies."""

    def __init__(self, columns: Columns, rules: Mapping[int, Rule], *, by_version: bool) -> None:
        self.mask = sum(rules)
        self._columns = columns
        self._by_version = by_version
        self._rules = rules
        self._versions = tuple(sorted({one for rule in rules.values() for one in rule.versions}))
        self._batches = _batches(rules) if len(rules) > _WORTH else []
        # Policies that were evaluated, and those of them that held, by values.
        self._known: collections.OrderedDict[tuple[Attribute | None, ...], tuple[int, int]] = collections.OrderedDict()

    def holding(self, profile: Profile, wanted: int) -> int:
        """Return those of the policies `wanted` whose parts hold for a device."""
        key = tuple(kind.take(value_of(profile, name)) for name, kind in self._columns)
        if self._by_version:
            key = (*key, profile.app_version)
        known, held = self._known.get(key, (0, 0))
        missing = wanted & self.mask & ~known
        if missing:
            evaluated, more = self._evaluate(profile, missing, has_all=None not in key)
            known, held = known | evaluated, held | more
            if all(map(_is_short, key)):
                if len(self._known) >= MAX_REMEMBERED and key not in self._known:
                    self._known.popitem(last=False)
                self._known[key] = known, held
        return held & wanted

    def _evaluate(self, profile: Profile, wanted: int, *, has_all: bool) -> tuple[int, int]:
        """Return the policies that were evaluated, all of `wanted` and maybe others, and those that hold."""
        values = activation(profile, self._columns, self._versions)
        evaluated = held = 0
        if has_all:
            for batch in self._batches:
                if (wanted & batch.mask).bit_count() > _WORTH:
                    found = batch.holding(values)
                    if found is not None:
                        evaluated |= batch.mask
                        held |= found
        rest = wanted & ~evaluated
        evaluated |= rest
        while rest:
            bit = rest & -rest
            rest ^= bit
            if self._rules[bit].holds(values):
                held |= bit
        return evaluated, held


def _is_short(value: Attribute | None) -> bool:
    if isinstance(value, float) and not value:
        return False  # 0.0 and -0.0 are the same key, and not the same divisor
    return not isinstance(value, str) or len(value) <= _MAX_TEXT_CHARS


def _batches(rules: Mapping[int, Rule]) -> list[_Batch]:
    """Return the batches, which are by hashes: another rule in a table changes one of them."""
    count = 1 << max(0, (len(rules) // _BATCH).bit_length() - 1)
    groups: dict[int, list[tuple[str, int]]] = {}
    for bit, rule in rules.items():
        groups.setdefault(zlib.crc32(rule.text.encode()) % count, []).append((rule.text, bit))
    found = []
    for group in groups.values():
        bits = [bit for _, bit in sorted(group)]
        found += [
            _Batch({bit: rules[bit] for bit in bits[at : at + _MAX_BATCH]}) for at in range(0, len(bits), _MAX_BATCH)
        ]
    return found
