"""A download that is cut, killed or lied to ends whole or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile.server import Behaviour, serving

from fewbit.checkpoint.fetch import fetch
from fewbit.errors import DownloadError

CONTENT = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def fetch_to(part: Path, url: str) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    fetch(url, part, len(CONTENT), SHA256, lambda done, total: seen.append((done, total)))
    return seen


def test_a_file_arrives_with_its_progress(tmp_path: Path) -> None:
    with serving(Behaviour(CONTENT)) as url:
        seen = fetch_to(tmp_path / "part", url)
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert seen == sorted(seen)
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT[:1000])
    behaviour = Behaviour(CONTENT)
    with serving(behaviour) as url:
        fetch_to(tmp_path / "part", url)
    assert behaviour.ranges == ["bytes=1000-"]
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_whole_part_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT)
    behaviour = Behaviour(CONTENT)
    with serving(behaviour) as url:
        fetch_to(tmp_path / "part", url)
    assert behaviour.ranges == []


def test_a_server_without_ranges_starts_again(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"x" * 1000)
    with serving(Behaviour(CONTENT, understands_ranges=False)) as url:
        fetch_to(tmp_path / "part", url)
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_connection_that_is_cut_again_and_again(tmp_path: Path) -> None:
    behaviour = Behaviour(CONTENT, cut_after=300_000)
    with serving(behaviour) as url:
        fetch_to(tmp_path / "part", url)
    assert behaviour.ranges == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_connection_that_brings_nothing_ends(tmp_path: Path) -> None:
    behaviour = Behaviour(CONTENT, cut_after=0)
    with serving(behaviour) as url, pytest.raises(DownloadError, match="goes on where it stopped"):
        fetch_to(tmp_path / "part", url)
    assert len(behaviour.ranges) == 3


def test_a_damaged_part_is_fetched_anew(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"x" * 1000)
    behaviour = Behaviour(CONTENT)
    with serving(behaviour) as url:
        fetch_to(tmp_path / "part", url)
    assert behaviour.ranges == ["bytes=1000-", None]
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_other_content_is_not_kept(tmp_path: Path) -> None:
    with (
        serving(Behaviour(CONTENT[::-1])) as url,
        pytest.raises(DownloadError, match=f"does not have the SHA-256 {SHA256}"),
    ):
        fetch_to(tmp_path / "part", url)
    assert not list(tmp_path.iterdir())


def test_more_content_is_not_kept(tmp_path: Path) -> None:
    with serving(Behaviour(CONTENT * 3)) as url, pytest.raises(DownloadError, match="more than"):
        fetch_to(tmp_path / "part", url)
    assert not list(tmp_path.iterdir())


def test_a_refusal_is_told(tmp_path: Path) -> None:
    says = r"model.whl answers 404 Not Found"
    with serving(Behaviour(b"", status=404)) as url, pytest.raises(DownloadError, match=says):
        fetch_to(tmp_path / "part", url)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="check the network"):
        fetch_to(tmp_path / "part", "http://127.0.0.1:9/model.whl")


def test_a_secret_in_the_address_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as error:
        fetch_to(tmp_path / "part", "http://me:secret@127.0.0.1:9/model.whl?token=secret")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "data:,x", "model.whl"])
def test_other_addresses_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="no web address"):
        fetch_to(tmp_path / "part", url)


def test_a_local_file_is_an_address_too(tmp_path: Path) -> None:
    (tmp_path / "model.whl").write_bytes(CONTENT)
    fetch_to(tmp_path / "part", (tmp_path / "model.whl").as_uri())
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_killed_download_goes_on(tmp_path: Path) -> None:
    part = tmp_path / "part"
    content = CONTENT * 16
    script = (
        "import sys, time; from pathlib import Path; from fewbit.checkpoint.fetch import fetch\n"
        "fetch(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), 'x', lambda *_: time.sleep(0.05))"
    )
    behaviour = Behaviour(content)
    with serving(behaviour) as url:
        command = [sys.executable, "-c", script, url, str(part), str(len(content))]
        with subprocess.Popen(command) as process:
            while not (part.exists() and part.stat().st_size > 1 << 20):
                assert process.poll() is None
                time.sleep(0.01)
            process.kill()
        had = part.stat().st_size
        assert had < len(content)
        fetch(url, part, len(content), hashlib.sha256(content).hexdigest(), lambda *_: None)
    assert behaviour.ranges == [None, f"bytes={had}-"]
    assert part.read_bytes() == content
