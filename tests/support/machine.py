"""A Debian that boots: systemd as process 1, in namespaces of its own, on a fresh system whose changes end with it."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.local import debian_tree
from tests.support.deadline import PATIENCE

ROOT = Path(__file__).parents[2]

_PACKAGES = ("python3", "adduser", "systemd", "systemd-sysv", "dbus", "openssl")
_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

# What a container's program does before it starts the system in it. The folder stays as it is: changes go to memory.
# pivot_root and not chroot, because the kernel gives a process in a chroot no user namespace (PrivateUsers=). Mounts
# are shared, because another process makes those with credentials (LoadCredential=).
_BOOT = r"""
set -e
tree=$1 place=$2
mount --make-rprivate /
mount -t tmpfs tmpfs "$place"
mkdir "$place/changes" "$place/work" "$place/root"
mount -t overlay -o "lowerdir=$tree,upperdir=$place/changes,workdir=$place/work" overlay "$place/root"
cd "$place/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs tmpfs sys/fs/cgroup
mkdir sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
pivot_root . mnt
exec chroot . sh -c 'umount -l /mnt; mount --make-rshared /; exec "$@"' sh \
    env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
"""


def tree() -> Path:
    """The folder with the system, made if it is not there. Raises LocalError."""
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    return debian_tree.provide(ROOT / "var/machine", suite, _PACKAGES, "A machine for tests", print)


@dataclass(frozen=True)
class Machine:
    """A system that runs."""

    pid: int
    """Of its process 1, as seen from outside."""

    def run(self, *command: str, code: int | None = 0, given: str = "") -> str:
        """What a program prints that root runs there; its exit code must be ``code`` unless that is None."""
        enter = (
            "nsenter",
            "--target",
            str(self.pid),
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--net",
            "--root",
            "--wd=/",
        )
        done = subprocess.run(
            [*enter, "env", "--chdir=/", "-i", _PATH, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", *command],
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert code is None or done.returncode == code, f"{command} ended with {done.returncode}: {done.stdout}"
        return done.stdout.strip()

    def shell(self, script: str, code: int | None = 0) -> str:
        """The same for a script that is pasted into a shell; what fails in it ends it."""
        return self.run("sh", "-e", "-s", code=code, given=script)

    def write(self, file: str, content: bytes | str) -> None:
        """Write a file in it, with its folder."""
        place = Path(f"/proc/{self.pid}/root") / file.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def booted(place: Path) -> Iterator[Machine]:
    """A machine that has started.

    Args:
        place: an empty folder for its mounts.
    """
    namespaces = ("--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net", "--cgroup")
    with subprocess.Popen(
        ["unshare", *namespaces, "sh", "-c", _BOOT, "sh", tree(), place],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            machine = _wait(process)
            yield machine
        finally:
            process.kill()


def _wait(process: subprocess.Popen[str]) -> Machine:
    """Wait until its system has started."""
    deadline = time.monotonic() + 3 * PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        for child in psutil.Process(process.pid).children():
            if child.name() == "systemd":
                machine = Machine(child.pid)
                if machine.run("systemctl", "is-system-running", code=None) in {"running", "degraded"}:
                    return machine
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"The machine did not start: {process.communicate()[0]}")
