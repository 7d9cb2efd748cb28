"""Records of a run to TensorBoard, MLflow, Weights & Biases and others, through accelerate's trackers.

Scalars are loss, metrics, bytes and seconds, a step a round; settings are parameters; the model's file is an
artefact, where a tracker keeps such. `track.json` in the run's folder says which tracks it has and how far
they are: a run that goes on does so in the same ones, and a round is not sent twice. (After a kill the last
seconds may be: the same values at the same steps, since a resumed run repeats its rounds exactly.)
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from narrowcast import files
from narrowcast.errors import ConfigError
from narrowcast.extras import Missing, require
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs import run_folder
from narrowcast.runs.run_folder import TRACK, Facts
from narrowcast.runs.used import used
from narrowcast.texts import printable

log = logging.getLogger(__name__)
PROJECT = "narrowcast"  # the experiment of MLflow, the project of W&B
SAVED_EVERY = 2.0  # seconds between two writings of track.json


class Tracks(msgspec.Struct):
    """How far each tracker is (rounds), and what it calls the run."""

    rounds: dict[str, int] = {}
    ids: dict[str, str] = {}


def names_of(text: str) -> list[str]:
    """ "tensorboard,wandb" -> the trackers, each known and installed; else an error that says what to do."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        return []
    require("accelerate", "track", "--track")
    from importlib.util import find_spec

    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise ConfigError(
                f"unknown tracker {name!r}: choose among {', '.join(sorted(LOGGER_TYPE_TO_CLASS))}"
            )
        if find_spec(name) is None:
            raise Missing(f"--track {name} needs {name}: pip install {name}")
    return list(dict.fromkeys(names))


class Trackers:
    """Call it with every record. `folder` holds what trackers write here, and `track.json`."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        label: str = "run",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.label = folder, label
        self.settings = {name: _plain(value) for name, value in (settings or {}).items()}
        self.tracks = _read(folder)
        self.totals: dict[str, float] = {"up": 0, "down": 0, "network_seconds": 0.0}
        self._open = {name: self._begin(name) for name in dict.fromkeys([*self.tracks.rounds, *names])}
        self._saved = 0.0
        self._save()

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, record: RoundRecord) -> None:
        values, step = self._values(record), record.round + 1
        for name, tracker in list(self._open.items()):
            if step > self.tracks.rounds[name]:
                self._guarded(name, partial(tracker.log, values, step=step))
                self.tracks.rounds[name] = step
        if time.monotonic() - self._saved > SAVED_EVERY:
            self._save()

    def close(self, model: Path | None = None) -> None:
        """The end, or a stop; with the model's file where there is one."""
        for name, tracker in list(self._open.items()):
            if model is not None:
                self._guarded(name, partial(_artefact, name, tracker, model))
            self._guarded(name, tracker.finish)
        self._open.clear()
        self._save()

    def _begin(self, name: str) -> Any:
        from accelerate.state import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState()  # accelerate's trackers ask it which process they are in
        known = self.tracks.ids.get(name)
        tracker = LOGGER_TYPE_TO_CLASS[name](
            *_arguments(name, self.folder, self.label), **_more(name, self, known)
        )
        tracker.start()
        if name not in self.tracks.rounds:
            tracker.store_init_configuration(dict(self.settings))
        self.tracks.rounds.setdefault(name, 0)
        self.tracks.ids[name] = known or _id(name, tracker)
        return tracker

    def _guarded(self, name: str, call: Callable[[], object]) -> None:
        """A tracker that fails is left out from there on: it is no reason to lose the run."""
        try:
            call()
        except Exception as error:
            log.warning("%s does not follow the run any more: %s", name, printable(str(error)))
            self._open.pop(name, None)

    def _values(self, record: RoundRecord) -> dict[str, float]:
        for name in self.totals:
            self.totals[name] += getattr(record, name)
        values: dict[str, float | None] = {
            "loss": record.loss,
            "rate": record.rate,
            "epsilon": record.epsilon,
            **({} if record.epsilon is not None else self._counted(record)),
            **{f"test/{_tidy(name)}": value for name, value in record.metrics.items()},
            **{f"nodes/{_tidy(name)}": value for name, value in record.node_metrics.items()},
        }
        if self.totals["network_seconds"]:
            values["network_seconds_total"] = self.totals["network_seconds"]
        return {name: value for name, value in values.items() if value is not None}

    def _counted(self, record: RoundRecord) -> dict[str, float | None]:
        """What depends on who came, and what each of them sent."""
        return {
            "clients": record.clients,
            "dropped": sum(record.dropped.values()),
            "up": record.up,
            "down": record.down,
            "up_total": self.totals["up"],
            "down_total": self.totals["down"],
            "seconds": record.seconds,
        }

    def _save(self) -> None:
        files.write_atomically(self.folder / TRACK, msgspec.json.format(msgspec.json.encode(self.tracks)))
        self._saved = time.monotonic()


OnRecord = Callable[[Facts, RoundRecord], None]


@contextmanager
def tracked(names: Sequence[str], folder: Path, then: OnRecord | None = None) -> Iterator[OnRecord]:
    """What a runner calls with every record of the run in `folder`: `then`, and these trackers.

    They begin with the first record, once the folder is the run's; those that it had go on unasked.
    """
    begun: list[Trackers] = []

    def on_record(facts: Facts, record: RoundRecord) -> None:
        if not begun and (names or (folder / TRACK).is_file()):
            config = run_folder.load_config(folder)
            settings = config.model_dump(exclude_none=True, include=used(config))
            begun.append(Trackers(names, folder, facts.label, settings))
        for trackers in begun:
            trackers(record)
        if then is not None:
            then(facts, record)

    try:
        yield on_record
    finally:
        for trackers in begun:
            trackers.close(folder / run_folder.MODEL if run_folder.finished(folder) else None)


def forget(folder: Path) -> None:
    """The run here is to be replaced: curves that a tracker keeps in it would be drawn with the new."""
    with suppress(ConfigError):
        if "tensorboard" in _read(folder).rounds:
            shutil.rmtree(folder / "tensorboard", ignore_errors=True)


def _read(folder: Path) -> Tracks:
    try:
        return msgspec.json.decode((folder / TRACK).read_bytes(), type=Tracks)
    except FileNotFoundError:
        return Tracks()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder / TRACK} is damaged ({error}): remove it to begin new tracks") from None


def _arguments(name: str, folder: Path, label: str) -> tuple[str, ...]:
    """accelerate's first arguments: a name, and for some a folder."""
    match name:
        case "tensorboard":
            return "tensorboard", str(folder)
        case "mlflow" | "wandb":
            return (PROJECT,)
        case "aim" | "dvclive":
            return label, *((str(folder),) if name == "aim" else ())
        case _:
            return (label,)


def _more(name: str, trackers: Trackers, known: str | None) -> dict[str, Any]:
    """What each needs to keep its files beside the runs, and to go on with a run it knows."""
    folder = trackers.folder.resolve()
    if name == "tensorboard":
        return {"purge_step": trackers.tracks.rounds[name] + 1} if name in trackers.tracks.rounds else {}
    if name == "mlflow":
        import mlflow

        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            mlflow.set_tracking_uri((folder.parent / "mlruns").as_uri())
        return {"run_id": known} if known else {"run_name": trackers.label}
    if name == "wandb":
        more = {"id": known, "resume": "allow"} if known else {}
        return {"name": trackers.label, "dir": str(folder), **more}
    return {}


def _id(name: str, tracker: Any) -> str:
    """What the tracker calls the run; "" where it cannot be asked to go on with it."""
    run = tracker.tracker
    return str(run.info.run_id if name == "mlflow" else run.id if name == "wandb" else "")


def _artefact(name: str, tracker: Any, model: Path) -> None:
    if name == "wandb":
        tracker.tracker.log_artifact(str(model), name=f"model-{tracker.tracker.id}", type="model")
    elif hasattr(tracker, "log_artifact"):
        tracker.log_artifact(str(model))
    elif name == "tensorboard":  # it keeps no files: it says where this one is
        tracker.writer.add_text("model", str(model))


def _tidy(name: str) -> str:
    """A metric's name of letters that every tracker takes."""
    return re.sub(r"[^\w./ -]", "_", name)


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
