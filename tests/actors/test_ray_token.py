"""The token of a Ray: whose it is, who can read it, and what is refused."""

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from walle.actors.ray_token import prepare_token
from walle.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return tmp_path / ".ray" / "auth_token"


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path, token: Path) -> None:
    before = os.umask(0)
    try:
        prepare_token({}, tmp_path)
    finally:
        os.umask(before)
    made = token.read_text()
    assert len(made) == 64
    assert mode(token) == 0o600
    assert mode(token.parent) == 0o700
    prepare_token({"RAY_AUTH_MODE": "token"}, tmp_path)
    assert token.read_text() == made
    assert [one.name for one in token.parent.iterdir()] == ["auth_token"]


def test_a_file_that_others_can_read_is_narrowed_to_its_owner(
    tmp_path: Path, token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token.parent.mkdir()
    token.write_text("a" * 64)
    token.chmod(0o644)
    prepare_token({}, tmp_path)
    assert mode(token) == 0o600
    assert token.read_text() == "a" * 64
    assert "could be read by others" in caplog.text


def prepare(home: Path) -> None:
    prepare_token({}, home)


@pytest.mark.night
def test_processes_that_start_at_once_have_one_token(tmp_path: Path, token: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        pool.map(prepare, [tmp_path] * 12)
    assert len(token.read_text()) == 64
    assert [one.name for one in token.parent.iterdir()] == ["auth_token"]


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_that_was_given_is_used_and_no_file_made(tmp_path: Path, token: Path, name: str) -> None:
    prepare_token({name: "somewhere"}, tmp_path)
    assert not token.parent.exists()


@pytest.mark.parametrize("blank", [" ", "\n", " \t "])
def test_a_blank_token_is_refused_before_ray_writes_a_file(tmp_path: Path, token: Path, blank: str) -> None:
    with pytest.raises(ConfigError, match=r"RAY_AUTH_TOKEN is blank; .* unset it"):
        prepare_token({"RAY_AUTH_TOKEN": blank}, tmp_path)
    assert not token.parent.exists()


def test_a_given_file_that_others_can_read_is_a_warning(
    tmp_path: Path, token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = tmp_path / "given"
    given.write_text("a" * 64)
    given.chmod(0o600)
    prepare_token({"RAY_AUTH_TOKEN_PATH": str(given)}, tmp_path)
    assert caplog.text == ""
    given.chmod(0o640)
    prepare_token({"RAY_AUTH_TOKEN_PATH": str(given)}, tmp_path)
    assert f"{given} can be read by others" in caplog.text
    assert mode(given) == 0o640
    assert not token.parent.exists()


@pytest.mark.timeout(10)
def test_a_pipe_instead_of_the_file_is_refused_at_once(tmp_path: Path, token: Path) -> None:
    token.parent.mkdir()
    os.mkfifo(token)
    with pytest.raises(ConfigError, match="holds no token of Ray; remove it"):
        prepare_token({}, tmp_path)


@pytest.mark.parametrize("value", ["disabled", "DISABLED", "", "k8s"])
def test_a_ray_without_a_token_is_refused(tmp_path: Path, token: Path, value: str) -> None:
    with pytest.raises(ConfigError, match="unset RAY_AUTH_MODE"):
        prepare_token({"RAY_AUTH_MODE": value, "RAY_AUTH_TOKEN": "x"}, tmp_path)
    assert not token.parent.exists()


def test_a_file_without_a_token_is_named_in_the_error(tmp_path: Path, token: Path) -> None:
    token.parent.mkdir()
    token.touch()
    with pytest.raises(ConfigError, match="holds no token of Ray; remove it"):
        prepare_token({}, tmp_path)
    token.unlink()
    other = tmp_path / "other"
    other.write_text("secret")
    other.chmod(0o644)
    token.symlink_to(other)
    with pytest.raises(ConfigError, match="auth_token"):
        prepare_token({}, tmp_path)
    assert mode(other) == 0o644
    token.unlink()
    token.parent.rmdir()
    token.parent.write_text("a file where the folder would be")
    with pytest.raises(ConfigError, match="cannot be kept there"):
        prepare_token({}, tmp_path)
