"""A setting that was given and that nothing looks at is refused by its name."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.errors import ConfigError
from narrowcast.methods import METHODS
from narrowcast.runs import compare, make_config, prepare, read_toml, refuse_unused, run_folder, runner
from narrowcast.runs.config import RunConfig
from narrowcast.runs.used import of_method, used
from narrowcast.runs.words import arguments

SHORT: dict[str, Any] = {"task": "digits", "width": 8, "rounds": 1, "cohort": 40}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"k": 5}, "--k: the method static does not use it"),
        ({"subspaces": 2}, "--subspaces: the method static"),
        ({"refresh": "2"}, "--refresh: the method static"),
        ({"carry": True}, "--carry: the method static"),
        ({"method": "uncompressed", "dim": 5}, "--dim: the method uncompressed"),
        ({"method": "k-subspace", "refresh": "3"}, "--refresh: the method k-subspace"),
        ({"method": "fedavg", "uplink": "f16"}, "--uplink: the method fedavg"),
        ({"momentum": 0.5}, "--momentum: --optimiser sgd has none"),
        ({"method": "signsgd", "momentum": 0.5}, "--momentum: the method signsgd"),
        ({"method": "fetchsgd", "optimiser": "adam"}, "--optimiser: the method fetchsgd"),
        ({"prox": 0.1}, "--prox: a single local step is not changed by it"),
        ({"method": "fedprox", "prox": 0.1, "local_steps": 1}, "--prox: a single local step"),
        ({"local_lr": 0.1}, "--local-lr: a single local step is not changed by it"),
        ({"method": "fedkseed", "prox": 0.1}, "--prox: clients of fedkseed take no gradient"),
        ({"method": "time-varying", "carry": True}, "--carry: --optimiser sgd has nothing to carry"),
        ({"method": "topk", "per_client": True}, "--per-client: .* by itself with the method topk"),
        ({"method": "drive", "per_client": True}, "--per-client: .* by itself with the method drive"),
        ({"uplink": "int8", "per_client": True}, "--per-client: .* by itself with the method static"),
        ({"aggregate": "median", "per_client": True}, "--per-client: .* with --aggregate median"),
        ({"dp_noise": 1.0, "lr": 1.0, "per_client": True}, "--per-client: .* with differential privacy"),
        ({"attackers": 0.1, "per_client": True}, "--per-client: .* with --attackers 0.1"),
        ({"network": "4g", "deadline": 9.0, "per_client": True}, "--per-client: .* with --deadline"),
        ({"engine": "flower-sim", "per_client": True}, "--per-client: .* with --engine flower-sim"),
        ({"alpha": 0.1}, "--alpha: only --partition dirichlet"),
        ({"lora_rank": 2}, "--lora-rank: only --trainable lora"),
        ({"data": "here"}, "--data: the task digits does not use it"),
        ({"model": "tiny"}, "--model: the task digits"),
        ({"task": "quadratic", "width": 50, "dim": 4, "freeze": "x"}, "--freeze: the task quadratic"),
    ],
)
def test_what_nothing_uses_is_refused(given: dict[str, Any], why: str, tmp_path: Path) -> None:
    config = make_config({**SHORT, **given})
    with pytest.raises(ConfigError, match=why):
        refuse_unused(given, config)
    flags = {f"--{name.replace('_', '-')}": value for name, value in given.items() if name != "task"}
    words = [
        word for name, value in flags.items() for word in ([name] if value is True else [name, str(value)])
    ]
    done = CliRunner().invoke(
        app, ["run", config.task, "--rounds", "1", *words, "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 2
    assert why.split(":")[0] in done.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "given",
    [
        {"dim": 8}, {"method": "topk", "k": 5}, {"optimiser": "adam", "momentum": 0.5},
        {"method": "dgc", "momentum": 0.5}, {"method": "fetchsgd", "momentum": 0.5},
        {"partition": "dirichlet", "alpha": 0.1}, {"trainable": "lora", "lora_rank": 2},
        {"method": "time-varying", "refresh": "2", "carry": True, "optimiser": "momentum"},
        {"local_steps": 2, "prox": 0.1},
        {"method": "fedavg", "local_lr": 0.1, "prox": 0.1}, {"method": "fedkseed", "local_lr": 0.1},
        {"per_client": True}, {"method": "fetchsgd", "per_client": True, "network": "4g"},
        {"method": "topk", "per_client": False}, {"prox": 0.0}, {"method": "fedprox", "prox": 0.0},
    ],
)  # fmt: skip
def test_what_is_used_is_not(given: dict[str, Any]) -> None:
    refuse_unused(given, make_config({**SHORT, **given}))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_made_of_the_settings_that_concern_it_alone(name: str) -> None:
    """What `used` leaves out changes nothing about the method that is built."""
    plain = make_config({**SHORT, "method": name})
    other: dict[str, Any] = {
        "dim": 7, "subspaces": 3, "refresh": "5", "carry": True, "subspace": "dense", "uplink": "f16",
        "downlink": "f16", "k": 9, "error_feedback": False, "warmup": 2, "sketch_rows": 2,
        "sketch_columns": 5, "rank": 3, "levels": 3, "directions": 5, "epsilon": 0.5,
        "convention": "unbiased", "optimiser": "adam",
    }  # fmt: skip
    for setting, value in other.items():
        changed = make_config({**SHORT, "method": name, setting: value})
        same = changed.build_method() == plain.build_method()
        assert same == (setting not in of_method(name)), setting


def test_a_resolved_configuration_is_read_as_it_is(tmp_path: Path) -> None:
    runner.start(make_config({**SHORT, "dim": 8}), tmp_path / "run")
    config = run_folder.load_config(tmp_path / "run")
    given = config.model_dump(exclude_none=True)
    assert "k" not in used(config)
    refuse_unused(given, config)
    again = ["run", str(tmp_path / "run" / "config.toml"), "--out", str(tmp_path / "again")]
    done = CliRunner().invoke(app, again)
    assert done.exit_code == 0, done.output


FILE = """
task = "digits"
width = 8
rounds = 1
cohort = 40
{shared}
[[run]]
method = "static"
{own}
[[run]]
method = "uncompressed"
lr = 0.1
"""


@pytest.mark.parametrize(
    ("shared", "own", "why"),
    [
        ("dim = 8", "", None),  # one row uses it
        ("k = 8", "", "c.toml: --k: the method static, uncompressed does not use it"),
        ("", "k = 8", "run 1: --k: the method static does not use it"),
    ],
)
def test_settings_of_a_file_are_refused_if_no_row_uses_them(
    shared: str, own: str, why: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(FILE.format(shared=shared, own=own))
    if why is None:
        assert len(compare.load(path).configs) == 2
        return
    with pytest.raises(ConfigError, match=why):
        compare.load(path)


def test_the_words_of_a_configuration_can_leave_out_what_it_does_not_use() -> None:
    config = make_config({**SHORT, "method": "uncompressed", "dim": 8, "lr": 0.5})
    assert "--dim" in arguments(config)
    assert "--dim" not in arguments(config, used(config))


def test_older_names_of_settings_are_read() -> None:
    given = {"method": "fedkseed", "seeds": 12}
    config = make_config({**SHORT, **given})
    assert config.directions == 12
    assert "seeds" not in RunConfig.model_fields
    refuse_unused(given, config)


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("v1/*.toml")), ids=lambda path: path.stem)
def test_a_resolved_configuration_of_an_older_version_is_read_as_it_is(path: Path) -> None:
    table = read_toml(path)
    refuse_unused(table, make_config(table))


def test_a_run_begun_by_an_older_version_keeps_its_identity() -> None:
    """The run of tests/runs/v1/fedkseed.toml had this one in its checkpoint."""
    config = make_config(read_toml(Path(__file__).with_name("v1") / "fedkseed.toml"))
    assert prepare(config).plan.run.hex() == "f5846a948301adb8"


def test_a_setting_that_nobody_gave_is_its_methods_own():
    """A run in few bits is none in float32: what is left open agrees with what the method makes of it."""

    def config(method, **settings):
        return make_config({"task": "digits", "epochs": 1, "lr": 1.0, "method": method, **settings})

    few = {"down_bits": 2.0}
    for asked, resolved, agree in (
        (config("static"), config("static"), True),
        (config("static"), config("static", **few), False),
        (config("static", **few), config("static", **few), True),
        (config("narrow"), config("narrow", up_bits=1.0, **few), True),
        (config("narrow"), config("narrow", up_bits=1.0, down_bits=3.0), False),
        (config("topk"), config("topk", k=50), True),  # which depends on the model
        (config("ef21"), config("ef21", clients=50), True),  # and these on the task
        (config("static"), config("static", cohort=20, evaluate_every=3, threads=2), True),
        (config("fedavg"), config("fedavg", local_steps=5), True),
        (config("fedavg"), config("fedavg", local_steps=7), False),
        (config("fedprox"), config("fedprox", prox=0.2), False),
        (config("static"), config("static", prox=0.0, local_steps=1), True),
    ):
        assert asked.agrees_with(resolved) == agree


@pytest.mark.parametrize(
    "had",
    [
        {"examples": 300}, {"test_examples": 9}, {"freeze": "bias"}, {"width": 8}, {"rounds": 3},
        {"partition": "iid"}, {"network": "4g"}, {"local_steps": 2, "local_lr": 0.5}, {"dp_noise": 0.5},
        {"dp_epsilon": 8.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_that_was_taken_out_is_another_run(had):
    """Else the results of a file from before would stand for what it says now."""
    plain = {"task": "digits", "epochs": 1.0, "lr": 1.0, "method": "static"}
    assert not make_config(plain).agrees_with(make_config({**plain, **had}))


def test_what_privacy_finds_agrees_with_what_was_asked():
    plain = {"task": "digits", "epochs": 1.0, "lr": 1.0, "method": "static", "dp_epsilon": 8.0}
    found = {"dp_noise": 0.7, "dp_delta": 1e-4, "dp_clip": "1.0"}
    assert make_config(plain).agrees_with(make_config({**plain, **found}))
    noise = {**plain, "dp_epsilon": None, "dp_noise": 0.7}
    assert not make_config(noise).agrees_with(make_config({**plain, **found}))
