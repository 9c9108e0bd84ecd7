import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from report.made import PROVED, add_round, made_run
from tacit.cli import main
from tacit.report.live import HOST, LiveServer
from tacit.report.watching import RunWatcher
from tacit.runs.directory import MANIFEST, ROUNDS, read_manifest


@contextmanager
def served(folder: Path) -> Iterator[LiveServer]:
    """A server whose watcher looks only when it is told to."""
    with LiveServer(RunWatcher(folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.watcher.close()
            server.shutdown()


def answer(
    server: LiveServer, path: str, host: str | None = None, method: str = "GET", *, secret: bool = True
) -> tuple[int, str, dict[str, str]]:
    with closing(http.client.HTTPConnection(HOST, server.server_port, timeout=60)) as connection:
        connection.request(
            method,
            f"/{server.secret}{path}" if secret else path,
            headers={"Host": host or f"{HOST}:{server.server_port}"},
        )
        with connection.getresponse() as found:
            return found.status, found.read().decode(), dict(found.getheaders())


def test_only_what_changed_is_read_and_told(tmp_path: Path) -> None:
    one = made_run(tmp_path / "one", 3, status="running")
    made_run(tmp_path / "two", 2, seed=1)
    watcher = RunWatcher(tmp_path)
    watcher.look()
    first = watcher.since(-1)
    assert first["names"] == ["one", "two"]
    add_round(one, 4)
    watcher.look()
    news = watcher.since(int(str(first["version"])))
    assert isinstance(news["runs"], dict)
    assert [*news["runs"]] == ["one"]
    assert news["runs"]["one"]["rounds"] == 4
    watcher.look()
    assert watcher.since(int(str(news["version"])))["runs"] == {}


def test_a_run_that_is_resumed_finished_broken_or_removed_is_followed(tmp_path: Path) -> None:
    run = made_run(tmp_path / "one", 3, status="running")
    watcher = RunWatcher(tmp_path)
    watcher.look()
    lines = (run / ROUNDS).read_bytes().splitlines(keepends=True)
    (run / ROUNDS).write_bytes(lines[0])
    watcher.look()
    found = watcher.run("one")
    assert found is not None
    assert found.summary["rounds"] == 1
    (run / MANIFEST).write_text((run / MANIFEST).read_text().replace('"running"', '"finished"'))
    watcher.look()
    found = watcher.run("one")
    assert found is not None
    assert found.summary["status"] == "finished"
    (run / MANIFEST).write_text("{}")
    watcher.look()
    found = watcher.run("one")
    assert found is not None
    assert "Expected the manifest" in str(found.summary["problem"])
    shutil.rmtree(run)
    watcher._last_search = -1e9  # as after some seconds
    watcher.look()
    assert watcher.run("one") is None
    assert watcher.since(-1)["names"] == []


def test_the_page_its_scripts_and_runs_are_served(tmp_path: Path) -> None:
    made_run(tmp_path / "a <b>", 3, guarantee=PROVED)
    with served(tmp_path) as server:
        server.watcher.look()
        status, page, headers = answer(server, "/")
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        for name in ("page.css", "uplot.min.css", "uplot.min.js", "charts.js", "live.js"):
            assert f'"{name}"' in page
            assert answer(server, f"/{name}")[0] == 200
        charts = json.loads(answer(server, f"/charts?run={quote('a <b>')}")[1])
        assert [chart["x"] for chart in charts] == [[1, 2, 3]] * 4
        assert "&lt;b&gt;" in answer(server, f"/report?run={quote('a <b>')}")[1]


@pytest.mark.parametrize("path", ["/charts?run=../secret", "/report?run=/etc", "/charts", "/../live.py", "/nothing"])
def test_only_runs_and_pages_that_exist_are_served(path: str, tmp_path: Path) -> None:
    made_run(tmp_path / "secret", 1)
    made_run(tmp_path / "runs" / "one", 1)
    with served(tmp_path / "runs") as server:
        server.watcher.look()
        status, text, _ = answer(server, path)
        assert status == 404
        assert text.startswith("There is no such ")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1"])
def test_requests_for_another_host_are_refused(host: str, tmp_path: Path) -> None:
    """A page of another origin whose name resolves to this machine (DNS rebinding) reads nothing."""
    with served(tmp_path) as server:
        status, text, _ = answer(server, "/", host=host or " ")
        assert status == 421
        assert text == "This server answers only to its own address.\n"
        assert answer(server, "/", host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("path", ["/", "/events", "/charts?run=one", "/x/report?run=one", "//", "/%00/", "/é/"])
def test_nothing_is_served_without_the_secret_of_the_address(path: str, tmp_path: Path) -> None:
    """Other users of the machine can connect, too, and the directories of runs are private."""
    made_run(tmp_path / "one", 1)
    with served(tmp_path) as server, LiveServer(server.watcher) as other:
        server.watcher.look()
        status, text, _ = answer(server, quote(path, safe="/?=%"), secret=False)
        assert (status, text) == (403, "Open the whole address that tacit watch printed.\n")
        assert server.secret != other.secret
        assert len(server.secret) == 32


def test_it_listens_on_this_machine_only_and_changes_nothing(tmp_path: Path) -> None:
    run = made_run(tmp_path / "one", 2)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with served(tmp_path) as server:
        assert server.server_address[0] == "127.0.0.1"
        server.watcher.look()
        assert answer(server, "/", method="POST")[0] == 501
        answer(server, "/report?run=one")
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert read_manifest(run).status == "finished"


def test_a_missing_folder_and_a_port_in_use_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert "Expected a folder of runs" in capsys.readouterr().err
    with served(tmp_path) as server:
        assert main(["watch", str(tmp_path), "--port", str(server.server_port)]) == 2
    assert "Choose another --port." in capsys.readouterr().err


def spoiled(run: Path, how: str) -> None:
    """A run directory from somebody who wants the page to show nothing."""
    lines = [json.loads(line) for line in (run / ROUNDS).read_text().splitlines()]
    manifest = json.loads((run / MANIFEST).read_text())
    match how:
        case "infinite":
            lines[-1] |= {"seconds": "inf", "metrics": {"loss": "-inf", "accuracy": "nan"}}
        case "huge":
            lines[-1] |= {"seconds": 1e308, "up": [10**400] * 5, "metrics": {"loss": 1e308}}
            lines[0] |= {"seconds": 1e308}
        case "names":
            lines[-1] |= {"metrics": {"constructor": 1.0, "__proto__": 2.0, "toString": 3.0}}
        case "manifest":
            manifest = {"format": 2}
        case "no rounds":
            lines = [{"round": "one"}]
        case "binary":
            (run / MANIFEST).write_bytes(b"\xff\x00")
            return
        case "folder":
            (run / ROUNDS).unlink()
            (run / ROUNDS).mkdir()
            (run / ROUNDS / "a").touch()
            return
        case "budget":
            manifest["method"]["form"] |= {"budget": {"type": "Budget", "epsilon": "inf", "delta": 0.1}}
        case "population":
            manifest["task"] |= {"clients": 10**15, "samples": 10**18, "parameters": 10**15}
    (run / MANIFEST).write_text(json.dumps(manifest))
    (run / ROUNDS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


SPOILED = ("infinite", "huge", "names", "manifest", "no rounds", "binary", "folder", "budget", "population")


@pytest.mark.parametrize("how", SPOILED)
def test_one_run_hides_no_other(tmp_path: Path, how: str) -> None:
    """Whatever its files hold, it has a row, and the page shows the others as if it were not there."""
    made_run(tmp_path / "good", 3)
    spoiled(made_run(tmp_path / "bad", 3, seed=1), how)
    with served(tmp_path) as server:
        server.watcher.look()
        news = json.loads(json.dumps(server.watcher.since(-1), allow_nan=False))
        assert news["names"] == ["bad", "good"]
        assert news["runs"]["good"]["rounds"] == 3
        assert "problem" not in news["runs"]["good"]
        if how in ("manifest", "no rounds", "binary", "folder"):
            assert len(news["runs"]["bad"]["problem"]) > 10
            assert answer(server, "/report?run=bad")[0] == 500
        for page in ("charts", "report"):
            assert answer(server, f"/{page}?run=good")[0] == 200
            status, text, _ = answer(server, f"/{page}?run=bad")
            assert status in (200, 500)
            assert "Traceback" not in text
        server.watcher.look()
        assert answer(server, "/")[0] == 200


def test_a_run_that_becomes_readable_is_shown(tmp_path: Path) -> None:
    run = made_run(tmp_path / "one", 3)
    whole = (run / MANIFEST).read_bytes()
    (run / MANIFEST).write_bytes(whole[:-20])
    watcher = RunWatcher(tmp_path)
    watcher.look()
    first = watcher.run("one")
    assert first is not None
    assert (first.run, first.charts) == (None, [])
    (run / MANIFEST).write_bytes(whole)
    watcher.look()
    second = watcher.run("one")
    assert second is not None
    assert "problem" not in second.summary
    assert second.summary["rounds"] == 3
