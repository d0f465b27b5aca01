"""What `stomp-gateway migrate` does and says."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config.loader import load
from gateway.config.model import GatewayConfig
from gateway.errors import ExitCode, GatewayError, UsageError
from gateway.migrate.migration import write_file
from tests.support.addresses import tcp
from tests.support.certificates import Authority, encrypted

SECRET = "correct horse battery"

Files = Callable[..., list[str]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Writes files, and returns their names as arguments; in a name, __ is a dot."""

    def written(**texts: str) -> list[str]:
        names = []
        for name, text in texts.items():
            file = tmp_path / name.replace("__", ".")
            file.write_text(text)
            names.append(str(file))
        return names

    return written


class Outcome:
    """What a run of the command left."""

    def __init__(self, code: int, made: Path, captured: tuple[str, str]) -> None:
        self.code = code
        self.made = made
        self.out, self.err = captured

    @property
    def config(self) -> GatewayConfig:
        return load(self.made)

    def said(self, text: str) -> bool:
        """Whether a sentence is on the terminal, however its lines are broken, and in the file."""
        in_file = " ".join(self.made.read_text().replace("\n#", "\n").split())
        return text in " ".join(self.err.split()) and text in in_file


Migrate = Callable[..., Outcome]


@pytest.fixture
def migrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Migrate:
    made = tmp_path / "made" / "gateway.yaml"
    made.parent.mkdir()

    def run(*arguments: str) -> Outcome:
        code = main(["migrate", *arguments, "-o", str(made)])
        return Outcome(code, made, capsys.readouterr())

    return run


def refused(outcome: Outcome) -> list[str]:
    """The mistakes of a run that wrote nothing."""
    assert (outcome.code, outcome.made.exists()) == (ExitCode.CONFIGURATION, False)
    return [line.strip() for line in outcome.err.splitlines()[1:]]


def test_without_an_output_file_it_is_printed(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["-o", "-"]):
        assert main(["migrate", *files(rabbitmq__conf="stomp.listeners.tcp.1 = 61700\n"), *arguments]) == ExitCode.OK
        captured = capsys.readouterr()
        assert "  - tcp: 0.0.0.0:61700 " in captured.out
        assert "Worth knowing:" in captured.err


def test_a_file_that_is_there_stays_unless_forced(files: Files, migrate: Migrate, tmp_path: Path) -> None:
    names = files(rabbitmq__conf="")
    made = tmp_path / "made" / "gateway.yaml"
    made.write_text("mine")
    outcome = migrate(*names)
    assert (outcome.code, made.read_text()) == (ExitCode.CONFIGURATION, "mine")
    assert "--force" in outcome.err
    assert migrate(*names, "--force").code == ExitCode.OK
    assert made.read_text().startswith("# Made by stomp-gateway migrate")
    assert [path.name for path in made.parent.iterdir()] == ["gateway.yaml"]


def test_a_file_that_comes_meanwhile_stays_too(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        write_file(file, "other", is_private=True, force=False)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(GatewayError, match="cannot be written: No such file"):
        write_file(tmp_path / "none" / "x.yaml", "other", is_private=True, force=False)


@pytest.mark.parametrize("directory", [".", "there"])
def test_a_directory_is_not_replaced(directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GatewayError, match="cannot be written: "):
        write_file(Path(directory), "x", is_private=False, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_only_the_owner_may_read_a_file_with_a_passcode(files: Files, migrate: Migrate) -> None:
    outcome = migrate(*files(rabbitmq__conf=f"stomp.default_user = app\nstomp.default_pass = {SECRET}\n"))
    assert stat.S_IMODE(outcome.made.stat().st_mode) == 0o600
    assert "mode 0600" in outcome.err
    assert SECRET not in outcome.err
    user = outcome.config.defaults.default_user
    assert user is not None
    assert user.passcode.get_secret_value() == SECRET


def test_without_a_passcode_the_file_is_an_ordinary_one(files: Files, migrate: Migrate) -> None:
    outcome = migrate(*files(rabbitmq__conf=""))
    assert stat.S_IMODE(outcome.made.stat().st_mode) & 0o600 == 0o600
    assert "0600" not in outcome.err


def test_a_passcode_can_be_left_to_a_variable(files: Files, migrate: Migrate, monkeypatch: pytest.MonkeyPatch) -> None:
    names = files(rabbitmq__conf=f"stomp.default_user = app\nstomp.default_pass = {SECRET}\n")
    monkeypatch.delenv("HERE", raising=False)
    outcome = migrate(*names, "--passcode-variable", "HERE")
    assert outcome.code == ExitCode.FAILURE
    assert outcome.said("The environment variable HERE is not set. Set it where the gateway runs.")
    assert SECRET not in outcome.made.read_text() + outcome.err
    monkeypatch.setenv("HERE", SECRET)
    assert migrate(*names, "--passcode-variable", "HERE", "--force").code == ExitCode.OK
    assert migrate(*names, "--passcode-variable", "not a name", "--force").code == ExitCode.CONFIGURATION


def test_unknown_keys_are_all_listed_and_nothing_is_written(files: Files, migrate: Migrate) -> None:
    names = files(
        rabbitmq__conf="stomp.one = 1\nweb_stomp.two = 2\nother.three = 3\n",
        advanced__config="[{rabbitmq_stomp, [{four, 4}]},\n {rabbitmq_web_stomp, [{five, 5}]}].",
    )
    keys = [line.partition(": ")[0] for line in refused(migrate(*names))]
    assert keys == [
        "rabbitmq.conf:1 stomp.one",
        "rabbitmq.conf:2 web_stomp.two",
        "advanced.config:1 rabbitmq_stomp.four",
        "advanced.config:2 rabbitmq_web_stomp.five",
    ]
    outcome = migrate(*names, "--lenient")
    assert outcome.code == ExitCode.OK
    assert all(outcome.said(f"{key}: This key is not known.") for key in keys)
    assert outcome.said("Left where it belongs: 1 setting of other parts of RabbitMQ.")


def test_wrong_values_are_mistakes_even_if_lenient(files: Files, migrate: Migrate) -> None:
    conf = f"""\
stomp.listeners.tcp.1 = {SECRET}
stomp.listeners.tcp.2 = localhost:1
stomp.implicit_connect = perhaps
stomp.login_timeout = 10s
stomp.tcp_listen_options = some
loopback_users.guest = no
no setting
stomp.default_vhost = $(NOT_SET_ANYWHERE)
"""
    terms = f'[{{rabbitmq_stomp, [{{ssl_listeners, "{SECRET}"}}, {{proxy_protocol, yes}}, {{max_headers, 0}}]}}].'
    names = files(rabbitmq__conf=conf, advanced__config=terms)
    found = refused(migrate(*names))
    assert [line.partition(": ")[0] for line in found] == [
        "rabbitmq.conf:7",
        "rabbitmq.conf:1 stomp.listeners.tcp.1",
        "rabbitmq.conf:2 stomp.listeners.tcp.2",
        "rabbitmq.conf:3 stomp.implicit_connect",
        "rabbitmq.conf:4 stomp.login_timeout",
        "rabbitmq.conf:5 stomp.tcp_listen_options",
        "rabbitmq.conf:6 loopback_users.guest",
        "rabbitmq.conf:8 stomp.default_vhost",
        "advanced.config:1 rabbitmq_stomp.ssl_listeners",
        "advanced.config:1 rabbitmq_stomp.proxy_protocol",
        "advanced.config:1 rabbitmq_stomp.max_headers",
    ]
    assert refused(migrate(*names, "--lenient")) == found
    assert SECRET not in "".join(found)


def test_included_files_may_be_given_as_well(files: Files, migrate: Migrate) -> None:
    main_file, other = files(rabbitmq__conf="include conf.d/*.conf\n", stomp__conf="stomp.default_vhost = shop\n")
    outcome = migrate(main_file)
    assert outcome.code == ExitCode.FAILURE
    assert outcome.said("rabbitmq.conf:1 include: There is no conf.d/*.conf here")
    outcome = migrate(main_file, other, "--force")
    assert (outcome.code, outcome.config.default_vhost) == (ExitCode.OK, "shop")


def test_what_the_gateway_cannot_have_is_said_with_its_place(files: Files, migrate: Migrate) -> None:
    found = refused(migrate(*files(rabbitmq__conf="web_stomp.hsts.policy = max-age=1é\n")))
    assert found[0].startswith("rabbitmq.conf:1 web_stomp.hsts.policy: the gateway cannot have this. ")


@pytest.mark.parametrize("useless", ["*", "https://example.org/", "https://Example.org", "https://example.org/page"])
def test_an_origin_that_no_browser_has_is_left_out_and_said(files: Files, migrate: Migrate, useless: str) -> None:
    conf = f"web_stomp.allow_origins.1 = {useless}\nweb_stomp.allow_origins.2 = https://shop.example.org\n"
    outcome = migrate(*files(rabbitmq__conf=conf))
    assert outcome.code == ExitCode.FAILURE
    assert outcome.said(f"it let nobody in: {useless}. Left out")
    assert outcome.config.listeners[-1].allowed_origins == ("https://shop.example.org",)
    # An empty list would let everybody in.
    alone = migrate(*files(rabbitmq__conf=f"web_stomp.allow_origins.1 = {useless}\n"), "--force")
    assert alone.config.listeners[-1].allowed_origins == ("https://nobody.invalid",)


def test_a_term_that_does_not_end_is_a_mistake_with_line_and_column(files: Files, migrate: Migrate) -> None:
    found = refused(migrate(*files(advanced__config=f'[{{rabbitmq_stomp,\n  [{{default_user, "{SECRET}}}]}}].')))
    assert found == ["advanced.config:2: column 19: The quote that begins here never ends."]


@pytest.mark.parametrize(
    "text", ["{rabbitmq_stomp, []}.", "[{rabbitmq_stomp, x}].", '["other.config"].', "[]. [].", "[{a, b, c}]."]
)
def test_terms_that_are_no_configuration_are_refused(text: str, files: Files, migrate: Migrate) -> None:
    (mistake,) = refused(migrate(*files(rabbitmq__config=text)))
    assert "key = value" not in mistake


def test_files_are_recognised_by_what_is_in_them(files: Files, migrate: Migrate) -> None:
    names = files(
        one='%% terms\n[{rabbitmq_stomp, [{default_vhost, <<"from terms">>}]}].',
        two="[rabbitmq_stomp].",
        three="# lines\nstomp.default_vhost = from lines\nweb_stomp.ws_frame = binary\n",
    )
    for order in (names, names[::-1]):
        outcome = migrate(*order, "--force")
        assert outcome.code == ExitCode.OK
        assert outcome.config.default_vhost == "from terms"
        assert outcome.said("rabbitmq_web_stomp is configured and not enabled: its settings are left out.")


@pytest.mark.parametrize(
    ("plugins", "web"), [("[rabbitmq_stomp].", False), ("[rabbitmq_web_stomp, rabbitmq_stomp].\n", True)]
)
def test_enabled_plugins_decide_which_of_the_two_ran(plugins: str, web: bool, files: Files, migrate: Migrate) -> None:
    conf, enabled = files(rabbitmq__conf="web_stomp.ws_path = /x", enabled_plugins=plugins)
    outcome = migrate(conf, "--enabled-plugins", enabled)
    assert any(listener.websocket for listener in outcome.config.listeners) is web


def test_without_either_plugin_there_is_nothing_to_migrate(files: Files, migrate: Migrate) -> None:
    conf, enabled = files(rabbitmq__conf="", enabled_plugins="[rabbitmq_management].")
    assert "nothing to migrate" in refused(migrate(conf, "--enabled-plugins", enabled))[0]
    conf, enabled = files(rabbitmq__conf="", enabled_plugins="[{rabbitmq_stomp, 1}].")
    assert "no list of plugins" in migrate(conf, "--enabled-plugins", enabled).err
    conf, enabled = files(rabbitmq__conf="stomp.x = 1", enabled_plugins="[rabbitmq_stomp")
    found = refused(migrate(conf, "--enabled-plugins", enabled))
    assert [line.partition(": ")[0] for line in found] == ["rabbitmq.conf:1 stomp.x", "enabled_plugins:1"]


@pytest.mark.parametrize("content", [None, b"stomp.default_user = \xff\xfe\n", b"#" * (5 << 20)])
def test_a_file_that_cannot_be_read_is_named(content: bytes | None, migrate: Migrate, tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.conf"
    if content is not None:
        file.write_bytes(content)
    outcome = migrate(str(file))
    assert (outcome.code, outcome.made.exists()) == (ExitCode.CONFIGURATION, False)
    assert str(file) in outcome.err


def test_a_byte_that_is_not_utf8_has_a_place(migrate: Migrate, tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.conf"
    file.write_bytes(b"# Caf\xc3\xa9\nstomp.default_user = caf\xe9\n")
    assert "rabbitmq.conf: line 2, byte 25: This is not UTF-8. Save the file as UTF-8." in migrate(str(file)).err


def test_ports_can_be_moved_out_of_the_plugins_way(files: Files, migrate: Migrate) -> None:
    names = files(rabbitmq__conf="stomp.listeners.tcp.1 = 127.0.0.1:61613\nweb_stomp.tcp.port = 15674\n")
    outcome = migrate(*names, "--port-offset", "1000")
    assert [str(listener.address) for listener in outcome.config.listeners] == ["127.0.0.1:62613", "0.0.0.0:16674"]
    for offset in ("5000", "-61614"):
        assert "--port-offset" in migrate(*names, f"--port-offset={offset}", "--force").err


def test_the_upstream_can_be_named(files: Files, migrate: Migrate) -> None:
    names = files(rabbitmq__conf="listeners.tcp.1 = 5673\n")
    assert [str(url) for url in migrate(*names).config.upstream.urls] == ["amqp://127.0.0.1:5673"]
    outcome = migrate(*names, "--upstream", "amqp://a", "--upstream", "amqp://b:1", "--force")
    assert [str(url) for url in outcome.config.upstream.urls] == ["amqp://a:5672", "amqp://b:1"]
    outcome = migrate(*names, "--upstream", f"amqp://guest:{SECRET}@a", "--force")
    assert outcome.code == ExitCode.CONFIGURATION
    assert "no credentials" in outcome.err
    assert SECRET not in outcome.err


def test_sockets_in_the_file_system_are_no_upstream(files: Files, migrate: Migrate) -> None:
    unix = "listeners.tcp.1 = unix:/run/rabbitmq.sock:0\n"
    outcome = migrate(*files(rabbitmq__conf=f"{unix}listeners.tcp.2 = 5673\n"))
    assert [str(url) for url in outcome.config.upstream.urls] == ["amqp://127.0.0.1:5673"]
    outcome = migrate(*files(rabbitmq__conf=unix), "--force")
    assert outcome.code == ExitCode.FAILURE
    assert outcome.said("rabbitmq.conf:1 listeners.tcp.1: The broker has no AMQP listener on TCP")


@pytest.mark.parametrize(
    ("conf", "terms", "said"),
    [
        ("proxy_protocol = true", "{proxy_protocol, true}", "proxy_protocol: The broker takes no AMQP connection"),
        ("auth_mechanisms.1 = EXTERNAL", "{auth_mechanisms, ['EXTERNAL']}", "The gateway logs in by PLAIN only"),
        ("auth_mechanisms.1 = PLAIN\nproxy_protocol = false", "{auth_mechanisms, ['AMQPLAIN', 'PLAIN']}", ""),
    ],
)
def test_what_keeps_amqp_clients_out_keeps_the_gateway_out(
    conf: str, terms: str, said: str, files: Files, migrate: Migrate
) -> None:
    for names in (files(rabbitmq__conf=conf), files(rabbitmq__config=f"[{{rabbit, [{terms}]}}].")):
        outcome = migrate(*names, "--force")
        assert (outcome.code, outcome.said(said)) == (ExitCode.FAILURE if said else ExitCode.OK, True)


def test_of_equal_names_the_one_counts_that_counts_in_the_broker(files: Files, migrate: Migrate) -> None:
    users = '{default_user, [{login, "a"}, {passcode, "1"}, {login, "b"}, {passcode, "2"}]}'
    terms = f'[{{rabbitmq_stomp, [{{default_vhost, "x"}}, {users}, {{default_vhost, "y"}}]}}].'
    config = migrate(*files(rabbitmq__config=terms)).config
    assert config.default_vhost == "y"
    assert config.defaults.default_user is not None
    assert config.defaults.default_user.login == "a"


def test_a_web_listener_replaces_all_that_is_said_of_it_elsewhere(files: Files, migrate: Migrate) -> None:
    conf = "web_stomp.tcp.backlog = 7\nweb_stomp.tcp.listener = 127.0.0.1:15680\nweb_stomp.tcp.port = 15681\n"
    outcome = migrate(*files(rabbitmq__conf=conf))
    listener = outcome.config.listeners[-1]
    assert (str(listener.websocket), listener.backlog) == ("127.0.0.1:15680", 1024)
    outcome = migrate(*files(rabbitmq__conf="web_stomp.tcp.backlog = 7\nweb_stomp.port = 15690\n"), "--force")
    listener = outcome.config.listeners[-1]
    assert (str(listener.websocket), listener.backlog) == ("0.0.0.0:15690", 7)


# TLS.

TLS_CONF = "stomp.listeners.tcp = none\nstomp.listeners.ssl.1 = 0.0.0.0:61614\n"


def test_certificates_that_are_not_here_are_named_once_and_the_file_is_written(
    files: Files, migrate: Migrate, tmp_path: Path
) -> None:
    conf = f"{TLS_CONF}stomp.listeners.ssl.2 = ::1:61614\nssl_options.certfile = {tmp_path}/made/c.pem\n"
    outcome = migrate(*files(rabbitmq__conf=conf))
    assert outcome.code == ExitCode.FAILURE
    assert " ".join(outcome.err.split()).count("cannot be read") == 2  # certificate and key
    assert outcome.said("Bring it to the gateway's machine")
    identity = Authority.make(tmp_path, "ca").identify(tmp_path / "made", "c")
    with identity.certificate.open("a") as together:
        together.write(identity.key.read_text())
    assert main(["check", "--offline", "--config", str(outcome.made)]) == ExitCode.OK


def test_a_key_that_is_encrypted_is_to_be_decrypted(files: Files, migrate: Migrate, tmp_path: Path) -> None:
    identity = Authority.make(tmp_path, "ca").identify(tmp_path, "broker")
    encrypted(identity.key, tmp_path / "secret.key", SECRET.encode())
    conf = f"{TLS_CONF}ssl_options.certfile = {identity.certificate}\nssl_options.keyfile = {tmp_path}/secret.key\n"
    outcome = migrate(*files(rabbitmq__conf=f"{conf}ssl_options.password = {SECRET}\n"))
    assert outcome.code == ExitCode.FAILURE
    assert outcome.said("rabbitmq.conf:5 ssl_options.password: The gateway takes no encrypted private key.")
    assert SECRET not in outcome.err + outcome.made.read_text()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("", ExitCode.OK, "it has no certfile, so nobody could use it"),
        ("{cert, <<1>>}", ExitCode.FAILURE, "This listener is left out: its certificate stands in the configuration"),
        ('{certfile, "c"}, {key, {x, <<1>>}}', ExitCode.FAILURE, "left out: its private key stands in the"),
        ('{certfile, "c"}, {verify, verify_peer}', ExitCode.FAILURE, "and there is no cacertfile"),
        ('{certfile, "c"}, {verify, verify_peer}, {cacerts, [<<1>>]}', ExitCode.FAILURE, "and what it stands in the"),
    ],
)
def test_a_listener_that_could_not_keep_its_promise_is_left_out(
    options: str, code: ExitCode, said: str, files: Files, migrate: Migrate
) -> None:
    terms = f"[{{rabbit, [{{ssl_options, [{options}]}}]}}, {{rabbitmq_stomp, [{{ssl_listeners, [61614]}}]}}]."
    outcome = migrate(*files(rabbitmq__config=terms))
    assert outcome.code == code
    assert {tcp(listener.address).port for listener in outcome.config.listeners} == {61613}
    assert outcome.said(said)


def test_a_certificate_login_that_had_no_effect_is_not_carried_over(
    files: Files, migrate: Migrate, tmp_path: Path
) -> None:
    identity = Authority.make(tmp_path, "ca").identify(tmp_path, "broker")
    conf = f"{TLS_CONF}stomp.ssl_cert_login = true\nssl_options.certfile = {identity.certificate}\n"
    outcome = migrate(*files(rabbitmq__conf=f"{conf}ssl_options.keyfile = {identity.key}\n"))
    assert outcome.code == ExitCode.OK
    assert outcome.said("This had no effect: ssl_options.verify is not verify_peer.")
    (listener,) = outcome.config.listeners
    assert listener.tls is not None
    assert listener.tls.certificate_login is None


# Users.


@pytest.mark.parametrize(
    ("entry", "user"),
    [
        ("", ("guest", "guest")),
        ("{default_user, []}", None),
        ('{default_user, ""}', None),
        ('{default_user, [{login, "a"}]}', None),
        ('{default_user, [{passcode, "a"}]}', None),
        ('{default_user, [{passcode, ""}, {login, "a"}]}', None),
        ('{default_user, [{login, "a"}, {passcode, <<"é"/utf8>>}]}', ("a", "é")),
        ('{default_user, [{login, "a"}, {passcode, "$${X} $(HOME) #"}]}', ("a", "$${X} $(HOME) #")),
        ('{default_user, [{login, "a"}, {passcode, "x\\n\\x{0}y\\x{1F600}"}]}', ("a", "x\n\0y\U0001f600")),
        ('{default_user, [{login, "a"}, {passcode, "encrypted:x"}]}', None),
        ('{default_user, [{login, <<"a">>}, {passcode, {encrypted, <<"x">>}}]}', None),
    ],
)
def test_the_default_user_is_the_plugins(
    entry: str, user: tuple[str, str] | None, files: Files, migrate: Migrate
) -> None:
    outcome = migrate(*files(rabbitmq__config=f"[{{rabbitmq_stomp, [{entry}]}}]."))
    assert outcome.code == (ExitCode.FAILURE if "encrypted" in entry else ExitCode.OK)
    found = outcome.config.defaults.default_user
    assert (None if found is None else (found.login, found.passcode.get_secret_value())) == user


@pytest.mark.parametrize(
    ("conf", "users"),
    [
        ("", ("guest",)),
        ("loopback_users = none", ()),
        ("loopback_users.guest = false", ()),
        ("loopback_users.guest = true", ("guest",)),
        ("loopback_users.bob = true", ("bob",)),
        ("loopback_users = none\nloopback_users.bob = true", ()),
        ("loopback_users.first\\.last = true", ("first.last",)),
    ],
)
def test_the_loopback_users_are_the_brokers(conf: str, users: tuple[str, ...], files: Files, migrate: Migrate) -> None:
    found = migrate(*files(rabbitmq__conf=conf)).config.defaults.loopback_users
    assert found == tuple(map(str.encode, users))


def test_an_origin_with_a_control_character_does_no_harm(files: Files, migrate: Migrate) -> None:
    outcome = migrate(*files(rabbitmq__conf="web_stomp.allow_origins.1 = a\0b\n"))
    assert outcome.code == ExitCode.FAILURE
    assert outcome.said(r"it let nobody in: a\x00b. Left out")


def test_names_in_the_files_cannot_break_out_of_a_comment(files: Files, migrate: Migrate) -> None:
    terms = "[{rabbitmq_stomp, [{'x\\nlisteners', 1}, {tcp_listen_options, [{'y\\ndefaults: {}', 1}]}]}]."
    outcome = migrate(*files(rabbitmq__config=terms), "--lenient")
    assert outcome.code == ExitCode.OK
    assert r"rabbitmq_stomp.x\nlisteners" in outcome.err
    assert tcp(outcome.config.listeners[0].address).port == 61613


@pytest.mark.parametrize(
    "output", ["rabbitmq.conf", "conf.d/10.conf", "passcode", "enabled_plugins", "link.yaml", "conf.d/../rabbitmq.conf"]
)
def test_a_file_that_is_read_is_never_replaced(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        "rabbitmq.conf": "include conf.d/10.conf\nstomp.default_user = a\nstomp.default_pass = $(<passcode)\n",
        "conf.d/10.conf": "stomp.default_vhost = a\n",
        "passcode": "secret",
        "enabled_plugins": "[rabbitmq_stomp].",
    }
    (tmp_path / "conf.d").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "link.yaml").symlink_to(tmp_path / "rabbitmq.conf")
    given = [str(tmp_path / "rabbitmq.conf"), "--enabled-plugins", str(tmp_path / "enabled_plugins")]

    code = main(["migrate", *given, "-o", f"{tmp_path}/{output}", "--force"])

    assert code == ExitCode.CONFIGURATION
    assert "is one of the files that are read, and stays as it is." in capsys.readouterr().err
    assert {name: (tmp_path / name).read_text() for name in texts} == texts
