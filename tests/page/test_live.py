"""`narrowcast page --live`: what is served to whom, and that it follows the runs."""

import http.client
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.page import gathering, live
from page_runs import append_rounds, write_run

pytest.importorskip("plotly", reason="needs the extra narrowcast[page]")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    write_run(tmp_path / "study" / "a", 40, done=10)
    with live.server([tmp_path]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield tmp_path, server.server_address[1]
        server.shutdown()
        thread.join()


def ask(port: int, path: str = "/data.json", method: str = "GET", **headers: str) -> tuple[int, dict, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_it_follows_the_runs(served: tuple[Path, int]) -> None:
    root, port = served
    status, headers, body = ask(port)
    assert status == 200
    (run,) = json.loads(body)["runs"]
    assert (run["done"], run["state"]) == (10, "begun")
    assert ask(port, **{"If-None-Match": headers["ETag"]})[0] == 304
    append_rounds(root / "study" / "a", 10, 25)
    with (root / "study" / "a" / "records.jsonl").open("ab") as file:
        file.write(b'{"round":25,')  # a line that is being written
    status, _, body = ask(port, **{"If-None-Match": headers["ETag"]})
    assert status == 200
    assert json.loads(body)["runs"][0]["done"] == 25
    write_run(root / "b", 4)
    assert [run["state"] for run in json.loads(ask(port)[2])["runs"]] == ["finished", "begun"]


def test_a_folder_that_cannot_be_read_is_said_and_the_others_are_shown(served: tuple[Path, int]) -> None:
    root, port = served
    write_run(root / "bad", 4)
    (root / "bad" / "records.jsonl").write_bytes(b"\xff{]\n" * 4)
    found = json.loads(ask(port)[2])
    assert [run["id"] for run in found["runs"]] == [str(root / "study" / "a")]
    assert len(found["problems"]) == 1
    assert "bad" in found["problems"][0]


@pytest.mark.parametrize(
    ("name", "content"),
    [("facts.json", None), ("config.toml", "a = " + "[" * 3000)],
    ids=["no round an epoch", "nested too deep"],
)
def test_whatever_is_wrong_with_a_folder_the_others_are_shown(
    served: tuple[Path, int], name: str, content: str | None
) -> None:
    root, port = served
    path = write_run(root / "bad", 4) / name
    path.write_text(content or path.read_text().replace('"rounds_per_epoch":10', '"rounds_per_epoch":0'))
    found = json.loads(ask(port)[2])
    assert [run["id"] for run in found["runs"]] == [str(root / "study" / "a")]
    assert [problem for problem in found["problems"] if "bad" in problem]


@pytest.mark.parametrize(
    "dim", ['"much"', "inf", "nan", "1e300", "true", "9" * 4000], ids=lambda dim: dim[:9]
)
def test_what_a_run_of_others_code_has_for_numbers_does_not_take_the_page_down(
    served: tuple[Path, int], dim: str
) -> None:
    """Its settings are shown as they stand, since nothing is imported for being looked at."""
    root, port = served
    (write_run(root / "first", 4) / "config.toml").write_text(f'method = "a.b:c"\ndim = {dim}\n')
    assert ask(port, "/")[0] == 200
    assert len(json.loads(ask(port)[2])["runs"]) == 2


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *(("facts.json", field) for field in ("parameters", "clients", "rounds", "rounds_per_epoch", "seed")),
        *(("records.jsonl", field) for field in ("round", "up", "down", "down_first", "no answer")),
    ],
)
def test_numbers_that_nothing_could_count_to_are_of_a_damaged_folder(
    served: tuple[Path, int], name: str, field: str
) -> None:
    root, port = served
    path = write_run(root / "bad", 4) / name
    path.write_text(re.sub(rf'"{field}":\d+', f'"{field}":1{"0" * 400}', path.read_text()))
    assert ask(port, "/")[0] == 200
    found = json.loads(ask(port)[2])
    assert [run["id"] for run in found["runs"]] == [str(root / "study" / "a")]
    assert "bad" in found["problems"][0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
@pytest.mark.parametrize("name", ["facts.json", "config.toml", "records.jsonl", "diverged.txt"])
@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_a_file_that_is_none_or_has_no_end_is_not_read(
    served: tuple[Path, int], name: str, kind: str
) -> None:
    root, port = served
    path = write_run(root / "bad", 4) / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif name == "records.jsonl":
        path.touch()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    found = json.loads(ask(port)[2])
    assert str(root / "study" / "a") in [run["id"] for run in found["runs"]]
    done = CliRunner().invoke(app, ["show", str(root / "bad")])
    assert done.exit_code in (0, 2), done.output


def test_a_fault_of_ours_about_one_run_does_not_hide_the_others(
    served: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, port = served
    write_run(root / "bad", 4)
    state = gathering._state
    monkeypatch.setattr(gathering, "_state", lambda run: state(run) if run.folder.name != "bad" else 1 / 0)
    found = json.loads(ask(port)[2])
    assert [run["id"] for run in found["runs"]] == [str(root / "study" / "a")]
    assert "bad" in found["problems"][0]


def test_a_run_that_diverges_is_seen_to(served: tuple[Path, int]) -> None:
    root, port = served
    assert json.loads(ask(port)[2])["runs"][0]["state"] == "begun"
    (root / "study" / "a" / "diverged.txt").write_text("a loss of nan")
    assert json.loads(ask(port)[2])["runs"][0]["state"] == "diverged"


def test_a_port_is_written_as_browsers_write_it() -> None:
    assert live._written(8000) == [":8000"]
    assert live._written(80) == [":80", ""]


def test_the_page_may_ask_its_own_server_and_no_other(served: tuple[Path, int]) -> None:
    status, headers, body = ask(served[1], "/")
    assert status == 200
    assert b"connect-src 'self'" in body
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert ask(served[1], "/", "HEAD")[2] == b""


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", "0.0.0.0"]
)
def test_a_request_for_another_host_is_refused(served: tuple[Path, int], host: str) -> None:
    assert ask(served[1], Host=host)[0] == 403
    assert ask(served[1], "/", Host=host)[0] == 403
    assert ask(served[1], Host=f"localhost:{served[1]}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/study/a/config.toml", "/../etc/passwd", "/data.json/", "//x", "/%2e%2e/", "/data.json?x=1"]
)
def test_nothing_else_is_served(served: tuple[Path, int], path: str) -> None:
    assert ask(served[1], path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(served: tuple[Path, int], method: str) -> None:
    assert ask(served[1], method=method)[0] == 501


def test_it_listens_on_the_loopback_alone(tmp_path: Path) -> None:
    with live.server([tmp_path]) as server:
        assert server.server_address[0] == "127.0.0.1"
        taken = server.server_address[1]
        done = CliRunner().invoke(app, ["page", str(tmp_path), "--live", "--port", str(taken)])
    assert done.exit_code == 2
    assert "choose another --port" in done.output.replace("\n", " ")
    done = CliRunner().invoke(app, ["page", str(tmp_path / "none"), "--live"])
    assert "no such folder" in done.output.replace("\n", " ")
