"""Deployment: the nginx configuration of the docs in a real nginx, and the files for containers and workflows."""

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from coscap import Captioner
from coscap.serve.app import create_app
from coscap.serve.connections import ConnectionPool
from coscap.serve.limits import Limits
from serving import PATIENCE, serving, until
from tiny_captioner import save_tiny_model

ROOT = Path(__file__).parents[1]
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin")
OPENSSL = shutil.which("openssl")
NAME = "captions.example"
KEY = ("-keyout", "captions.key")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, ConnectionPool]]:
    """The port of an nginx with the configuration of docs/serve.md, and the connections of the server behind it."""
    if NGINX is None or OPENSSL is None:
        pytest.skip("no nginx or no openssl is installed")
    folder = tmp_path_factory.mktemp("nginx")
    (block,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "serve.md").read_text(), re.S)
    subprocess.run(
        [
            OPENSSL,
            *f"req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN={NAME} -out captions.pem".split(),
            *KEY,
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    captioner = Captioner.from_pretrained(save_tiny_model(folder / "tiny"))
    limits = Limits(header_seconds=600)
    app = create_app(captioner, hosts=[NAME, "127.0.0.1"], limits=limits)
    with serving(app, limits) as (behind, pool), socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        changes = {"/etc/ssl/": f"{folder}/", "listen 443": f"listen 127.0.0.1:{port}", ":8000": f":{behind}"}
        for old, new in changes.items():
            assert old in block
            block = block.replace(old, new)
        paths = " ".join(
            f"{kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        configuration = folder / "nginx.conf"
        configuration.write_text(
            ("" if os.geteuid() else "user root; ")  # its workers must reach the folder of the test
            + f"daemon off; pid {folder}/pid; error_log {folder}/errors;\nevents {{}}\n"
            f"http {{ access_log off; {paths}\n{block}\n}}\n"
        )
        command = [NGINX, "-p", str(folder), "-e", str(folder / "errors"), "-c", str(configuration)]
        # nginx takes over a socket that listens already, as when it is replaced by a newer one: the port is ours.
        given = {"env": {**os.environ, "NGINX": f"{listening.fileno()};"}, "pass_fds": [listening.fileno()]}
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True, **given)
        assert checked.returncode == 0, checked.stderr
        running = subprocess.Popen(command, **given)
        try:
            yield port, pool
        finally:
            running.terminate()
            running.wait(PATIENCE)


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any, Any]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=context)
    given = {"Host": NAME, **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request(method, path, body, given)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def photograph() -> tuple[bytes, str]:
    body = b'--x\r\nContent-Disposition: form-data; name="photos"; filename="cat.jpg"\r\n\r\n'
    body += (ROOT / "examples" / "cat.jpg").read_bytes() + b"\r\n--x--\r\n"
    return body, "multipart/form-data; boundary=x"


def test_captions_come_through_nginx(proxy: tuple[int, ConnectionPool]) -> None:
    port, _ = proxy
    body, kind = photograph()
    status, headers, content = ask(
        port, "POST", "/captions", body, Content_Type=kind, Origin=f"https://{NAME}"
    )
    assert status == 200, content
    assert json.loads(content)[0]["photo"] == "cat.jpg"
    assert re.fullmatch("[0-9a-f]{32}", headers["X-Request-ID"])  # nginx's own
    assert headers["Content-Security-Policy"]


def test_nginx_and_the_server_refuse_what_they_should(proxy: tuple[int, ConnectionPool]) -> None:
    port, _ = proxy
    body, kind = photograph()
    assert ask(port, "POST", "/captions", body, Content_Type=kind, Origin="https://evil.example")[0] == 403
    assert ask(port, "GET", "/metrics")[0] == 403
    assert ask(port, "GET", "/health")[0] == 200
    assert ask(port, "POST", "/captions", b"x", Content_Type=kind, Host="evil.example")[0] == 421
    assert ask(port, "POST", "/captions", b"x" * 40_000_000, Content_Type=kind)[0] == 413


def test_half_sent_requests_stay_in_nginx(proxy: tuple[int, ConnectionPool]) -> None:
    port, pool = proxy
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    until(lambda: len(pool) == 0)  # of the tests before
    sockets = []
    for start in (
        b"POST /captions HTTP/1.1\r\nHost: ",
        b"POST /captions HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nx",
    ):
        raw = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        sockets.append(context.wrap_socket(raw))
        sockets[-1].sendall(start)
    assert ask(port, "GET", "/health")[0] == 200  # nginx has gone on since, and passed this one on alone
    until(lambda: len(pool) == 0)
    for one in sockets:
        one.close()


def test_the_image_has_what_the_command_needs() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.M):
        for name in line.split():
            assert (ROOT / name).exists() and f"!{name}\n" in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", dockerfile)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert re.search(r"^USER 10001$", dockerfile, re.M)
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.M)
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["coscap"]
    command = [*json.loads(entry), *compose["command"]]
    assert command[:2] == ["coscap", "serve"]
    help = subprocess.run(
        [sys.executable, "-m", "coscap", "serve", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    ).stdout
    assert all(option in help for option in command[2:] if option.startswith("--"))
    assert compose["ports"] == ["127.0.0.1:8000:8000"]  # nobody else before a token is given


def test_the_workflow_runs_what_ci_runs() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step.get("run") for job in jobs.values() for step in job["steps"]]
    assert ".ci/run" in commands and "make lowest" in commands
    subprocess.run(["sh", "-n", ROOT / ".ci" / "run"], check=True)
    goals = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {"test", "lint", "lowest", "soak"} <= goals
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"ruff-format", "ruff-check", "mypy"}


def test_the_lowest_versions_are_those_of_the_project() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("lowest", ROOT / "scripts" / "lowest.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.lowest(ROOT / "pyproject.toml")
    assert "starlette==0.44" in found and "uvicorn==0.30" in found
    assert not any(line.startswith("pytest") for line in found)
