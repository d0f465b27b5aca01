"""What passes every check and cannot work, or does nothing, is a warning with its place."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.config.config_warnings import certificate_warnings
from gateway.config.loader import parse
from tests.support.certificates import Authority

TLS = "cert_file: a.pem, key_file: a.key, ca_file: ca.pem, verify: optional"

ROOT = Path(__file__).parents[3]

# What a file holds, and the place and a part of each warning.
ODD: dict[str, tuple[str, *tuple[tuple[str, str], ...]]] = {
    "certificates of nobody": (
        f"listeners: [{{tcp: '0.0.0.0:1', tls: {{{TLS}, certificate_login: {{}}}}}}]",
        ("listeners[0].tls.certificate_login", "No virtual host has certificate_users"),
    ),
    "users of no certificates": (
        "defaults: {certificate_users: {everyone: {login: a, passcode: b}}}",
        ("defaults.certificate_users", "no listener has certificate_login"),
    ),
    "an index without alternative names": (
        f"listeners: [{{tcp: '0.0.0.0:1', tls: {{{TLS}, certificate_login: {{name: common_name, san_index: 1}}}}}}]\n"
        "defaults: {certificate_users: {everyone: {login: a, passcode: b}}}",
        ("listeners[0].tls.certificate_login.san_index", "name is common_name"),
    ),
    "ciphers that do nothing": (
        f"listeners: [{{tcp: '0.0.0.0:1', tls: {{{TLS}, ciphers: 'TLS_AES_128_GCM_SHA256:"
        "AESGCM+aECDSA:TYPO:!RC4:ODD'}}]",
        ("listeners[0].tls.ciphers", "OpenSSL leaves out what it does not know: names 3, 5 of the list."),
        ("listeners[0].tls.ciphers", "Ciphers of TLS 1.3 have no effect here, since all of them are always on: name 1"),
    ),
    "ciphers of a version that is off": (
        f"listeners: [{{tcp: '0.0.0.0:1', tls: {{{TLS}, min_version: 1.3, ciphers: ECDHE+AESGCM:ODD}}}}]",
        ("listeners[0].tls.ciphers", "only TLS 1.3 is spoken here"),
    ),
    "ciphers for another key": (
        f"listeners: [{{tcp: '0.0.0.0:1', tls: {{{TLS}, ciphers: ECDHE+aRSA+AESGCM}}}}]",
        ("listeners[0].tls.ciphers", "the kind of key that the certificate has, so no client with TLS 1.2 can connect"),
    ),
    "ciphers for nobody": (
        f"admin: {{tls: {{{TLS}, max_version: 1.2, ciphers: ECDHE+aRSA+AESGCM}}}}",
        ("admin.tls.ciphers", "so nobody can connect"),
    ),
    "web pages of this machine": (
        "listeners: [{websocket: '0.0.0.0:15674'}]",
        ("listeners[0].websocket", "Any web page in a browser on this machine can connect without a login"),
    ),
    "web pages everywhere": (
        "listeners: [{websocket: '0.0.0.0:15674'}]\ndefaults: {default_user: {login: a, passcode: b}}",
        ("listeners[0].websocket", "Any web page in a browser can connect without a login"),
    ),
    "silence that nobody breaks": (
        "listeners: [{websocket: '0.0.0.0:1', ping_interval: 2m, allowed_origins: [https://a]}]",
        ("listeners[0].idle_timeout", "no ping asks it"),
    ),
    "silence without pings": (
        "listeners: [{websocket: '0.0.0.0:1', ping_interval: 0, allowed_origins: [https://a]}]",
        ("listeners[0].ping_interval", "no ping asks it"),
    ),
    "no CONNECT and no user": (
        "listeners: [{tcp: '0.0.0.0:1', implicit_connect: true}]\ndefaults: {default_user: null}",
        ("listeners[0].implicit_connect", "no default_user, so every client without CONNECT is refused"),
    ),
    "no CONNECT from elsewhere": (
        "listeners: [{tcp: '0.0.0.0:1', implicit_connect: true}]",
        ("listeners[0].implicit_connect", "clients of other machines without CONNECT are refused"),
    ),
    "a default user for nobody": (
        "listeners: [{tcp: '0.0.0.0:1'}]\ndefaults: {default_user: {login: guest, passcode: other}}",
        ("defaults.default_user", "is among loopback_users"),
    ),
    "a login shorter than a dial": (
        "listeners: [{tcp: '0.0.0.0:1', login_timeout: 3s}]",
        ("listeners[0].login_timeout", "closed before a silent broker has had its connect_timeout"),
    ),
    "a login shorter than its delay": (
        "failed_logins: {delay: 20s}",
        ("listeners[0].login_timeout", "gets Login timeout instead"),
    ),
    "one address for all": (
        "listeners: [{tcp: '127.0.0.1:1', max_connections_per_address: 9, max_unauthenticated_per_address: 5}]",
        ("listeners[0].max_connections_per_address", "they share this number"),
        ("listeners[0].max_unauthenticated_per_address", "they share this number"),
    ),
    "networks that are denied, too": (
        "listeners: [{tcp: 'a:1', allowed_networks: [10.1.0.0/16, 11.0.0.0/8], proxy_protocol: true,"
        " trusted_proxies: ['::1', '2001:db8::/32'], denied_networks: ['::/0', '::ffff:10.0.0.0/104']}]",
        ("listeners[0].allowed_networks[0]", "in denied_networks, too"),
        ("listeners[0].trusted_proxies[0]", "in denied_networks, too"),
        ("listeners[0].trusted_proxies[1]", "in denied_networks, too"),
    ),
    "networks of operators": (
        "admin: {address: '127.0.0.1:1', allowed_networks: [10.1.0.0/16], denied_networks: [10.0.0.0/8]}",
        ("admin.allowed_networks[0]", "in denied_networks, too"),
        ("admin.allowed_networks", "Nobody can connect"),
    ),
    "networks of operators on a file": (
        "admin: {address: 'unix:/run/a.sock', denied_networks: [10.0.0.0/8]}",
        ("admin.denied_networks", "no effect on a Unix-domain socket"),
    ),
    "networks of other machines": (
        "listeners: [{tcp: 'localhost:1', allowed_networks: [10.0.0.0/8]}, {tcp: '127.0.0.1:2', proxy_protocol: true,"
        " trusted_proxies: [10.0.0.0/8], allowed_networks: [10.0.0.0/8]}]",
        ("listeners[0].allowed_networks", "Nobody can connect"),
        ("listeners[1].trusted_proxies", "Nobody can connect"),
    ),
    "networks that are denied in halves": (
        "listeners: [{tcp: '0.0.0.0:1', allowed_networks: [10.0.0.0/8], denied_networks: [10.128.0.0/9, 10.0.0.0/9]}]",
        ("listeners[0].allowed_networks[0]", "in denied_networks, too"),
    ),
    "networks of everybody": (
        "listeners: [{tcp: '0.0.0.0:1', denied_networks: [0.0.0.0/0], allowed_networks: [10.0.0.0/8]},"
        " {tcp: '[::]:2', denied_networks: ['::/1', '8000::/1']}, {tcp: '127.0.0.1:3', denied_networks: [127.0.0.0/8]},"
        " {tcp: 'a:4', denied_networks: ['::/0', 0.0.0.0/0]}]",
        *((f"listeners[{number}].denied_networks", "everybody who reaches this address") for number in range(4)),
    ),
    "networks of another version": (
        "listeners: [{tcp: '0.0.0.0:1', allowed_networks: ['2001:db8::/32']}, {tcp: '[::]:2', proxy_protocol: true,"
        " trusted_proxies: [10.0.0.0/8]}]\nadmin: {address: '127.0.0.1:3', allowed_networks: ['::1']}",
        ("listeners[0].allowed_networks", "an address of IPv4, and none of these networks is"),
        ("listeners[1].trusted_proxies", "an address of IPv6, and none of these networks is"),
        ("admin.allowed_networks", "an address of IPv4, and none of these networks is"),
    ),
    "addresses that anybody can claim": (
        "listeners: [{tcp: '0.0.0.0:1', proxy_protocol: true}, {websocket: 'a:2', proxy_protocol: true,"
        " allowed_origins: [https://a]}, {unix: p, proxy_protocol: true, socket_mode: '0666'}]",
        ("listeners[0].proxy_protocol", "can claim any address by a PROXY header, also that of this machine"),
        ("listeners[1].proxy_protocol", "can claim any address by a PROXY header, also that of this machine"),
        ("listeners[2].socket_mode", "Every user of this machine can connect here and claim any address"),
    ),
    "lock-outs that are off": (
        "failed_logins: {lock_out_for: 1h, lock_out_except: []}",
        ("failed_logins.lock_out_except", "no effect without lock_out_after"),
        ("failed_logins.lock_out_for", "no effect without lock_out_after"),
    ),
    "lock-outs of everybody": (
        "listeners: [{tcp: '0.0.0.0:1'}, {tcp: '127.0.0.1:2'}]\n"
        "failed_logins: {lock_out_after: 50, lock_out_except: [10.0.0.0/8]}",
        ("failed_logins.lock_out_except", "A client of listeners[1] that cannot log in"),
    ),
    "TLS's port without TLS": ("upstream: {urls: [amqp://a:5671]}", ("upstream.urls[0]", "for TLS, and amqp is not")),
    "TLS on the plain port": ("upstream: {urls: [amqps://a:5672]}", ("upstream.urls[0]", "without TLS, and amqps is")),
    "another service": (
        "virtual_hosts: {/: {upstream: {urls: [amqp://a:15672]}}}",
        ("virtual_hosts./.upstream.urls[0]", "usually for RabbitMQ's management"),
    ),
    "the gateway itself": (
        "listeners: [{tcp: '0.0.0.0:5673'}]\nupstream: {urls: [amqp://127.0.0.1:5673]}",
        ("upstream.urls[0]", "the gateway's own address listeners[0]"),
    ),
    "the gateway itself by its name": (
        "listeners: [{tcp: 'localhost:5673'}]\nupstream: {urls: ['amqp://[::1]:5673']}",
        ("upstream.urls[0]", "the gateway's own address listeners[0]"),
    ),
    "a broker twice": ("upstream: {urls: [amqp://a, amqp://a:5672]}", ("upstream.urls[1]", "in the list already")),
    "a pattern of names": (
        "virtual_hosts: {/: {aliases: [a, '*.example.org', 'https://a']}, 'a.*': }",
        ("virtual_hosts./.aliases[1]", "compared exactly"),
        ("virtual_hosts./.aliases[2]", "no URL"),
        ('virtual_hosts["a.*"]', "compared exactly"),
    ),
    "rules that restrict nothing": (
        "defaults: {destination_rules: [{action: allow, destination: /queue/a}]}",
        ("defaults.destination_rules", "These rules restrict nothing"),
    ),
    "a temporary quorum queue": (
        "defaults: {queue_arguments: [{destination: /temp-queue/*, arguments: {x-queue-type: quorum}}]}",
        ("defaults.queue_arguments[0].arguments.x-queue-type", "a temporary queue is exclusive"),
    ),
    "arguments of other types": (
        "defaults:\n  queue_arguments:\n"
        "    - {destination: /queue/a, arguments: {x-queue-type: quorum, x-max-priority: 9, x-delivery-limit: 5}}\n"
        "    - {destination: /queue/b, arguments: {x-queue-type: stream, x-expires: 9, x-max-age: 7D}}\n"
        "    - {destination: /queue/c, arguments: {x-queue-type: classic, x-max-age: 7D}}\n"
        "    - {destination: /queue/d, arguments: {x-delivery-limit: 5}}",
        (
            "defaults.queue_arguments[0].arguments.x-max-priority",
            "RabbitMQ refuses to declare a quorum queue with this",
        ),
        ("defaults.queue_arguments[1].arguments.x-expires", "RabbitMQ refuses to declare a stream queue with this"),
        ("defaults.queue_arguments[2].arguments.x-max-age", "RabbitMQ refuses to declare a classic queue with this"),
    ),
    "sessions that go on, although every ERROR closes": (
        "defaults: {conformance: strict, on_send_error: {action: keep}}",
        ("defaults.on_send_error.action", "with conformance strict every ERROR closes"),
    ),
    "sessions that go on, and do not know with what": (
        "virtual_hosts: {/: {confirms: on_receipt, on_send_error: {action: log}}}",
        ("virtual_hosts./.on_send_error.action", "it has to confirm all of them"),
    ),
    "a burst of nothing": ("defaults: {limits: {user: {burst: 9s}}}", ("defaults.limits.user.burst", "without a rate")),
    "more for one than for all": (
        "virtual_hosts: {/: {limits: {sessions: 5, user: {sessions: 6}}}}",
        ("virtual_hosts./.limits.user.sessions", "of the whole virtual host is less"),
    ),
    "a sample of counts": ("defaults: {journal: {sample: 0.1}}", ("defaults.journal.sample", "at level session")),
    "headers of counts": (
        "defaults: {journal: {header_values: [a]}}",
        ("defaults.journal.header_values", "at level session"),
    ),
    "a key of plain logins": (
        "defaults: {journal: {users_key_file: a.key}}",
        ("defaults.journal.users_key_file", "users is plain"),
    ),
    "segments for nobody": (
        "defaults: {journal: {retain_bytes: 1MiB}}",
        ("defaults.journal.retain_bytes", "deleted as soon as it is finished"),
    ),
    "a stream without shipping": (
        "defaults: {journal: {ship: {stream: a}}}",
        ("defaults.journal.ship.stream", "it is for ship.to amqp"),
    ),
    "shipping to itself": (
        "defaults: {journal: {directory: j, retain_bytes: 1GiB, ship: {to: ./j/}}}",
        ("defaults.journal.ship.to", "the journal's own directory"),
    ),
    "an object store without its library": (
        "defaults: {journal: {retain_bytes: 1GiB, ship: {to: s3://a}}}",
        ("defaults.journal.ship.to", "obstore, which is not installed"),
    ),
    "a sample that nobody uses": (
        "defaults: {journal: {sample: 0.5}}\nvirtual_hosts: {/: , a: {journal: {level: off}},"
        " b: {journal: {level: message, sample: 1, directory: b}}}",
        ("defaults.journal.sample", "at level session"),
    ),
    "a default user for one": (
        "listeners: [{tcp: '0.0.0.0:1'}]\ndefaults: {default_user: {login: a, passcode: b}}\n"
        "virtual_hosts: {/: , quiet: {loopback_users: [a]}}",
        ("virtual_hosts.quiet.default_user", "is among loopback_users"),
    ),
    "an object store beside a journal that is off": (
        "defaults: {journal: {retain_bytes: 1GiB, ship: {to: s3://a}}}\n"
        "virtual_hosts: {/: , a: {journal: {level: off}}}",
        ("defaults.journal.ship.to", "obstore, which is not installed"),
    ),
    "the built-in spread": (
        "drain_timeout: 15s\ndrain_spread: 10s",
        ("drain_spread", "only that half counts"),
    ),
    "a drain that cannot spread": ("drain_spread: 20s", ("drain_spread", "only that half counts")),
    "a timeout of no workers": ("worker_timeout: 9s", ("worker_timeout", "with one worker")),
    "users of no admin listener": (
        "admin: {address: null, users: [{login: a, passcode: b}]}",
        ("admin.users", "the admin listener is off"),
    ),
    "two at once": (
        "drain_spread: 20s\nworker_timeout: 9s",
        ("drain_spread", "only that half counts"),
        ("worker_timeout", "with one worker"),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_what_cannot_work_is_a_warning(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority.make(tmp_path, "ca")
    _ = authority.identify(tmp_path, "a")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    text, *wanted = ODD[name]
    warnings = parse(text, directory=tmp_path, environment={}).warnings
    for warning, (path, part) in zip(warnings, wanted, strict=True):
        assert warning.path == path
        assert part in warning.sentence
        assert warning.suggestion
        assert warning.line or path == "listeners[0].login_timeout"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "worker_timeout: 30s\ndefaults: {journal: {sample: 1, header_values: []}, limits: {user: {burst: 2s}}}",
        f"listeners: [{{tcp: '0.0.0.0:1', tls: {{{TLS}, certificate_login: {{}}}}}}]\n"
        "virtual_hosts: {/: {certificate_users: {users: {a: {login: a, passcode: b}}}}}",
        "listeners: [{websocket: '0.0.0.0:1', allowed_origins: [https://a]}]",
        "listeners: [{websocket: '0.0.0.0:1'}]\ndefaults: {default_user: null}",
        "listeners: [{tcp: '127.0.0.1:1', max_connections_per_address: 9, proxy_protocol: true}]",
        "listeners: [{tcp: '127.0.0.1:1', max_unauthenticated_per_address: null}]",
        "listeners: [{tcp: '127.0.0.1:1', allowed_networks: [10.0.0.0/8], proxy_protocol: true}]",
        "listeners: [{tcp: '127.0.0.1:1', allowed_networks: [127.0.0.1]}]",
        "listeners: [{tcp: '[::1]:1', allowed_networks: ['::/0']}]",
        "listeners: [{tcp: '0.0.0.0:1', allowed_networks: [10.0.0.0/8], denied_networks: [10.1.0.0/16]}]",
        "failed_logins: {lock_out_after: 50, lock_out_for: 1h, lock_out_except: [10.0.0.0/8, '::1']}",
        "listeners: [{tcp: '127.0.0.1:1', proxy_protocol: true}]\n"
        "failed_logins: {lock_out_after: 50, lock_out_except: []}",
        "listeners: [{tcp: '[::]:1', proxy_protocol: true, trusted_proxies: ['::/0'], allowed_networks: [10.0.0.0/8],"
        " denied_networks: [128.0.0.0/1]}]",
        "listeners: [{tcp: 'localhost:1', allowed_networks: ['::1'], denied_networks: [127.0.0.0/8]}]",
        "listeners: [{unix: p, proxy_protocol: true, socket_mode: '0664', allowed_networks: [10.0.0.0/8]}]",
        "admin: {address: '127.0.0.1:1', allowed_networks: [127.0.0.1, '::1'], denied_networks: [10.0.0.0/8]}",
        "upstream: {urls: [amqp://a, amqps://a, amqp://a:1234]}",
        "defaults: {destination_rules: [{action: allow, destination: /queue/a}, {action: deny, destination: /*}]}",
        "defaults: {destination_rules: [{action: allow, destination: /queue/a, mandatory: true}]}",
        f"listeners: [{{tcp: '0.0.0.0:1', tls: {{{TLS}, ciphers: 'ECDHE+aECDSA+AESGCM HIGH !aNULL !RC4 -MD5'}}}}]",
        f"listeners: [{{tcp: '0.0.0.0:1', tls: {{{TLS}, min_version: 1.3}}}}]",
        "drain_spread: 15s",
        "drain_timeout: 15s",
        "listeners: [{websocket: '0.0.0.0:1', ping_interval: 0, idle_timeout: 0, allowed_origins: [https://a]}]",
        "listeners: [{tcp: '127.0.0.2:5672'}]\nupstream: {urls: [amqp://127.0.0.1:5672]}",
        "listeners: [{tcp: '[::]:5672'}]\nupstream: {urls: [amqp://127.0.0.1:5672]}",
        "defaults: {journal: {level: message, sample: 0.5, header_values: [a]}}\n"
        "virtual_hosts: {/: , quiet: {journal: {level: session, directory: quiet}}}",
        "defaults: {limits: {user: {sessions: 6, burst: 5s, messages_per_second: 9}}}\n"
        "virtual_hosts: {/: , small: {limits: {sessions: 5, user: {messages_per_second: null}}}}",
        "defaults: {journal: {retain_bytes: 1GiB, ship: {to: amqp, user: {login: a, passcode: b}, stream: a}}}\n"
        "virtual_hosts: {/: , other: {journal: {directory: b, ship: {to: /c}}}}",
    ],
)
def test_what_works_is_none(text: str, tmp_path: Path) -> None:
    _ = Authority.make(tmp_path, "ca").identify(tmp_path, "a")
    assert parse(text, directory=tmp_path, environment={}).warnings == ()


def test_certificates_and_revocations_out_of_date(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path, "ca")
    _ = authority.identify(tmp_path, "a")
    _ = authority.revoke(tmp_path, "late", valid=False)
    text = f"listeners: [{{tcp: '0.0.0.0:1', tls: {{{TLS}, crl_file: late.crl}}}}]"
    config = parse(text, directory=tmp_path, environment={})
    assert [warning.path for warning in config.warnings] == ["listeners[0].tls.crl_file"]

    def said(days: int) -> str:
        return next(certificate_warnings(config, datetime.now(UTC) + timedelta(days=days))).sentence

    assert said(100_000).startswith("This certificate has expired: on 20")
    assert said(-1000).startswith("This certificate is not valid before 20")


def test_without_certificates_their_library_is_not_loaded() -> None:
    """It is as large as a tenth of a gateway."""
    program = (
        "import sys, gateway.server.process.serving; from gateway.config.loader import parse; "
        "parse('{}', environment={}).warnings; sys.exit('cryptography' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=True)
