"""Every command: its help, example, --json and imports."""

import contextlib
import functools
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any
from unittest import mock

import pytest
import typer.main
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from walle.cli import app
from walle.cli.help_text import show_help_as_written
from walle.cli.output import emit, emit_rows

COMMANDS = {
    "adapt branches", "adapt follow", "adapt resume", "adapt run", "adapt show", "adapt tree",
    "attributes list", "attributes put", "attributes remove",
    "audit head", "audit show", "audit verify",
    "cloud backup", "cloud config", "cloud down", "cloud drain", "cloud gateway", "cloud move-state", "cloud restart",
    "cloud restore", "cloud status", "cloud up",
    "demo", "demo livestream",
    "device doctor", "device enrol", "device revoke",
    "device list", "device log", "device logs", "device run", "device show",
    "features export", "features made-by", "features resend", "features sink", "features tail",
    "figures", "device-file list", "device-file put", "device-file remove",
    "storage check", "storage gc", "storage move",
    "git-credential", "login", "logout",
    "model bench", "model calibrate", "model convert", "model cut", "model get", "model plan",
    "model profile-primitives", "model run", "operators",
    "release explain", "release pause", "release preview", "release resume", "release retire", "release retry",
    "release rollback",
    "release start", "release status",
    "sign", "trust delegate", "trust init", "trust keys add", "trust keys remove", "trust publish",
    "trust revoke", "trust rotate", "trust show", "trust sign-root",
    "task add-file", "task check", "task dictionary", "task new", "task simulate",
    "token add", "token list", "token revoke", "group add", "group list", "group remove",
}  # fmt: skip


@functools.cache
def root() -> Any:
    """Return the command tree, which takes a twentieth of a second to build."""
    return typer.main.get_command(app)


def help_of(path: str, columns: int = 80) -> str:
    """Return what `--help` prints, which ends with status 0."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), mock.patch.dict(os.environ, COLUMNS=str(columns)):
        assert root().main([*path.split(), "--help"], prog_name="walle", standalone_mode=False) == 0
    return shown.getvalue()


@functools.cache
def commands() -> dict[str, TyperCommand | TyperGroup]:
    """Return every command by its path: those that are not a group, and groups that do something alone."""
    return dict(_commands())


def _commands() -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    waiting: list[tuple[str, Any]] = [("", root())]
    while waiting:
        path, command = waiting.pop()
        children = getattr(command, "commands", None)
        if children is None or (path and command.invoke_without_command):
            assert isinstance(command, TyperCommand | TyperGroup)
            yield path, command
        if children is not None:
            waiting += [(f"{path} {name}".strip(), child) for name, child in children.items()]


def test_the_command_tree_is_the_expected_one() -> None:
    assert commands().keys() == COMMANDS


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_a_command_explains_itself_and_speaks_json(path: str) -> None:
    command = commands()[path]
    assert command.help
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options or path == "git-credential"  # git-credential speaks git's protocol
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{path}: {parameter.name} has no help"
    assert "Usage:" in help_of(path)


@pytest.mark.parametrize("path", ["", *sorted({*COMMANDS, *(path.split()[0] for path in COMMANDS)})])
def test_help_shows_its_texts_as_they_are_written(path: str) -> None:
    command = root()
    for name in path.split():
        command = command.commands[name]
    shown = help_of(path, columns=400)
    texts = [command.help, command.epilog, *(getattr(one, "help", None) for one in command.params)]
    missing = [word for text in texts for word in (text or "").split() if word not in shown]
    assert not missing
    if "[" in "".join(filter(None, texts)):
        assert "[" in shown


def test_brackets_in_help_texts_are_not_read_as_markup() -> None:
    shop = typer.Typer(help="Shop [bold]all[/bold].")
    group = typer.Typer(help="Sell [green]shoes[/].")

    def sell(size: Annotated[int, typer.Option(help="A [size] of walle[parquet].")] = 1) -> None:
        """Sell a shoe of shoes[red]."""

    group.command(epilog="Example: sell [blue]")(sell)
    shop.add_typer(group, name="shoes")
    shop.command(help="Close [it].")(sell)
    show_help_as_written(shop)
    env = {"COLUMNS": "200"}
    assert "Shop [bold]all[/bold]." in CliRunner().invoke(shop, ["--help"], env=env).output
    assert "Sell [green]shoes[/]." in CliRunner().invoke(shop, ["--help"], env=env).output
    assert "Close [it]." in CliRunner().invoke(shop, ["--help"], env=env).output
    inner = CliRunner().invoke(shop, ["shoes", "sell", "--help"], env=env).output
    assert all(
        text in inner for text in ("a shoe of shoes[red].", "Example: sell [blue]", "A [size] of walle[parquet].")
    )


def test_the_extra_that_parquet_needs_is_named_in_the_help_of_export() -> None:
    assert "Parquet (with walle[parquet])" in " ".join(help_of("features export").split())


def test_an_error_about_usage_shows_what_was_given() -> None:
    result = CliRunner().invoke(app, ["task", "new", "a[red]b[/x]"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "'a[red]b[/x]' is not a task name" in result.output


def test_texts_with_colons_are_not_read_as_emojis(capsys: pytest.CaptureFixture[str]) -> None:
    emit(None, as_json=False, text=escape("main.py:x: [red] :warning: of phone:fire:1"))
    emit_rows([{"id": "a:x:b"}], as_json=False, title="of :x:")
    shown = capsys.readouterr().out
    assert "main.py:x: [red] :warning: of phone:fire:1\n" in shown
    assert all(text in shown for text in ("a:x:b", "of :x:"))


def test_titles_and_statuses_are_shown_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    emit_rows([{"a[red]": "b[green]"}], as_json=False, title="models[v2]")
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("a[red]", "b[green]", "models[v2]"))


@pytest.mark.parametrize("path", sorted(COMMANDS - {"demo", "figures"}))
def test_help_ends_with_an_example_that_names_the_command(path: str) -> None:
    command = commands()[path]
    assert (command.epilog or "").startswith(f"Example: walle {path}")


@pytest.mark.parametrize(
    "group",
    [
        "task",
        "release",
        "cloud",
        "demo",
        "device",
        "features",
        "device-file",
        "storage",
        "attributes",
        "model",
        "token",
        "audit",
    ],
)
def test_a_group_is_in_the_help_of_walle_and_lists_its_commands(group: str) -> None:
    assert group in help_of("")
    listed = help_of(group)
    assert all(path.split()[1] in listed for path in COMMANDS if path.startswith(f"{group} "))


def test_a_device_imports_nothing_of_the_cloud() -> None:
    code = "import sys, walle.cli, walle.cli.device.program; print('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "walle.device" in loaded
    cloud_only = {"ray", "fastapi", "starlette", "uvicorn", "dulwich", "numpy", "packaging", "prometheus_client"}
    assert not loaded & {*cloud_only, "matplotlib", "walle.cloud", "walle.actors"}


def test_an_error_is_one_line_and_with_json_an_object(tmp_path: object) -> None:
    command = [sys.executable, "-c", "from walle.cli import main; main()", "task", "check", f"{tmp_path}/none"]
    text = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (text.returncode, text.stdout) == (1, "")
    assert text.stderr == f"walle: {tmp_path}/none: is not a folder; write a task with: walle task new NAME\n"
    json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert (json.returncode, json.stdout) == (1, "")
    assert '"type": "TaskFolderError"' in json.stderr
