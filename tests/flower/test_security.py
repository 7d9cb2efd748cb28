"""Who may take part, with real processes: TLS, node keys, and nginx as the only door from outside."""

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flower_runs import app, assert_equal_thetas, finish, until
from narrowcast.flower.local_fleet import CONNECTION, LocalFleet, Tls, free_port, listens
from narrowcast.flower.security import certify, make_key
from places import EXAMPLES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]
SITE = EXAMPLES / "deploy" / "nginx-narrowcast.conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def online(fleet: LocalFleet) -> int:
    """How many nodes the SuperLink lists as online."""
    words = ["supernode", "list", CONNECTION, "--format", "json"]
    (fleet.folder / "list.log").unlink(missing_ok=True)
    assert fleet.start("list", "flwr", *words).wait(120) == 0, fleet.log("list")
    said = fleet.log("list")
    listed = json.loads(said[said.index("{") :])
    return sum(node["status"] == "online" for node in listed["nodes"])


def good_nodes(fleet: LocalFleet, folder: Path, through: int | None = None) -> None:
    for part in range(2):
        key = make_key(folder / "secrets" / f"node{part}")
        fleet.register(key)
        fleet.start_node(part, 2, key=key, notes=str(folder / "notes"), through=through if part else None)


def test_who_has_no_key_a_wrong_key_or_a_wrong_certificate_stays_out(tmp_path: Path) -> None:
    tls, secrets = certify(tmp_path / "secrets"), tmp_path / "secrets"
    other = certify(tmp_path / "other")
    with LocalFleet(tmp_path / "fleet", tls, authenticate=True) as fleet:
        good_nodes(fleet, tmp_path)
        known = make_key(secrets / "node2")
        fleet.register(known)
        wrong_key = fleet.start_node(10, 11, key=make_key(secrets / "stranger"))
        no_key = fleet.start_node(9, 10)
        fleet.tls = Tls(other.ca, tls.certificate, tls.key)
        wrong_ca = fleet.start_node(8, 9, key=known)  # it has a key, and does not trust whom it meets
        fleet.tls = None
        no_tls = fleet.start_node(7, 8, key=known)
        fleet.tls = tls
        for process, part in ((wrong_key, 10), (no_key, 9)):
            assert process.wait(120) != 0
            assert "Failed to initialize the connection to the SuperLink" in fleet.log(f"node-{part}")
        until(lambda: online(fleet) == 2, "the good nodes")
        done = finish(fleet, tmp_path / "run", fleet.run(app(tmp_path, rounds=3)))
        assert online(fleet) == 2
        for process, part in ((wrong_ca, 8), (no_tls, 7)):  # they try for ever, or give up
            assert process.poll() != 0
            assert "SuperNode ID" not in fleet.log(f"node-{part}")
    assert [(r.clients, r.dropped) for r in done] == [(6, {})] * 3
    assert set(assert_equal_thetas(tmp_path / "run", tmp_path / "notes")) == {0, 1}


@contextmanager
def nginx(folder: Path, tls: Tls, superlink: int) -> Iterator[int]:
    """The site of docs/deploy.md, with this machine's ports and certificates: the port it listens on."""
    port = free_port()
    site = SITE.read_text()
    for ours, here in (
        ("443", str(port)),
        ("127.0.0.1:8000", f"127.0.0.1:{superlink}"),
        ("/etc/narrowcast/server.pem", str(tls.certificate)),
        ("/etc/narrowcast/server.key", str(tls.key)),
        ("/etc/narrowcast/ca.crt", str(tls.ca)),
    ):
        assert ours in site
        site = site.replace(ours, here)
    folder.mkdir()
    paths = "".join(
        f"    {name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid;\nerror_log {folder}/error.log;\nworker_processes 1;\ndaemon off;\n"
        + (f"user {os.environ.get('USER', 'root')};\n" if os.geteuid() == 0 else "")
        + f"events {{}}\nhttp {{\n    access_log {folder}/access.log;\n{paths}{site}}}\n"
    )
    words = [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", f"{folder}/error.log"]
    with (folder / "out.log").open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True)
    try:
        until(lambda: listens(port) or process.poll() is not None, "nginx", 30)
        assert process.poll() is None, (folder / "out.log").read_text()
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def status(port: int, tls: Tls, path: str, method: str = "POST") -> int:
    """What a stranger on this port is answered, the path sent as it is."""
    trust = ssl.create_default_context(cafile=str(tls.ca))
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=30)
    connection.request(method, path, b"", {"content-type": "application/protobuf"})
    found = connection.getresponse().status
    connection.close()
    return found


FORBIDDEN = [
    "/", "/health", "/docs", "/openapi.json", "/v1/responses",
    "/v1/control/list-nodes", "/v1/control/register-node", "/v1/control/start-run",
    "/v1/runtime/acquire-task", "/v1/runtime/get-nodes", "/v1/runtime/pull-object",
    "/v1/fleet", "/v1/fleet/", "/v1/fleet/pull-messages/more", "//v1/control/list-nodes",
    "/v1/fleet/../control/list-nodes", "/v1/fleet/%2e%2e/control/list-nodes",
    "/v1/fleet/..%2fcontrol/list-nodes",
]  # fmt: skip


@pytest.mark.skipif(NGINX is None, reason="needs nginx: apt-get install nginx-light")
def test_through_nginx_a_node_trains_and_nothing_else_is_open(tmp_path: Path) -> None:
    tls = certify(tmp_path / "secrets")
    with (
        LocalFleet(tmp_path / "fleet", tls, authenticate=True) as fleet,
        nginx(tmp_path / "nginx", tls, fleet.port) as door,
    ):
        assert status(fleet.port, tls, "/v1/control/list-nodes") == 200  # who reaches the port itself is in
        for path in FORBIDDEN:
            assert status(door, tls, path) == 403, path
            assert status(door, tls, path, "GET") == 403, path
        assert status(door, tls, "/v1/fleet/pull-messages") == 401  # the SuperLink's own answer to a stranger
        good_nodes(fleet, tmp_path, through=door)
        done = finish(fleet, tmp_path / "run", fleet.run(app(tmp_path, rounds=3)))
        passed = (tmp_path / "nginx" / "access.log").read_text()
    assert [(r.clients, r.dropped) for r in done] == [(6, {})] * 3
    assert set(assert_equal_thetas(tmp_path / "run", tmp_path / "notes")) == {0, 1}
    for route in ("activate-node", "pull-messages", "push-object"):
        assert f'"POST /v1/fleet/{route} HTTP/1.1" 200' in passed
