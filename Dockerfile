# The gateway and nothing else, about as large as Python itself.
#   docker build -t stomp-gateway .
#   docker run -p 61613:61613 -v ./gateway.yaml:/etc/stomp-gateway/gateway.yaml:ro stomp-gateway
# The configuration must listen on 0.0.0.0:61613: inside a container, 127.0.0.1 cannot be reached from outside.

FROM python:3.11-slim-bookworm AS build
WORKDIR /build
# Also binds the build's own requirements, which pip installs into a place of their own.
ENV PIP_CONSTRAINT=/build/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/stomp-gateway
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
RUN /opt/stomp-gateway/bin/pip install .

FROM python:3.11-slim-bookworm
# By number, so that Kubernetes' runAsNonRoot can tell that it is not root.
RUN groupadd --gid 10001 gateway \
 && useradd --uid 10001 --gid gateway --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gateway \
 && install --directory --owner=gateway --group=gateway --mode=750 /var/lib/stomp-gateway
# The journal's place. It outlives the container where a volume is mounted there.
ENV STATE_DIRECTORY=/var/lib/stomp-gateway
COPY --from=build /opt/stomp-gateway /opt/stomp-gateway
ENV PATH=/opt/stomp-gateway/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 61613
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 61613), timeout=2).close()"]
ENTRYPOINT ["stomp-gateway"]
CMD ["serve", "--config", "/etc/stomp-gateway/gateway.yaml"]
