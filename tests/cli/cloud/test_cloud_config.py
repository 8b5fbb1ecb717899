"""walle.toml: each option of `walle cloud up` has a key, and faults are named with their line."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.sim.program import Programs
from walle.cli import app
from walle.cli.cloud.config import NOT_IN_FILE, CloudConfigError, read_config, up_parameters
from walle.cli.cloud.options import SECTIONS


def test_every_option_has_one_key() -> None:
    named = [name for keys in SECTIONS.values() for name in keys.values()]
    assert len(set(named)) == len(named)
    assert set(named) == up_parameters().keys() - NOT_IN_FILE


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("[gateway]\nport = 1\n", 1, "unknown section 'gateway'; there are gateways, tunnel"),
        ("ray = true\n", 1, "unknown section 'ray'"),
        ("[tunnel]\n\nprots = 3\n", 3, "unknown key 'prots' in [tunnel]; there are port, processes"),
        ('[tunnel]\nport = "a"\n', 2, "port in [tunnel] must be a whole number"),
        ("[tunnel]\nport = true\n", 2, "must be a whole number"),
        ("[tunnel]\nprocesses = 0\n", 2, "must be from 1 to 256"),
        ("[tunnel]\ndrain = 4e3\n", 2, "must be from 0 to 3600"),
        ("[services]\nscenarios = 'shop'\n", 2, "must be a list of texts"),
        ("[placement]\nray = 1\n", 2, "must be true or false"),
        ("[gateways]\nhost = 1\n", 2, "must be a text"),
        ("[gateways\n", 0, "is not TOML"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, text: str, line: int, why: str) -> None:
    path = tmp_path / "walle.toml"
    path.write_text(text)
    with pytest.raises(CloudConfigError) as failed:
        read_config(path, up_parameters())
    assert failed.value.line == line
    assert why in failed.value.why
    answer = CliRunner().invoke(app, ["cloud", "up", str(tmp_path / "cloud"), "--config", str(path)])
    assert isinstance(answer.exception, CloudConfigError)
    assert not (tmp_path / "cloud").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CloudConfigError, match="cannot be read: No such file"):
        read_config(tmp_path / "walle.toml", up_parameters())


def test_the_printed_configuration_is_one_that_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "walle.toml"
    path.write_text('[gateways]\nport = 0\ntls_cert = "chain.pem"\n[services]\nscenarios = ["shop"]\n')
    printed = CliRunner().invoke(app, ["cloud", "config", str(path)])
    assert printed.exit_code == 0, printed.output
    values = tomllib.loads(printed.output)
    assert values["gateways"]["tls_cert"] == str(tmp_path / "chain.pem")
    assert values["services"]["scenarios"] == ["shop"]
    assert (values["gateways"]["port"], values["tunnel"]["port"]) == (0, 8471)
    assert "port = 0\n" in printed.output
    assert "port = 8471  # default" in printed.output
    assert json.loads(CliRunner().invoke(app, ["cloud", "config", str(path), "--json"]).output) == values
    again = tmp_path / "again.toml"
    again.write_text(printed.output)
    assert {name: value for name, value in read_config(again, up_parameters()).items() if value} == {
        name: value for name, value in _flat(values).items() if value
    }


def test_a_cloud_runs_as_its_file_says_and_options_go_first(tmp_path: Path) -> None:
    path = tmp_path / "walle.toml"
    path.write_text(
        "[gateways]\nport = 0\nplain_http = true\n[tunnel]\nport = 0\n"
        '[services]\nscenarios = ["shop", "live"]\njoin_devices = 3\n'
    )
    with Programs() as start:
        cloud = start("cloud", "up", str(tmp_path / "cloud"), "--config", str(path), "--join-devices=5", "--json")
        cloud.wait_for(lambda line: "url" in line)
        said = cloud.lines[0]
    assert said["scenarios"] == ["live", "shop"]
    assert said["join_devices"] == 5
    assert said["url"].startswith("http://")


def _flat(values: dict[str, dict[str, object]]) -> dict[str, object]:
    return {SECTIONS[section][key]: value for section, keys in values.items() for key, value in keys.items()}


@pytest.mark.parametrize(
    ("more", "refused"), [((), "needs --database"), (("--gateways=0",), "add --gateways 1 or more")]
)
def test_a_cluster_with_a_shared_folder_has_an_edge_on_each_node_by_default(
    tmp_path: Path, more: tuple[str, ...], refused: str
) -> None:
    options = ("--ray", "--address=auto", "--shared-folder", "--gateway-label=a=b", *more)
    answer = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["cloud", "up", str(tmp_path / "cloud"), *options])
    assert answer.exit_code == 2
    assert refused in answer.output
