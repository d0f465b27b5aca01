"""Kubernetes' manifests, against Kubernetes' own schemas, the gateway's configuration and each other; no cluster."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pyspark
import pytest
import yaml

from gateway import __version__
from gateway.cli import command_line
from gateway.config.loader import parse
from gateway.config.model import GatewayConfig

_ROOT = Path(__file__).parents[3]
_FILES = _ROOT / "deploy/kubernetes"
_VARIANTS = ("standalone", "sidecar")
_PIPELINE = "pipeline"
_OLDEST = "1.27"
_IMAGE = "stomp-gateway"
# The capacity of a termination, in seconds, that is left for what takes a moment.
_RESERVE = 5

Document = dict[str, Any]

every_variant = pytest.mark.parametrize("variant", _VARIANTS)


def _documents(variant: str) -> list[Document]:
    texts = [file.read_text() for name in _kustomization(variant)["resources"] if (file := _FILES / variant / name)]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def _kustomization(variant: str) -> Document:
    document: Document = yaml.safe_load((_FILES / variant / "kustomization.yaml").read_text())
    return document


def _one(variant: str, *kinds: str) -> Document:
    [found] = [document for document in _documents(variant) if document["kind"] in kinds]
    return found


def _pod(variant: str) -> Document:
    pod: Document = _one(variant, "Deployment", "StatefulSet")["spec"]["template"]["spec"]
    return pod


def _gateway(variant: str) -> Document:
    [container] = [each for each in _pod(variant)["containers"] if each["name"] == "stomp-gateway"]
    return dict(container)


def _ports(variant: str) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"] for container in _pod(variant)["containers"] for port in container["ports"]
    }


def _config(variant: str, folder: Path) -> GatewayConfig:
    """The gateway's configuration, which finds no secret and no variable anywhere."""
    text = (_FILES / variant / "gateway.yaml").read_text()
    return parse(text, directory=folder, name="gateway.yaml", environment={})


@pytest.mark.parametrize("variant", [*_VARIANTS, _PIPELINE])
@pytest.mark.parametrize("version", [_OLDEST, kubernetes_validate.latest_version()])
def test_every_manifest_is_what_kubernetes_takes(variant: str, version: str) -> None:
    documents = _documents(variant)
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_mistake_in_a_manifest_would_be_noticed() -> None:
    deployment = _one("standalone", "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, _OLDEST, strict=True)


@every_variant
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here, which puts the parts together")
def test_kubectl_puts_them_together(variant: str) -> None:
    done = subprocess.run(["kubectl", "kustomize", _FILES / variant], capture_output=True, text=True, check=True)
    documents = list(yaml.safe_load_all(done.stdout))
    for document in documents:
        kubernetes_validate.validate(document, _OLDEST, strict=True)

    [configuration] = [document for document in documents if document["kind"] == "ConfigMap"]
    assert configuration["data"]["gateway.yaml"] == (_FILES / variant / "gateway.yaml").read_text()
    assert f"name: {configuration['metadata']['name']}\n" in done.stdout.partition("containers:")[2]
    assert f"image: registry.example.org/stomp-gateway:{__version__}\n" in done.stdout


@every_variant
def test_the_image_is_this_version(variant: str) -> None:
    [image] = [image for image in _kustomization(variant)["images"] if image["name"] == _IMAGE]

    assert image["newTag"] == __version__
    assert _gateway(variant)["image"] == f"{_IMAGE}:{__version__}"


@every_variant
def test_the_gateway_listens_where_the_pod_says(variant: str, tmp_path: Path) -> None:
    config, ports = _config(variant, tmp_path), _ports(variant)
    listeners = {listener.address.port for listener in config.listeners}
    admin = config.admin.address
    assert admin is not None

    assert listeners == {ports["stomp"], ports["websocket"]}
    assert {listener.address.host for listener in config.listeners} | {admin.host} == {"0.0.0.0"}  # noqa: S104
    assert {port["containerPort"] for port in _gateway(variant)["ports"]} == listeners | {admin.port}


@every_variant
def test_containers_of_a_pod_share_no_port(variant: str) -> None:
    numbers = [port["containerPort"] for container in _pod(variant)["containers"] for port in container["ports"]]

    assert len(set(numbers)) == len(numbers)


@every_variant
def test_probes_ask_the_admin_listener(variant: str, tmp_path: Path) -> None:
    gateway, admin = _gateway(variant), _config(variant, tmp_path).admin.address
    assert admin is not None
    paths = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}

    assert {probe: gateway[probe]["httpGet"]["path"] for probe in paths} == paths
    assert {_ports(variant)[gateway[probe]["httpGet"]["port"]] for probe in paths} == {admin.port}


@every_variant
def test_a_pod_that_ends_has_time_for_the_drain(variant: str, tmp_path: Path) -> None:
    patience, config = _pod(variant)["terminationGracePeriodSeconds"], _config(variant, tmp_path)

    assert config.drain_delay + config.drain_spread + config.drain_timeout + _RESERVE <= patience


def test_rabbitmq_waits_as_long_as_the_drain_of_the_gateway_beside_it_may_take(tmp_path: Path) -> None:
    [rabbitmq] = [each for each in _pod("sidecar")["containers"] if each["name"] == "rabbitmq"]
    [seconds] = re.findall(r"in \{1\.\.(\d+)\}", rabbitmq["lifecycle"]["preStop"]["exec"]["command"][-1])
    config = _config("sidecar", tmp_path)

    assert int(seconds) >= config.drain_delay + config.drain_timeout + _RESERVE
    assert int(seconds) + _RESERVE <= _pod("sidecar")["terminationGracePeriodSeconds"]


@every_variant
def test_nodes_have_time_to_notice_that_a_pod_ends(variant: str, tmp_path: Path) -> None:
    assert _config(variant, tmp_path).drain_delay >= 5


@every_variant
def test_the_gateway_may_do_nothing_that_it_need_not(variant: str) -> None:
    pod, gateway = _pod(variant), _gateway(variant)
    rights = pod["securityContext"] | gateway["securityContext"]

    assert rights["runAsNonRoot"] is True
    assert rights["runAsUser"] == rights["runAsGroup"] == 10001
    assert f"USER {rights['runAsUser']}:{rights['runAsGroup']}\n" in (_ROOT / "Dockerfile").read_text()
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert set(gateway["resources"]) == {"requests", "limits"}


@every_variant
def test_what_is_mounted_is_there_and_the_journal_can_be_written(variant: str) -> None:
    workload = _one(variant, "Deployment", "StatefulSet")["spec"]
    volumes = {volume["name"] for volume in _pod(variant)["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in workload.get("volumeClaimTemplates", ())}
    mounts = [mount for container in _pod(variant)["containers"] for mount in container["volumeMounts"]]
    writable = [mount["mountPath"] for mount in _gateway(variant)["volumeMounts"] if not mount.get("readOnly")]

    assert {mount["name"] for mount in mounts} == volumes
    assert writable == ["/var/lib/stomp-gateway"]
    assert f"ENV STATE_DIRECTORY={writable[0]} " in (_ROOT / "Dockerfile").read_text()


@every_variant
def test_the_journal_stays_below_the_limit_of_its_volume(variant: str, tmp_path: Path) -> None:
    """Beyond it Kubernetes evicts the pod. A segment may be open for each directory, and grow to its size."""
    [volume] = [each for each in _pod(variant)["volumes"] if each["name"] == "journal"]
    journal = _config(variant, tmp_path).defaults.journal
    assert journal.retain_bytes is not None
    assert volume["emptyDir"]["sizeLimit"] == "2Gi"
    assert journal.retain_bytes + 4 * journal.rotate_bytes <= 2 << 30


def test_the_pipeline_reads_where_the_sidecar_ships_to_with_the_same_secret(tmp_path: Path) -> None:
    pipeline = _pipeline_container()
    place = _config("sidecar", tmp_path).defaults.journal.ship.to
    assert f"--journal={place}" in pipeline["args"]
    assert pipeline["envFrom"] == _gateway("sidecar")["envFrom"]


def test_the_pipeline_may_do_nothing_that_it_need_not() -> None:
    job = _one(_PIPELINE, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    container, policy = _pipeline_container(), _one(_PIPELINE, "NetworkPolicy")["spec"]
    rights = job["spec"]["securityContext"] | container["securityContext"]

    assert rights["runAsNonRoot"] is True
    assert rights["runAsUser"] == rights["runAsGroup"] == 10001
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert job["spec"]["automountServiceAccountToken"] is False
    assert set(container["resources"]) == {"requests", "limits"}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert policy["podSelector"]["matchLabels"] == job["metadata"]["labels"]


def test_the_pipeline_has_the_image_of_this_version_and_writes_where_it_may() -> None:
    container = _pipeline_container()
    [image] = _kustomization(_PIPELINE)["images"]
    assert image["newTag"] == __version__
    assert container["image"] == f"{image['name']}:{__version__}"
    stage = (_ROOT / "Dockerfile").read_text().partition(" AS pipeline\n")[2].partition("\nFROM ")[0]
    [mounted] = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert f"HOME={mounted} " in stage
    assert 'ENTRYPOINT ["stomp-gateway", "pipeline"]' in stage
    assert "USER 10001:10001\n" in stage


def test_the_pipelines_arguments_are_those_of_its_command() -> None:
    options = command_line.build_parser().parse_args(["pipeline", *_pipeline_container()["args"]])
    assert all(place.startswith("s3://") for place in (*options.journal, options.lake))
    assert dict(options.conf)["spark.driver.memory"] == "2g"
    assert options.every is None  # the CronJob repeats it


def test_sparks_connector_is_that_of_sparks_hadoop() -> None:
    [client] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    wanted = "org.apache.hadoop:hadoop-aws:" + client.stem.removeprefix("hadoop-client-api-")
    assert f"--packages={wanted}" in _pipeline_container()["args"]
    for page in (_ROOT / "docs/pipeline.md", _ROOT / "gateway/cli/pipeline_commands.py"):
        assert wanted in page.read_text()


def _pipeline_container() -> Document:
    [container] = _one(_PIPELINE, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


@every_variant
def test_labels_find_the_pods(variant: str) -> None:
    workload = _one(variant, "Deployment", "StatefulSet")["spec"]
    labels = workload["template"]["metadata"]["labels"]
    policy = _one(variant, "NetworkPolicy")["spec"]
    services = [document["spec"] for document in _documents(variant) if document["kind"] == "Service"]

    assert workload["selector"]["matchLabels"] == labels == policy["podSelector"]["matchLabels"]
    assert all(service["selector"] == labels for service in services)
    asked = [port["targetPort"] for service in services for port in service["ports"]]
    allowed = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert {*asked, *allowed} <= set(_ports(variant))


@every_variant
def test_only_prometheus_reaches_the_admin_listener(variant: str, tmp_path: Path) -> None:
    """It has no users in there, so the network has to keep others away."""
    config = _config(variant, tmp_path)
    assert config.admin.users == ()
    policy = _one(variant, "NetworkPolicy")["spec"]
    [admin] = [
        name for name, port in _ports(variant).items() if config.admin.address and port == config.admin.address.port
    ]

    assert policy["policyTypes"] == ["Ingress", "Egress"]
    for rule in policy["ingress"]:
        if admin in [port["port"] for port in rule["ports"]]:
            [source] = rule["from"]
            assert source["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}


@every_variant
def test_every_connection_needs_a_login(variant: str, tmp_path: Path) -> None:
    """Clients may come from wherever they are."""
    assert [host.default_user for host in _config(variant, tmp_path).resolved_virtual_hosts()] == [None]


@every_variant
def test_no_secret_is_in_the_files(variant: str) -> None:
    assert not [document for document in _documents(variant) if document["kind"] == "Secret"]
    assert "passcode:" not in (_FILES / variant / "gateway.yaml").read_text()


@pytest.mark.skipif(shutil.which("bash") is None, reason="RabbitMQ's image has bash; here there is none")
async def test_rabbitmq_waits_until_the_gateway_beside_it_has_drained() -> None:
    """Its preStop command, with a port of our own, while something listens there and when nothing does any more."""
    [rabbitmq] = [each for each in _pod("sidecar")["containers"] if each["name"] == "rabbitmq"]
    command = rabbitmq["lifecycle"]["preStop"]["exec"]["command"]
    asked = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        asked.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    script = command[-1].replace(str(_ports("sidecar")["gateway-admin"]), str(port))
    assert str(port) in script
    waiting = await asyncio.create_subprocess_exec(*command[:-1], script)
    await asked.wait()
    assert waiting.returncode is None
    server.close()
    await server.wait_closed()

    assert await waiting.wait() == 0
