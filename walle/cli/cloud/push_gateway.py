"""`walle cloud gateway`: a push gateway, which answers profiles from the table of a cloud, until it is told to stop."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from walle.cli import event_loop
from walle.cli.credentials import TokenOption, ca_of, is_loopback, is_network, read_token
from walle.cli.output import JsonLinesFlag, console, emit_line
from walle.errors import ConfigError


def gateway(
    url: Annotated[
        str, typer.Option("--url", envvar="WALLE_URL", is_eager=True, help="The cloud whose table it answers from.")
    ],
    token: TokenOption = "",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="Port of HTTP; 0: chosen by the system.", min=0, max=65535)] = 0,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="HTTP without TLS also beyond this machine: behind a proxy.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain of HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of that certificate.")] = None,
    business_app: Annotated[
        str, typer.Option(help="Factory of your own ASGI app, package.module:function, served with the push answer.")
    ] = "",
    pulls_per_s: Annotated[
        float, typer.Option(min=0, help="Pulls that its answers begin in a second; 0: any number.")
    ] = 0.0,
    pull_mb_s: Annotated[
        float, typer.Option(min=0, help="MB of versions that these pulls may have in a second; 0: any number.")
    ] = 0.0,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Address or network of a proxy whose X-Forwarded-For is believed; once for each."),
    ] = None,
    metrics_token_file: Annotated[
        Path | None, typer.Option(help="Token of who may read /metrics; the gateway's own token may, too.")
    ] = None,
    as_json: JsonLinesFlag = False,
) -> None:
    """Answer profiles from the release table of the cloud at URL, until Ctrl-C. The token needs `reader` on `*`."""
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("go together", param_hint="--tls-cert, --tls-key")
    if tls_cert is None and not plain_http and not is_loopback(host):
        raise typer.BadParameter("give --tls-cert and --tls-key, or --plain-http behind a proxy", param_hint="--host")
    for proxy in trust_proxy or ():
        if not is_network(proxy):
            raise typer.BadParameter(f"{proxy!r} is neither an address nor a network", param_hint="--trust-proxy")
    from walle.base.http_roots import http_tls
    from walle.cloud.edge.push_gateway import PushGatewayConfig
    from walle.cloud.http.https import CertificateFiles

    if not token:
        raise ConfigError("a push gateway needs a token with the role reader on `*`; give --token-file")
    if business_app:
        sys.path.append(str(Path.cwd()))  # an installed command looks in its own folder only
    config = PushGatewayConfig(
        url=url,
        token=token,
        tls=http_tls(ca_of(url)),
        host=host,
        http_port=http_port,
        certificate=CertificateFiles(tls_cert, tls_key) if tls_cert and tls_key else None,
        business_app=business_app,
        pulls_s=pulls_per_s,
        pull_mb_s=pull_mb_s,
        trusted_proxies=tuple(trust_proxy or ()),
        metrics_token=read_token(metrics_token_file) if metrics_token_file is not None else "",
    )

    async def serve() -> None:
        from walle.cloud.edge.push_gateway import push_gateway

        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        async with push_gateway(config) as address:
            if as_json:
                emit_line({"url": address, "of": url})
            else:
                console.print(f"answering profiles at {address}, from the table of {url}", markup=False)
            await stopping.wait()

    event_loop.run(serve())
