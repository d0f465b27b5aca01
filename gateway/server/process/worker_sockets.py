"""Listening sockets for several workers: a set for each worker. The system spreads connections over them.

All sets share the socket of a Unix-domain listener: each worker accepts from it when it has time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from gateway.config.addresses import ListenAddress, UnixAddress
from gateway.config.listener_settings import Listener
from gateway.errors import ListenError
from gateway.server.listen.listening_sockets import bound, permit
from gateway.server.process.listeners import is_served_by_ipv4

log = structlog.get_logger("gateway.workers")

Handed = Mapping[ListenAddress, Sequence[Sequence[int] | None]]
"""The file descriptors of a worker's sockets, by configured address, with an entry for each listener of that address.

None: this machine cannot listen there.
"""


def descriptors_of(handed: Handed) -> list[int]:
    """All descriptors, in order."""
    return [each for groups in handed.values() for group in groups for each in group or ()]


def renumbered(handed: Handed, descriptors: Iterable[int]) -> Handed:
    """The same with other file descriptors, in the order of `descriptors_of`."""
    new = iter(descriptors)
    return {
        address: [None if group is None else [next(new) for _ in group] for group in groups]
        for address, groups in handed.items()
    }


class SocketSet:
    """The listening sockets of one worker. The supervisor keeps them while workers come and go."""

    def __init__(self) -> None:
        # For each listener with this address; None if this machine cannot listen there.
        self._sockets: dict[ListenAddress, list[list[socket.socket] | None]] = {}
        self._is_paused = False

    def add(self, address: ListenAddress, sockets: list[socket.socket] | None) -> None:
        """Add the sockets of another listener."""
        self._sockets.setdefault(address, []).append(sockets)

    def take(self, others: SocketSet) -> None:
        """Take all sockets of another set."""
        if self._is_paused:
            others.pause()
        for address, groups in others._sockets.items():
            self._sockets.setdefault(address, []).extend(groups)
        others._sockets = {}

    def keep(self, addresses: Mapping[ListenAddress, int]) -> None:
        """Close all but this many listeners of each address, the last ones first."""
        for address, groups in list(self._sockets.items()):
            while len(groups) > addresses.get(address, 0):
                _close(groups.pop() or ())
            if not groups:
                del self._sockets[address]

    def _all(self) -> Iterable[socket.socket]:
        return (each for groups in self._sockets.values() for group in groups for each in group or ())

    def handed(self, addresses: Mapping[ListenAddress, int], has: Mapping[ListenAddress, int]) -> Handed:
        """The sockets for this many listeners of each address, without those that a worker ``has``."""
        return {
            address: [
                None if group is None else [each.fileno() for each in group]
                for group in groups[has.get(address, 0) : addresses.get(address, 0)]
            ]
            for address, groups in self._sockets.items()
        }

    def pause(self) -> None:
        """Let the system give connections to other workers, until a worker begins with this set."""
        self._is_paused = True
        for each in self._all():
            if each.family == socket.AF_UNIX:
                continue  # the other workers share it
            with contextlib.suppress(OSError):
                # On Linux, it stops listening but keeps its port, and `listen` resumes.
                each.shutdown(socket.SHUT_RD)

    def end_pause(self) -> None:
        """Note that such a worker is about to begin."""
        self._is_paused = False

    def permit(self, listeners: Iterable[Listener]) -> None:
        """See `listening_sockets.permit`."""
        for listener in listeners:
            permit((each for group in self._sockets.get(listener.address, ()) for each in group or ()), listener)

    def close_shared(self) -> None:
        """Close the Unix-domain sockets, because all workers are about to drain. They have copies."""
        _close(each for each in self._all() if each.family == socket.AF_UNIX)

    def close(self) -> None:
        """Stop listening, even if workers have copies."""
        _close(self._all())


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RD)
        each.close()


async def bound_for_workers(listeners: Sequence[Listener], workers: int) -> list[SocketSet]:
    """Bind every listener for each worker. Connections wait from then on.

    Raises:
        ListenError: one cannot be bound. None is open.
    """
    sets = [SocketSet() for _ in range(workers)]
    with contextlib.ExitStack() as on_failure:
        for each in sets:
            on_failure.callback(each.close)
        for listener in listeners:
            try:
                for each, group in zip(sets, await _bound_for_each(listener, workers), strict=True):
                    each.add(listener.address, group)
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT or not is_served_by_ipv4(listener.address, listeners):
                    raise ListenError(str(listener.address), error) from error
                log.warning("no ipv6", address=str(listener.address))
                for each in sets:
                    each.add(listener.address, None)
        on_failure.pop_all()
    return sets


async def _bound_for_each(listener: Listener, workers: int) -> list[list[socket.socket]]:
    if isinstance(listener.address, UnixAddress):
        return [await bound(listener)] * workers
    names = await _free_names(listener)
    return [[_shared(family, name, listener.backlog) for family, name in names] for _ in range(workers)]


async def _free_names(listener: Listener) -> list[tuple[int, Any]]:
    """Families and addresses of a listener, with the ports that the system chose.

    They are first bound alone, because with SO_REUSEPORT two gateways of one user could share a port without noticing.
    """
    alone = await bound(listener)
    names: list[tuple[int, Any]] = [(each.family, each.getsockname()) for each in alone]
    for each in alone:
        each.close()
    return names


def _shared(family: int, name: Any, backlog: int) -> socket.socket:  # noqa: ANN401 - an address of its family
    return socket.create_server(name, family=family, backlog=backlog, reuse_port=True)


class _InheritedSocket(socket.socket):
    """A listening socket of which the supervisor has a copy, so that closing it alone would leave it listening.

    This is intended for Unix-domain sockets, which all workers share.
    """

    def close(self) -> None:
        if self.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                self.shutdown(socket.SHUT_RD)
        super().close()


class InheritedSockets:
    """A worker's side of its `SocketSet`."""

    def __init__(self, handed: Handed) -> None:
        self._left: dict[ListenAddress, deque[Sequence[int] | None]] = {}
        self.add(handed)

    def add(self, handed: Handed) -> None:
        """Add sockets for listeners that will be opened."""
        for address, groups in handed.items():
            self._left.setdefault(address, deque()).extend(groups)

    def drop(self) -> None:
        """Close the sockets for which no listener was opened."""
        for groups in self._left.values():
            for each in (each for group in groups for each in group or ()):
                os.close(each)
        self._left = {}

    async def bind(self, listener: Listener) -> list[socket.socket]:
        """Return the sockets of the next listener with this address.

        Raises:
            OSError: there are none.
        """
        left = self._left.get(listener.address)
        group = left.popleft() if left else None
        if group is None:
            raise OSError(errno.EAFNOSUPPORT, "the supervisor has no socket for this address")
        sockets = [_InheritedSocket(fileno=descriptor) for descriptor in group]
        for each in sockets:
            each.setblocking(False)
        return list(sockets)
