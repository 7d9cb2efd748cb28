"""A TCP proxy that counts: what really goes over the wire, headers, polling and all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

PIECE = 1 << 16


class CountingProxy:
    """Listens on a free port of loopback and passes everything on to `port`, in a thread of its own.

    `up` are the bytes that clients have sent, `down` those that they have been sent.
    """

    def __init__(self, port: int) -> None:
        self.target, self.up, self.down, self.port = port, 0, 0, 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connect, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in (tasks := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # nobody listens there now: the client finds out as it would without us
            writer.close()
            return
        with contextlib.suppress(asyncio.CancelledError):  # the proxy ends
            await asyncio.gather(
                self._pass(reader, there_writer, "up"), self._pass(there_reader, writer, "down")
            )

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        try:
            while data := await reader.read(PIECE):
                setattr(self, way, getattr(self, way) + len(data))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
