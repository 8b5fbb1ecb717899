"""CPU seconds for each GB of files that a gateway sends: read in pieces, by the kernel, with TLS, and left to nginx.

python -m benchmarks.file_sending [--file-mb 16] [--gb 2] [WAY ...]

Ways: `pieces` reads and writes in the process, as with TLS; `sendfile` is what the gateway does without TLS; `tls` is
HTTPS; `accel` is nginx in front, which sends the file that the gateway names (only where nginx is installed). The
client is another process's, and not counted. One connection at a time, a file that is in the disk's cache.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.headline import print_headline
from walle.access.identity.authority import Authority
from walle.cli import event_loop
from walle.cloud.api.request_rules import REQUEST_RULES
from walle.cloud.http.limits import HttpLimits
from walle.cloud.http.server import HttpFront, serving
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.folder_store import FolderStore

WAYS = ("pieces", "sendfile", "tls", "accel")
_NAMES = {
    "pieces": "read and written in the process",
    "sendfile": "sent by the kernel",
    "tls": "with TLS",
    "accel": "nginx in front",
}
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


def _serve(way: str, folder: Path, said: Connection) -> None:
    event_loop.run(_serve_until_ended(way, folder, said))


async def _serve_until_ended(way: str, folder: Path, said: Connection) -> None:
    front = HttpFront(
        cdn_app(FolderStore(folder / "files"), accel_redirect="/stored" if way == "accel" else ""),
        HttpLimits(),
        lambda _: True,
        rules=REQUEST_RULES,
    )
    context = Authority(folder / "authority").server_context() if way == "tls" else None
    async with serving(front, "127.0.0.1", 0, tls=context) as url:
        front.sends_files = front.sends_files and way != "pieces"
        said.send(url)
        while await asyncio.to_thread(said.recv) != "end":
            said.send(time.process_time())


def _nginx(folder: Path, url: str) -> tuple[subprocess.Popen[bytes], int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi"))
    user = "user root;" if not os.getuid() else ""
    (folder / "nginx.conf").write_text(
        f"{user} daemon off; master_process off; pid {folder}/pid; error_log stderr error; events {{}}\n"
        f"http {{ access_log off; sendfile on; {temporary} scgi_temp_path {folder}/scgi;\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; }}\n"
        f"location /stored/ {{ internal; alias {folder}/files/; }} }} }}"
    )
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return process, port


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pull(port: int, sha256: str, size: int, context: ssl.SSLContext | None) -> None:
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as plain:
        connection = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        connection.sendall(f"GET /cdn/{sha256} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        taken = 0
        while count := connection.recv_into(buffer):
            taken += count
    assert taken > size, taken


def measure(way: str, file_mb: int, gb: float) -> dict[str, float]:
    """Return the CPU seconds of gateway and nginx for each GB, and the GB a second."""
    mine, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = os.urandom(1 << 20) * file_mb
        sha256 = FolderStore(folder / "files").put(data)
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(way, folder, theirs))
        process.start()
        nginx: subprocess.Popen[bytes] | None = None
        try:
            url = mine.recv()
            port = int(url.rpartition(":")[2])
            if way == "accel":
                nginx, port = _nginx(folder, url)
            context = ssl.create_default_context(cafile=folder / "authority" / "ca.pem") if way == "tls" else None
            _pull(port, sha256, len(data), context)
            count = max(1, round(gb * 1e9 / len(data)))
            mine.send("time")
            before_s, nginx_s = mine.recv(), _cpu_s(nginx.pid) if nginx else 0.0
            began_s = time.perf_counter()
            for _ in range(count):
                _pull(port, sha256, len(data), context)
            took_s = time.perf_counter() - began_s
            mine.send("time")
            sent_gb = count * len(data) / 1e9
            figures = {"gateway, CPU s/GB": round((mine.recv() - before_s) / sent_gb, 4)}
            if nginx is not None:
                figures["nginx, CPU s/GB"] = round((_cpu_s(nginx.pid) - nginx_s) / sent_gb, 4)
            return {**figures, "GB/s": round(sent_gb / took_s, 2)}
        finally:
            mine.send("end")
            process.join(20)
            if nginx is not None:
                nginx.terminate()
                nginx.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=[one for one in WAYS if one != "accel" or NGINX])
    parser.add_argument("--file-mb", type=int, default=16)
    parser.add_argument("--gb", type=float, default=2.0)
    options = parser.parse_args()
    found = {}
    for way in options.ways:
        found[way] = measure(way, options.file_mb, options.gb)
        print(json.dumps({"way": way, **found[way]}), flush=True)
    spent: dict[str, float | str] = {
        _NAMES[way]: sum(value for name, value in one.items() if "CPU" in name) for way, one in found.items()
    }
    if NGINX is None:
        spent[_NAMES["accel"]] = "not installed"
    ours = _NAMES["sendfile" if "sendfile" in found else options.ways[0]]
    what = f"CPU time for a GB of files without TLS, {ours}"
    value = spent.pop(ours)
    print_headline(what, unit="s", better="lower", ours=float(value), peers=spent)


if __name__ == "__main__":
    main()
