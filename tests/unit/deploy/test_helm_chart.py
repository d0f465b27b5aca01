"""The chart in deploy/helm, rendered by Helm; test_kubernetes.py asks of it what it asks of the plain manifests."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from deploy.release.chart_schema import FILE, with_configuration
from gateway import __version__
from tests.support.addresses import tcp
from tests.support.exposed import exposed
from tests.support.false_kubernetes import false_kubernetes
from tests.support.helm_chart import FOLDER, FULL_NAME, NAMESPACE, RELEASE, Chart
from tests.support.manifests import Document, Manifests

_OLDEST = "1.27"
_IMAGE = "image: {repository: r.example.org/gateway}\n"
# Of operators, whose schemas are not part of Kubernetes.
_FOREIGN = {"Certificate", "ServiceMonitor"}
_EVERY_KIND = [
    "Certificate",
    "ConfigMap",
    "Deployment",
    "HorizontalPodAutoscaler",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Service",
    "Service",
    "ServiceMonitor",
]


def _full(chart: Chart) -> Manifests:
    return chart.render(*chart.examples("TLS, Prometheus and autoscaling"))


@pytest.fixture(scope="module")
def sidecar(chart: Chart, tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    """RabbitMQ's chart of the README with the gateway in its pods."""
    return chart.render_sidecar(tmp_path_factory.mktemp("charts") / "broker")


def _validate(manifests: Manifests, *versions: str) -> None:
    for version in (_OLDEST, *versions):
        for document in manifests.documents:
            if document["kind"] not in _FOREIGN:
                kubernetes_validate.validate(document, version, strict=True)


def test_everything_at_once_is_what_kubernetes_takes(chart: Chart) -> None:
    manifests = _full(chart)
    assert manifests.kinds == _EVERY_KIND
    _validate(manifests, kubernetes_validate.latest_version())


def test_what_nobody_asked_for_is_not_there(chart: Chart) -> None:
    manifests = chart.render(_IMAGE)
    assert manifests.kinds == ["ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"]
    _validate(manifests)
    assert "NetworkPolicy" not in chart.render(_IMAGE, "networkPolicy: {enabled: false}").kinds


def test_helm_finds_nothing_to_say(chart: Chart, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(_IMAGE)
    done = chart.run("lint", FOLDER, "--strict", "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr


def _notes(chart: Chart, folder: Path, values: str = "") -> str:
    file = folder / "values.yaml"
    file.write_text(_IMAGE + values)
    done = chart.run("install", "stomp", FOLDER, "--namespace", NAMESPACE, "--dry-run=client", "--values", file)
    return done.stdout.partition("NOTES:")[2]


def test_the_notes_say_where_clients_connect(chart: Chart, tmp_path: Path) -> None:
    assert f"{FULL_NAME}.{NAMESPACE}.svc, with the ports\ntcp-61613, websocket-15674" in _notes(chart, tmp_path)


_USERS = "users: [{login: o, passcode_file: /o}]"
_READ = "tls: {cert_file: /etc/stomp-gateway-tls/tls.crt, key_file: /etc/stomp-gateway-tls/tls.key}"


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ("", None),
        ("networkPolicy: {enabled: false}", "config.admin has no users"),
        ("sidecar: {podLabels: {a: b}}", "config.admin has no users"),
        (f"networkPolicy: {{enabled: false}}\nconfig: {{admin: {{{_USERS}}}}}", None),
        ("tls: {issuer: {name: a}, dnsNames: [b]}", "no listener of config names it"),
        (f"tls: {{secret: a}}\nconfig: {{listeners: [{{tcp: '0.0.0.0:1', {_READ}}}]}}", None),
        (f"tls: {{secret: a}}\nconfig: {{admin: {{{_READ}}}}}", None),
    ],
)
def test_the_notes_warn_of_what_is_half_set_up(chart: Chart, tmp_path: Path, values: str, warning: str | None) -> None:
    notes = _notes(chart, tmp_path, values)
    assert notes
    assert notes.count("WARNING") == (warning is not None)
    assert warning is None or warning in notes.replace("\n", " ")


def test_chart_and_image_are_this_version(chart: Chart) -> None:
    about = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    [dependency] = yaml.safe_load(chart.examples("Sidecar")[0])["dependencies"]

    assert about["version"] == about["appVersion"] == dependency["version"] == __version__
    assert chart.render(_IMAGE).container()["image"] == f"r.example.org/gateway:{__version__}"
    other = chart.render("image: {repository: r.example.org/gateway, tag: '7'}")
    assert other.container()["image"] == "r.example.org/gateway:7"


def test_the_command_of_the_deployment_page_works(chart: Chart, tmp_path: Path) -> None:
    page = (FOLDER.parents[1] / "docs/deploy.md").read_text()
    [block] = re.findall(r"^```\nhelm install (.*?)^```", page, re.MULTILINE | re.DOTALL)
    release, folder, *options = shlex.split(block.replace("\\\n", ""))
    done = chart.run("template", release, FOLDER.parents[1] / folder, *options)
    manifests = Manifests.read(done.stdout)

    assert done.returncode == 0, done.stderr
    assert manifests.one("Deployment")["metadata"]["name"] == "stomp-gateway"
    assert [str(url) for url in manifests.config(tmp_path).upstream.urls] == ["amqp://rabbitmq:5672"]


# ---------------------------------------------------------------- what follows from the configuration


def test_the_service_offers_every_listener_and_the_policy_admits_it(chart: Chart, tmp_path: Path) -> None:
    listeners = "{tcp: '0.0.0.0:1883'}, {tcp: '[::]:1883'}, {websocket: '0.0.0.0:65535'}"
    manifests = chart.render(_IMAGE, f"config: {{listeners: [{listeners}], admin: {{address: '0.0.0.0:9'}}}}")
    offered = manifests.one("Service")["spec"]["ports"]
    clients, _ = manifests.one("NetworkPolicy")["spec"]["ingress"]

    assert [port["port"] for port in offered] == [1883, 65535]
    assert [manifests.ports[port["targetPort"]] for port in offered] == [1883, 65535]
    assert [port["port"] for port in clients["ports"]] == [port["targetPort"] for port in offered]
    assert len(manifests.config(tmp_path).listeners) == 3
    assert manifests.ports["stomp-admin"] == 9
    _validate(manifests)


def test_the_gateway_reaches_every_broker_and_names(chart: Chart) -> None:
    manifests = chart.render(
        _IMAGE,
        "config: {upstream: {urls: ['amqps://a', 'AMQP://[::1]', 'amqp://b:77']},"
        " virtual_hosts: {/: , /x: {}, /y: {upstream: {urls: ['amqps://c:88']}}}}",
        "networkPolicy: {brokers: [{ipBlock: {cidr: 192.0.2.0/24}}], egress: [{ports: [{port: 443}]}]}",
    )
    names, brokers, further = manifests.one("NetworkPolicy")["spec"]["egress"]

    assert [port["port"] for port in names["ports"]] == [53, 53]
    assert [port["port"] for port in brokers["ports"]] == [5671, 5672, 77, 88]
    assert brokers["to"] == [{"ipBlock": {"cidr": "192.0.2.0/24"}}]
    assert further == {"ports": [{"port": 443}]}
    _validate(manifests)


def test_clients_and_prometheus_come_from_where_they_may(chart: Chart) -> None:
    peers = "[{namespaceSelector: {matchLabels: {team: shop}}}]"
    ingress = chart.render(_IMAGE, f"networkPolicy: {{clients: {peers}, prometheus: []}}").one("NetworkPolicy")
    [clients] = ingress["spec"]["ingress"]
    assert clients["from"] == yaml.safe_load(peers)


@pytest.mark.parametrize("nobody", ["[]", "null"])
def test_a_policy_without_a_prometheus_opens_the_admin_listener_to_nobody(chart: Chart, nobody: str) -> None:
    policy = chart.render(_IMAGE, f"networkPolicy: {{prometheus: {nobody}}}").one("NetworkPolicy")
    assert "stomp-admin" not in [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]


_NAMES = [FULL_NAME, f"{FULL_NAME}.shop", f"{FULL_NAME}.shop.svc", f"{FULL_NAME}.shop.svc.cluster.local"]


@pytest.mark.parametrize(
    ("config", "host", "aliases"),
    [
        ("{}", "/", _NAMES),
        ("{virtual_hosts: {/: {aliases: [stomp.example.org]}}}", "/", ["stomp.example.org", *_NAMES]),
        (f"{{virtual_hosts: {{/: {{aliases: [{FULL_NAME}]}}}}}}", "/", _NAMES),
        ("{default_vhost: shop, virtual_hosts: {/: , shop: }}", "shop", _NAMES),
        ("{default_vhost: other, virtual_hosts: {shop: {aliases: [other]}}}", "shop", ["other"]),
        (f"{{virtual_hosts: {{/: , /x: {{aliases: [{FULL_NAME}]}}}}}}", "/", _NAMES[1:]),
        (f"{{virtual_hosts: {{/: , {FULL_NAME}.shop: }}}}", "/", [_NAMES[0], *_NAMES[2:]]),
    ],
)
def test_clients_that_dial_the_service_mean_the_default_virtual_host(
    chart: Chart, tmp_path: Path, config: str, host: str, aliases: list[str]
) -> None:
    rendered = chart.render(_IMAGE, f"config: {config}").config(tmp_path)
    assert list(rendered.virtual_hosts[host].aliases) == aliases


def test_a_login_is_required_unless_there_is_a_default_user(chart: Chart, tmp_path: Path) -> None:
    nothing = chart.render(_IMAGE, "config: {defaults: {journal: {level: off}}}")
    (tmp_path / "passcode").write_text("secret")
    user = chart.render(_IMAGE, "config: {defaults: {default_user: {login: app, passcode_file: passcode}}}")

    assert nothing.config(tmp_path).defaults.default_user is None
    default = user.config(tmp_path).defaults.default_user
    assert default is not None
    assert default.login == "app"


@pytest.mark.parametrize(
    "drain",
    [
        "drain_delay: 0, drain_timeout: 1m30s",
        "drain_delay: 1500ms, drain_timeout: 0.5min",
        "drain_timeout: '45'",
        "drain_timeout: 12d",
    ],
)
def test_a_pod_has_the_time_for_the_drain_that_the_configuration_names(
    chart: Chart, tmp_path: Path, drain: str
) -> None:
    manifests = chart.render(_IMAGE, f"config: {{{drain}}}")
    config = manifests.config(tmp_path)
    needed = config.drain_delay + config.drain_timeout

    assert needed + 10 <= manifests.pod["terminationGracePeriodSeconds"] < needed + 12


def test_a_changed_configuration_makes_new_pods(chart: Chart) -> None:
    def template(*values: str) -> Document:
        return dict(chart.render(_IMAGE, *values).workload["template"])

    assert template("replicas: 3") == template()
    assert template("config: {logging: {level: debug}}") != template()


def test_pods_with_an_older_configuration_keep_its_configmap(chart: Chart) -> None:
    """They would not start again with a mistake in the new one, or without theirs."""
    old, new = (chart.render(_IMAGE, f"config: {{logging: {{level: {level}}}}}") for level in ("info", "debug"))
    names = [manifests.one("ConfigMap")["metadata"]["name"] for manifests in (old, new)]
    assert len(set(names)) == 2
    for manifests, name in zip((old, new), names, strict=True):
        assert {"configMap": {"name": name}, "name": "gateway-configuration"} in manifests.pod["volumes"]
        assert manifests.one("ConfigMap")["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_two_of_a_release_find_their_own_pods(chart: Chart, tmp_path: Path) -> None:
    one = {"name": "stomp-gateway", "version": __version__, "repository": f"file://{FOLDER}"}
    about = {"apiVersion": "v2", "name": "shop", "version": "1.0.0"}
    dependencies = [{**one, "alias": alias} for alias in ("orders", "prices")]
    values = {
        alias: {"image": {"repository": "r"}, "serviceMonitor": {"enabled": True}} for alias in ("orders", "prices")
    }
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump({**about, "dependencies": dependencies}))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    shutil.copytree(FOLDER, tmp_path / "charts/stomp-gateway")
    documents = list(yaml.safe_load_all(chart.run("template", "stomp", tmp_path).stdout))
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in documents if each["kind"] == "Deployment"]
    services = [each for each in documents if each["kind"] == "Service"]
    monitors = [each for each in documents if each["kind"] == "ServiceMonitor"]

    assert (len(pods), len(services), len(monitors)) == (2, 4, 2)
    for service in services:
        assert sum(service["spec"]["selector"].items() <= labels.items() for labels in pods) == 1
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        assert sum(wanted <= service["metadata"]["labels"].items() for service in services) == 1


def test_probes_and_prometheus_use_https_where_the_admin_listener_does(chart: Chart) -> None:
    tls = "config: {admin: {tls: {cert_file: /tls.crt, key_file: /tls.key}}}"
    manifests = chart.render(_IMAGE, tls, "serviceMonitor: {enabled: true, endpoint: {interval: 5s}}")
    probes = {probe["httpGet"]["scheme"] for name, probe in manifests.container().items() if name.endswith("Probe")}

    assert probes == {"HTTPS"}
    assert manifests.one("ServiceMonitor")["spec"]["endpoints"] == [
        {"port": "stomp-admin", "scheme": "https", "interval": "5s"}
    ]


# ---------------------------------------------------------------- objects that refer to each other


def test_prometheus_operator_finds_the_metrics_under_the_job_of_the_alerts(chart: Chart) -> None:
    manifests = _full(chart)
    monitor = manifests.one("ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [document for document in manifests.documents if document["kind"] == "Service"]
    [found] = [service for service in services if wanted <= service["metadata"]["labels"].items()]

    assert found["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "stomp-gateway"
    assert [port["name"] for port in found["spec"]["ports"]] == [monitor["spec"]["endpoints"][0]["port"]]
    assert found["spec"]["selector"].items() <= manifests.workload["template"]["metadata"]["labels"].items()
    assert manifests.ports[found["spec"]["ports"][0]["targetPort"]] == found["spec"]["ports"][0]["port"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert "annotations" not in manifests.workload["template"]["metadata"]
    alone = chart.render(_IMAGE).workload["template"]["metadata"]["annotations"]
    assert (alone["prometheus.io/scrape"], alone["prometheus.io/port"]) == ("true", "15693")


def test_the_certificate_is_mounted_where_the_readme_reads_it(chart: Chart) -> None:
    manifests = _full(chart)
    certificate = manifests.one("Certificate")["spec"]
    [volume] = [each for each in manifests.pod["volumes"] if "secret" in each]
    [mount] = [each for each in manifests.container()["volumeMounts"] if each["name"] == volume["name"]]
    [listener] = yaml.safe_load(manifests.gateway_yaml)["listeners"]

    assert volume["secret"]["secretName"] == certificate["secretName"]
    assert {Path(file).parent for file in listener["tls"].values()} == {Path(mount["mountPath"])}
    assert certificate["issuerRef"] == {"name": "letsencrypt", "kind": "ClusterIssuer"}
    assert certificate["dnsNames"] == ["stomp.example.org"]


def test_a_secret_of_ones_own_needs_no_certificate(chart: Chart) -> None:
    manifests = chart.render(_IMAGE, "tls: {secret: mine}")
    assert "Certificate" not in manifests.kinds
    assert [each["secret"] for each in manifests.pod["volumes"] if "secret" in each] == [{"secretName": "mine"}]


async def test_the_autoscaler_counts_sessions_and_nothing_else_sets_the_replicas(chart: Chart, tmp_path: Path) -> None:
    manifests = _full(chart)
    autoscaler = manifests.one("HorizontalPodAutoscaler")["spec"]
    [metric] = [each["pods"] for each in autoscaler["metrics"]]

    assert autoscaler["scaleTargetRef"]["name"] == manifests.one("Deployment")["metadata"]["name"]
    assert "replicas" not in manifests.workload
    assert (autoscaler["minReplicas"], autoscaler["maxReplicas"]) == (2, 5)
    assert metric["metric"]["name"] in exposed(tmp_path)
    assert metric["target"] == {"type": "AverageValue", "averageValue": "5000"}


def test_an_upgrade_leaves_the_number_of_gateways_to_the_autoscaler(chart: Chart, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(f"{_IMAGE}autoscaling: {{enabled: true}}")
    cluster = ("--dry-run=server", "--disable-openapi-validation", "--kube-apiserver")
    with false_kubernetes(RELEASE, NAMESPACE, FULL_NAME, replicas=7) as url:
        done = chart.run("template", RELEASE, FOLDER, "--namespace", NAMESPACE, "--values", values, *cluster, url)
    assert done.returncode == 0, done.stderr
    assert Manifests.read(done.stdout).workload["replicas"] == 7


@pytest.mark.parametrize("kind", ["LoadBalancer", "NodePort"])
def test_clients_keep_their_addresses_from_outside(chart: Chart, kind: str) -> None:
    balanced = chart.render(_IMAGE, f"service: {{type: {kind}, annotations: {{a: b}}}}").one("Service")

    assert balanced["spec"]["externalTrafficPolicy"] == "Local"
    assert balanced["metadata"]["annotations"] == {"a": "b"}


def test_what_an_operator_adds_is_there(chart: Chart) -> None:
    manifests = chart.render(
        _IMAGE,
        "fullnameOverride: gate\nreplicas: 4\njournalSize: 9Gi\nresources: {limits: {memory: 2Gi}}\n"
        "env: [{name: A, value: b}]\nenvFrom: [{secretRef: {name: s}}]\n"
        "volumes: [{name: v, emptyDir: {}}]\nvolumeMounts: [{name: v, mountPath: /v}]\n"
        "podSpec: {nodeSelector: {disk: ssd}, imagePullSecrets: [{name: pull}]}\n",
    )
    container = manifests.container()

    named = {document["metadata"]["name"] for document in manifests.documents if document["kind"] != "ConfigMap"}
    assert named == {"gate"}
    assert manifests.workload["replicas"] == 4
    assert manifests.pod["nodeSelector"] == {"disk": "ssd"}
    assert manifests.pod["imagePullSecrets"] == [{"name": "pull"}]
    assert {"emptyDir": {"sizeLimit": "9Gi"}, "name": "gateway-journal"} in manifests.pod["volumes"]
    assert {"name": "v", "emptyDir": {}} in manifests.pod["volumes"]
    assert {"name": "v", "mountPath": "/v"} in container["volumeMounts"]
    assert container["env"] == [{"name": "A", "value": "b"}]
    assert container["envFrom"] == [{"secretRef": {"name": "s"}}]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}
    _validate(manifests)


# ---------------------------------------------------------------- sidecar


def test_the_sidecars_chart_is_what_kubernetes_takes(sidecar: Manifests) -> None:
    assert sidecar.kinds == ["ConfigMap", "Service", "StatefulSet"]
    _validate(sidecar)


def test_the_gateway_is_in_rabbitmqs_pods(sidecar: Manifests, tmp_path: Path) -> None:
    labels = sidecar.workload["template"]["metadata"]["labels"]
    config, mounts = sidecar.config(tmp_path), sidecar.container()["volumeMounts"]

    assert sidecar.one("Service")["spec"]["selector"] == labels
    assert [port["targetPort"] for port in sidecar.one("Service")["spec"]["ports"]] == list(sidecar.ports)[:2]
    assert {tcp(listener.address).port for listener in config.listeners} < set(sidecar.ports.values())
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in sidecar.pod["volumes"]}
    assert sidecar.container()["securityContext"]["runAsUser"] == 10001


def test_rabbitmq_waits_for_the_gateways_drain_as_in_the_plain_manifest(sidecar: Manifests, tmp_path: Path) -> None:
    """test_kubernetes.py runs the command of that manifest."""
    [plain] = re.findall(r"- (for i in .*)", (FOLDER.parent / "kubernetes/sidecar/statefulset.yaml").read_text())
    command = sidecar.container("rabbitmq")["lifecycle"]["preStop"]["exec"]["command"]
    config = sidecar.config(tmp_path)
    seconds = int(config.drain_delay + config.drain_timeout) + 10

    assert command == ["bash", "-c", re.sub(r"\{1\.\.\d+\}", f"{{1..{seconds}}}", plain)]
    assert sidecar.pod["terminationGracePeriodSeconds"] == seconds + 60


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ("image: {tga: x}", "/image"),
        ("replica: 3", "replica"),
        ("replicas: 0", "/replicas"),
        ("config: {admin: null}", "admin"),
        ("config: {listeners: []}", "/config/listeners"),
        ("config: {listeners: [{tcp: 61613}]}", "/config/listeners/0"),
        ("config: {upstream: {ulrs: ['amqp://a']}}", "'/config/upstream': additional properties 'ulrs' not allowed"),
        ("config: {virtual_hosts: {shop: {prefech: 3}}}", "additional properties 'prefech' not allowed"),
        ("config: {logging: {level: loud}}", "value must be one of 'debug', 'info', 'warning', 'error'"),
        ("config: {drain_timeout: soon}", "/config/drain_timeout': value must be 'a time such as 30s"),
        ("service: {type: ExternalName}", "/service/type"),
        ("tls: {issuer: {name: letsencrypt}}", "/tls/dnsNames': value must be 'the names that clients dial"),
        ("tls: {issuer: {kind: Issuer}, dnsNames: [a]}", "/tls/issuer"),
        ("podSpec: {volumes: []}", "/podSpec/volumes': value must be 'left out: name them under volumes"),
        ("serviceMonitor: {endpoint: {port: a}}", "/serviceMonitor/endpoint/port': value must be 'left out"),
        ("config: {listeners: [{tcp: '127.0.0.1:61613'}]}", "/config/listeners/0/tcp': value must be '0.0.0.0:PORT"),
        (
            "config: {listeners: [{websocket: '0.0.0.0:0'}]}",
            "/config/listeners/0/websocket': value must be 'HOST:PORT with a fixed",
        ),
        ("config: {admin: {address: 'localhost:15693'}}", "/config/admin/address"),
        ("config: {admin: {address: '[::1]:15693'}}", "/config/admin/address"),
        ("config: {admin: {tls: {verify: required}}}", "/config/admin/tls/verify': value must be 'none or optional"),
        (
            "config: {upstream: {urls: ['amqp://${BROKER}:5672']}}",
            "/config/upstream/urls/0': value must be 'a URL without a variable",
        ),
        ("config: {virtual_hosts: {shop: {aliases: stomp}}}", "/config/virtual_hosts/shop/aliases"),
        (
            "config: {admin: {users: [{login: o, passcode: secret}]}}",
            "/config/admin/users/0/passcode': value must be 'a variable",
        ),
        ("config: {virtual_hosts: {/: {default_user: {passcode: s}}}}", "default_user/passcode"),
        ("image:", "image"),
        ("config:", "config"),
        ("autoscaling:", "autoscaling"),
        ("autoscaling: {maxReplicas: }", "maxReplicas"),
        ("networkPolicy:", "networkPolicy"),
        ("replicas:", "replicas"),
        ("service: {type: }", "type"),
        ("sidecar:", "sidecar"),
        ("tls: {issuer: {name: a}, dnsNames: }", "dnsNames"),
        ("replicas: 4\nautoscaling: {enabled: true, maxReplicas: 3}", "replicas is above autoscaling.maxReplicas"),
    ],
)
def test_a_mistake_in_the_values_is_named(chart: Chart, values: str, named: str) -> None:
    refusal = chart.refusal(_IMAGE, values)
    assert named in refusal
    assert "nil pointer" not in refusal


def test_no_refusal_repeats_a_passcode(chart: Chart) -> None:
    assert "s3cret" not in chart.refusal(_IMAGE, "config: {admin: {users: [{login: o, passcode: s3cret}]}}")


def test_the_schema_has_the_configurations_in_it() -> None:
    text = FILE.read_text("utf-8")
    assert text == with_configuration(text), "make it anew: python -m deploy.release.chart_schema"


def test_what_is_left_empty_may_be(chart: Chart) -> None:
    empty = "tls: {issuer: }\nenv:\npodSpec:\nfullnameOverride:\nconfig: {upstream: , virtual_hosts: , drain_delay: }"
    assert chart.render(_IMAGE, empty).kinds == chart.render(_IMAGE).kinds


def test_a_passcode_comes_from_a_secret_as_the_readme_says(chart: Chart) -> None:
    manifests = chart.render(_IMAGE, *chart.examples("Secrets"))
    [user] = yaml.safe_load(manifests.gateway_yaml)["admin"]["users"]
    assert user["passcode"] == "${OPERATOR_PASSCODE}"
    assert manifests.container()["envFrom"] == [{"secretRef": {"name": "stomp-gateway-operator"}}]


def test_the_registry_has_to_be_named(chart: Chart) -> None:
    assert "image.repository is missing: name the registry" in chart.refusal()


def test_the_schema_knows_the_values_and_no_others() -> None:
    values = yaml.safe_load((FOLDER / "values.yaml").read_text())
    schema = json.loads((FOLDER / "values.schema.json").read_text())
    assert set(schema["properties"]) == {*values, "global"}
    for name, group in schema["properties"].items():
        if group.get("additionalProperties") is False:
            assert set(group["properties"]) == set(values[name]), name
