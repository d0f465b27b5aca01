# The gateway and nothing else, about as large as Python itself. docs/deploy.md says how to run it.
#   docker build -t stomp-gateway .
#   docker run --read-only -p 127.0.0.1:61613:61613 -v ./gateway.yaml:/etc/stomp-gateway/gateway.yaml:ro stomp-gateway
# The configuration must listen on 0.0.0.0:61613: inside a container, 127.0.0.1 cannot be reached from outside.

FROM python:3.11-slim-bookworm AS build
WORKDIR /build
# Also binds the build's own requirements, which pip installs into a place of their own.
ENV PIP_CONSTRAINT=/build/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/stomp-gateway
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
COPY tests/transcripts tests/transcripts
# Modules are compiled here: where the image runs, nothing can be written beside them.
RUN /opt/stomp-gateway/bin/pip install --compile . \
 && /opt/stomp-gateway/bin/pip uninstall --yes pip setuptools

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="stomp-gateway" \
      org.opencontainers.image.description="A STOMP gateway in front of RabbitMQ: STOMP in, AMQP 0-9-1 out" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
# By number, so that Kubernetes' runAsNonRoot can tell that it is not root.
RUN groupadd --gid 10001 gateway \
 && useradd --uid 10001 --gid gateway --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gateway \
 && install --directory --owner=gateway --group=gateway --mode=750 /var/lib/stomp-gateway
COPY --from=build /opt/stomp-gateway /opt/stomp-gateway
# STATE_DIRECTORY is the journal's place, and the only one that is written to: the rest may be read-only.
ENV STATE_DIRECTORY=/var/lib/stomp-gateway PATH=/opt/stomp-gateway/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
VOLUME ["/var/lib/stomp-gateway"]
USER 10001:10001
# STOMP, STOMP over WebSocket, and the admin listener: metrics, health, status page.
EXPOSE 61613 15674 15692
# Asks the admin listener at its usual address, which needs nothing in the configuration. One with another address, with
# TLS, or without an admin listener wants another question, or --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 15692, timeout=2); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["stomp-gateway"]
CMD ["serve", "--config", "/etc/stomp-gateway/gateway.yaml"]
