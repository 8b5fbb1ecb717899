"""Socket of an MQTT client on the event loop: reads that can be paused, writes, keep-alive, and the end of the link.

The packets are those of a paho client, whose `connect` has opened the socket. `loop_misc` of paho is not called: its
keep-alive ends a link whose answer to a ping waits behind messages that nobody has read yet.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import paho.mqtt.client as paho

_CLOSE_S = 5.0  # longest wait for the broker to close the connection after a DISCONNECT
_MAX_REASON_CHARS = 200


class MqttLink:
    """The link of `client`, from `start` until it ends; `on_end(cause)` is called once, unless `close` ended it.

    While reading is paused, what the broker sends fills the buffers of the connection, and then waits at the broker,
    which drops messages of QoS 0 at its own bound. Pings are sent nevertheless.

    Args:
        keepalive_s: seconds between packets that the broker may expect, as in the client's CONNECT. A link on which
            nothing comes for half as long again ends, unless reading is paused.
    """

    def __init__(self, client: "paho.Client", on_end: Callable[[str], None], *, keepalive_s: float) -> None:
        self._client = client
        self._on_end = on_end
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._socket: Any = None
        self._file = -1  # descriptor of the socket
        self._timer: asyncio.TimerHandle | None = None
        self._read_s = 0.0  # loop time of the last read
        self._is_paused = False
        self._is_closing = False
        self._ended = asyncio.Event()

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def start(self) -> None:
        """Register the socket that `client.connect` has opened with the event loop."""
        client = self._client
        self._socket = client.socket()
        if self._socket is None:
            self._end("the connection was lost")
            return
        self._file = self._socket.fileno()
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = lambda *_: self._unregister()
        client.on_socket_register_write = self._on_unwritten
        client.on_socket_unregister_write = self._on_written
        self._read_s = self._loop.time()
        self._loop.add_reader(self._file, self._read)
        if client.want_write():
            self._on_unwritten()
        self.keep_alive(self._keepalive_s)

    def keep_alive(self, keepalive_s: float) -> None:
        """Use another interval from now on, such as the broker's; 0: none."""
        self._keepalive_s = keepalive_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if keepalive_s and not self._ended.is_set():
            self._timer = self._loop.call_later(keepalive_s / 2, self._ping)

    def pause(self) -> None:
        """Stop reading until `resume`."""
        if not self._is_paused and not self._is_closing and self._file >= 0:
            self._is_paused = True
            self._loop.remove_reader(self._file)

    def resume(self) -> None:
        """Read again."""
        if self._is_paused and self._file >= 0:
            self._is_paused = False
            self._read_s = self._loop.time()
            self._loop.add_reader(self._file, self._read)
            if self._has_decrypted():  # the event loop does not know of decrypted bytes
                self._loop.call_soon(self._read)

    async def close(self) -> None:
        """Disconnect, and return once the broker has closed the connection, or does not within seconds."""
        self._is_closing = True
        if self._ended.is_set():
            return
        try:
            self.resume()  # a socket that is closed with unread data would discard what the broker has not read
            self._client.disconnect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._ended.wait()
        finally:
            self._end("closed")

    # --- socket -------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._read_s = self._loop.time()
        try:
            self._client.loop_read()
            while self._has_decrypted():
                self._client.loop_read()
        except Exception as error:  # noqa: BLE001 - of paho, at bytes that it cannot parse, or of the socket
            self._end(f"the connection failed: {error!r}")

    def _has_decrypted(self) -> bool:
        """Return whether bytes can be read that are not in the socket any more."""
        if self._is_paused or self._file < 0 or not isinstance(self._socket, ssl.SSLSocket):
            return False
        return self._socket.pending() > 0

    def _on_unwritten(self, *_: Any) -> None:
        self._loop.add_writer(self._file, self._write)

    def _on_written(self, *_: Any) -> None:
        self._loop.remove_writer(self._file)

    def _write(self) -> None:
        try:
            self._client.loop_write()
        except Exception as error:  # noqa: BLE001 - as above
            self._end(f"the connection failed: {error!r}")

    def _ping(self) -> None:
        silent_s = self._loop.time() - self._read_s
        if not self._is_paused and silent_s >= 1.5 * self._keepalive_s:
            self._end(f"nothing came from the broker for {silent_s:.1f} s")
            return
        if not self._client.want_write():
            self._client._send_pingreq()
        self.keep_alive(self._keepalive_s)

    # --- end ----------------------------------------------------------------------------------------------------------

    def _on_disconnect(self, _client: Any, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if flags.is_disconnect_packet_from_server:
            more = str(getattr(properties, "ReasonString", ""))[:_MAX_REASON_CHARS]
            self._end(f"the broker ended the connection: {reason}" + (f" ({more})" if more else ""))
        elif reason.value == 0x82:  # protocol error
            self._end("the connection failed: the broker sent what is not MQTT 5")
        else:
            self._end("the connection was lost: the broker or the network closed it")

    def _unregister(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            self._loop.remove_writer(self._file)
            self._file = -1

    def _end(self, cause: str) -> None:
        """End the link, and close the socket, if paho has not."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._unregister()
        if self._timer is not None:
            self._timer.cancel()
        client = self._client
        client.on_disconnect = client.on_socket_close = None
        client.on_socket_register_write = client.on_socket_unregister_write = None
        if self._socket is not None:
            self._socket.close()
        if not self._is_closing:
            self._on_end(cause)
