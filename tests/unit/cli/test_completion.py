"""Completion in a shell: what it offers where."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway import cli
from gateway.cli.manual import SHELLS


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", "bash"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out

    assert all(command in text for command in ("stomp-gateway", "serve", "check", "journal", "completion"))


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell)])
def test_a_shell_that_is_here_can_read_it(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cli.main(["completion", shell])
    file = tmp_path / "script"
    file.write_text(capsys.readouterr().out)
    done = subprocess.run([shell, "-n", file], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ch"], {"check"}),
        (["journal", ""], {"tail", "stat", "ship", "collect"}),
        (["check", "--off"], {"--offline"}),
        (["completion", ""], set(SHELLS)),
        (["check", "--config", "gate"], {"gateway.yaml"}),
    ],
    ids=lambda words: " ".join(sorted(words)),
)
def test_bash_completes(script: str, tmp_path: Path, typed: list[str], offered: set[str]) -> None:
    (tmp_path / "gateway.yaml").touch()
    (tmp_path / "other.yaml").touch()
    asking = script + '\nCOMP_WORDS=(stomp-gateway "$@"); COMP_CWORD=$#; compopt() { :; }\n'
    asking += "$(complete -p stomp-gateway | sed -E 's/.*-F ([^ ]+).*/\\1/') stomp-gateway\n"
    asking += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    done = subprocess.run(
        ["bash", "--norc", "-c", asking, "bash", *typed], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert {line.strip() for line in done.stdout.splitlines()} - {"-h", "--help"} == offered
