"""The `journal` group: what can stand there, and what virtual hosts that share a directory must agree upon."""

from pathlib import Path

import pytest

from gateway.config.config_files import default_journal_directory
from gateway.config.loader import parse
from gateway.errors import ConfigError


def _mistakes(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize("level", ["off", "'off'", "false", "session", "message"])
def test_every_level_can_be_given_and_off_needs_no_quotes(level: str) -> None:
    found = parse(f"defaults: {{journal: {{level: {level}}}}}").defaults.journal.level
    assert found == {"false": "off", "'off'": "off"}.get(level, level)


def test_the_directory_is_relative_to_the_file_and_need_not_exist(tmp_path: Path) -> None:
    config = parse("defaults: {journal: {directory: here/there}}", directory=tmp_path)
    assert config.defaults.journal.directory == tmp_path / "here" / "there"


def test_a_virtual_host_overrides_single_keys() -> None:
    config = parse("""
        defaults: {journal: {level: message, peers: prefix}}
        virtual_hosts: {/: , quiet: {journal: {level: session}}}
    """)
    quiet = config.virtual_host("quiet")
    assert quiet is not None
    assert (quiet.journal.level, quiet.journal.peers) == ("session", "prefix")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("level", "everything", "off, session, message"),
        ("sample", "0", "from 0.0001 to 1"),
        ("sample", "2", "from 0.0001 to 1"),
        ("node", "a/b", "file names"),
        ("rotate_after", "0", "more than 0"),
        ("directory", "''", "name of a directory"),
        ("destinations", "[/queue/orders]", "has a *"),
        ("retain_bytes", "0", "at least 1 byte"),
        ("ship", "{to: ''}", "needed here"),
        ("ship", "{to: 'ftp://a/b'}", "like s3://bucket/prefix"),
        ("ship", "{to: 's3:///b'}", "like s3://bucket/prefix"),
        ("ship", "{to: 's3://key:secret@bucket/b'}", "holds more than a place"),
        ("ship", "{to: 's3://bucket/b?sig=secret'}", "holds more than a place"),
        ("ship", "{to: /srv/journals}", "retain_bytes has to bound them"),
        ("ship", "{to: amqp}, retain_bytes: 1GiB}, default_user: null, limits: {", "needs a user"),
        ("ship", "{to: /srv/journals}, retain_bytes: 1MiB", "no room for one segment"),
        ("ship", "{to: amqp}, retain_bytes: 9GiB, rotate_bytes: 513MiB", "Give it 512MiB at most"),
        ("users_key_file", "/no/such/file", "cannot be read"),
    ],
)
def test_a_mistake_says_what_can_stand_there(key: str, value: str, words: str) -> None:
    found = _mistakes(f"defaults: {{journal: {{{key}: {value}}}}}")
    assert words in found
    assert "secret" not in found


@pytest.mark.parametrize(
    ("to", "found"),
    [
        ("s3://bucket/some/prefix", "s3://bucket/some/prefix"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("file:///srv/journals", "/srv/journals"),
        ("/srv/journals", "/srv/journals"),
        ("journals", "HERE/journals"),
        ("amqp", "amqp"),
    ],
)
def test_segments_are_shipped_to_a_url_or_a_directory(tmp_path: Path, to: str, found: str) -> None:
    config = parse(f"defaults: {{journal: {{retain_bytes: 1GiB, ship: {{to: '{to}'}}}}}}", directory=tmp_path)
    assert config.defaults.journal.ship.to == found.replace("HERE", str(tmp_path))


def test_virtual_hosts_in_one_directory_must_treat_segments_alike() -> None:
    text = "virtual_hosts: {/: , b: {journal: {retain: 1d%s}}}"
    assert "retain differs" in _mistakes(text % "")
    assert "retain differs" in _mistakes(text % ", directory: ./x/../j" + "\ndefaults: {journal: {directory: j}}")
    parse("virtual_hosts: {/: , b: {journal: {retain: 168h, rotate_after: 1min}}}")  # the defaults, in other words
    assert "ship differs" in _mistakes("virtual_hosts: {/: , b: {journal: {retain_bytes: 1GiB, ship: {to: /x}}}}")
    parse(text % ", directory: elsewhere")
    parse(text % ", level: off")


@pytest.mark.parametrize(
    ("environment", "user", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/private/gw:/var/lib/b"}, 0, "/var/lib/private/gw/journal"),
        ({"HOME": "/root"}, 0, "/var/lib/stomp-gateway/journal"),
        ({"HOME": "/home/a"}, 1000, "/home/a/.local/state/stomp-gateway/journal"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/state"}, 1000, "/state/stomp-gateway/journal"),
    ],
)
def test_without_a_directory_it_lies_where_state_lies(environment: dict[str, str], user: int, expected: str) -> None:
    assert default_journal_directory(environment, user) == Path(expected)
