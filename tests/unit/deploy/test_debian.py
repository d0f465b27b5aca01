"""Installing Debian's package must not start anything."""

from pathlib import Path

from deploy.local.debian import services_kept_down


def test_a_policy_forbids_starts_while_installing_and_goes_afterwards(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with services_kept_down(policy):
        assert "exit 101" in policy.read_text()
        assert policy.stat().st_mode & 0o777 == 0o755

    assert not policy.exists()


def test_a_policy_that_was_there_stays(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n")
    with services_kept_down(policy):
        assert policy.read_text() == "#!/bin/sh\nexit 104\n"

    assert policy.read_text() == "#!/bin/sh\nexit 104\n"


def test_a_policy_that_a_killed_run_left_goes_too(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with services_kept_down(policy):
        left = policy.read_text()
    policy.write_text(left)
    with services_kept_down(policy):
        assert policy.exists()

    assert not policy.exists()
