# The gateway and nothing else; about as large as Python's own image. docs/deploy.md explains how to run it.
#   docker build -t stomp-gateway .
#   docker run --read-only -p 127.0.0.1:61613:61613 -v ./gateway.yaml:/etc/stomp-gateway/gateway.yaml:ro stomp-gateway
# The configuration must listen on 0.0.0.0:61613: 127.0.0.1 is only reachable inside the container.

FROM python:3.11-slim-bookworm AS build
WORKDIR /build
# The constraints also apply to the build requirements, which pip installs into a separate environment.
ENV PIP_CONSTRAINT=/build/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/stomp-gateway
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
COPY tests/transcripts tests/transcripts
# Compile the modules now, because the file system is read-only when the image runs.
RUN /opt/stomp-gateway/bin/pip install --compile . \
 && /opt/stomp-gateway/bin/pip uninstall --yes pip setuptools

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
EXPOSE 61613 15674 15692
# Asks the admin listener at its default address. If the configuration changes the address, switches the listener off or
# adds TLS, override this check or run with --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 15692, timeout=2); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["stomp-gateway"]
CMD ["serve", "--config", "/etc/stomp-gateway/gateway.yaml"]
