"""Rules of customised releases (§6): CEL expressions over the attributes in a device's profile.

    os == "android" && memory_mb >= 4096 && version_in(app_version, ">=10,<11")

A rule is compiled once against the declared types of the attributes that it names. It is true, or it is not: where a
part depends on an attribute that the profile lacks, or has in another type, that part is unknown, as in SQL, and a rule
that is unknown takes no device. So `!(os == "ios")` takes no device that does not say its system.

A rule is a part of CEL: comparisons, `in`, `&&`, `||`, `!`, `?:`, arithmetic, the methods of texts, and
`version_in(text, range)`. Macros, maps, times and conversions are refused: attributes are single values. Patterns and
ranges are literals, so that no device's text is one. Texts have no order here: "9" is above "10" as a text.
`rule_cost` bounds what an evaluation costs, when a rule is taken.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cel_expr_python import cel

from walle.base.version_range import VersionRangeError, check_range, in_range
from walle.deploy.policies.attribute_schema import APP_VERSION, Columns, ColumnType, Schema, value_of
from walle.deploy.policies.cel_tree import Node, tree_of
from walle.deploy.policies.pattern_size import pattern_size
from walle.deploy.policies.rule_cost import excess
from walle.errors import DeployError
from walle.protocol import Attribute, Profile

MAX_RULE_CHARS = 4_000

_TYPES = {
    ColumnType.STRING: cel.Type.STRING,
    ColumnType.INT: cel.Type.INT,
    ColumnType.DOUBLE: cel.Type.DOUBLE,
    ColumnType.BOOL: cel.Type.BOOL,
}
_ORDERS = {"_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}
_OPERATORS = {
    **_ORDERS,
    "_&&_": "&&",
    "_||_": "||",
    "_==_": "==",
    "_!=_": "!=",
    "@in": "in",
    "_+_": "+",
    "_-_": "-",
    "_*_": "*",
    "_/_": "/",
    "_%_": "%",
}
_METHODS = frozenset({"startsWith", "endsWith", "contains", "matches", "size"})
_VERSION_IN = "version_in"
_TOO_DEEP = "is nested too deeply: about 30 brackets or operators within each other are the limit"
_PLACE = re.compile(r"<input>:(\d+):(\d+): ([^\n]*)")


class RuleError(DeployError):
    """A rule that is refused: `what` is wrong at `offset`, in characters from its beginning."""

    def __init__(self, rule: str, offset: int, what: str) -> None:
        super().__init__(rule, offset, what)
        self.rule = rule
        self.offset = offset
        self.what = what

    def __str__(self) -> str:
        before = self.rule[: self.offset]
        line = before.count("\n") + 1
        column = self.offset - (before.rfind("\n") + 1) + 1
        text = self.rule.split("\n")[line - 1]
        start = max(0, column - 61)  # a long line is shown around the place
        shown = "".join(letter if letter.isprintable() else "?" for letter in text[start : start + 120])
        return f"rule, line {line}, column {column}: {self.what}\n  {shown}\n  {' ' * (column - 1 - start)}^"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A compiled rule. `terms` are its parts that `&&` joins; `columns` are those that it names.

    The library would leak memory at each call of a function of ours. So a rule is evaluated with a column of truth
    values in place of each `version_in`, which is computed before: `versions` has its name, attribute and range.
    """

    text: str
    columns: Columns
    versions: tuple[tuple[str, str, str], ...]
    expression: cel.Expression
    terms: tuple[Node, ...]

    @property
    def instructions(self) -> int:
        """The most instructions that the programs of its patterns have."""
        calls = (node for term in self.terms for node in _walk(term) if node.kind == "call" and node.value == "matches")
        return sum(pattern_size(str(node.parts[1].value)) for node in calls)

    def matches(self, profile: Profile) -> bool:
        """Return whether the rule is true of a device."""
        return self.holds(activation(profile, self.columns, self.versions))

    def denies(self, profile: Profile) -> bool:
        """Return whether the rule is false of a device, whatever the attributes are that its profile lacks."""
        return self.expression.eval(activation(profile, self.columns, self.versions)).value() is False

    def holds(self, values: cel.Activation) -> bool:
        """Return whether the rule is true of the values, which have the types of its columns."""
        return self.expression.eval(values).value() is True  # an unknown part makes it an error value


def column_types(text: str, schema: Schema) -> Columns:
    """Return the columns that a rule names, with their types in the schema, once it was found to be valid.

    Raises:
        RuleError: it is not.
    """
    if len(text) > MAX_RULE_CHARS:
        raise RuleError(text, MAX_RULE_CHARS, f"a rule has at most {MAX_RULE_CHARS} characters, this one {len(text)}")
    declared = tuple(sorted(schema.items()))
    terms = _compile(text, declared, is_stored=False).terms
    names = {name for term in terms for name in names_in(term)}
    columns = tuple((name, kind) for name, kind in declared if name in names)
    try:
        compile_rule(joined(terms), columns)  # a gateway evaluates some of the terms, which have more brackets as text
    except RuleError as error:
        raise RuleError(text, 0, _TOO_DEEP) from error
    return columns


def compile_rule(text: str, columns: Columns) -> Rule:
    """Return a rule over these columns and `app_version`, of a release or of a part of one.

    It may be of before there were bounds of its cost, up to ten times of which it may have.

    Raises:
        RuleError: it is not valid; the message shows the place.
    """
    found = _compiled(text, columns)
    if isinstance(found, RuleError):
        raise RuleError(found.rule, found.offset, found.what)
    return found


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, columns: Columns) -> Rule | RuleError:
    """Return a rule, or why it is refused: a release may have one that is not valid any more, for each profile."""
    try:
        return _compile(text, columns, is_stored=True)
    except RuleError as error:
        return RuleError(error.rule, error.offset, error.what)  # a copy without frames


def compile_bits(rules: tuple[Rule, ...]) -> cel.Expression:
    """Return an expression over rules of the same columns: an integer whose bit `1 << n` is the value of `rules[n]`.

    Its value is an error where one of theirs is.

    Raises:
        RuleError: together they are beyond the library's bounds.
    """
    versions: dict[str, tuple[str, str]] = {}
    terms = []
    for number, rule in enumerate(rules):
        tree = functools.reduce(lambda left, right: Node("call", "_&&_", (left, right), 0), rule.terms)
        terms.append(f"(({unparse(_without_versions(tree, versions))}) ? {1 << number} : 0)")
    while len(terms) > 1:  # summed in pairs: a plain sum is nested as deeply as it has terms
        terms = [" + ".join(terms[at : at + 2]) for at in range(0, len(terms), 2)]
        terms = [f"({one})" for one in terms]
    return _compile_bits(terms[0], rules[0].columns, tuple(sorted(versions)))


@functools.lru_cache(maxsize=1024)
def _compile_bits(text: str, columns: Columns, versions: tuple[str, ...]) -> cel.Expression:
    try:
        return _environment(columns, versions).compile(text)
    except RuntimeError as error:
        raise RuleError(text, 0, str(error)[:200]) from error


def _compile(text: str, columns: Columns, *, is_stored: bool) -> Rule:
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RuleError(text, 0, "has a character that no text has")
    environment = _environment(columns)
    try:
        expression = environment.compile(text)
    except RuntimeError as error:  # the library has no class of its own
        raise _explained(text, str(error), columns) from error
    if expression.return_type() != cel.Type.BOOL:
        what = (
            f"is of type {expression.return_type().name().lower()}; a rule is true or false, such as: os == 'android'"
        )
        raise RuleError(text, 0, what)
    tree = tree_of(expression)
    types = {APP_VERSION: ColumnType.STRING, **dict(columns)}
    if (found := excess(tree, types, is_stored=is_stored)) is not None:
        raise RuleError(text, found.node.offset, found.what)
    _check(text, tree, types)
    versions: dict[str, tuple[str, str]] = {}
    without = _without_versions(tree, versions)
    named = tuple((name, *versions[name]) for name in sorted(versions))
    if named:
        expression = _environment(columns, tuple(sorted(versions))).compile(unparse(without))
    return Rule(text, columns, named, expression, tuple(_conjuncts(tree)))


@functools.lru_cache(maxsize=1024)
def _environment(columns: Columns, versions: tuple[str, ...] = ()) -> cel.Env:
    text = cel.Type.STRING
    overload = cel.Overload("version_in_range", cel.Type.BOOL, [text, text], False)  # only for the check
    types = {
        APP_VERSION: text,
        **{name: _TYPES[kind] for name, kind in columns},
        **dict.fromkeys(versions, cel.Type.BOOL),
    }
    return cel.NewEnv(variables=types, functions=[cel.FunctionDecl(_VERSION_IN, [overload])])


def _without_versions(node: Node, found: dict[str, tuple[str, str]]) -> Node:
    """Return the tree with a column in place of each `version_in`; `found` gets their attributes and ranges."""
    if node.kind == "call" and node.value == _VERSION_IN:
        column, text = str(node.parts[0].value), str(node.parts[1].value)
        digest = hashlib.blake2b(f"{column} {text}".encode(), digest_size=12).hexdigest()
        name = f"__version_{digest}"  # the same in all rules that share values; no attribute begins with __
        found[name] = column, text
        return Node("name", name, (), node.offset)
    return dataclasses.replace(node, parts=tuple(_without_versions(part, found) for part in node.parts))


def activation(profile: Profile, columns: Columns, versions: tuple[tuple[str, str, str], ...]) -> cel.Activation:
    """Return a profile's values in the library's form, without those of another type than their column.

    It is for any number of rules that agree on the types of these columns.
    """
    values: dict[str, Attribute] = {}
    for name, kind in columns:
        value = kind.take(value_of(profile, name))
        if value is not None:
            values[name] = value
    app_version = ColumnType.STRING.take(profile.app_version)
    if app_version is not None:
        values[APP_VERSION] = app_version
    for name, column, text in versions:
        version = values.get(column)
        if isinstance(version, str):
            values[name] = in_range(version, text)
    return _environment(columns, tuple(name for name, _, _ in versions)).Activation(values)


def _explained(text: str, message: str, columns: Columns) -> RuleError:
    """Return the library's first error with its place."""
    found = _PLACE.search(message)
    if found is None:
        if "recursion" in message:
            return RuleError(text, 0, _TOO_DEEP)
        return RuleError(text, 0, message.split("\n", maxsplit=1)[0].removesuffix("]").rpartition(" [")[0] or message)
    line, column, what = int(found[1]), int(found[2]), found[3].removesuffix(" [INVALID_ARGUMENT]")
    offset = sum(len(one) + 1 for one in text.split("\n")[: line - 1]) + column - 1
    if name := re.match(r"undeclared reference to '([^']*)'", what):
        declared = ", ".join([APP_VERSION, *(name for name, _ in columns)])
        what = f"{name[1]!r} is not a declared attribute; declared are: {declared[:500]}"
    elif mismatch := re.match(r"found no matching overload for '([^']*)' applied to '(.*)'", what):
        what = f"{_OPERATORS.get(mismatch[1], mismatch[1])!r} does not accept {mismatch[2]}"
    elif what.startswith("Syntax error: "):
        what = what.partition(" expecting ")[0]
    return RuleError(text, min(offset, len(text)), what)


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from _walk(part)


def names_in(node: Node) -> list[str]:
    """Return the columns that a part of a rule names, each once."""
    return list(dict.fromkeys(str(one.value) for one in _walk(node) if one.kind == "name"))


def _conjuncts(node: Node) -> Iterator[Node]:
    if node.kind == "call" and node.value == "_&&_":
        for part in node.parts:
            yield from _conjuncts(part)
    else:
        yield node


# --- what a rule may have ---------------------------------------------------------------------------------------------


def _check(text: str, node: Node, types: Mapping[str, ColumnType]) -> None:
    """Refuse what is CEL and not for rules. The library has checked the types of operators."""

    def refuse(at: Node, what: str) -> RuleError:
        return RuleError(text, at.offset, what)

    for one in _walk(node):
        if one.kind == "other":
            raise refuse(one, "macros, fields, maps, null, bytes and unsigned numbers are not supported in rules")
        if one.kind == "name" and one.value not in types:
            raise refuse(one, f"{str(one.value)!r} is not a value; rules compare attributes")
        if one.kind != "call":
            continue
        function = str(one.value)
        if function in _ORDERS and any(_type(part, types) is str for part in one.parts):
            what = f"texts have no order in rules ('9' is above '10'); write {_VERSION_IN}(app_version, '>=10') instead"
            raise refuse(one, what)
        if function == "@in":
            wanted, (item, options) = _type(one.parts[0], types), one.parts
            if options.kind != "list" or any(option.kind != "literal" for option in options.parts):
                raise refuse(options, "'in' needs a list of literals, such as ['android', 'ios']")
            if any(type(option.value) is not wanted for option in options.parts):
                raise refuse(options, f"the list has values of another type than {unparse(item)}")
        elif function == "matches":
            if one.parts[1].kind != "literal":
                raise refuse(one.parts[1], "a pattern is a literal")
            # Its size is bounded: see `excess`.
            tried = _environment(()).compile(f"''.matches({_quoted(str(one.parts[1].value))})").eval(data={})
            if not isinstance(tried.value(), bool):
                raise refuse(one.parts[1], f"{str(tried.value())[:200]}")
        elif function == _VERSION_IN:
            if one.parts[0].kind != "name":
                raise refuse(one.parts[0], f"{_VERSION_IN} takes an attribute, such as app_version")
            if one.parts[1].kind != "literal":
                raise refuse(one.parts[1], "a range of versions is a literal, such as '>=10,<11'")
            try:
                check_range(str(one.parts[1].value))
            except VersionRangeError as error:
                raise refuse(one.parts[1], "is not a version range; write for example '>=10,<11'") from error
        elif function not in _OPERATORS and function not in _METHODS and function not in ("!_", "-_", "_?_:_"):
            raise refuse(one, f"the function {function.strip('_@')!r} is not supported in rules")


def _type(node: Node, types: Mapping[str, ColumnType]) -> type | None:
    """Return the Python type of a literal's or column's values, None for a composed part."""
    if node.kind == "literal":
        return type(node.value)
    if node.kind == "name":
        kinds = {ColumnType.STRING: str, ColumnType.INT: int, ColumnType.DOUBLE: float, ColumnType.BOOL: bool}
        return kinds[types[str(node.value)]]
    return None


# --- a rule's parts as text -------------------------------------------------------------------------------------------


def unparse(node: Node) -> str:
    """Return a part of a rule as CEL text, with brackets around composed parts."""
    parts = node.parts
    match node.kind, node.value:
        case "literal", value:
            return _quoted(value)
        case "name", name:
            return str(name)
        case "list", _:
            return f"[{', '.join(map(unparse, parts))}]"
        case "call", "!_":
            return f"!{_bracketed(parts[0])}"
        case "call", "-_":
            return f"-{_bracketed(parts[0])}"
        case "call", "_?_:_":
            return " ".join([_bracketed(parts[0]), "?", _bracketed(parts[1]), ":", _bracketed(parts[2])])
        case "call", str(function) if function in _OPERATORS:
            return f"{_bracketed(parts[0])} {_OPERATORS[function]} {_bracketed(parts[1])}"
        case "call", str(function) if function in _METHODS:
            return f"{_bracketed(parts[0])}.{function}({', '.join(map(unparse, parts[1:]))})"
        case _, function:
            return f"{function}({', '.join(map(unparse, parts))})"


def joined(terms: Iterable[Node]) -> str:
    """Return the rule that has these terms."""
    return " && ".join(f"({unparse(term)})" for term in terms)


def _bracketed(node: Node) -> str:
    text = unparse(node)
    is_composed = node.kind == "call" and (node.value in _OPERATORS or node.value == "_?_:_")
    is_negative = text.startswith("-")  # --3 is not a number
    return f"({text})" if is_composed or is_negative else text


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
