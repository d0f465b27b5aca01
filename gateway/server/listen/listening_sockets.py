"""The sockets of a listener: one for each TCP address, or a Unix-domain socket with its file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from gateway.config.addresses import SocketAddress, UnixAddress
from gateway.config.listener_settings import Listener
from gateway.errors import ListenError, SocketGroupError

log = structlog.get_logger("gateway.listening")

Bind = Callable[[Listener], Awaitable[list[socket.socket]]]
"""Makes the listening sockets of a listener, as `bound` does."""

# The number of keep-alive probes to a client that does not answer.
_PROBES: Final = 4

# A host name may resolve to addresses that this machine does not have, such as the IPv6 one of localhost.
_NOT_HERE: Final = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL))

_OWNER_ALONE: Final = 0o600

# Opens a file of any kind itself: follows no link, and connects to nothing.
_FILE_ITSELF: Final = os.O_PATH | os.O_NOFOLLOW

# Attempts to lock a directory, and the pause between them in seconds. A gateway holds the lock for a moment.
_LOCK_ATTEMPTS: Final = 100
_LOCK_PAUSE: Final = 0.02


def listen(listening: socket.socket, settings: Listener) -> None:
    """Let a socket listen, as the settings say. Connections inherit its options."""
    listening.listen(settings.backlog)
    if listening.family == socket.AF_UNIX:
        return
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    idle = int(settings.tcp_keepalive)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, bool(idle))
    if idle:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle // _PROBES))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def permit(sockets: Iterable[socket.socket], listener: Listener) -> None:
    """Give the files of Unix-domain sockets the mode and the group of these settings.

    Raises:
        ListenError: that is not permitted.
    """
    for each in sockets:
        if isinstance(each, UnixListeningSocket):
            try:
                each.permit(listener)
            except OSError as error:
                raise ListenError(str(listener.address), error) from error


async def bound(listener: Listener) -> list[socket.socket]:
    """Make the listening sockets of a listener.

    Raises:
        OSError: this machine has none of its addresses, one of them is taken, or its file cannot be made.
    """
    address = listener.address
    if isinstance(address, UnixAddress):
        async with _locked(Path(address.path).parent):
            return [UnixListeningSocket(address, listener)]
    return await bound_to_tcp(address, listener.backlog)


async def bound_to_tcp(address: SocketAddress, backlog: int) -> list[socket.socket]:
    """Make a listening socket for each address of this machine that the host name resolves to.

    Raises:
        OSError: this machine has none of the addresses, or one of them is taken.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    not_here: OSError | None = None
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, name in dict.fromkeys((family, name) for family, _, _, _, name in found):
            try:
                listening = socket.create_server(name, family=family, backlog=backlog)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                not_here = error
                continue
            opened.callback(listening.close)
            listening.setblocking(False)
            sockets.append(listening)
        if not_here is not None and not sockets:
            raise not_here
        opened.pop_all()
    return sockets


class UnixListeningSocket(socket.socket):
    """A listening Unix-domain socket, with its file.

    It replaces the file of a socket on which nobody listens, as a killed gateway leaves it. The caller has locked the
    directory, because another gateway could replace the file before this one listens.

    Raises:
        OSError: somebody listens there, the file cannot be made, or it cannot be given to the group.
    """

    def __init__(self, address: UnixAddress, listener: Listener) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = address.path
        self._file: int | None = None
        try:
            _remove_stale(self._path)
            # Linux takes the mode of the file from here, so no client connects before the file has its group.
            with contextlib.suppress(OSError):
                os.fchmod(self.fileno(), _OWNER_ALONE)
            self.bind(self._path)
            self._file = os.open(self._path, _FILE_ITSELF)
            self._first_group = os.fstat(self._file).st_gid
            self.permit(listener)
            self.listen(listener.backlog)
            self.setblocking(False)
        except BaseException:
            self.close()
            raise

    def permit(self, listener: Listener) -> None:
        """Give the file the mode and the group of these settings. If it is gone, log that no client can connect.

        Raises:
            OSError: this is not permitted.
        """
        if self._file is None or not self._is_at_its_place(self._file):
            log.warning("socket file gone", address=f"unix:{self._path}", hint="restart the gateway to create it again")
            return
        # By its descriptor, because the name may belong to another file by now.
        itself = f"/proc/self/fd/{self._file}"
        group = self._first_group if listener.socket_group is None else listener.socket_group
        if group != os.fstat(self._file).st_gid:
            try:
                os.chown(itself, -1, group)
            except OSError as error:
                raise SocketGroupError(error.errno, error.strerror) from error
        os.chmod(itself, listener.socket_mode)

    def close(self) -> None:
        """Stop listening, and remove the file, unless another program has put its own there."""
        if self._file is not None:
            if self._is_at_its_place(self._file):
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
            os.close(self._file)
            self._file = None
        super().close()

    def _is_at_its_place(self, file: int) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.lstat(self._path), os.fstat(file))
        return False


@contextlib.asynccontextmanager
async def _locked(directory: Path) -> AsyncIterator[None]:
    """Keep other gateways from making sockets in a directory. Raises OSError if it stays locked or cannot be read."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(_LOCK_ATTEMPTS):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            await asyncio.sleep(_LOCK_PAUSE)
        else:
            raise TimeoutError(errno.ETIMEDOUT, "another program keeps this directory locked")
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: str) -> None:
    """Remove a socket on which nobody listens. Raises OSError if somebody does, or if this is not a socket."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # its backlog is full
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


class WatchedSocket:
    """Accepts the connections of one listening socket, one in each event loop iteration."""

    __slots__ = ("_is_readable", "_is_watched", "_listening", "_loop")

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._is_readable = asyncio.Event()
        self._is_watched = False

    async def accept(self) -> tuple[socket.socket, object]:
        """Wait for the next connection. Returns it with its peer's name.

        Raises:
            OSError: it could not be accepted. The next one may be.
        """
        while True:
            if not self._is_watched:
                self._is_watched = True
                self._loop.add_reader(self._listening, self._readable)
            await self._is_readable.wait()
            self._is_readable.clear()
            try:
                connection, name = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                # The client has gone.
                continue
            connection.setblocking(False)
            return connection, name

    def _readable(self) -> None:
        if self._is_readable.is_set():
            # Nobody accepts now, and the event loop would call this again and again.
            self.close()
        self._is_readable.set()

    def close(self) -> None:
        """Stop watching. The socket stays open."""
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._listening)
