"""The pages of a study of attacks: its tables, and docs/attack.md, every number from the results."""

from __future__ import annotations

from narrowcast.tables import markdown_table
from narrowcast_studies.attacks import table
from narrowcast_studies.attacks.results import Case, Summary, Upload
from narrowcast_studies.attacks.table import Line, plus_minus

FULL = Upload("uncompressed")
ENOUGH = 10  # images from which the intervals mean something


def tables(summary: Summary, command: str) -> str:
    """All tables, with how they were made."""
    parts = [
        "# What uploads reveal",
        f"`{command}`, torch {summary.torch}. {_how(summary)}",
        "## One image, one upload",
        table.main_table(summary),
    ]
    if any(r.case.batch > 1 for r in summary.results):
        parts += ["## Several images in one gradient", table.batch_table(summary)]
    if any(r.case.upload.method == "time-varying" for r in summary.results):
        parts += ["## The same image over several rounds", table.rounds_table(summary)]
    parts += ["## Labels inferred from the upload", table.label_table(summary)]
    return "\n\n".join(parts) + "\n"


def _how(summary: Summary) -> str:
    s = summary.settings
    again = "" if s.restarts == 1 else f", the best of {s.restarts} starts for inverting gradients"
    return (
        f"Images: {summary.source}, {summary.images} of them, drawn by seed {s.seed}. Net: {s.model}, "
        f"{summary.parameters:,} parameters, untrained. Labels {s.labels}. Each attack takes {s.iterations} "
        f"steps{again}; an image is {3 * 32 * 32:,} numbers. +-: half a 95 % interval over the images "
        "(Student's); rates have Wilson's interval. Gain: PSNR above that of the mean picture. "
        "A reconstruction identifies an image if that is nearest "
        "to it, pixel by pixel, among itself and 99 others."
    )


class Numbers:
    """The lines of a study by what they are about."""

    def __init__(self, summary: Summary) -> None:
        self.lines = table.lines(summary)
        self.nothing = self.lines[0]

    def find(
        self, upload: Upload, attacker: str, attack: str, batch: int = 1, rounds: int = 1
    ) -> Line | None:
        want = (upload, attacker, attack, batch, rounds)
        for r in self.lines:
            c: Case = r.case
            if (c.upload, c.attacker, c.attack, c.batch, c.rounds) == want:
                return r
        return None

    def said(self, upload: Upload, attacker: str) -> str:
        """Both figures, each by the attack that is better at it: the nearer picture may tell less apart."""
        both = [self.find(upload, attacker, attack) for attack in ("dlg", "invert")]
        if not (known := [r for r in both if r]):
            return "not measured"
        near = max(known, key=lambda r: r.psnr)
        told = max(known, key=lambda r: r.identified)
        gain = plus_minus(near.gain, near.gain_error, 1)
        return f"{near.psnr:.1f} dB ({gain}), {told.identified}/{told.images} identified"


def page(summary: Summary, command: str, folder: str) -> str:
    """docs/attack.md."""
    n = Numbers(summary)
    dims = sorted({r.case.upload.numbers for r in n.lines if r.case.upload.method == "static"}, reverse=True)
    by_d = [
        [
            f"{d:,}",
            f"{d / summary.parameters:.1%}",
            f"{d / (3 * 32 * 32):.2f}",
            n.said(Upload("static", d), "paper"),
            n.said(Upload("static", d), "honest"),
        ]
        for d in dims
    ]
    head = ["d", "d / D", "d / pixels", "the paper's attacker", "an honest one"]
    return f"""# What an upload reveals

**Compression is no protection of privacy, and no guarantee of anything.** A short upload leaves less to
see, and an attacker who ignores how it was made gets a poor picture, which may still tell an image from
others; one who knows A, as every server does, gets a better one. What hides an image is that fewer numbers
are sent than it has pixels, not that they are mixed. Use secure aggregation and differential privacy where
it matters.

{_few(summary)}Written by `{command}` from the results in [{folder}]({folder}/README.md). {_how(summary)}

## In short

The upload of one image, every figure by the one of the two attacks that is better at it. Knowing nothing
(the mean picture) is {n.nothing.psnr:.1f} dB and {n.nothing.identified}/{n.nothing.images} identified; the
full gradient gives {n.said(FULL, "honest")}. In brackets: the gain over the mean picture, image by image.

{markdown_table(head, by_d)}

Methods that send about as many numbers: {_others(n)}

![PSNR and identification against d]({folder}/dimension.png)

## What was done

The client takes part in a real round: its message is built, encoded, decoded and checked by the same code
as in training, and the attack is on the numbers in it. Two attackers:

- **the paper's** expands the upload (`A A^T g`; for Top-K the sparse vector; for FetchSGD the unsketched
  estimate) and takes that for the gradient;
- **the honest one** knows theta, the key and so A, and looks for the x with `A^T grad(x)` equal to the
  upload; for Top-K it matches the coordinates that were sent, for FetchSGD the sketch of grad(x).

And two attacks: **DLG** (Zhu, Liu and Han 2019), L-BFGS on the squared distance, from grey with faint
noise; and **inverting gradients** (Geiping et al. 2020), cosine distance and a total-variation prior, by
Adam on signs with a falling rate. Weights of the prior, {_weights(summary)}, were chosen on three training
images. *Noise* is the same attack on random numbers as long as the gradient: what it makes of nothing.

## The paper's picture

The paper shows one image: good from the full gradient, an outline from d = 65 536 of a ResNet-152. Its
attacker finds the same here, and the honest one, in the second row of each image, does not stop there.

![inverting gradients]({folder}/grid-invert.png)

![DLG]({folder}/grid-dlg.png)

The paper's attacker fails for a reason of its own: `A A^T g` is g plus noise sqrt(D/d) times as long, which
no image's gradient fits. `A^T grad(x) = upload` has no noise at all. It has d equations; beyond the number
of pixels they settle the image, and below it a prior on what images look like fills in.

{table.main_table(summary)}

{_batches(summary)}{_rounds(summary, folder)}## Labels

`--labels inferred` has the attacker find them first: for every class it computes the upload of a grey
picture, and takes the class nearest to what it saw. By upload, the share of labels that are right (chance
is 10 %), over the 99 other images:

{table.label_table(summary)}

## What this does not show

- The net is small, untrained, smooth and without pooling: the easiest kind to invert. Trained and deeper
  nets (`--model resnet18`, `resnet152`) are known to be harder for these two attacks. A stronger prior,
  such as a generative model of images, would find more at every d. So these are neither upper nor lower
  bounds for your model.
- A client that takes several local steps, or has hundreds of images, is harder to invert; one that trains
  on one image is the worst case.
- Top-K's receiver also learns that what was not sent is smaller than what was. The honest attacker here
  does not use it.
- *Identified* means nearest pixel by pixel, where contrast counts for much: an outline that a person knows
  at once may be too faint for it, and noise that hides a strong outline may pass.
- Nothing here is a proof. What bounds what a client gives away is noise: [differential privacy](privacy.md).
"""


def _batches(summary: Summary) -> str:
    if all(r.case.batch == 1 for r in summary.results):
        return ""
    return f"""## Several images at once

A mean over B images mixes them. Reconstructions are matched to originals by the best assignment, so a table
of batches flatters the attacker a little; images of one batch are not independent, and the intervals ignore
that.

{table.batch_table(summary)}

"""


def _rounds(summary: Summary, folder: str) -> str:
    if all(r.case.upload.method != "time-varying" for r in summary.results):
        return ""
    moved = (
        "Here theta stays the same between the rounds (`--rate` moves it)"
        if summary.settings.rate == 0
        else f"Between the rounds the server takes steps of rate {summary.settings.rate:g}"
    )
    return f"""## Many rounds

With time-varying subspaces the same image passes through another A in every round. Stacked, R uploads are
R d equations about one image, so a d that hides it once does not hide it for long. {moved}; a client that
trains on the same data for many epochs is in this position.

![PSNR and identification against rounds]({folder}/rounds.png)

{table.rounds_table(summary)}

"""


def _few(summary: Summary) -> str:
    if summary.images >= ENOUGH:
        return ""
    return f"**A first look: {summary.images} of the {ENOUGH} images that the study is meant to have.**\n\n"


def _weights(summary: Summary) -> str:
    v = summary.settings.variation
    return f"{v['honest']:g} for the honest attacker and {v['paper']:g} for the paper's"


def _others(n: Numbers) -> str:
    kinds = dict.fromkeys(r.case.upload for r in n.lines if r.case.upload.method in ("topk", "fetchsgd"))
    about = [
        f"{u.label}: the paper's attacker {n.said(u, 'paper')}, an honest one {n.said(u, 'honest')}"
        for u in kinds
    ]
    return "; ".join(about) + "."
