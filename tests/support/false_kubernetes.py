"""An API server of Kubernetes with one Deployment, for charts that look up what is in the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

_KINDS: Final = {
    "v1": ("ConfigMap", "Service"),
    "apps/v1": ("Deployment",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
}


def _discovery() -> dict[str, Any]:
    """What tells a client which kinds there are, by path."""
    groups = [version.partition("/") for version in _KINDS if "/" in version]
    pages: dict[str, Any] = {
        "/version": {"major": "1", "minor": "30", "gitVersion": "v1.30.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "groups": [
                {"name": name, "versions": [{"groupVersion": f"{name}/{version}", "version": version}]}
                for name, _, version in groups
            ],
        },
    }
    for version, kinds in _KINDS.items():
        resources = [{"name": f"{kind.lower()}s", "namespaced": True, "kind": kind, "verbs": ["get"]} for kind in kinds]
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        pages[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return pages


@contextmanager
def false_kubernetes(release: str, namespace: str, name: str, replicas: int) -> Iterator[str]:
    """Run it; its URL.

    Args:
        release: of Helm's, to which the Deployment belongs.
        namespace: of both.
        name: of the Deployment.
        replicas: how many pods it has.
    """
    metadata = {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace},
    }
    spec = {"replicas": replicas}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    pages = _discovery() | {f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}": deployment}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            body = json.dumps(page or {"kind": "Status", "reason": "NotFound", "code": 404}).encode()
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
