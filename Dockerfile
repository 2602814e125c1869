# coscap serve, with the model inside: no network is needed when it runs.
#   docker build -t coscap .
#   docker run --rm -p 127.0.0.1:8000:8000 -e COSCAP_TOKEN=secret coscap
FROM python:3.11-slim AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/coscap
COPY constraints.txt ./
# The CPU build of torch; for a GPU build with --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/coscap/bin/pip install --index-url "$TORCH_INDEX" -c constraints.txt torch
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
COPY examples examples
RUN /opt/coscap/bin/pip install -c constraints.txt '.[serve,heic]'

FROM python:3.11-slim
COPY --from=build /opt/coscap /opt/coscap
RUN useradd --system --uid 10001 --no-create-home coscap
USER 10001
ENV PATH=/opt/coscap/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 \
    NUMBA_CACHE_DIR=/tmp/numba
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["coscap", "serve", "--host", "0.0.0.0", "--port", "8000", "--log-format", "json"]
