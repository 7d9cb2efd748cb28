"""Archives that a stranger made: refused whole, and nothing is written outside of the folder."""

import gzip
import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from fake_registries import files, tar, wheel
from narrowcast.data.unpack import unpack
from narrowcast.tasks.files import DataError

NOISE = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(3))  # 96 bytes that do not compress


def tarred(name: str, kind: bytes, target: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return tar({"in/a.txt": b"a"}, more=(info,))


def linked() -> bytes:
    file = io.BytesIO(wheel({"in/a.txt": b"a"}))
    with zipfile.ZipFile(file, "a") as archive:
        info = zipfile.ZipInfo("in/b.txt")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    return file.getvalue()


def twice() -> bytes:
    file = io.BytesIO(tar({"in/a.txt": b"a"}, "w"))
    with tarfile.open(fileobj=file, mode="a") as archive:
        archive.addfile(tarfile.TarInfo("in/a.txt"))
    return gzip.compress(file.getvalue())


BAD = {
    "climbs.whl": (wheel({"in/a.txt": b"a", "in/../../b.txt": b"b"}), "outside of its folder"),
    "climbs.tgz": (tar({"in/a.txt": b"a", "../b.txt": b"b"}), "outside of its folder"),
    "absolute.whl": (wheel({"/tmp/b.txt": b"b"}), "outside of its folder"),
    "absolute.tgz": (tar({"/tmp/b.txt": b"b"}), "outside of its folder"),
    "backslash.tgz": (tar({"in/..\\b.txt": b"b"}), "outside of its folder"),
    "link.whl": (linked(), "a link or a device"),
    "link.tgz": (tarred("in/b.txt", tarfile.SYMTYPE, "/etc/passwd"), "a link or a device"),
    "hard.tgz": (tarred("in/b.txt", tarfile.LNKTYPE, "in/a.txt"), "a link or a device"),
    "device.tgz": (tarred("in/b.txt", tarfile.CHRTYPE), "a link or a device"),
    "twice.tgz": (twice(), "comes twice"),
    "large.whl": (wheel({"in/a.txt": b"a" * 60, "in/b.txt": b"b" * 41}), "more than is allowed"),
    "large.tgz": (tar({"in/a.txt": b"a" * 101}), "more than is allowed"),
    "empty.whl": (wheel({"out/a.txt": b"a"}), r"has no \*\.txt in in/"),
    "cut.tgz": (tar({"in/a.txt": NOISE})[:60], "not an? (archive|file) that can be unpacked"),
    "noise.whl": (b"noise" * 99, "not an archive"),
    "noise.tgz": (b"noise" * 99, "not an archive"),
}


@pytest.mark.parametrize("name", BAD)
def test_hostile_archives_are_refused_and_write_nothing_outside(name: str, tmp_path: Path) -> None:
    archive, said = tmp_path / name, BAD[name][1]
    archive.write_bytes(BAD[name][0])
    with pytest.raises(DataError, match=said):
        unpack(archive, "in/", ("*.txt",), tmp_path / "deep" / "to", limit=100)
    assert set(files(tmp_path)) <= {name, "deep/to/a.txt", "deep/to/b.txt"}
    assert not any(p.is_symlink() for p in tmp_path.rglob("*"))


def test_what_is_good_fits_exactly_and_folders_are_no_files(tmp_path: Path) -> None:
    below = tarfile.TarInfo("in/c.txt")
    below.type = tarfile.DIRTYPE
    (tmp_path / "x.tgz").write_bytes(tar({"./in/a.txt": b"a" * 100, "in/a.md": b"no"}, more=(below,)))
    assert unpack(tmp_path / "x.tgz", "in/", ("*.txt",), tmp_path / "to", limit=100) == ["a.txt"]
    assert files(tmp_path / "to") == {"a.txt": b"a" * 100}
