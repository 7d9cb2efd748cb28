"""The file of a run's records: what a kill leaves of it, and what a stranger may have made of it."""

from pathlib import Path

import pytest

from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord


def line(round: int) -> bytes:
    return records.to_line(RoundRecord(round, 0, round + 1, 0.5, None, 1, 4, 4))


@pytest.mark.parametrize("rest", [b"", b"{", line(3)[:-1]])
def test_a_last_line_that_a_kill_cut_off_is_left_out(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(map(line, range(3))) + rest)
    assert [record.round for record in records.read(path)] == [0, 1, 2]


def test_what_lies_beyond_a_checkpoint_is_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(line(0) + line(1) + b"noise\n")
    assert [record.round for record in records.read(path, before=2)] == [0, 1]
    with pytest.raises(ValueError, match="line 3 is not a round record"):
        records.read(path)


def test_a_file_or_a_line_that_no_run_writes_is_refused_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(line(0))
    with path.open("ab") as file:
        file.truncate(records.LARGEST + 1)  # a hole: nothing is written, and nothing may be read
    with pytest.raises(ValueError, match="is damaged: it is no plain file of at most"):
        records.read(path)
    path.write_bytes(line(0) + line(1)[:-1] + b" " * records.LONGEST + b"\n" + line(2))
    with pytest.raises(ValueError, match=r"line 2 is not a round record: it has \d+ bytes and more"):
        records.read(path)
    assert [record.round for record in records.read(path, before=1)] == [0]
    whole = line(1)[:-1].ljust(records.LONGEST - 1) + b"\n"
    path.write_bytes(line(0) + whole + line(2))
    assert [record.round for record in records.read(path)] == [0, 1, 2]
