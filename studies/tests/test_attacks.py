"""Reconstruction from uploads: maps are what is sent, attacks find what is there, the command resumes."""

import msgspec
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from narrowcast import intervals
from narrowcast.cli.app import app
from narrowcast.methods import method
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose
from narrowcast.numerics.sketch import CountSketch
from narrowcast.subspaces import KINDS, subspace
from narrowcast_studies.attacks import (
    attackers,
    images,
    labels,
    maps,
    models,
    page,
    programme,
    quality,
    reconstruct,
    results,
    table,
    uploads,
)
from narrowcast_studies.attacks.attackers import View
from places import EXPERIMENTS

D = 777
SEEN = (("uncompressed", 0), ("topk", 50), ("fetchsgd", 60), ("static", 60), ("time-varying", 60))


def vector(size, key=1):
    return torch.from_numpy(keyed.normals(key, Purpose.NORMALS, size).copy())


def all_maps():
    sketch = CountSketch(D, 3, 20, 9)
    return {
        "whole": maps.whole(),
        "places": maps.places(torch.tensor([0, 5, 700]), D),
        "sketch": maps.count_sketch(sketch),
        **{kind: maps.projection(subspace(kind, D, 60, 4)) for kind in KINDS},
    }


@pytest.fixture(scope="module")
def net():
    return models.build("lenet", 3)


@pytest.fixture(scope="module")
def photos():
    return images.load("photos", None, 4, 1)


class TestMaps:
    @pytest.mark.parametrize("name", list(all_maps()))
    def test_derivative_is_the_adjoint(self, name):
        through = all_maps()[name]
        v = vector(D).requires_grad_()
        y = through(v)
        t = vector(y.numel(), 2)
        (pulled,) = torch.autograd.grad(y, v, t)
        w = vector(D, 3)
        # <M^T t, w> = <t, M w>, with M w by the package's own code
        left, right = float(pulled @ w), float(t @ through.forward(w))
        assert left == pytest.approx(right, rel=1e-4, abs=1e-3)

    def test_sketch_adjoint_against_the_matrix(self):
        small = CountSketch(300, 3, 7, 11)  # more than one chunk of the kernel
        S = torch.stack([small.sketch(e) for e in torch.eye(300)], dim=1)
        t = vector(21)
        assert torch.allclose(maps.count_sketch(small).adjoint(t), S.T @ t, atol=1e-5)

    def test_finite_differences_through_a_net(self, net, photos):
        """d/dx |M grad(x) - u|^2 along a direction, against the quotient of differences."""
        seen = uploads.observe(net, photos.x[:1], photos.y[:1], "static", 60, 5)
        view = attackers.honest(seen, 0)
        x, step = vector(3072, 7).view(1, 3, 32, 32) * 0.1, vector(3072, 8).view(1, 3, 32, 32)

        def distance(at):
            return (view.predict(net, at, photos.y[:1], graph=True) - view.target).square().sum()

        at = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(distance(at), at)
        h = 1e-2
        quotient = float((distance(x + h * step) - distance(x - h * step)).detach()) / (2 * h)
        assert float((slope * step).sum()) == pytest.approx(quotient, rel=0.03)


class TestUploads:
    @pytest.mark.parametrize(("name", "numbers"), SEEN)
    def test_the_map_of_the_gradient_is_what_was_sent(self, net, photos, name, numbers):
        (seen,) = uploads.observe(net, photos.x[:2], photos.y[:2], name, numbers, 5)
        v = net.gradient(net.theta0, photos.x[:2], photos.y[:2])
        assert torch.equal(seen.map(v), seen.sent)
        assert seen.bytes >= 4 * seen.sent.numel()
        assert seen.expanded.shape == v.shape

    def test_expanded_is_A_At_g(self, net, photos):
        (seen,) = uploads.observe(net, photos.x[:1], photos.y[:1], "static", 60, 5)
        A = method("static", dim=60, key=5).matrix(net.layout.size, 0, 0).dense()
        v = net.gradient(net.theta0, photos.x[:1], photos.y[:1])
        assert torch.allclose(seen.expanded, A @ (A.T @ v), atol=1e-4)

    def test_rounds_have_an_A_each_and_gain_rank(self, net, photos):
        seen = uploads.observe(net, photos.x[:1], photos.y[:1], "time-varying", 20, 5, rounds=3)
        assert seen[0].theta is seen[2].theta
        rows = torch.cat([torch.stack([o.map.adjoint(e) for e in torch.eye(20)]) for o in seen])
        assert torch.linalg.matrix_rank(rows) == 60

    def test_a_rate_moves_theta(self, net, photos):
        seen = uploads.observe(net, photos.x[:1], photos.y[:1], "time-varying", 20, 5, rounds=2, rate=1.0)
        assert not torch.equal(seen[0].theta, seen[1].theta)
        view = attackers.honest(seen, 0)
        assert torch.equal(view.predict(net, photos.x[:1], photos.y[:1]), view.target)

    def test_unknown_method(self, net, photos):
        with pytest.raises(ValueError, match="no attack on 'fedkseed': choose one of"):
            uploads.observe(net, photos.x[:1], photos.y[:1], "fedkseed", 1, 5)


class TestAttacks:
    def effort(self, steps):
        return reconstruct.Effort(steps, 1, 0.003)

    @pytest.mark.parametrize("attack", list(reconstruct.ATTACKS))
    def test_the_full_gradient_gives_the_image_and_noise_does_not(self, net, photos, attack):
        x, y = photos.x[:1], photos.y[:1]
        seen = uploads.observe(net, x, y, "uncompressed", 0, 5)
        found = reconstruct.ATTACKS[attack](net, attackers.honest(seen, 1), y, self.effort(160), 2)
        blind = reconstruct.ATTACKS[attack](net, attackers.blind(seen, 1), y, self.effort(40), 2)
        good, bad = (quality.judge(f.x[0], x[0], photos) for f in (found, blind))
        assert good.psnr > 14 > bad.psnr + 6
        assert good.ssim > bad.ssim

    def test_the_honest_attacker_finds_more_than_the_papers(self, net, photos):
        x, y = photos.x[:1], photos.y[:1]
        seen = uploads.observe(net, x, y, "static", 4000, 5)
        scores = {
            name: quality.judge(
                reconstruct.dlg(net, attackers.ATTACKERS[name](seen, 1), y, self.effort(80), 2).x[0],
                x[0],
                photos,
            ).psnr
            for name in ("paper", "honest")
        }
        assert scores["honest"] > scores["paper"] + 5

    def test_restarts_keep_the_best(self, net, photos):
        x, y = photos.x[:1], photos.y[:1]
        view = attackers.honest(uploads.observe(net, x, y, "static", 60, 5), 1)
        one, three = (
            reconstruct.invert(net, view, y, reconstruct.Effort(10, restarts, 0.01), 2).loss
            for restarts in (1, 3)
        )
        assert three <= one

    def test_pixels_stay_in_their_range(self):
        x = reconstruct.within(vector(3072).view(1, 3, 32, 32) * 9)
        shown = x * images.cifar10.DEVIATION + images.cifar10.MEAN
        assert shown.min() > -1e-5
        assert shown.max() < 1 + 1e-5


class TestLabels:
    @pytest.mark.parametrize("batch", [1, 4])
    def test_inferred_from_the_full_gradient(self, net, photos, batch):
        x, y = photos.decoys[:batch], photos.decoy_labels[:batch]
        seen = uploads.observe(net, x, y, "uncompressed", 0, 5)
        found = labels.infer(labels.Greys(net), attackers.honest(seen, 0), batch)
        assert labels.agreeing(found, y) >= batch - 1

    def test_agreement_counts_labels_and_not_places(self):
        assert labels.agreeing(torch.tensor([1, 2, 2]), torch.tensor([2, 1, 1])) == 2


class TestQuality:
    def test_against_the_formulas(self, photos):
        x = photos.x[0]
        noisy = x + vector(3072).view_as(x) * 0.1
        error = (images.pixels(noisy) - images.pixels(x)).square().mean()
        assert quality.judge(noisy, x, photos).psnr == pytest.approx(
            float(-10 * torch.log10(error)), rel=1e-4
        )
        same = quality.judge(x, x, photos)
        assert (same.psnr, same.identified) == (quality.MOST_DB, True)
        assert same.ssim == pytest.approx(1.0)
        assert not quality.judge(photos.decoys[7], x, photos).identified

    def test_a_batch_is_matched_whatever_its_order(self, photos):
        order = torch.tensor([2, 0, 3, 1])
        assert torch.equal(quality.match(photos.x[order], photos.x), photos.x)

    def test_bytes(self, photos):
        picture = np.frombuffer(quality.as_bytes(photos.x[0]), np.uint8).reshape(32, 32, 3)
        assert np.abs(picture / 255 - images.pixels(photos.x[0]).permute(1, 2, 0).numpy()).max() < 0.003


class TestIntervals:
    def test_students_interval(self):
        mean, error = intervals.student([1.0, 2.0, 3.0, 4.0])
        assert (mean, error) == (2.5, pytest.approx(3.182446 * np.std([1, 2, 3, 4], ddof=1) / 2, rel=1e-5))

    def test_wilson(self):
        assert table._rate(0, 10) == (0, pytest.approx(0.2775, abs=1e-3))
        assert table._rate(5, 10) == (
            pytest.approx(0.2366, abs=1e-3),
            pytest.approx(0.7634, abs=1e-3),
        )


class TestModels:
    @pytest.mark.parametrize(("depth", "size"), [(18, 11_689_512), (152, 60_192_808)])
    def test_resnets_have_the_original_sizes(self, depth, size):
        with torch.device("meta"):
            made = torch.nn.Module.parameters(_shapes(depth))
        assert sum(p.numel() for p in made) == size

    def test_resnet18_takes_an_image(self):
        x = torch.zeros(1, 3, 32, 32)
        assert models.resnet(18, 1)(x).shape == (1, 10)

    @pytest.mark.slow
    def test_resnet18_under_attack(self, photos):
        net = models.build("resnet18", 1)
        seen = uploads.observe(net, photos.x[:1], photos.y[:1], "static", 4096, 5)
        view = attackers.honest(seen, 0)
        found = reconstruct.invert(net, view, photos.y[:1], reconstruct.Effort(2), 2)
        assert 0 < found.loss < 2

    def test_default_size(self):
        assert models.build("lenet", 0).layout.size == 24_298


def _shapes(depth):
    """The net without its numbers: 60 million of them are not needed to count them."""
    original = models.initialise
    models.initialise = lambda module, key: module
    try:
        return models.resnet(depth, 0, classes=1000)
    finally:
        models.initialise = original


class TestCommand:
    def run(self, out, *flags):
        small = ["--images", "photos", "--count", "1", "--dims", "64", "--batches", "1,2", "--rounds", "1,2"]
        return CliRunner().invoke(
            app, ["attack", "--quick", *small, "--iterations", "6", "--out", str(out), *flags]
        )

    def test_quick_writes_everything_and_resumes(self, tmp_path):
        page = tmp_path / "docs" / "privacy.md"
        first = self.run(tmp_path / "out", "--page", str(page))
        assert first.exit_code == 0, first.output
        made = {p.name for p in (tmp_path / "out").iterdir()}
        assert made == {
            "cases", "results.json", "results.csv", "README.md", "dimension.png", "rounds.png",
            "grid-dlg.png", "grid-invert.png",
        }  # fmt: skip
        text = page.read_text()
        assert "no guarantee" in text
        assert "(../out/grid-invert.png)" in text
        cases = sorted((tmp_path / "out" / "cases").iterdir())
        before = {p: p.stat().st_mtime_ns for p in cases}
        cases[0].unlink()
        cases[1].write_text("half a fi")
        again = self.run(tmp_path / "out")
        assert again.exit_code == 0, again.output
        after = {p: p.stat().st_mtime_ns for p in cases}
        assert all(p.exists() for p in cases)
        assert [p for p in cases if before[p] != after[p]] == cases[:2]  # no other was made again
        summary = results.read_summary(tmp_path / "out" / "results.json")
        plan = programme.Plan(
            images=1, dims=(64,), topk=programme.QUICK.topk, cells=programme.QUICK.cells, batches=(1, 2),
            batch_dims=programme.QUICK.batch_dims, rounds=(1, 2), round_dim=programme.QUICK.round_dim,
        )  # fmt: skip
        assert [r.case for r in summary.results] == list(plan.cases())
        assert not any(p.found for r in summary.results for p in r.pictures)

    def test_the_page_gives_each_figure_by_the_attack_that_is_better_at_it(self):
        summary = results.read_summary(EXPERIMENTS / "results" / "attack" / "results.json")
        of = {
            case.attack: line
            for line in table.lines(summary)
            for case in [line.case]
            if (case.upload, case.attacker) == (results.Upload("static", 1024), "paper")
            and (case.batch, case.rounds) == (1, 1)
        }
        assert of["invert"].psnr > of["dlg"].psnr
        assert of["invert"].identified < of["dlg"].identified  # so that neither attack is the better one
        said = page.Numbers(summary).said(results.Upload("static", 1024), "paper")
        assert said.startswith(f"{of['invert'].psnr:.1f} dB")
        assert said.endswith(f", {of['dlg'].identified}/10 identified")

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (("--model", "vgg"), "unknown model 'vgg': choose one of lenet"),
            (("--labels", "some"), "labels are known or inferred, got 'some'"),
            (("--dims", "a,b"), "--dims takes whole numbers with commas between them, got 'a,b'"),
            (("--attacks", "guess"), "unknown attack guess: choose from dlg, invert"),
            (("--images", "cats"), "unknown images 'cats'"),
        ],
    )
    def test_wrong_flags(self, tmp_path, flags, message):
        result = self.run(tmp_path, *flags)
        assert result.exit_code == 2
        assert message in result.output


def test_cases_of_other_settings_are_other_files(tmp_path):
    case = next(iter(programme.Plan().cases()))
    settings = results.Settings()
    names = {
        results.case_file(tmp_path, case, s, source)
        for s in (settings, msgspec.structs.replace(settings, labels="inferred"))
        for source in ("a", "b")
    }
    assert len(names) == 4


def test_stacked_views_share_a_gradient(net, photos):
    """Two rounds at one theta cost one gradient."""
    seen = uploads.observe(net, photos.x[:1], photos.y[:1], "time-varying", 20, 5, rounds=2)
    view = attackers.honest(seen, 0)
    calls = []

    class Counting(models.Net):
        def gradient(self, *args, **kwargs):
            calls.append(1)
            return super().gradient(*args, **kwargs)

    counted = Counting(net.module, net.layout, net.theta0)
    assert isinstance(view, View)
    assert torch.equal(view.predict(counted, photos.x[:1], photos.y[:1]), view.target)
    assert len(calls) == 1


def test_other_pictures_have_another_name(monkeypatch):
    """By which cases are kept: those of a small copy must not be taken for those of all test pictures."""
    made = (torch.zeros(200, 3, 32, 32, dtype=torch.uint8), torch.zeros(200, dtype=torch.long))
    monkeypatch.setattr(images.cifar10, "load", lambda folder, form: (made, made))
    names = set()
    for form in (images.cifar10.SMALL, *images.cifar10.FULL):
        monkeypatch.setattr(images.cifar10, "find", lambda *_, form=form: (None, form))
        names.add(images.load("cifar10", None, 2, 1).source)
    assert len(names) == 2
