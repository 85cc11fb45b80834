# The service in one image: planner and API, no torch.
#   docker build -t loadmaster .
#   docker run --init --read-only --tmpfs /tmp --stop-timeout 30 -p 127.0.0.1:8642:8642 -v loadmaster:/data loadmaster
#   docker run --rm -v loadmaster:/data loadmaster keys add NAME --scope submit
# Give `--build-arg PYTHON=3.12-slim@sha256:...` to pin the base image, too.
ARG PYTHON=3.12-slim

FROM python:${PYTHON} AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_REQUIRE_HASHES=1
# Every release and its hash, for the server and for what builds the wheel: `make lock` writes both files.
COPY deploy/requirements.txt deploy/build-requirements.txt ./deploy/
RUN python -m venv /opt/loadmaster \
    && /opt/loadmaster/bin/pip install --requirement deploy/requirements.txt \
    && pip install --requirement deploy/build-requirements.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY loadmaster ./loadmaster
# Our own wheel has no hash before it is built. Without an index nothing can be added to what the files name.
RUN PIP_REQUIRE_HASHES=0 pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && PIP_REQUIRE_HASHES=0 /opt/loadmaster/bin/pip install --no-index --find-links dist "loadmaster[server]"

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="loadmaster" \
      org.opencontainers.image.description="Plans deep-learning training by optimization: a plan in seconds, with a proof." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.2.0"
# A fixed number, so that a host can give the volume to it.
RUN groupadd --system --gid 10001 loadmaster \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /data loadmaster \
    && install --directory --owner=10001 --group=10001 /data
COPY --from=build /opt/loadmaster /opt/loadmaster
# Everything that is written goes to /data and /tmp: the root file system may be read-only.
ENV PATH="/opt/loadmaster/bin:${PATH}" \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LOADMASTER_HOST=0.0.0.0 \
    LOADMASTER_KEYS=required \
    LOADMASTER_PORT=8642 \
    LOADMASTER_DATABASE_URL=sqlite:////data/loadmaster.db
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8642
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=4s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"LOADMASTER_PORT\"]}/readyz', timeout=3)"]
ENTRYPOINT ["loadmaster"]
CMD ["serve"]
