"""Many attacks, one after the other: which, on what, and each result in a file of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from narrowcast.numerics import Purpose, keyed
from narrowcast_studies.attacks import images as pictures
from narrowcast_studies.attacks import labels, models, quality, results
from narrowcast_studies.attacks.attackers import ATTACKERS
from narrowcast_studies.attacks.images import Images
from narrowcast_studies.attacks.labels import Greys
from narrowcast_studies.attacks.models import Net
from narrowcast_studies.attacks.reconstruct import ATTACKS, Effort
from narrowcast_studies.attacks.results import Case, Guess, Picture, Result, Settings, Summary, Upload
from narrowcast_studies.attacks.uploads import Observation, observe

FULL = Upload("uncompressed")
Say = Callable[[int, int, Case, Result], None]


@dataclass(frozen=True)
class Plan:
    """The cases of a study. One image at a time meets everything; larger batches and rounds a part of it."""

    images: int = 10
    dims: tuple[int, ...] = (64, 256, 1024, 4096)
    topk: tuple[int, ...] = (1024,)
    cells: tuple[int, ...] = (1025,)
    attacks: tuple[str, ...] = ("dlg", "invert")
    batches: tuple[int, ...] = (1, 4, 16)
    batch_dims: tuple[int, ...] = (1024, 4096)
    rounds: tuple[int, ...] = (1, 4, 16)
    round_dim: int = 256

    def __post_init__(self) -> None:
        if self.images < 1 or any(b < 1 for b in (*self.batches, *self.rounds)):
            raise ValueError(
                f"images, batches and rounds are at least 1, got {self.images}, {self.batches}, {self.rounds}"
            )
        if unknown := set(self.attacks) - set(ATTACKS):
            raise ValueError(f"unknown attack {', '.join(unknown)}: choose from {', '.join(ATTACKS)}")

    @property
    def uploads(self) -> list[Upload]:
        sizes = {"topk": self.topk, "fetchsgd": self.cells, "static": self.dims}
        return [FULL, *(Upload(name, n) for name, ns in sizes.items() for n in ns)]

    @property
    def needed(self) -> int:
        """Images in all: whole batches."""
        return max(-(-self.images // b) * b for b in self.batches)

    def cases(self) -> Iterator[Case]:
        """Image by image, so that a study cut short has as many images of everything."""
        for index in range(self.images if 1 in self.batches else 0):
            for attack in self.attacks:
                yield Case(FULL, "blind", attack, index=index)
                for upload in self.uploads:
                    yield from self._both(upload, attack, index=index)
            for rounds in self.rounds:
                yield from self._both(
                    Upload("time-varying", self.round_dim), self.attacks[-1], rounds=rounds, index=index
                )
        for batch in self.batches:
            for index in range(-(-self.images // batch) if batch > 1 else 0):
                for attack in self.attacks:
                    for upload in (FULL, *(Upload("static", d) for d in self.batch_dims)):
                        yield from self._both(upload, attack, batch=batch, index=index)

    def _both(self, upload: Upload, attack: str, **where: int) -> Iterator[Case]:
        """By either attacker; the full gradient is the same to both."""
        for attacker in ("honest",) if upload == FULL else ("paper", "honest"):
            yield Case(upload, attacker, attack, **where)


QUICK = Plan(
    images=2,
    dims=(64, 1024),
    topk=(256,),
    cells=(1025,),
    batches=(1, 2),
    batch_dims=(1024,),
    rounds=(1, 4),
    round_dim=64,
)
QUICK_SETTINGS = Settings(iterations=60)


@contextmanager
def plain_convolutions() -> Iterator[None]:
    """Without oneDNN, which costs half as much again for a single small image."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def conduct(
    plan: Plan, settings: Settings, source: str, data: Path | None, folder: Path, say: Say
) -> Summary:
    """Run the cases that have no file in `folder` yet; all of them, summed up, without their pixels."""
    if settings.labels not in ("known", "inferred"):
        raise ValueError(f"labels are known or inferred, got {settings.labels!r}")
    net = models.build(settings.model, keyed.derive(settings.seed, Purpose.INIT))
    images = pictures.load(source, data, plan.needed, settings.seed)
    cases, done = list(plan.cases()), []
    with plain_convolutions():
        for number, case in enumerate(cases):
            path = results.case_file(folder, case, settings, images.source)
            result = results.read_result(path)
            if result is None:
                result = attack(case, settings, net, images)
                results.write(path, result)
            done.append(result)
            say(number + 1, len(cases), case, result)
        guesses = list(guess_labels(plan, settings, net, images, folder))
    return Summary(
        settings=settings,
        source=images.source,
        parameters=net.layout.size,
        images=plan.images,
        torch=torch.__version__.partition("+")[0],
        results=[results.without_pixels(r) for r in done],
        baseline=_mean_picture(images),
        guesses=guesses,
    )


def attack(case: Case, settings: Settings, net: Net, images: Images) -> Result:
    """One case: the client's rounds, the attacker's search, the judgement."""
    started = time.monotonic()
    first = case.index * case.batch
    x, y = images.x[first : first + case.batch], images.y[first : first + case.batch]
    seen = _rounds(case.upload, case.rounds, settings, net, x, y, first)
    key = keyed.derive(settings.seed, Purpose.LOCAL, first, case.batch)
    view = ATTACKERS[case.attacker](seen, keyed.derive(key, Purpose.RUN))
    guessed = y if settings.labels == "known" else labels.infer(Greys(net), view, case.batch)
    effort = Effort(settings.iterations, settings.restarts, settings.variation[case.attacker])
    found = ATTACKS[case.attack](net, view, guessed, effort, key)
    return Result(
        case=case,
        loss=found.loss,
        bytes=sum(o.bytes for o in seen),
        labels=labels.agreeing(guessed, y) / len(y),
        seconds=time.monotonic() - started,
        pictures=_judged(quality.match(found.x, x), x, first, images),
    )


def _rounds(
    upload: Upload, rounds: int, settings: Settings, net: Net, x: Tensor, y: Tensor, first: int
) -> list[Observation]:
    """What is seen. Another A for every batch: what is measured is not the luck of one matrix."""
    key = keyed.derive(settings.seed, Purpose.SUBSPACE, first)
    return observe(net, x, y, upload.method, upload.numbers, key, rounds, settings.rate)


def _judged(found: Tensor, true: Tensor, first: int, images: Images) -> list[Picture]:
    return [
        Picture(
            first + i,
            *_scores(f, t, images),
            found=quality.as_bytes(f),
            true=quality.as_bytes(t),
        )
        for i, (f, t) in enumerate(zip(found, true, strict=True))
    ]


def _scores(found: Tensor, true: Tensor, images: Images) -> tuple[float, float, bool]:
    q = quality.judge(found, true, images)
    return q.psnr, q.ssim, q.identified


def _mean_picture(images: Images) -> list[Picture]:
    """What knowing nothing gives: the mean of the decoys in place of every image."""
    mean = images.decoys.mean(0)
    return [Picture(i, *_scores(mean, images.x[i], images)) for i in range(len(images.x))]


def guess_labels(plan: Plan, settings: Settings, net: Net, images: Images, folder: Path) -> Iterator[Guess]:
    """How often an upload gives its labels away, over batches of the decoys; a file for each kind."""
    for upload in plan.uploads:
        for batch in plan.batches:
            path = results.label_file(folder, upload, batch, settings, images.source)
            known = results.read_guesses(path)
            if known is None:
                known = results.Guesses(_guessed(upload, batch, settings, net, images))
                results.write(path, known)
            yield from known.guesses


def _guessed(upload: Upload, batch: int, settings: Settings, net: Net, images: Images) -> list[Guess]:
    who = ("honest",) if upload == FULL else ("paper", "honest")
    right, greys = dict.fromkeys(who, 0), Greys(net)
    count = len(images.decoys) // batch
    for index in range(count):
        part = slice(index * batch, (index + 1) * batch)
        x, y = images.decoys[part], images.decoy_labels[part]
        seen = _rounds(upload, 1, settings, net, x, y, index)
        for attacker in who:
            found = labels.infer(greys, ATTACKERS[attacker](seen, 0), batch)
            right[attacker] += labels.agreeing(found, y)
    return [Guess(upload, attacker, batch, right[attacker], count * batch) for attacker in who]
