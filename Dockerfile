# The gateway and nothing else; about as large as Python's own image. docs/deploy.md explains how to run it.
#   docker build -t stomp-gateway .
#   docker run --read-only -p 127.0.0.1:61613:61613 -v ./gateway.yaml:/etc/stomp-gateway/gateway.yaml:ro stomp-gateway
# The configuration must listen on 0.0.0.0:61613: 127.0.0.1 is only reachable inside the container.

FROM python:3.11-slim-bookworm AS source
WORKDIR /build
# The constraints also apply to the build requirements, which pip installs into a separate environment.
ENV PIP_CONSTRAINT=/build/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/stomp-gateway
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
# For `stomp-gateway --version`: docker build --build-arg COMMIT="$(git rev-parse --short HEAD)"
ARG COMMIT=""
RUN test -z "$COMMIT" || echo "$COMMIT" >gateway/commit.txt
COPY config/gateway.yaml config/gateway.yaml
COPY tests/transcripts tests/transcripts

# Modules are compiled at the build, because the file system is read-only when an image runs.
FROM source AS build
RUN /opt/stomp-gateway/bin/pip install --compile ".[ship]" \
 && /opt/stomp-gateway/bin/pip uninstall --yes pip setuptools

FROM source AS build-pipeline
RUN /opt/stomp-gateway/bin/pip install --compile ".[pipeline,ship]" \
 && /opt/stomp-gateway/bin/pip uninstall --yes pip setuptools

# The pipeline, with Spark and Java: docker build --target pipeline -t stomp-gateway-pipeline .
FROM python:3.11-slim-bookworm AS pipeline
LABEL org.opencontainers.image.title="stomp-gateway-pipeline" \
      org.opencontainers.image.description="From the journals of stomp-gateway to tables and a report" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
# Debian's newest Java 17, with its security updates.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 gateway \
 && useradd --uid 10001 --gid gateway --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gateway
COPY --from=build-pipeline /opt/stomp-gateway /opt/stomp-gateway
# Spark and its packages write below /tmp and nowhere else.
ENV PATH=/opt/stomp-gateway/bin:$PATH HOME=/tmp XDG_CACHE_HOME=/tmp/cache \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["stomp-gateway", "pipeline"]
CMD ["--help"]

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="stomp-gateway" \
      org.opencontainers.image.description="A STOMP gateway in front of RabbitMQ: STOMP in, AMQP 0-9-1 out" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
# A numeric user, because Kubernetes' runAsNonRoot cannot check a name.
RUN groupadd --gid 10001 gateway \
 && useradd --uid 10001 --gid gateway --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gateway \
 && install --directory --owner=gateway --group=gateway --mode=750 /var/lib/stomp-gateway
COPY --from=build /opt/stomp-gateway /opt/stomp-gateway
# STATE_DIRECTORY holds the journal. The gateway writes nowhere else, so the rest may be read-only.
ENV STATE_DIRECTORY=/var/lib/stomp-gateway PATH=/opt/stomp-gateway/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
VOLUME ["/var/lib/stomp-gateway"]
USER 10001:10001
# STOMP, STOMP over WebSocket, and the admin listener: metrics, health, status page.
EXPOSE 61613 15674 15693
# Asks the admin listener at its default address. If the configuration changes the address, switches the listener off or
# adds TLS, override this check or run with --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 15693, timeout=2); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["stomp-gateway"]
CMD ["serve", "--config", "/etc/stomp-gateway/gateway.yaml"]
