import pytest

from tests.bench.cli import main


def test_an_unknown_row_is_refused_with_the_rows_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--rows", "send,speed"])

    assert ended.value.code == 2
    assert "no row speed; there are send, send_confirmed" in capsys.readouterr().err


def test_a_running_plugin_without_its_broker_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plugin", "127.0.0.1:61613"]) == 2
    assert "--broker-url" in capsys.readouterr().err


def test_help_shows_rows_targets_and_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])

    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "* send                 messages/s       >= 0.94  <= 1.06\n" in text
    assert "exit status:" in text
