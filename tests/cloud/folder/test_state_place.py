"""URLs of the database that has a cloud's state: one whose password cannot be told from the rest is refused."""

from pathlib import Path

import pytest

from walle.cloud.folder.state_place import check_url, choose_database
from walle.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://walle@db.example/walle",
        "postgres://walle:hush@db.example:5432,other:5433/walle?target_session_attrs=read-write",
        "postgresql://walle:h%2Fsh@[::1]:5432,[::2]/walle",
        "postgresql://walle@/walle?host=/run/postgresql&user=me@corp",
        "postgresql:///walle",
    ],
)
def test_a_url_is_taken(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize("password", ["hu/sh", "hu?sh", "hu#sh", "12/sh", "hu[sh", "1#sh", "1?sh"])
def test_a_password_that_is_not_escaped_is_refused_and_not_kept(tmp_path: Path, password: str) -> None:
    """Else a part of it would be taken for host, port or name, and shown and stored as such."""
    with pytest.raises(ConfigError, match="in a password write") as raised:
        choose_database(tmp_path, f"postgresql://walle:{password}@db.example/walle")
    assert password not in str(raised.value)
    assert not list(tmp_path.iterdir())
