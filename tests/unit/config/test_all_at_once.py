"""Every mistake of a file is told in one go, whatever else is wrong in it; what only follows from another is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.loader import parse
from gateway.errors import ConfigError
from tests.support.certificates import Authority

EVERYTHING = """
workers: many
listeners:
  - tcp: nowhere
  - {tcp: "127.0.0.1:1", frame: text, compression: true, backlog: x}
  - {tcp: "127.0.0.1:2", websocket: "127.0.0.1:3", login_timeout: x}
  - tcp: 127.0.0.1:1
    tls: {cert_file: text, key_file: text, crl_file: text, min_version: "1.3", max_version: "1.2"}
  - tcp: 127.0.0.1:4
    tls: {cert_file: weak.pem, key_file: weak.key, ciphers: "ECDHE+AESGCM:@SECLEVEL=5"}
upstream:
  urls: [http://a]
  tls: {cert_file: weak.pem}
defaults:
  lnks: dedicated
  prefetch: {default: 9, max: 5}
  destination_rules:
    - {action: alow, destination: /queue/*}
    - {action: deny, destination: /topic/*}
    - {action: rewrite, destination: /queue/a, mandatory: true, on: subscribe}
    - {action: allow, destination: /topic/b, logins: [a]}
  queue_arguments:
    - {destination: /queue/*, arguments: {x-expires: soon, max-length: 1, x-queue-type: fast}}
virtual_hosts:
  /:
    journal: {ship: {to: /srv/journals}}
  orders:
    journal: {node: a, rotate_bytes: 4XB}
    aliases: [/]
"""

WANTED = [
    ("workers", "A whole number"),
    ("listeners[0].tcp", "written host:port"),
    ("listeners[1].backlog", "A whole number"),
    ("listeners[1].compression", "for websocket listeners only"),
    ("listeners[1].frame", "for websocket listeners only"),
    ("listeners[2].login_timeout", "A duration"),
    ("listeners[2]", "either tcp, websocket or unix"),
    ("listeners[3].tcp", "already taken by listeners[1].tcp"),
    ("listeners[3].tls.cert_file", "no certificate"),
    ("listeners[3].tls.key_file", "no private key"),
    ("listeners[3].tls.crl_file", "no list of revoked"),
    ("listeners[3].tls", "no client is asked"),
    ("listeners[3].tls", "no version is left"),
    ("listeners[4].tls.ciphers", "OpenSSL refuses the certificate"),
    ("upstream.urls[0]", "amqp://host:port"),
    ("upstream.tls", "cert_file needs key_file"),
    ("defaults.lnks", "no such key"),
    ("defaults.prefetch.default", "default is more than max"),
    ("defaults.destination_rules[0].action", "one of allow, deny, rewrite"),
    ("defaults.destination_rules[2]", "needs to"),
    ("defaults.destination_rules[2]", "messages that are sent"),
    ("defaults.destination_rules[3]", "defaults.destination_rules[1] comes first"),
    ("defaults.queue_arguments[0].arguments.x-expires", "whole number"),
    ("defaults.queue_arguments[0].arguments.max-length", "begin with x-"),
    ("defaults.queue_arguments[0].arguments.x-queue-type", "one of classic"),
    ("virtual_hosts./.journal", "retain_bytes has to bound them"),
    ("virtual_hosts.orders.journal", "node differs"),
    ("virtual_hosts.orders.journal", "ship differs"),
    ("virtual_hosts.orders.journal.rotate_bytes", "A size"),
    ("virtual_hosts.orders.aliases[0]", "name of another virtual host"),
]


def told(text: str, directory: Path) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as refused:
        _ = parse(text, directory=directory, environment={})
    return [(mistake.path, mistake.sentence) for mistake in refused.value.mistakes]


def test_all_mistakes_are_told_in_one_go(tmp_path: Path) -> None:
    identity = Authority.make(tmp_path, "authority").identify(tmp_path, "weak")
    assert (identity.certificate.name, identity.key.name) == ("weak.pem", "weak.key")
    (tmp_path / "text").write_text("text")
    found = told(EVERYTHING, tmp_path)
    missing = [each for each in WANTED if not any(path == each[0] and each[1] in sentence for path, sentence in found)]
    assert not missing
    assert len(found) == len(WANTED)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            "defaults: {prefetch: {default: 9, max: 5x}}\nvirtual_hosts: {/: {prefetch: {max: 7}}}",
            "defaults.prefetch.max",
        ),
        ("defaults: {journal: {ship: {to: /a}, retain_bytes: 2x}}", "defaults.journal.retain_bytes"),
        ("defaults: {journal: {ship: {to: /a}, retain_byts: 2GiB}}", "defaults.journal.retain_byts"),
        ("listeners: [{tpc: a:1}]", "listeners[0].tpc"),
        (
            "defaults: {destination_rules: [{action: deny, destination: /*, login: [a]},"
            " {action: deny, destination: /topic/*}]}",
            "defaults.destination_rules[0].login",
        ),
        ("virtual_hosts: {/: {amqp_vhost: 5}}", "virtual_hosts./.amqp_vhost"),
    ],
)
def test_what_only_follows_from_a_mistake_is_not_told(text: str, path: str, tmp_path: Path) -> None:
    assert [found for found, _ in told(text, tmp_path)] == [path]


def test_a_misspelt_key_hides_no_mistake_below_it(tmp_path: Path) -> None:
    text = """\
default:
  prefetch: {default: lots}
  journl: {retain: x, levl: session}
listners:
  - tcp: 61613
  - {tcp: 127.0.0.1:99999}
virtual_hosts: {/: {upstreem: {urls: [http://a]}}}
"""
    assert [path for path, _ in told(text, tmp_path)] == [
        "default",
        "default.prefetch.default",
        "default.journl",
        "default.journl.retain",
        "default.journl.levl",
        "listners",
        "listners[0].tcp",
        "listners[1].tcp",
        "virtual_hosts./.upstreem",
        "virtual_hosts./.upstreem.urls[0]",
    ]
