"""`walle cloud gateway`: a push gateway, which answers profiles from the table of a cloud, until it is told to stop."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from walle.base.cloud_options import PushOptions
from walle.base.option import options_of
from walle.cli import event_loop
from walle.cli.credentials import TokenOption, ca_of, is_loopback, is_network, read_token
from walle.cli.declared_options import option_parameter, option_value, with_options
from walle.cli.output import JsonLinesFlag, console, emit_line
from walle.errors import ConfigError

_OPTIONS = options_of(PushOptions)


@with_options([option_parameter(field, shown, field.default) for field, shown in _OPTIONS])
def gateway(
    *,
    url: Annotated[
        str, typer.Option("--url", envvar="WALLE_URL", is_eager=True, help="The cloud whose table it answers from.")
    ],
    token: TokenOption = "",
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="HTTP without TLS also beyond this machine: behind a proxy.")
    ] = False,
    metrics_token_file: Annotated[
        Path | None, typer.Option(help="Token of who may read /metrics; the gateway's own token may, too.")
    ] = None,
    as_json: JsonLinesFlag = False,
    **given: Any,
) -> None:
    """Answer profiles from the release table of the cloud at URL, until Ctrl-C. The token needs `reader` on `*`."""
    options = PushOptions(**{field.name: option_value(field, given[field.name]) for field, _ in _OPTIONS})
    if (options.tls_cert is None) != (options.tls_key is None):
        raise typer.BadParameter("go together", param_hint="--tls-cert, --tls-key")
    if options.tls_cert is None and not plain_http and not is_loopback(options.host):
        raise typer.BadParameter("give --tls-cert and --tls-key, or --plain-http behind a proxy", param_hint="--host")
    for proxy in options.trusted_proxies:
        if not is_network(proxy):
            raise typer.BadParameter(f"{proxy!r} is neither an address nor a network", param_hint="--trust-proxy")
    from walle.base.http_roots import http_tls
    from walle.cloud.edge.push_gateway import PushGatewayConfig

    if not token:
        raise ConfigError("a push gateway needs a token with the role reader on `*`; give --token-file")
    if options.business_app:
        sys.path.append(str(Path.cwd()))  # an installed command looks in its own folder only
    config = PushGatewayConfig(
        url=url,
        token=token,
        tls=http_tls(ca_of(url)),
        metrics_token=read_token(metrics_token_file) if metrics_token_file is not None else "",
        **vars(options),
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
