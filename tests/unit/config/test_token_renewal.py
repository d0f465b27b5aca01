"""`token_renewal` needs `links: dedicated`, wherever either of them is said."""

from __future__ import annotations

import pytest

from gateway.config.loader import parse
from gateway.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("defaults: {token_renewal: true}", ["defaults.token_renewal"]),
        ("defaults: {token_renewal: true}\nvirtual_hosts: {/: {}, a: {}, b: {links: dedicated}}",
         ["defaults.token_renewal"]),
        ("virtual_hosts: {/: {token_renewal: true}}", ["virtual_hosts./.token_renewal"]),
        ("defaults: {token_renewal: true, links: dedicated}\nvirtual_hosts: {/: {links: shared}}",
         ["virtual_hosts./.links"]),
    ],
)  # fmt: skip
def test_on_shared_links_no_token_can_be_renewed(text: str, paths: list[str]) -> None:
    with pytest.raises(ConfigError) as found:
        parse(text, environment={})
    assert [mistake.path for mistake in found.value.mistakes] == paths
    assert {mistake.suggestion for mistake in found.value.mistakes} == {"Set links to dedicated."}


@pytest.mark.parametrize(
    "text",
    [
        "defaults: {token_renewal: true, links: dedicated}",
        "defaults: {token_renewal: true}\nvirtual_hosts: {/: {links: dedicated}}",
        "defaults: {links: dedicated}\nvirtual_hosts: {/: {token_renewal: true}, b: {links: shared}}",
    ],
)
def test_on_links_of_their_own_they_can(text: str) -> None:
    config = parse(text, environment={})
    assert any(virtual_host.token_renewal for virtual_host in config.resolved_virtual_hosts())
