"""Commands of the group `walle cloud`."""

import typer

from walle.cli.cloud import backup
from walle.cli.cloud.config import config
from walle.cli.cloud.nodes import down, drain, restart
from walle.cli.cloud.push_gateway import gateway
from walle.cli.cloud.status import status
from walle.cli.cloud.up import up


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Run, back up and restore a cloud.", no_args_is_help=True)

    @group.callback()
    def cloud() -> None:
        """Run, back up and restore a cloud."""

    group.command(epilog="Example: walle cloud up shop-cloud --scenario shop")(up)
    group.command(epilog="Example: walle cloud gateway --url https://cloud.example --http-port 8480")(gateway)
    group.command("config", epilog="Example: walle cloud config walle.toml")(config)
    group.command(epilog="Example: walle cloud status --url https://cloud.example:8470")(status)
    group.command(epilog="Example: walle cloud drain node-3 --url https://cloud.example:8470")(drain)
    group.command(epilog="Example: walle cloud restart --url https://cloud.example:8470")(restart)
    group.command(epilog="Example: walle cloud down /srv/shop-cloud --address auto")(down)
    backup.register(group)
    app.add_typer(group, name="cloud")
