"""A run that was stopped or killed, back where its checkpoint is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from narrowcast import files
from narrowcast.errors import ConfigError
from narrowcast.privacy.ledger import Ledger
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.training import Training
from narrowcast.runs import checkpoints, release
from narrowcast.runs.run_folder import CHECKPOINT, CONFIG, RECORDS


@dataclass(frozen=True)
class Past:
    """What a run that goes on has done: `told` of its records before it stopped, the rest on disk alone."""

    records: list[RoundRecord]
    told: int
    ended: float  # when its last round had, in Unix time: as old as that records.jsonl stays


def restore(training: Training, run: bytes, folder: Path) -> Past:
    """Go to the checkpoint, if there is one, and cut the records to it: what they are then."""
    path, told = folder / CHECKPOINT, None
    if not path.is_file():
        Ledger(folder).check(0, "")
        (folder / RECORDS).unlink(missing_ok=True)
        return Past([], 0, 0.0)
    try:
        state = checkpoints.read(path)
        if state["run"] != run.hex():
            raise ConfigError(f"{path} belongs to other settings than {folder / CONFIG}: it cannot go on")
        training.restore(state["simulation"])
        told = records.from_line(state["told"]) if "told" in state else None
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{path} is damaged ({error}): start the run anew with --force") from error
    if training.aggregate.discreet:
        release.settle(training, Ledger(folder), told)
    done = records.read(folder / RECORDS, before=training.round)
    before, modified = len(done), (folder / RECORDS).stat().st_mtime_ns
    if told is not None and len(done) == told.round:  # on disk, and not told before the kill
        training.evaluate_if_due(told)
        if training.round == training.rounds:
            training.judge(told)
        done.append(told)
    if len(done) != training.round:
        raise ConfigError(
            f"{folder}/records.jsonl has {len(done)} of the {training.round} rounds of its checkpoint: "
            "start the run anew with --force"
        )
    files.write_atomically(folder / RECORDS, b"".join(map(records.to_line, done)), modified)
    return Past(done, before, modified / 1e9)
