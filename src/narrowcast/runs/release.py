"""The order of a release: spent in the ledger, drawn, on disk as a checkpoint, released in the ledger, told.

Killed before the checkpoint, the round is held again: nothing of it had left. Killed after, it is not: the
checkpoint has the noised state, and the record that others were to see of it.
"""

from __future__ import annotations

from narrowcast.privacy.ledger import Ledger
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.training import Training
from narrowcast.runs.checkpoints import Checkpoints


class InOrder:
    """Keeps the books of a training whose rounds may leave once (`rounds.training.Releases`)."""

    def __init__(self, training: Training, keeper: Checkpoints, ledger: Ledger) -> None:
        self.training, self.keeper, self.ledger = training, keeper, ledger

    def spend(self, round: int) -> None:
        self.ledger.spend(round)

    def release(self, record: RoundRecord) -> None:
        self.keeper.write(self.training.state(), records.to_line(record).decode())
        self.ledger.release(record.round, digest(self.training), record.epsilon)


def digest(training: Training) -> str:
    """Of the model as the training has it."""
    return training.now().digest.hex()


def settle(training: Training, ledger: Ledger, told: RoundRecord | None) -> None:
    """Before a run goes on: its state must be the ledger's last, or one step on, and nothing of it left."""
    ledger.check(training.round, digest(training))
    if training.round > ledger.released:
        ledger.release(training.round - 1, digest(training), told.epsilon if told else None)
