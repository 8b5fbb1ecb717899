"""Commands in texts that install a package, and the packages that they name."""

import dataclasses
import re

_COMMAND = re.compile(
    r"\b(?:(?:uv )?pip3?|pipx|uv tool|uv) (?:install|download|wheel|add|run|inject)\b(?! reads)|\buvx\b|\bnpx\b"
    r"|\bnpm (?:install|i|exec)\b|\bconda install\b"
)
_TOKEN = re.compile(r"""\s+('[^']*'|"[^"]*"|[^\s`"'),;&|#]+)""")
_VALUED = {"-d", "--dest", "--wheel-dir", "-w", "-r", "--requirement", "--no-binary", "--only-binary", "--target", "-c"}
_INDEXES = ("--find-links", "-f", "--extra-index-url", "--index-url", "-i")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?=$|[\[<>=!~; ])")


@dataclasses.dataclass(frozen=True)
class InstallLine:
    """One command: its packages by name, those with an exact version, and what it takes from elsewhere."""

    text: str
    names: tuple[str, ...]
    exact: frozenset[str]
    paths: tuple[str, ...]
    faults: tuple[str, ...]


def install_lines(text: str) -> list[InstallLine]:
    """Return the commands of a text. A name is in lower case with single hyphens, as indexes compare them (PEP 503)."""
    found = [
        _parse(command[0], line[command.end() :]) for line in text.splitlines() for command in _COMMAND.finditer(line)
    ]
    return [one for one in found if one.names or one.paths or one.faults]


def _parse(command: str, rest: str) -> InstallLine:
    names: list[str] = []
    exact: set[str] = set()
    paths: list[str] = []
    faults = [] if "pip" in command else [f"{command!r} is another program than pip, which this test reads"]
    at, skips = 0, False
    while token := _TOKEN.match(rest, at):
        at = token.end()
        word = token[1].strip("'\"")
        if skips:
            skips = False
        elif word.startswith("-"):
            skips = word in _VALUED
            if word.split("=")[0] in _INDEXES:
                faults.append(f"{word} takes packages from a further place, beside which the index is asked too")
        elif "://" in word:
            faults.append(f"{word} is not a name or a path")
        elif word.startswith((".", "/", "~", "$", "{", "PATH")) or re.search(r"\.whl(\[|$)", word):
            paths.append(word)
        elif name := _NAME.match(word):
            names.append(re.sub(r"[-_.]+", "-", name[0]).lower())
            if re.search(r"==[^*]+$", word):
                exact.add(names[-1])
        else:
            break  # the text goes on
    return InstallLine(command + rest[:at], tuple(names), frozenset(exact), tuple(paths), tuple(faults))
