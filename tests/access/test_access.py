import base64
import hashlib
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.access.access import Access, Identity, Role
from walle.errors import ConfigError

DIGEST = hashlib.sha256(b"secret").hexdigest()


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


def test_own_entry_goes_before_the_star() -> None:
    identity = Identity("anna", DIGEST, {"shop": Role.READER, "*": Role.RELEASER})
    assert (identity.role("shop"), identity.role("news")) == (Role.READER, Role.RELEASER)
    assert Identity("anna", DIGEST, {}).role("shop") == Role.NONE


def test_saved_access_is_loaded_again_and_holds_no_token(tmp_path: Path) -> None:
    access, path = Access(), tmp_path / "access.toml"
    token = access.issue("anna@shop", {"shop": Role.AUTHOR, "*": Role.READER})
    other = access.issue('b"ö b', {})
    access.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token not in path.read_text(encoding="utf-8")
    again = Access.load(path)
    found = again.identify(token)
    assert found is not None
    assert (found.name, found.roles) == ("anna@shop", {"shop": Role.AUTHOR, "*": Role.READER})
    assert again.identify(other) is not None
    assert again.identify(token + "x") is None


def test_new_token_replaces_the_old_one() -> None:
    access = Access()
    old = access.issue("anna", {"*": Role.READER})
    new = access.issue("anna", {"*": Role.READER})
    assert (access.identify(old), access.identify(new) is not None) == (None, True)
    with pytest.raises(ConfigError, match="cannot name a token's owner"):
        access.issue("a\nb", {})


def test_a_token_is_read_from_a_bearer_or_basic_header_and_no_other() -> None:
    access = Access([Identity("anna", DIGEST, {})])
    assert access.identify_header(basic("secret")) is not None
    assert access.identify_header("bearer secret") is not None
    for wrong in ("", "Basic", "Basic !!", basic("Secret"), basic(""), "Digest secret", "secret", "Basic /w=="):
        assert access.identify_header(wrong) is None


@given(st.text(max_size=40))
def test_any_header_is_answered(header: str) -> None:
    access = Access([Identity("anna", DIGEST, {})])
    assert access.identify_header(header) is None
    assert access.identify_header(f"Basic {header}") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[token.anna]", r"unknown section \[token\]"),
        ("tokens = 1", r"must be sections \[tokens.NAME\]"),
        ("[tokens]\nanna = 1", r"\[tokens.anna\] must be a section"),
        ("[tokens.anna]\ntoken = 'x'", r"\[tokens.anna\] token: unknown"),
        ("[tokens.anna]\nsha256 = 'ABC'", "sha256: must be the token's sha256"),
        (f"[tokens.anna]\nsha256 = '{DIGEST}'", "roles: must map scenarios"),
        (
            f"[tokens.anna]\nsha256 = '{DIGEST}'\nroles = {{ shop = 'owner' }}",
            "roles.shop: must be one of metrics, reader, author, releaser, admin",
        ),
        (
            f"[tokens.anna]\nsha256 = '{DIGEST}'\nroles = {{ shop = ['reader'] }}",
            "roles.shop: must be one of",
        ),
        (f"[tokens.anna]\nsha256 = '{DIGEST}'\nroles = {{ shop = 'admin' }}", "is for the whole cloud"),
        (
            f"[tokens.anna]\nsha256 = '{DIGEST}'\nroles = {{}}\nbranches = {{ shop = 'ipv' }}",
            "branches.shop: must be a list",
        ),
        (
            f"[tokens.anna]\nsha256 = '{DIGEST}'\nroles = {{}}\nexpires_s = 'soon'",
            "expires_s: must be seconds",
        ),
        (f"[tokens.anna]\nsha256 = '{DIGEST}'\nroles = {{ '../x' = 'read' }}", "not \\*, GROUP/\\* or a scenario"),
        ("[", "is not TOML"),
    ],
)
def test_wrong_file_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "access.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Access.load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Access.load(tmp_path / "gone")
