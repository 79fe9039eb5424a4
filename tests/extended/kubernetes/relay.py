"""Relay TCP connections from a socket made in one network namespace to an address in this process's namespace.

Run as ``nsenter --net=... python -m tests.extended.kubernetes.relay FD HOST PORT`` with the listening socket as file
`FD`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()


async def _main(fd: int, host: str, port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))

    server = await asyncio.start_server(serve, sock=socket.socket(fileno=fd))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
