"""What the command prints, and how it ends."""

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import types
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import structlog

from gateway import __version__
from gateway.cli import main
from gateway.cli.command_line import build_parser
from gateway.cli.manual import runnable_commands
from gateway.config.loader import load
from gateway.config.model import GatewayConfig
from gateway.errors import ExitCode, GatewayError, ListenError

ROOT = Path(__file__).parents[3]
FULL = Path("/dev/full")
SECRET = "correct-horse-battery"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.yaml"
    file.touch()
    return file


def test_version_is_the_packages() -> None:
    ended = run("--version")
    # In a checkout of git it names the commit, too.
    assert ended.returncode == 0
    assert re.fullmatch(rf"stomp-gateway {re.escape(__version__)}( \([0-9a-f]{{7,}}\))?\n", ended.stdout)


def test_help_tells_commands_examples_exit_codes_and_environment() -> None:
    ended = run("--help")
    assert ended.returncode == 0
    for word in ("serve", "check", "schema", "--config gateway.yaml", "exit codes", "environment", "${NAME}"):
        assert word in ended.stdout
    codes = [int(line.split()[0]) for line in ended.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert codes == sorted(ExitCode)


@pytest.mark.parametrize("arguments", [(), ("serve", "--confg", "x"), ("check", "--config"), ("restart",)])
def test_a_wrong_command_line_ends_with_2(arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert ended.returncode == ExitCode.CONFIGURATION
    assert "usage: stomp-gateway" in ended.stderr


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_wrong_configuration_ends_with_2_and_lists_every_mistake(command: str, config_file: Path) -> None:
    user = f"{{login: a, passcode: {SECRET}, passcod: {SECRET}}}"
    config_file.write_text(f"defaults: {{linsk: shared, default_user: {user}}}\ndrain_timeout: x")
    ended = run(command, "--config", str(config_file))
    assert (ended.returncode, ended.stdout) == (ExitCode.CONFIGURATION, "")
    lines = ended.stderr.splitlines()
    assert lines[0] == f"{config_file}: 3 mistakes"
    advice = "Did you mean passcode? That key stands here already."
    assert lines[1] == f"  line 1, defaults.default_user.passcod: There is no such key here. {advice}"
    assert lines[2] == "  line 1, defaults.linsk: There is no such key here. Did you mean links?"
    assert lines[3].startswith("  line 2, drain_timeout: A duration is a number of seconds")
    assert SECRET not in ended.stderr


def test_a_configuration_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    ended = run("serve", "--config", str(tmp_path / "none.yaml"))
    assert ended.returncode == ExitCode.CONFIGURATION
    assert "none.yaml" in ended.stderr
    assert "No such file or directory" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_check_and_serve_warn_of_what_counts_and_cannot_work(config_file: Path) -> None:
    # The address is nobody's, so that serve ends by itself.
    config_file.write_text("listeners: [{tcp: '203.0.113.1:61613'}]\ndrain_spread: 20s\nworker_timeout: 9s")
    ended = run("check", "--offline", "--config", str(config_file))
    assert (ended.returncode, ended.stderr) == (ExitCode.OK, "")
    first, *warnings = ended.stdout.splitlines()
    assert first == f"{config_file}: no mistakes (1 listener, 1 virtual host), 2 warnings"
    assert [line.split(":")[0] for line in warnings] == ["  line 2, drain_spread", "  line 3, worker_timeout"]
    ended = run("serve", "--config", str(config_file))
    assert ended.returncode == ExitCode.LISTEN
    for warning in warnings:
        assert warning.strip() in next(line for line in ended.stderr.splitlines() if warning.strip()[:7] in line)


def test_checking_offline_touches_no_broker(config_file: Path) -> None:
    config_file.write_text("upstream: {urls: [amqp://127.0.0.1:1]}\nvirtual_hosts: {/: , orders: }")
    ended = run("check", "--offline", "--config", str(config_file))
    assert (ended.returncode, ended.stderr) == (ExitCode.OK, "")
    assert ended.stdout == f"{config_file}: no mistakes (1 listener, 2 virtual hosts)\n"


def test_checking_an_unreachable_broker_says_so_and_ends_with_1(config_file: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can answer there
        port = taken.getsockname()[1]
        config_file.write_text(f"upstream: {{urls: [amqp://127.0.0.1:{port}]}}")
        ended = run("check", "--config", str(config_file))
    assert ended.returncode == ExitCode.FAILURE
    assert f"amqp://127.0.0.1:{port} for virtual host /\n  reachable  no: connection refused" in ended.stdout
    assert "no usable upstream for: /" in ended.stderr


def test_checking_a_silent_port_ends_after_the_connect_timeout(config_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        config_file.write_text(f"upstream: {{urls: [amqp://127.0.0.1:{port}], connect_timeout: 200ms}}")
        ended = run("check", "--config", str(config_file))
    assert ended.returncode == ExitCode.FAILURE
    assert "no answer within 0.2 s" in ended.stdout


def test_the_schema_is_printed_as_json() -> None:
    ended = run("schema")
    assert ended.returncode == ExitCode.OK
    assert json.loads(ended.stdout)["properties"].keys() == GatewayConfig.model_fields.keys()


def serving(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
    """Let `serve` end at once, as the server would: drained, or with an error."""

    async def serve(config: GatewayConfig, services: Sequence[object], file: str) -> None:
        assert config == GatewayConfig()
        if error is not None:
            raise error

    module = types.ModuleType("gateway.server.process.serving")
    module.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gateway.server.process.serving", module)
    # Logging is the process's; a test must not set it up for all others.
    monkeypatch.setattr("gateway.server.process.logs.configure_logs", lambda settings: None)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, ExitCode.OK, ""),
        (ListenError("127.0.0.1:61613", OSError(98, "Address already in use")), ExitCode.LISTEN, "the port is taken"),
        (ListenError("127.0.0.1:13", OSError(13, "Permission denied")), ExitCode.LISTEN, "not permitted"),
        (ListenError("192.0.2.1:1", OSError(99, "Cannot assign")), ExitCode.LISTEN, "no such address"),
        (GatewayError("it broke"), ExitCode.FAILURE, "it broke"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
    ],
)
def test_serving_ends_with_the_code_of_its_reason(
    error: BaseException | None,
    code: ExitCode,
    said: str,
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    serving(monkeypatch, error)
    assert main(["serve", "--config", str(config_file)]) == code
    assert said in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop does not install here")
def test_serving_runs_on_uvloop_where_it_is_installed(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio  # noqa: PLC0415

    seen: list[str] = []

    async def serve(config: GatewayConfig, services: Sequence[object], file: str) -> None:
        seen.append(type(asyncio.get_running_loop()).__module__)

    serving(monkeypatch, None)
    monkeypatch.setattr(sys.modules["gateway.server.process.serving"], "serve", serve)
    assert main(["serve", "--config", str(config_file)]) == ExitCode.OK
    assert seen == ["uvloop"]


def test_serve_without_a_file_tells_what_it_assumes(monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, None)
    with structlog.testing.capture_logs() as lines:
        assert main(["serve"]) == ExitCode.OK
    [line] = lines
    assert (line["event"], line["log_level"]) == ("no configuration file", "info")
    assert (line["listeners"], line["upstream"]) == ("127.0.0.1:61613", "amqp://127.0.0.1:5672")
    assert (line["default_user"], line["virtual_hosts"], line["admin"]) == ("guest", "/", "127.0.0.1:15693")
    assert "stomp-gateway example > gateway.yaml" in line["hint"]


def test_serve_with_a_file_assumes_nothing(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, None)
    with structlog.testing.capture_logs() as lines:
        assert main(["serve", "--config", str(config_file)]) == ExitCode.OK
    assert lines == []


def test_check_without_a_file_looks_at_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--offline"]) == ExitCode.OK
    said = "no configuration file, all defaults: no mistakes (1 listener, 1 virtual host)\n"
    assert capsys.readouterr().out == said


def test_the_example_is_a_file_with_all_defaults(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example"]) == ExitCode.OK
    config_file.write_text(capsys.readouterr().out)
    assert load(config_file) == GatewayConfig()
    assert "default_user: " in config_file.read_text()


@pytest.mark.parametrize("command", ["--version", "--help", "top --help", "serve --help", "journal tail --help"])
def test_commands_that_need_no_configuration_do_not_load_it(command: str) -> None:
    """It takes twice as long to load as all the rest of them."""
    program = "import atexit, sys, gateway.cli; atexit.register(lambda: print(*sys.modules)); gateway.cli.main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *command.split()], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"pydantic_core", "asyncio", "yaml"} & set(ended.stdout.splitlines()[-1].split())


def test_the_gateway_needs_neither_spark_nor_arrow() -> None:
    """Every module but the pipeline's is loaded where they are not installed, and the pipeline says what it needs."""
    program = """
import pkgutil, importlib, sys
sys.modules |= dict.fromkeys(("pyspark", "pyarrow", "py4j", "pandas", "numpy"))
import gateway
for found in pkgutil.walk_packages(gateway.__path__, "gateway."):
    if not found.name.startswith("gateway.pipeline.") and found.name != "gateway.__main__":
        importlib.import_module(found.name)
from gateway.cli import main
sys.exit(main(["pipeline", "report", "--lake", "lake", "-o", "report.html"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'stomp-gateway[pipeline]'" in done.stderr
    assert done.returncode == ExitCode.CONFIGURATION


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("arguments", [("check", "--offline"), ("schema",)])  # one fits into the buffer, one does not
def test_an_output_that_cannot_be_written_is_told_and_ends_with_1(arguments: tuple[str, ...]) -> None:
    with FULL.open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "gateway", *arguments],
            cwd=ROOT, env=os.environ | {"PYTHONUNBUFFERED": ""},
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    said = "stomp-gateway: standard output cannot be written: No space left on device.\n"
    assert (ended.returncode, ended.stderr) == (ExitCode.FAILURE, said)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), OSError(2, "No such file", "x")])
def test_no_other_error_of_the_system_is_taken_for_one_of_the_output(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> ExitCode:
        raise error

    monkeypatch.setattr("gateway.cli.serve_commands._schema", fail)
    with pytest.raises(OSError, match=error.strerror):
        main(["schema"])


def test_the_commands_that_ask_a_gateway_exist() -> None:
    """Their modules are loaded by name, only when they run, so no type checker sees the names."""
    runs = (command.get_default("run") for command in runnable_commands(build_parser()))
    asked = [run.args for run in runs if isinstance(run, partial)]
    assert len(asked) >= 10
    for module, function in asked:
        assert callable(getattr(import_module(f"gateway.admin.{module}"), function))
