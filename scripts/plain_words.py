"""Check of the words in sources and documents: phrases that are hard to read, with the plain ones to write instead.

usage: plain_words.py [PATH...]

Reads the tracked files below each PATH (by default, of the whole checkout). Prints each finding as
"file:line: phrase: advice", and exits with 1 if there is one. Where a rule is wrong in one place, add an entry to
EXCEPTIONS; do not weaken the rule.
"""

import ast
import bisect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = (".py", ".h", ".cpp", ".inc", ".md", ".toml", ".sh")


class Finding(NamedTuple):
    """A phrase in a file that a rule refuses."""

    path: str
    line: int
    phrase: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}: {self.advice}"


# A pattern, in any letter case, and the words to write instead. A phrase may go over lines: see `_flat`.
PHRASES: tuple[tuple[str, str], ...] = (
    (r"\bhang(?:s|ing)? on\b", "write 'depends on', 'is connected to'"),
    (r"\bheed(?:s|ed|ing)?\b", "write 'is read', 'is supported', 'is ignored'"),
    (r"\banew\b", "write 'again' or 'a new ...'"),
    (r"\bdespair\w*", "write 'cancel'"),
    (r"\bfor ever\b", "write 'indefinitely', 'without end' or 'permanently'"),
    (r"\bfor good\b(?! (?:measure|reason))", "write 'permanently', 'until the process exits'"),
    (r"\bthere (?:is|was|are|were) no such\b", "write 'X does not exist' or 'unknown X'"),
    (
        r"(?<!there )\bis no (?!longer\b|more\b|less\b|\w+er\b)[a-z]+",
        "write 'is not a ...', or 'has no ...'",
    ),
    (r"\bnobody (?:wants|lived|looks|keeps)\b", "say who: 'it was cancelled', 'unused', 'unread'"),
    (r"\bbef(?:ell|alls?|allen)\b", "write 'the outcome of'"),
    (r"\bso many\b(?! \w+ that)", "write 'n', 'count', 'a given number of'"),
    (r"\btaken away\b", "write 'removed', 'subtracted'; say by whom"),
    (r"\blets? go\b", "write 'released'; say by whom"),
    (r"\b(?:is|are|was|were|be|been) given up\b", "write 'abandoned', 'released', 'retired'; say by whom"),
    (r"\bcom(?:es?|ing) to rest\b", "write 'is parked', 'is retired'"),
    (r"\b\w+ed no more\b(?! than)", "write 'stop ...ing', 'no longer'"),
    (
        r"\b(?:left|leaves?|leaving|stays?|others|remains?) as (?:it is|they are)\b",
        "write 'unchanged'",
    ),
    (r"\blooks? for (?:a|its|the next|another) call\b", "write 'spins for N µs, then blocks'"),
    (r"\bwhat it costs\b", "write what is counted: 'bytes leaked', 'microseconds'"),
    (r"\bit is not to come\b", "say what happens: 'never arrives'"),
    (r"\battentive\w*", "write 'spinning'"),
    (r"\bdesk\b", "write 'loop calls'"),
    (r"\bwip(?:e|es|ed|ing)\b", "write 'reset'"),
    (r"\btenan(?:t|ts|cy|cies)\b", "write 'task', 'work context'"),
)

# The same, for texts that people read while a program runs (strings of Python that are not docstrings), and for the
# names of tests.
MESSAGES: tuple[tuple[str, str], ...] = (
    (r"\bgo(?:es)? on\b", "write 'continues', 'is still running'"),
    (r"\bof (?:its|their) own\b", "write 'separate', 'its', 'their'"),
    (r"\bl(?:ie|ies|ay)\b", "write 'is stored in', 'is in'; of devices, 'report falsely'"),
    (r"\bin place of\b", "write 'instead of'"),
    (r"\bby itself\b", "write 'automatically', 'alone', 'separately'"),
    (r"\ball the same\b", "write 'nevertheless', 'anyway'"),
    (r"\b(?:is|are) none of\b", "write 'is not one of'"),
    (r"\btakes no\b", "write 'refuses', 'matches no ...'"),
    (r"\bof before\b", "write 'previous', 'earlier'"),
    (r"\bis the most\b", "write 'is the limit'"),
    (r"\bends? well\b", "write 'succeeds'"),
    (r"\bmend(?:s|ed)?\b", "write 'fix', 'repair'"),
)

# Names of variables, functions and fields, whole or as one word of them (`told`, `told_`, `is_told`).
NAMES: tuple[tuple[str, str], ...] = (
    ("told", "name what it holds, such as `read_attributes`"),
    ("despair", "write `cancel`"),
    ("giver", "name what it holds, such as `bias_input`"),
    ("tenant", "write `work_context`"),
)

# A comment at the end of a line of code reads alone. With one of these words first it continues the sentence that the
# line's name begins (`CHUNK_BYTES = 64  # which it must have`).
_CONTINUING = re.compile(
    r"(?:of|which|that|whose|whom|who|than|as|so|and|or|but|nor|by|to|from|with|without|in|into|on|at|between|is|are|was"
    r"|were|has|have|had|does|do|did|may|must|can|cannot|could|would|not|also|then|it|its|they|them|their"
    r"|for (?:it|its|them|their|which|whom))\b",
    re.IGNORECASE,
)
# These do so too, unless a main clause follows: "where it is full, the oldest is removed".
_SUBORDINATE = re.compile(
    r"(?:when|whenever|where|wherever|if|unless|until|because|since|while|though|although|after|before|during|whether)\b"
    r"(?!.*, (?!(?:in|at|by|of|for|from|to|with|without|which|whose|whom|that|who|as|so|and|or|but)\b))",
    re.IGNORECASE,
)
# "For" does so behind a number: `CLOSE_S = 2.0  # for the last bytes to leave`.
_NUMBER = re.compile(r"(?<![=!<>+*-])=\s*[\d._]+\s*$")
# Phrases that say enough: a shape, a unit, a bound, and the key of a mapping or list.
_UNITS = "seconds|minutes|hours|days|s|ms|milliseconds|us|microseconds|ns|nanoseconds|bits|bytes|KiB|MiB|GiB|elements"
_UNITS += "|pixels|points|samples|characters|frames|items|rows|values|nats|percent|radians|degrees"
_ALONE = re.compile(rf"of shape\b|at (?:most|least) \S|in (?:\w+ )?(?:{_UNITS})\b|by (?:way|default)\b", re.IGNORECASE)
_MAPPING = re.compile(r"dict|map|counter|vector|list\[|\[\]", re.IGNORECASE)
_ALONE_ADVICE = "a comment at the end of a line reads alone: begin with a noun or a verb"

_OPENING = re.compile(r"(?:What|Who|Whose|Where|Whether|How)\b")
_OPENING_ADVICE = "begin a module's docstring with a noun phrase, a function's with a verb"

# (path, phrase as found in lower case, reason). A path that ends with "/" stands for the files below it.
EXCEPTIONS: tuple[tuple[str, str, str], ...] = (
    ("scripts/plain_words.py", "", "the list itself"),
    ("tests/test_plain_words.py", "", "wrong phrases are what it is about"),
)


def findings(path: str, text: str) -> list[Finding]:
    """Return what the rules refuse in a file's text, sorted by line; `path` is relative to the checkout."""
    found = [*_phrases(path, text), *_messages(path, text), *_names(path, text)]
    found += [*_openings(path, text), *_fragments(path, text)]
    return sorted(one for one in found if not _excepted(one))


def _excepted(finding: Finding) -> bool:
    return any(
        (finding.path == path or (path.endswith("/") and finding.path.startswith(path)))
        and phrase in {"", finding.phrase.lower()}
        for path, phrase, _ in EXCEPTIONS
    )


def _flat(text: str) -> tuple[str, list[int]]:
    """Return the lines joined by single spaces, without margins and comment marks, and where each line begins."""
    parts, starts, at = [], [], 0
    for line in text.splitlines():
        part = re.sub(r"^\s*(?:#+|//+|\*|>|- )?\s*", "", line).rstrip()
        starts.append(at)
        parts.append(part)
        at += len(part) + 1
    return " ".join(parts), starts


_PATTERNS = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in PHRASES]
_OF_MESSAGES = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in MESSAGES]


def _phrases(path: str, text: str) -> Iterator[Finding]:
    flat, starts = _flat(text)
    for pattern, advice in _PATTERNS:
        for match in pattern.finditer(flat):
            yield Finding(path, bisect.bisect_right(starts, match.start()), match[0], advice)


def _messages(path: str, text: str) -> Iterator[Finding]:
    """Yield the phrases in the strings of a Python file of the program; tests have texts of other programs too."""
    if not path.endswith(".py") or path.startswith("tests/"):
        return
    tree = ast.parse(text)
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            for pattern, advice in _OF_MESSAGES:
                for match in pattern.finditer(" ".join(node.value.split())):
                    yield Finding(path, node.lineno, match[0], advice)


# A comment, a raw string, a string, a character.
_CPP_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)

# Text of a line of TOML before its comment.
_TOML_CODE = re.compile(r"""(?:[^"'#]|"(?:\\.|[^"\\])*"|'[^']*')*""")


def _identifiers(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the identifiers of a source file with their lines; comments and strings are left out."""
    if path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
    elif path.endswith((".h", ".cpp", ".inc")):
        code = _CPP_TEXT.sub(lambda match: "\n" * match[0].count("\n"), text)
        for number, line in enumerate(code.splitlines(), start=1):
            for match in re.finditer(r"[A-Za-z_]\w*", line):
                yield number, match[0]


def _names(path: str, text: str) -> Iterator[Finding]:
    for number, name in _identifiers(path, text):
        if name.startswith("test_"):  # a sentence
            sentence = name.replace("_", " ")
            for pattern, advice in (*_PATTERNS, *_OF_MESSAGES):
                for match in pattern.finditer(sentence):
                    yield Finding(path, number, match[0], advice)
            continue
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
        for word, advice in NAMES:
            if word in words:
                yield Finding(path, number, name, advice)


def _openings(path: str, text: str) -> Iterator[Finding]:
    """Yield the docstrings, and the headers of C++ files, that begin with a question word."""
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                opening = _OPENING.match(ast.get_docstring(node) or "")
                if opening:
                    yield Finding(path, node.body[0].lineno, opening[0], _OPENING_ADVICE)
    elif path.endswith((".h", ".cpp", ".inc")):
        opening = _OPENING.match(text.removeprefix("//").lstrip())
        if opening:
            yield Finding(path, 1, opening[0], _OPENING_ADVICE)


def _line_comments(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the comments after code in a line: the line's number, the code before the comment, the comment's words."""
    if path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.line[: token.start[1]], token.string.lstrip("# ")
    elif path.endswith((".h", ".cpp", ".inc")):
        for match in _CPP_TEXT.finditer(text):
            if match[0].startswith("//"):
                begin = text.rfind("\n", 0, match.start()) + 1
                yield text.count("\n", 0, begin) + 1, text[begin : match.start()], match[0].lstrip("/ ")
    elif path.endswith(".toml"):
        for number, line in enumerate(text.splitlines(), start=1):
            code = _TOML_CODE.match(line)
            if code and line[code.end() :].startswith("#"):
                yield number, code[0], line[code.end() :].lstrip("# ")


def _fragments(path: str, text: str) -> Iterator[Finding]:
    """Yield the comments at the ends of lines that continue a sentence."""
    for number, code, words in _line_comments(path, text):
        first = _CONTINUING.match(words) or _SUBORDINATE.match(words)
        is_continued = bool(first) or (words.startswith("for ") and _NUMBER.search(code))
        is_key = words.startswith("by ") and _MAPPING.search(code)
        if code.strip() and is_continued and not is_key and not _ALONE.match(words):
            yield Finding(path, number, words, _ALONE_ADVICE)


def tracked(paths: list[str]) -> list[str]:
    """Return the tracked files below the paths that the check reads, relative to the checkout.

    Raises subprocess.CalledProcessError where a path is outside the checkout or has no tracked file.
    """
    command = ["git", "ls-files", "-z", "--full-name", "--error-unmatch", "--", *(paths or [ROOT])]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in listed if name.endswith(SUFFIXES) and (ROOT / name).is_file()]


def main() -> int:
    """Print the findings; return the exit status."""
    try:
        names = tracked(sys.argv[1:])
    except subprocess.CalledProcessError as error:
        print(error.stderr.strip(), file=sys.stderr)
        return 2
    found = []
    for name in names:
        found += findings(name, (ROOT / name).read_text(encoding="utf-8"))
    for one in found:
        print(one, file=sys.stderr)
    if found:
        print(f"{len(found)} phrases to rewrite; the list is in scripts/plain_words.py", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
