"""HAProxy and nginx for tests: those that are there, or Debian's, whose services stay off."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.local import debian, load_balancers


def test_root_on_debian_gets_both_and_their_services_stay_off(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    off: list[str] = []

    def install(packages: Sequence[str]) -> None:
        installed.extend(packages)

    monkeypatch.setattr(shutil, "which", lambda name, path: f"{path}/{name}" if name in installed else None)
    monkeypatch.setattr(debian, "can_install", lambda: True)
    monkeypatch.setattr(debian, "install_first", install)
    monkeypatch.setattr(debian, "switch_off", off.extend)
    assert load_balancers.HAPROXY.provide(lambda _line: None) is not None
    assert load_balancers.find_nginx() is None
    load_balancers.NGINX.provide(lambda _line: None)
    assert installed == ["haproxy", "nginx", "libnginx-mod-stream"]
    assert off == ["haproxy.service", "nginx.service"]


def test_nginx_without_its_stream_module_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: f"/usr/sbin/{name}")
    module = tmp_path / "ngx_stream_module.so"
    assert load_balancers.find_nginx(module) is None
    module.touch()
    assert load_balancers.find_nginx(module) == "/usr/sbin/nginx"
