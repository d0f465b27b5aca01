"""HAProxy and nginx for the tests of several gateways behind one of them: installed ones, or Debian's packages.

`python -m deploy.local.load_balancers` provides them; `make tests` calls it first. Only those tests need them, and they
are skipped without them. The packages' services stay off.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from deploy.local import debian
from deploy.local.optional import OptionalTool

_STREAM_MODULE: Final = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
_TESTS: Final = "tests of load balancers"


def find_haproxy() -> str | None:
    """The path of HAProxy; None where there is none."""
    return _program("haproxy")


def find_nginx(module: Path = _STREAM_MODULE) -> str | None:
    """The path of an nginx with Debian's stream module; None where there is none.

    Args:
        module: where Debian has it.
    """
    return _program("nginx") if module.is_file() else None


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _install(service: str, *packages: str) -> None:
    for package in packages:
        debian.install_first([package])
    debian.switch_off([service])


HAPROXY: Final = OptionalTool(
    name="HAProxy",
    packages="haproxy",
    tests=_TESTS,
    doing="installing Debian's haproxy with apt-get (2 MB to fetch)",
    find=find_haproxy,
    fetch=lambda: _install("haproxy.service", "haproxy"),
)
NGINX: Final = OptionalTool(
    name="nginx",
    packages="nginx libnginx-mod-stream",
    tests=_TESTS,
    doing="installing Debian's nginx with apt-get (1 MB to fetch)",
    find=find_nginx,
    fetch=lambda: _install("nginx.service", "nginx", "libnginx-mod-stream"),
)


if __name__ == "__main__":
    HAPROXY.provide_here()
    sys.exit(NGINX.provide_here())
