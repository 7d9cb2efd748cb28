"""What no fleet can do, said before its first round."""

from __future__ import annotations

from narrowcast.errors import ConfigError
from narrowcast.flower.settings import FleetSettings
from narrowcast.rounds.plan import Plan


def check(plan: Plan, settings: FleetSettings, clients: int) -> None:
    """A ConfigError for what is of the simulator, or for a round that could never count."""
    simulated = {
        f"--dropout {plan.dropout:g}": plan.dropout > 0,
        f"--attackers {plan.attackers:g}": plan.attackers > 0,
        "--network": plan.network is not None,
        "--per-client": plan.per_client,
    }
    if asked := [name for name, given in simulated.items() if given]:
        raise ConfigError(
            f"{asked[0]} is of the in-process simulator: nodes are real, drop out by themselves, and nobody "
            "is made to lie"
        )
    if settings.min_clients > clients:
        raise ConfigError(f"min-clients {settings.min_clients}: the federation has {clients} clients")
    if plan.cohort is not None and settings.min_answers > plan.cohort:
        raise ConfigError(f"min-answers {settings.min_answers}: a round has {plan.cohort} clients (cohort)")
