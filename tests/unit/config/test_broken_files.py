"""Broken files as operators write them: each gets a message that says where, what is wrong and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.loader import load
from gateway.errors import ConfigError

# What a file holds, and the start of each message.
BROKEN = {
    "a port out of range": (
        "listeners:\n  - tcp: 0.0.0.0:616133",
        "line 2, listeners[0].tcp: The number after the colon is no port: a port is a number from 0 to 65535.",
    ),
    "a star for every address": (
        'listeners:\n  - tcp: "*:61614"',
        "line 2, listeners[0].tcp: An address is written host:port. Write 0.0.0.0 as the host for every "
        "IPv4 address, [::] for every IPv6 address, a listener with each for both; 127.0.0.1 is for this machine only.",
    ),
    "an IPv6 address without quotes": (
        "listeners:\n  - tcp: [::]:61613",
        'line 2, column 11: An IPv6 address needs quotes. Put it in quotes, with its port: "[::]:61613".',
    ),
    "another IPv6 address without quotes": (
        "listeners: [{tcp: [fe80::1]:61613}]",
        "line 1, column 28: An IPv6 address needs quotes.",
    ),
    "a star in a broker's URL": ("upstream: {urls: ['amqp://*.a']}", "line 1, upstream.urls[0]: This is not the name"),
    "a list at the top": (
        "- tcp: 0.0.0.0:61613\n- b",
        "line 1: A mapping belongs here: lines of the form key: value. For example upstream: {urls:",
    ),
    "text at the top": ("# ours\nhello", "line 2: A mapping belongs here"),
    "a wrong indentation": (
        "listeners:\n  - tcp: 0.0.0.0:61613\n   backlog: 5",
        "line 3, column 4: The indentation does not fit the lines above. Begin all keys of one mapping in the same",
    ),
    "a key below a value": (
        "drain_timeout: 5\n  workers: 2",
        "line 2, column 10: The indentation does not fit: the key in the line before has a value already.",
    ),
    "a key beside a list": (
        "listeners:\n  - tcp: 0.0.0.0:61613\n  backlog: 5",
        "line 3, column 3: Here is a key, and the lines above it in this column are a list. Begin it with a dash",
    ),
    "a tab": ("logging:\n\tlevel: info", "line 2, column 1: YAML does not allow a tab here. Write spaces."),
    "no space behind a colon": (
        "workers:2\ndrain_timeout: 5",
        "line 2, column 14: A key ends with a colon and a space",
    ),
    "no dash": (
        "listeners:\n  tcp: 0.0.0.0:61613",
        "line 1, listeners: A list belongs here, and this is a mapping. Write a dash and a space before the first key",
    ),
    "no list": ("defaults: {loopback_users: }", "line 1, defaults.loopback_users: A list belongs here, and this key"),
    "a URL to listen on": (
        "listeners: [{tcp: 'tcp://0.0.0.0:61613'}]",
        "line 1, listeners[0].tcp: An address is written host:port. Delete what stands before the host",
    ),
    "a broker without a scheme": (
        "upstream: {urls: ['rabbit-a:5672']}",
        "line 1, upstream.urls[0]: A broker's URL is amqp://host:port, or amqps://host:port with TLS. Write amqp://",
    ),
    "brokers in one text": (
        "upstream: {urls: ['amqp://a:5672,amqp://b:5672']}",
        "line 1, upstream.urls[0]: Here is more than one URL. Make each an entry of the list",
    ),
    "a broker's URL, with its passcode, as a key": (
        "upstream: {'amqp://guest:geheim@a:5672': 1}",
        "line 1, upstream.amqp://guest:***@a:5672: There is no such key here.",
    ),
    "a key in another place": (
        "default_user: {login: a, passcode: b}",
        "line 1, default_user: There is no such key here. It belongs under defaults.",
    ),
    "a mapping for a word": (
        "defaults: {links: {shared: true}}",
        "line 1, defaults.links: This is one of shared, dedicated.",
    ),
    "an old version": (
        "listeners: [{tcp: a:1, tls: {min_version: 1.1}}]",
        "line 1, listeners[0].tls: The key cert_file is missing.",
        "line 1, listeners[0].tls: The key key_file is missing.",
        "line 1, listeners[0].tls.min_version: This is one of 1.2, 1.3.",
    ),
    "no space behind a dash": (
        "listeners:\n  -tcp: 0.0.0.0:61613",
        "line 1, listeners: A list belongs here. Write a space after each dash.",
    ),
    "a second document": (
        "workers: 2\n---\nworkers: 3",
        "line 2, column 1: A second YAML document begins here, and a configuration is one document. Delete the line",
    ),
    "an open quote": ("default_vhost: 'a\nworkers: 2", "line 1, column 16: The quote that opens here is not closed."),
    "an apostrophe": ("default_vhost: 'it's'", "line 1, column 20: The quoted text before this has ended already."),
    "a backslash in quotes": ('default_vhost: "a\\,b"', "line 1, column 19: In double quotes a backslash begins an"),
    "an open brace": ("logging: {level: info\nworkers: 2", "line 1, column 10: The { or [ that opens here is not"),
    "a brace at the end": ("listeners: [", "line 1, column 13: The file ends here, and a { or [ in it is not closed."),
    "braces in braces": (
        "upstream: {urls: [amqp://${HOST}]}",
        'line 1, column 27: Inside { } and [ ], text with braces or brackets needs quotes. Write "/queue/{login}.*"',
    ),
    "a word in braces": (
        "defaults:\n  default_user: {user}",
        "line 2, defaults.default_user: Within { } stands key: value, and here is text without a colon. For a variable",
    ),
    "a word in braces beside keys": (
        "defaults:\n  default_user: {login: a, passcode: b, user}",
        "line 2, defaults.default_user: Within { } stands key: value, and here is text without a colon.",
    ),
    "no space behind a colon in braces": (
        "defaults:\n  default_user: {login: app, passcode:secret}",
        "line 2, defaults.default_user.passcode: A space belongs after this colon, or the text needs quotes. Write",
    ),
    "no space behind any colon in braces": (
        "defaults: {default_user: {login:app,\n  passcode:secret}}",
        "line 1, defaults.default_user.login: A space belongs after this colon, or the text needs quotes.",
        "line 2, defaults.default_user.passcode: A space belongs after this colon, or the text needs quotes.",
    ),
    "a colon in a name in braces": (
        "defaults: {certificate_users: {users: {app:secret}}}",
        "line 1, defaults.certificate_users.users: A space belongs after this colon",
    ),
    "a comma in braces": (
        "defaults: {default_user: {login: app, passcode: sec,ret}}",
        "line 1, defaults.default_user: Within { } stands key: value, and here is text without a colon. For a variable "
        'write "${NAME}", and put text with a comma or braces in quotes.',
    ),
    "braces for a list": (
        "upstream: {urls: {amqp://h:5672}}",
        "line 1, upstream.urls: A list belongs here. Write it as [one, two], or",
    ),
    "a word in braces for text": (
        "defaults: {default_user: {login: {user}, passcode: a}}",
        "line 1, defaults.default_user.login: Text is needed here, and this is a mapping. For a variable",
    ),
    "a tag": ("defaults: {default_user: {login: a, passcode: !x b}}", "line 1, defaults.default_user.passcode: YAML"),
    "a colon in text": ("default_vhost: a: b", "line 1, column 17: Text that holds a colon and a space needs quotes."),
    "a special character": (
        "default_vhost: @a",
        "line 1, column 16: Text that starts with one of * & ! | > @ % ` needs",
    ),
    "an arrow before text": ("default_vhost: >a", "line 1, column 17: Text that starts with one of * & ! | > @ % `"),
    "a star before text": ("default_vhost: *.a", "line 1, column 17: Text that starts with one of * & ! | > @ % `"),
    "a list beside its key": ("listeners: - tcp: a:1", "line 1, column 12: A list begins on a line of its own"),
    "a comma too many": ("logging: {level: info,, format: json}", "line 1, column 23: A value belongs here"),
    "a character of no text": (
        "workers: 2\nlogging: \x07",
        "line 2, column 10: YAML does not allow the character here.",
    ),
    "admin: true": ("admin: true", "line 1, admin: An address, a mapping or off belongs here. For example 127.0.0.1:"),
    "admin: 15672": ("admin: 15672", "line 1, admin: An address, a mapping or off belongs here. For example 127.0."),
    "tls: true": (
        "listeners:\n  - tcp: 0.0.0.0:61614\n    tls: true",
        "line 3, listeners[0].tls: A mapping belongs here: lines of the form key: value. For example tls: {cert_file:",
    ),
    "the broker's tls: true": (
        "upstream: {urls: [amqps://a], tls: true}",
        "line 1, upstream.tls: A mapping belongs here: lines of the form key: value. For example tls: {ca_file:",
    ),
    "certificate_login: true": (
        "listeners:\n  - tcp: 0.0.0.0:61614\n    tls: {certificate_login: true, cert_file: /dev/null, key_file: x}",
        "line 3, listeners[0].tls.cert_file: This file holds no certificate",
        "line 3, listeners[0].tls.key_file: This file cannot be read",
        "line 3, listeners[0].tls.certificate_login: A mapping belongs here: lines of the form key: value. For example "
        "certificate_login: {name: common_name}.",
        "line 3, listeners[0].tls.certificate_login: No client is asked for a certificate here.",
    ),
    "journal: off": (
        "defaults:\n  journal: off",
        "line 2, defaults.journal: A mapping belongs here: lines of the form ",
    ),
    "a size of 10k": (
        "defaults:\n  max_frame_size: 10k",
        "line 2, defaults.max_frame_size: A size is a number of bytes, or text like 512B, 64KiB or 4MiB. Write KiB, as",
    ),
    "a count of 10k": (
        "listeners:\n  - tcp: 0.0.0.0:61613\n    max_connections: 10k",
        "line 3, listeners[0].max_connections: A whole number is needed here. Write all digits and nothing else, as in",
    ),
    "a duration of 5 minutes": (
        "drain_timeout: 5 minutes",
        "line 1, drain_timeout: A duration is a number of seconds, or text like 500ms, 30s, 5m, 1h30m or 7d.",
    ),
    "every origin": (
        'listeners:\n  - websocket: 0.0.0.0:15674\n    allowed_origins: ["*"]',
        "line 3, listeners[0].allowed_origins[0]: `*` is not a valid origin. To let every web page connect, leave",
    ),
    "ssl": (
        "listeners: [{tcp: a:1, ssl: {}}]",
        "line 1, listeners[0].ssl: There is no such key here. Did you mean tls?",
    ),
    "a key misspelled beside itself": (
        "listeners: [{tcp: a:1, tls: null, tsl: {}}]",
        "line 1, listeners[0].tsl: There is no such key here. Did you mean tls? That key stands here already.",
    ),
    "words of other servers": (
        "defaults: {default_user: {user: a, password: b}}",
        "line 1, defaults.default_user: The key login is missing.",
        "line 1, defaults.default_user: A passcode is missing.",
        "line 1, defaults.default_user.user: There is no such key here. Did you mean login?",
        "line 1, defaults.default_user.password: There is no such key here. Did you mean passcode?",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_mistake_says_where_it_is_what_is_wrong_and_what_to_write(name: str, tmp_path: Path) -> None:
    text, *wanted = BROKEN[name]
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        _ = load(file, environment={})
    for mistake, start in zip(caught.value.mistakes, wanted, strict=True):
        assert str(mistake).startswith(start)
        assert "Did you mean" not in str(mistake) or "Did you mean" in start, "it guesses wrong"
