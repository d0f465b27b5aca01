"""A reload is applied completely or not at all, whatever refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.admin.admin_listener import AdminListener
from gateway.config.loader import load
from gateway.config.model import GatewayConfig
from gateway.errors import ConfigError, GatewayError
from gateway.server.process.reload import Reloader
from gateway.server.process.served import InUse, Service
from gateway.server.process.systemd_notify import SystemdNotifier
from tests.support.certificates import Authority
from tests.support.gateway import gateway_here

_ADMIN = "admin: {{address: '127.0.0.1:0', tls: {tls}}}\n"
_FILE = "listeners: [{{tcp: '127.0.0.1:0'}}]\ndrain_delay: {delay}\ndefaults: {{journal: {{level: 'off'}}}}\n"


class _RefusingService(Service[Any]):
    """Cannot use any other configuration."""

    reloads = 0

    def prepare(self, config: GatewayConfig) -> object:
        raise GatewayError("the TLS files cannot be used")

    async def reload(self, config: GatewayConfig) -> InUse:
        self.reloads += 1
        return {}


async def test_a_service_that_cannot_use_the_configuration_refuses_it_for_all(tmp_path: Path) -> None:
    file, service = tmp_path / "gateway.yaml", _RefusingService()
    file.write_text(_FILE.format(delay=1))
    before = load(file)
    async with gateway_here(before) as gateway:
        file.write_text(_FILE.format(delay=2))
        reloader = Reloader(gateway, str(file), [service], SystemdNotifier())
        with pytest.raises(ConfigError, match="The TLS files cannot be used"):
            await reloader.reload("a test")
        assert gateway.config is before
        assert service.reloads == 0


async def test_what_waits_for_a_restart_is_named_until_the_file_has_the_old_value(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(_FILE.format(delay=1))
    async with gateway_here(load(file)) as gateway:
        reloader = Reloader(gateway, str(file), [], SystemdNotifier())
        file.write_text(_FILE.format(delay=2) + "workers: 3\n")
        for _ in range(2):
            assert (await reloader.reload("a test")).restart == {"workers": "1"}
        assert gateway.config.drain_delay == 2
        file.write_text(_FILE.format(delay=2))
        assert not (await reloader.reload("a test")).restart
        file.write_text(_FILE.format(delay=2) + "drain_spread: 20s\n")
        with capture_logs() as lines:
            _ = await reloader.reload("a test")
        assert [line["warning"].split(":")[0] for line in lines if "warning" in line] == ["line 4, drain_spread"]


async def test_tls_files_that_the_admin_listener_cannot_use_refuse_the_configuration(tmp_path: Path) -> None:
    """They go after the configuration was read, so that only the listener can notice."""
    file = tmp_path / "gateway.yaml"
    file.write_text(_FILE.format(delay=1) + _ADMIN.format(tls="null"))
    before = load(file)
    certificate, key = Authority.make(tmp_path, "authority").sign(tmp_path, "server")
    async with gateway_here(before) as gateway:
        listener = AdminListener(before.admin)
        await listener.start(gateway)
        try:
            file.write_text(_FILE.format(delay=1) + _ADMIN.format(tls=f"{{cert_file: {certificate}, key_file: {key}}}"))
            after = load(file)
            key.unlink()
            with pytest.raises(GatewayError, match="the TLS files cannot be used"):
                listener.prepare(after)
        finally:
            await listener.stop()
