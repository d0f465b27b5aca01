"""The configuration of the gateway that `make run` starts."""

from pathlib import Path

import yaml

from deploy.local.address import Address
from deploy.local.errors import LocalError
from deploy.local.ports import LOOPBACK

LOGIN_VARIABLE = "BROKER_LOGIN"
PASSCODE_VARIABLE = "BROKER_PASSCODE"

_HEAD = """\
# Written by `make run`, anew each time. Every key there is: config/gateway.yaml
"""


def write_configuration(path: Path, address: Address, port: int, admin_port: int | None = None) -> dict[str, str]:
    """Write a configuration that serves one virtual host of one broker on loopback.

    Args:
        path: the file.
        address: the broker. Its credentials become the default user but, guest's apart, stay out of the file.
        port: TCP port for STOMP.
        admin_port: TCP port of the admin listener; None for none.

    Returns:
        Environment variables that the gateway needs for reading it.

    Raises:
        LocalError: the file cannot be written.
    """
    defaults: dict[str, object] = {"journal": {"directory": "journal"}}  # beside the file
    document: dict[str, object] = {
        "listeners": [{"tcp": f"{LOOPBACK}:{port}"}],
        "upstream": {"urls": [address.upstream]},
        "defaults": defaults,
        "virtual_hosts": {
            "/": {
                "aliases": ["localhost", LOOPBACK],  # client libraries send the name that they dialled
                "amqp_vhost": address.vhost.replace("$", "$$"),
            }
        },
        "admin": {"address": None if admin_port is None else f"{LOOPBACK}:{admin_port}"},
        "drain_timeout": 5,
    }
    secrets: dict[str, str] = {}
    if (address.login, address.passcode) != ("guest", "guest"):  # the default user already
        user = {"login": f"${{{LOGIN_VARIABLE}}}", "passcode": f"${{{PASSCODE_VARIABLE}}}"}
        defaults["default_user"] = user
        secrets = {LOGIN_VARIABLE: address.login, PASSCODE_VARIABLE: address.passcode}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_HEAD + yaml.safe_dump(document, sort_keys=False))
    except OSError as error:
        raise LocalError(f"Cannot write {path}: {error.strerror}; check who owns it.") from error
    return secrets
