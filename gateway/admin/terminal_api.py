"""A client of the admin listener's API, for the command line."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from itertools import count, islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from gateway.admin.listing import MAX_PAGE_SIZE
from gateway.admin.terminal_output import Item, clean
from gateway.client_tls import client_context
from gateway.config.config_files import secret_in
from gateway.errors import ConfigError, GatewayError, Mistake, UsageError

DEFAULT_URL: Final = "http://127.0.0.1:15693"
URL_VARIABLE: Final = "STOMP_GATEWAY_URL"
USER_VARIABLE: Final = "STOMP_GATEWAY_USER"
PASSCODE_FILE_VARIABLE: Final = "STOMP_GATEWAY_PASSCODE_FILE"
PASSCODE_VARIABLE: Final = "STOMP_GATEWAY_ADMIN_PASSCODE"
# Its name in 0.1; it still counts.
_OLD_URL_VARIABLE: Final = "STOMP_GATEWAY_ADMIN_URL"

_UNIX: Final = "unix"
_TIMEOUT: Final = 10.0
_MAX_ANSWER: Final = 64 * 1024 * 1024
_MAX_LINE: Final = 1024 * 1024
_MAX_ERROR_TEXT: Final = 500


class AdminError(GatewayError):
    """The admin listener does not answer, or refuses. The text says what to do."""


class AdminApi:
    """The API of the gateway that the options or the environment name.

    Raises:
        UsageError: the options contradict each other, or a file cannot be read.
    """

    def __init__(self, options: Namespace) -> None:
        variables = (os.environ.get(URL_VARIABLE), os.environ.get(_OLD_URL_VARIABLE))
        self.url = _checked_url(next(filter(None, (options.url, *variables, DEFAULT_URL)))).rstrip("/")
        parts = urlsplit(self.url)
        self._path = "" if parts.scheme == _UNIX else parts.path
        address = (parts.hostname or "", parts.port)
        self._connect: Callable[[], http.client.HTTPConnection] = (
            partial(_UnixConnection, parts.path)
            if parts.scheme == _UNIX
            else partial(http.client.HTTPConnection, *address, timeout=_TIMEOUT)
        )
        if parts.scheme == "https":
            tls = _tls(options)
            self._connect = partial(http.client.HTTPSConnection, *address, timeout=_TIMEOUT, context=tls)
        user = options.user or os.environ.get(USER_VARIABLE)
        self._has_user = bool(user)
        self._headers = {"Accept": "application/json"}
        passcode = _passcode(options, user)
        if self._has_user:
            pair = base64.b64encode(f"{user}:{passcode}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"

    def ask(self, path: str, query: Mapping[str, object] | None = None, *, method: str = "GET") -> Any:  # noqa: ANN401 - JSON has every type
        """Send a request, and return the JSON object of the answer; None if it has no content.

        The path is below `/api/`, its parts quoted. Parameters without a value are left out.

        Raises:
            AdminError: the gateway does not answer, or refuses.
            ConfigError: it has read a configuration that has mistakes.
        """
        with self._answer(method, path, query or {}) as response:
            status, body = response.status, response.read(_MAX_ANSWER)
        if status == HTTPStatus.NO_CONTENT:
            return None
        answer = _decoded(body)
        if status == HTTPStatus.OK and answer is not None:
            return answer
        if status == HTTPStatus.UNPROCESSABLE_ENTITY and isinstance(answer, dict):
            raise _config_error(answer)
        raise AdminError(self._refusal(status, answer))

    def stream(self, path: str, query: Mapping[str, object]) -> Iterator[Item]:
        """Send a POST, and return the JSON objects of the answer, each as soon as its line has come.

        Raises:
            AdminError: the gateway does not answer, refuses, or is silent for too long.
        """
        with self._answer("POST", path, query) as response:
            if response.status != HTTPStatus.OK:
                raise AdminError(self._refusal(response.status, _decoded(response.read(_MAX_ANSWER))))
            while line := response.readline(_MAX_LINE):
                # An empty one only shows that the gateway is there.
                if (item := _decoded(line)) is not None:
                    yield item

    def each(
        self, path: str, query: Mapping[str, object], limit: int, missing: Callable[[Sequence[int]], None]
    ) -> Iterator[Item]:
        """The items of a list, page by page, up to ``limit`` of them; 0 for all.

        The list may change between two pages: an item that is on both is given once. For each page ``missing`` gets the
        numbers of the workers whose items it lacks.
        """
        size = min(limit or MAX_PAGE_SIZE, MAX_PAGE_SIZE)

        def items() -> Iterator[Item]:
            seen: set[str] = set()
            for page in count(1):
                answer = self.ask(path, {**query, "page_size": size, "page": page})
                missing(missing_workers(answer))
                for item in answer["items"]:
                    if "id" not in item:
                        yield item
                    elif item["id"] not in seen:
                        seen.add(item["id"])
                        yield item
                if page * size >= answer["total"]:
                    return

        return islice(items(), limit or None)

    @contextmanager
    def _answer(self, method: str, path: str, query: Mapping[str, object]) -> Iterator[http.client.HTTPResponse]:
        parameters = {name: value for name, value in query.items() if value not in (None, "")}
        target = f"{self._path}/api/{path}" + (f"?{urlencode(parameters)}" if parameters else "")
        connection = self._connect()
        try:
            connection.request(method, target, headers=self._headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(f"{self.url}: {self._failure(error)}") from None
        finally:
            connection.close()

    def _failure(self, error: OSError | http.client.HTTPException) -> str:
        if isinstance(error, ConnectionRefusedError):
            return (
                "nothing listens there. Is the gateway running on that machine? Its configuration says under admin "
                f"where it listens; name another place with --url or {URL_VARIABLE}."
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {error.verify_message}. Name its authority with --ca-file."
        if isinstance(error, ssl.SSLError):
            return f"TLS failed: {error.reason or error}. Does it speak plain http: there?"
        if isinstance(error, TimeoutError):
            return f"no answer within {_TIMEOUT:.0f} seconds. Is this the gateway's admin listener, and is it well?"
        if isinstance(error, (http.client.HTTPException, ConnectionError)):
            return "what listens there does not speak HTTP. Is it a port for STOMP or AMQP, or one with TLS (https:)?"
        return f"{error.strerror or error}. Check --url or {URL_VARIABLE}."

    def _refusal(self, status: int, answer: object) -> str:
        text = str(answer.get("error", "")) if isinstance(answer, dict) else ""
        text = clean(text[:_MAX_ERROR_TEXT])
        if status == HTTPStatus.UNAUTHORIZED:
            wrong = "the user or the passcode is wrong. Check --user and --passcode-file, or their variables."
            missing = (
                f"it asks for a user. Give --user and --passcode-file, or {USER_VARIABLE} and {PASSCODE_FILE_VARIABLE}."
            )
            return f"{self.url}: {wrong if self._has_user else missing}"
        if text:
            return f"{self.url}: {text}"
        return (
            f"{self.url}: this is not a stomp-gateway's admin listener (HTTP status {status}). That has "
            "port 15693 unless configured otherwise, and RabbitMQ's own metrics have 15692. "
            f"Name it with --url or {URL_VARIABLE}."
        )


def missing_workers(answer: Mapping[str, Any]) -> list[int]:
    """The numbers of the workers that did not answer, so that their items are missing in a list."""
    # Older gateways do not say it.
    return list(answer.get("missing_workers", ()))


def silence_of(workers: Collection[int]) -> str:
    """In words, that these workers do not answer."""
    if len(workers) == 1:
        return f"worker {min(workers)} does not answer"
    return f"workers {', '.join(map(str, sorted(workers)))} do not answer"


def _config_error(answer: Mapping[str, Any]) -> ConfigError:
    """The mistakes of a configuration, as `stomp-gateway check` reports them."""

    def text(value: object) -> str:
        return clean(str(value or ""))

    mistakes = [
        Mistake(text(each["path"]), text(each["sentence"]), text(each["suggestion"]) or None, each["line"])
        for each in answer["mistakes"]
    ]
    return ConfigError(mistakes, text(answer["file"]))


def quoted(part: str) -> str:
    """A part of a path, percent-encoded."""
    return quote(part, safe="")


def _decoded(body: bytes) -> dict[str, Any] | None:
    try:
        answer: object = json.loads(body)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix-domain socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._file = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._file)


def _checked_url(url: str) -> str:
    if url.startswith(f"{_UNIX}:/"):
        return url
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise UsageError(f"the admin listener's URL must be like {DEFAULT_URL} (--url or {URL_VARIABLE}).")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "no user and no passcode in the URL: give --user, and the passcode in a file or the environment."
        )
    if parts.query or parts.fragment or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"the admin listener's URL must be like {DEFAULT_URL}, without anything after it.")
    return text


def _passcode(options: Namespace, user: str | None) -> str:
    if options.passcode is not None:
        raise UsageError(
            f"a passcode on the command line can be seen by others: use --passcode-file or {PASSCODE_FILE_VARIABLE}."
        )
    if options.passcode_file is not None and not user:
        raise UsageError(f"--passcode-file needs --user or {USER_VARIABLE}.")
    file = options.passcode_file or os.environ.get(PASSCODE_FILE_VARIABLE)
    if not file or not user:
        return os.environ.get(PASSCODE_VARIABLE, "")
    try:
        return secret_in(Path(file)).rstrip("\r\n")
    except ValueError as error:
        place = "--passcode-file" if options.passcode_file else PASSCODE_FILE_VARIABLE
        raise UsageError(f"{place} {file}: {error}") from None


def _tls(options: Namespace) -> ssl.SSLContext:
    try:
        return client_context(options.ca_file, verify=not options.insecure)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca-file {options.ca_file}: {error.strerror or error}.") from None
