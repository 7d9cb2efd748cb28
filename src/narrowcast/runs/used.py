"""Which settings a run uses: one that was given and would change nothing is refused by its name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any

from narrowcast.aggregates.table import AGGREGATES
from narrowcast.errors import ConfigError
from narrowcast.methods.table import METHODS
from narrowcast.runs.config import PRIVACY, RENAMED, RESOLVED, RunConfig
from narrowcast.runs.own import config_class
from narrowcast.runs.words import flag
from narrowcast.tasks.table import CUSTOM, SETTINGS, settings_of

# The settings of a run that an option of a method stands for, where they are not just one of the same name.
STANDS_FOR = {"unbiased": ("convention",), "optimiser": ("optimiser", "momentum"), "key": (), "clients": ()}
OF_EVERY_RUN = {"task", "method", "name", "seed", "engine", "threads", "device"}


def of_method(name: str) -> tuple[str, ...]:
    """The settings that concern a method."""
    options, known = METHODS[name].options, config_class(None, name).model_fields
    named = (setting for option in options for setting in STANDS_FOR.get(option, (option,)))
    return tuple(dict.fromkeys(setting for setting in named if setting in known))


def used(config: RunConfig) -> set[str]:
    """The settings that a run of this configuration looks at."""
    from narrowcast.rounds.plan import Plan

    plan = {f.name for f in fields(Plan)} & RunConfig.model_fields.keys()
    rule: Any = AGGREGATES[config.aggregate]
    plan |= {f.name for f in fields(rule)}
    asked = OF_EVERY_RUN | PRIVACY | plan | settings_of(config.task) | set(of_method(config.method))
    return {name for name in asked if _matters(name, config)}


def _matters(name: str, config: RunConfig) -> bool:
    """Whether the other settings leave it anything to say."""
    match name:
        case "momentum":
            return config.optimiser != "sgd" or "momentum" in METHODS[config.method].options
        case "dropout":
            return config.engine == "here"
        case "network" | "attackers":
            return config.engine == "here"
        case "device":
            return config.engine == "here" and config.task != CUSTOM
        case "attack":
            return config.attackers > 0
        case "deadline":
            return config.network is not None
        case "dp_delta" | "dp_clip":
            return config.private
        case "alpha":
            return config.partition == "dirichlet"
        case "lora_rank" | "lora_alpha":
            return config.trainable == "lora"
        case "carry":
            return config.optimiser != "sgd"
        case "local_lr":
            return _walks(config)
        case "prox":  # 0, as a run's folder has it, says that there is none
            return not config.prox or (_walks(config) and config.build_method().probes is None)
        case "per_client":  # no, as a run's folder has it, is what it is by itself
            return not config.per_client or (config.engine == "here" and _can_sum(config))
        case _:
            return True


def _walks(config: RunConfig) -> bool:
    """Whether clients take more than one step: the first is a gradient, whatever its rate."""
    return (config.local_steps or config.build_method().local_steps) > 1


def _can_sum(config: RunConfig) -> bool:
    """Whether clients' updates would be added up before they are compressed, if nobody forbade it."""
    from narrowcast.rounds.plan import can_sum
    from narrowcast.runs import made

    return can_sum(config.build_method(), made.aggregate(config), config.attackers, config.deadline)


def refuse_unused(given: Collection[str], *configs: RunConfig) -> None:
    """A ConfigError for settings that were given and that none of these runs uses.

    A resolved table, as a run's folder has it, names them all: it is read as it is.
    """
    if set(given) >= RESOLVED:
        return
    looked_at = set[str]().union(*map(used, configs))
    if strange := sorted(name for name in given if RENAMED.get(name, name) not in looked_at):
        raise ConfigError("\n".join(f"{flag(name)}: {_why(name, configs)}" for name in strange))


def _why(name: str, configs: Iterable[RunConfig]) -> str:
    """Who does not use it."""
    for config in configs:
        match name:
            case "momentum" if "optimiser" in of_method(config.method):
                return "--optimiser sgd has none: choose momentum or adam"
            case "carry" if "carry" in of_method(config.method):
                return "--optimiser sgd has nothing to carry over: choose momentum or adam"
            case "network":
                return f"of --engine {config.engine} clients have the links that they have"
            case "device" if config.task == CUSTOM:
                return "a task of one's own is where its model is: give it model.to(device)"
            case "device":
                return f"of --engine {config.engine} clients compute on the CPU"
            case "attackers":
                return f"of --engine {config.engine} nobody is made to lie"
            case "attack":
                return "only with --attackers: without a share of them nobody lies"
            case "tolerate":
                return f"--aggregate {config.aggregate} is not told how many lie"
            case "deadline":
                return "only with --network: clients take no time without one"
            case "dropout":
                return f"of --engine {config.engine} clients drop out by themselves"
            case "per_client":
                return _why_one_by_one(config)
            case "dp_delta" | "dp_clip":
                return "only with --dp-epsilon or --dp-noise"
            case "alpha":
                return "only --partition dirichlet has one"
            case "lora_rank" | "lora_alpha":
                return "only --trainable lora has one"
            case "prox" if config.build_method().probes is not None:
                return f"clients of {config.method} take no gradient that it could be added to"
            case "local_lr" | "prox" if not _walks(config):
                return "a single local step is not changed by it: give --local-steps 2 or more"
    if any(name in settings for settings in SETTINGS.values()):
        tasks = ", ".join(dict.fromkeys(config.task for config in configs))
        return f"the task {tasks} does not use it"
    methods = ", ".join(dict.fromkeys(config.method for config in configs))
    return f"the method {methods} does not use it (see: narrowcast methods {methods.split(', ')[0]})"


def only_here(config: RunConfig) -> None:
    """A ConfigError for an engine other than this process: `narrowcast run` alone starts one."""
    if config.engine != "here":
        raise ConfigError(
            f'engine = "{config.engine}" is for narrowcast run TASK --engine {config.engine}: here clients '
            "are simulated in this process, so leave it out"
        )


def _why_one_by_one(config: RunConfig) -> str:
    """Why every update is compressed by itself as it is."""
    which = {
        f"--engine {config.engine}": config.engine != "here",
        "--deadline": config.deadline is not None,
        f"--attackers {config.attackers:g}": config.attackers > 0,
        f"--aggregate {config.aggregate}": config.aggregate != "mean",
        "differential privacy": config.private,
    }
    cause = next((name for name, holds in which.items() if holds), f"the method {config.method}")
    return f"every client's update is compressed by itself with {cause}, asked for or not: leave it out"
