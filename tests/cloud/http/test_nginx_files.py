"""Files that Debian's nginx sends from the folder, as the manual configures it: only what the gateway allows."""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.sim.shop_cloud import LIMIT_S, until
from walle.base.file_coding import format_dictionary
from walle.cloud import Cloud, CloudConfig, CloudHome
from walle.protocol import FileEntry

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
MANUAL = Path(__file__).parents[3] / "docs/how-to/files.md"
PORT = "127.0.0.1:8470"

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")


@contextlib.asynccontextmanager
async def _nginx(folder: Path, locations: str, cloud: CloudHome, url: str) -> AsyncIterator[str]:
    """Run nginx with locations of the manual; give its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert PORT in locations
    assert "/srv/walle/files" in locations
    locations = locations.replace(PORT, url.removeprefix("http://"))
    locations = locations.replace("/srv/walle/files", str(cloud.folder / "files"))
    names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{name}_temp_path {folder}/{name};\n" for name in names)
    user = "user root;\n" if not os.getuid() else ""
    server = f"server {{ listen 127.0.0.1:{port};\n{locations} }}"
    (folder / "nginx.conf").write_text(
        f"{user}daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr warn;\nevents {{}}\n"
        f"http {{ access_log off; sendfile on;\n{paths}{server} }}\n"
    )
    assert NGINX is not None
    process = await asyncio.create_subprocess_exec(NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"))

    async def listens() -> bool:
        assert process.returncode is None
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["accel", "folder"])
async def test_nginx_sends_from_the_folder_what_the_gateway_allows(tmp_path: Path, way: str) -> None:
    blocks = re.findall(r"```nginx\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    locations = next(one for one in blocks if ("internal;\n    alias" in one) == (way == "accel"))
    config = CloudConfig(folder=tmp_path / "cloud", accel_redirect="/stored" if way == "accel" else "")
    async with contextlib.AsyncExitStack() as undo:
        cloud = await undo.enter_async_context(Cloud(config))
        home = CloudHome(config.folder)
        url = await undo.enter_async_context(_nginx(tmp_path, locations, home, cloud.address.url))
        http = await undo.enter_async_context(httpx.AsyncClient(base_url=url, timeout=LIMIT_S))
        content = random.Random(3).randbytes(3_000_000)
        sha256 = home.files.put(content)
        prefix = home.file_addresses.prefix()
        plain = {"Accept-Encoding": "identity"}
        whole = await http.get(f"{prefix}/{sha256}", headers=plain)
        assert whole.status_code == 200, whole.text
        assert hashlib.sha256(whole.content).hexdigest() == sha256
        assert whole.headers["server"].startswith("nginx")
        assert "x-accel-redirect" not in whole.headers
        assert "immutable" in whole.headers["cache-control"]
        part = await http.get(f"{prefix}/{sha256}", headers={**plain, "Range": "bytes=2999990-"})
        assert (part.status_code, part.content) == (206, content[-10:])
        direct = await http.get(f"{cloud.address.url}{prefix}/{sha256}", headers=plain)
        assert (len(direct.content) == 0) == (way == "accel"), "whoever sends the bytes, it is not both"

        forged = prefix[:-1] + ("A" if prefix[-1] != "A" else "B")
        for wrong in (f"{forged}/{sha256}", f"/cdn/x/{sha256}"):
            assert (await http.get(wrong)).status_code == 403, wrong
        for hidden in (f"/stored/{sha256[:2]}/{sha256}", "/stored/../keys/files.json", f"/cdn/{sha256}"):
            assert (await http.get(hidden)).status_code in (403, 404), hidden
        keys = json.loads((config.folder / "keys" / "files.json").read_text())["keys"]
        assert keys
        for outside in (f"{prefix}/..%2f..%2fkeys%2ffiles.json", f"{prefix}/%2e%2e/{sha256}", f"{prefix}/{'0' * 64}"):
            answer = await http.get(outside)
            assert answer.status_code in (400, 403, 404), outside
            assert keys[0]["secret"] not in answer.text

        new = content + b"and a little more"
        entries = [FileEntry("model", home.files.put(data), len(data)) for data in (content, new)]
        home.coded_files.make(entries[1:], [entries[:1]])
        difference = {"Accept-Encoding": "dcz, zstd", "Available-Dictionary": format_dictionary(entries[0].sha256)}
        async with http.stream("GET", f"{prefix}/{entries[1].sha256}", headers=difference) as coded:
            assert coded.status_code == 200
            assert coded.headers["content-encoding"] == "dcz"
            assert len(b"".join([piece async for piece in coded.aiter_raw()])) < 2_000
