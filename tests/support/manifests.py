"""Kubernetes' manifests of a gateway, from files or from a chart, and what tests ask about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.config.loader import parse
from gateway.config.model import GatewayConfig

Document = dict[str, Any]


@dataclass(frozen=True)
class Manifests:
    """Objects of which one runs pods with a gateway."""

    documents: list[Document]
    gateway_yaml: str
    """The configuration that they mount."""

    @classmethod
    def read(cls, text: str) -> Manifests:
        """From YAML with a ConfigMap in it, as Helm prints it."""
        documents = [document for document in yaml.safe_load_all(text) if document]
        [configuration] = [document for document in documents if document["kind"] == "ConfigMap"]
        return cls(documents, configuration["data"]["gateway.yaml"])

    @property
    def kinds(self) -> list[str]:
        """The kinds of all objects, sorted."""
        return sorted(document["kind"] for document in self.documents)

    def one(self, *kinds: str) -> Document:
        """The only object of one of these kinds."""
        [found] = [document for document in self.documents if document["kind"] in kinds]
        return found

    @property
    def workload(self) -> Document:
        """The spec of what makes the pods."""
        return dict(self.one("Deployment", "StatefulSet")["spec"])

    @property
    def pod(self) -> Document:
        """The spec of its pods."""
        return dict(self.workload["template"]["spec"])

    def container(self, name: str = "stomp-gateway") -> Document:
        """A container of them."""
        [found] = [each for each in self.pod["containers"] if each["name"] == name]
        return dict(found)

    @property
    def ports(self) -> dict[str, int]:
        """Their ports by name."""
        containers = self.pod["containers"]
        return {port["name"]: port["containerPort"] for each in containers for port in each.get("ports", ())}

    def config(self, folder: Path) -> GatewayConfig:
        """The gateway's configuration, which finds no secret and no variable anywhere."""
        return parse(self.gateway_yaml, directory=folder, name="gateway.yaml", environment={})
