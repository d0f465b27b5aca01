"""Kubernetes' manifests, against Kubernetes' own schemas, the gateway's configuration and each other; no cluster."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from copy import deepcopy
from functools import cache
from pathlib import Path

import kubernetes_validate
import pyspark
import pytest
import yaml

from gateway import __version__
from gateway.cli import command_line
from tests.support.addresses import tcp
from tests.support.helm_chart import Chart
from tests.support.manifests import Document, Manifests

_ROOT = Path(__file__).parents[3]
_FILES = _ROOT / "deploy/kubernetes"
_VARIANTS = ("standalone", "sidecar")
_PIPELINE = "pipeline"
_OLDEST = "1.27"
_IMAGE = "stomp-gateway"
# The capacity of a termination, in seconds, that is left for what takes a moment.
_RESERVE = 5

every_variant = pytest.mark.parametrize("variant", _VARIANTS)


@cache
def _manifests(variant: str) -> Manifests:
    texts = [(_FILES / variant / name).read_text() for name in _kustomization(variant)["resources"]]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    configuration = _FILES / variant / "gateway.yaml"
    return Manifests(documents, configuration.read_text() if configuration.exists() else "")


def _kustomization(variant: str) -> Document:
    document: Document = yaml.safe_load((_FILES / variant / "kustomization.yaml").read_text())
    return document


@pytest.fixture(params=[*_VARIANTS, "chart"])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    """Those of deploy/kubernetes, and those that the chart makes of the values in its README."""
    if request.param != "chart":
        return _manifests(request.param)
    chart: Chart = request.getfixturevalue("chart")
    return chart.render(*chart.examples("Stand-alone"))


@pytest.mark.parametrize("variant", [*_VARIANTS, _PIPELINE])
@pytest.mark.parametrize("version", [_OLDEST, kubernetes_validate.latest_version()])
def test_every_manifest_is_what_kubernetes_takes(variant: str, version: str) -> None:
    documents = _manifests(variant).documents
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_mistake_in_a_manifest_would_be_noticed() -> None:
    deployment = deepcopy(_manifests("standalone").one("Deployment"))
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, _OLDEST, strict=True)


@every_variant
def test_kubectl_puts_them_together(kubectl: str, variant: str) -> None:
    done = subprocess.run([kubectl, "kustomize", _FILES / variant], capture_output=True, text=True, check=True)
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
    assert _manifests(variant).container()["image"] == f"{_IMAGE}:{__version__}"


def test_the_gateway_listens_where_the_pod_says(manifests: Manifests, tmp_path: Path) -> None:
    config = manifests.config(tmp_path)
    listeners = {tcp(listener.address).port for listener in config.listeners}
    admin = tcp(config.admin.address)

    assert {tcp(listener.address).host for listener in config.listeners} | {admin.host} == {"0.0.0.0"}  # noqa: S104
    assert {port["containerPort"] for port in manifests.container()["ports"]} == listeners | {admin.port}


def test_containers_of_a_pod_share_no_port(manifests: Manifests) -> None:
    numbers = [port["containerPort"] for container in manifests.pod["containers"] for port in container["ports"]]

    assert len(set(numbers)) == len(numbers)


def test_probes_ask_the_admin_listener(manifests: Manifests, tmp_path: Path) -> None:
    gateway, admin = manifests.container(), tcp(manifests.config(tmp_path).admin.address)
    paths = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}

    assert {probe: gateway[probe]["httpGet"]["path"] for probe in paths} == paths
    assert {manifests.ports[gateway[probe]["httpGet"]["port"]] for probe in paths} == {admin.port}


def test_a_pod_that_ends_has_time_for_the_drain(manifests: Manifests, tmp_path: Path) -> None:
    patience, config = manifests.pod["terminationGracePeriodSeconds"], manifests.config(tmp_path)

    assert config.drain_delay + config.drain_timeout + _RESERVE <= patience


def test_rabbitmq_waits_as_long_as_the_drain_of_the_gateway_beside_it_may_take(tmp_path: Path) -> None:
    rabbitmq = _manifests("sidecar").container("rabbitmq")
    [seconds] = re.findall(r"in \{1\.\.(\d+)\}", rabbitmq["lifecycle"]["preStop"]["exec"]["command"][-1])
    config = _manifests("sidecar").config(tmp_path)

    assert int(seconds) >= config.drain_delay + config.drain_timeout + _RESERVE
    assert int(seconds) + _RESERVE <= _manifests("sidecar").pod["terminationGracePeriodSeconds"]


def test_nodes_have_time_to_notice_that_a_pod_ends(manifests: Manifests, tmp_path: Path) -> None:
    assert manifests.config(tmp_path).drain_delay >= 5


def test_the_gateway_may_do_nothing_that_it_need_not(manifests: Manifests) -> None:
    pod, gateway = manifests.pod, manifests.container()
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


def test_what_is_mounted_is_there_and_the_journal_can_be_written(manifests: Manifests) -> None:
    workload = manifests.workload
    volumes = {volume["name"] for volume in manifests.pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in workload.get("volumeClaimTemplates", ())}
    mounts = [mount for container in manifests.pod["containers"] for mount in container["volumeMounts"]]
    writable = [mount["mountPath"] for mount in manifests.container()["volumeMounts"] if not mount.get("readOnly")]

    assert {mount["name"] for mount in mounts} == volumes
    assert writable == ["/var/lib/stomp-gateway"]
    assert f"ENV STATE_DIRECTORY={writable[0]} " in (_ROOT / "Dockerfile").read_text()


def test_the_journal_stays_below_the_limit_of_its_volume(manifests: Manifests, tmp_path: Path) -> None:
    """Beyond it Kubernetes evicts the pod. A segment may be open for each directory, and grow to its size."""
    [volume] = [each for each in manifests.pod["volumes"] if "journal" in each["name"]]
    journal = manifests.config(tmp_path).defaults.journal
    assert journal.retain_bytes is not None
    assert volume["emptyDir"]["sizeLimit"] == "2Gi"
    assert journal.retain_bytes + 4 * journal.rotate_bytes <= 2 << 30


def test_the_pipeline_reads_where_the_sidecar_ships_to_with_the_same_secret(tmp_path: Path) -> None:
    pipeline = _pipeline_container()
    place = _manifests("sidecar").config(tmp_path).defaults.journal.ship.to
    assert f"--journal={place}" in pipeline["args"]
    assert pipeline["envFrom"] == _manifests("sidecar").container()["envFrom"]


def test_the_pipeline_may_do_nothing_that_it_need_not() -> None:
    job = _manifests(_PIPELINE).one("CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    container, policy = _pipeline_container(), _manifests(_PIPELINE).one("NetworkPolicy")["spec"]
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
    [container] = _manifests(_PIPELINE).one("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_labels_find_the_pods(manifests: Manifests) -> None:
    workload = manifests.workload
    labels = workload["template"]["metadata"]["labels"]
    policy = manifests.one("NetworkPolicy")["spec"]
    services = [document["spec"] for document in manifests.documents if document["kind"] == "Service"]

    assert workload["selector"]["matchLabels"] == labels == policy["podSelector"]["matchLabels"]
    assert all(service["selector"] == labels for service in services)
    asked = [port["targetPort"] for service in services for port in service["ports"]]
    allowed = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert set(asked) <= set(allowed)
    assert {*asked, *allowed} <= set(manifests.ports)


def test_only_prometheus_reaches_the_admin_listener(manifests: Manifests, tmp_path: Path) -> None:
    """It has no users in there, so the network has to keep others away."""
    config = manifests.config(tmp_path)
    assert config.admin.users == ()
    policy = manifests.one("NetworkPolicy")["spec"]
    [admin] = [name for name, port in manifests.ports.items() if port == tcp(config.admin.address).port]

    assert policy["policyTypes"] == ["Ingress", "Egress"]
    for rule in policy["ingress"]:
        if admin in [port["port"] for port in rule["ports"]]:
            [source] = rule["from"]
            assert source["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}


def test_every_connection_needs_a_login(manifests: Manifests, tmp_path: Path) -> None:
    """Clients may come from wherever they are."""
    assert [host.default_user for host in manifests.config(tmp_path).resolved_virtual_hosts()] == [None]


def test_no_secret_is_in_the_files(manifests: Manifests) -> None:
    assert not [document for document in manifests.documents if document["kind"] == "Secret"]
    assert "passcode:" not in manifests.gateway_yaml


@pytest.mark.skipif(shutil.which("bash") is None, reason="RabbitMQ's image has bash; here there is none")
async def test_rabbitmq_waits_until_the_gateway_beside_it_has_drained() -> None:
    """Its preStop command, with a port of our own, while something listens there and when nothing does any more."""
    rabbitmq = _manifests("sidecar").container("rabbitmq")
    command = rabbitmq["lifecycle"]["preStop"]["exec"]["command"]
    asked = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        asked.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    script = command[-1].replace(str(_manifests("sidecar").ports["gateway-admin"]), str(port))
    assert str(port) in script
    waiting = await asyncio.create_subprocess_exec(*command[:-1], script)
    await asked.wait()
    assert waiting.returncode is None
    server.close()
    await server.wait_closed()

    assert await waiting.wait() == 0
