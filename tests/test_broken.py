"""A law that nothing could break is none: for each law something that breaks it, and is found out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import narrowcast as nc
import outside
from narrowcast.errors import Diverged
from narrowcast.methods import Uncompressed
from narrowcast.methods.base import capped, only_block
from narrowcast.rounds.task import Batch
from narrowcast.subspaces import Rotation
from narrowcast.testing import (
    Broken,
    FormatContract,
    MethodContract,
    SubspaceContract,
    TaskContract,
    check,
)
from narrowcast.wire import block, payload

chance = itertools.count(1)


@dataclass(frozen=True)
class Off(Uncompressed):
    """A client's theta is off by a bit, every fourth version."""

    def reconcile(self, model: Any, down: Any, version: int, out: Any = None) -> Any:
        model, theta = super().reconcile(model, down, version, out)
        return model, theta * (1 + 2**-22) if version % 4 == 3 else theta


@dataclass(frozen=True)
class Startled(Uncompressed):
    """Raises what a client does not expect."""

    def reconcile(self, model: Any, down: Any, version: int, out: Any = None) -> Any:
        theta = np.frombuffer(down.blocks[0].data, "<f4", model.base.numel()).copy()
        return replace(model, version=version), torch.from_numpy(theta)


@dataclass(frozen=True)
class Boasting(Uncompressed):
    """Says that it is linear."""

    def compress(self, private: Any, v: Any, model: Any, key: int) -> Any:
        return super().compress(private, v.sign(), model, key)


@dataclass(frozen=True)
class Scattered(Uncompressed):
    """Reads its numbers to places in a row, and says that they are the row."""

    incomparable = ""  # type: ignore[assignment]

    def terms(self, acc: Any, up: Any) -> Any:
        k, numbers = super().terms(acc, up)
        return (k, torch.arange(numbers.numel())), numbers


@dataclass(frozen=True)
class Modest(Uncompressed):
    """Is linear, and does not say so."""

    linear = False  # type: ignore[assignment]


@dataclass(frozen=True)
class Hoarding(Uncompressed):
    """Keeps the update itself, and does not say that it keeps anything."""

    def compress(self, private: Any, v: Any, model: Any, key: int) -> Any:
        return {"last": v}, super().compress(private, v, model, key)[1]


@dataclass(frozen=True)
class Moody(Uncompressed):
    """Draws from elsewhere than its key."""

    def compress(self, private: Any, v: Any, model: Any, key: int) -> Any:
        return super().compress(private, v * (1 + next(chance) * 1e-3), model, key)


@dataclass(frozen=True)
class Restless(Uncompressed):
    """A round without updates is a step too."""

    def step(self, server: Any, acc: Any, round: Any) -> Any:
        stepped = super().step(server, acc, round)
        return replace(stepped, version=server.version + 1)


@dataclass(frozen=True)
class Forgetful(Uncompressed):
    """A checkpoint lacks the optimiser's state."""

    optimiser: Any = field(default_factory=nc.methods.Momentum)

    def restore(self, theta0: Any, layout: Any, state: Any) -> Any:
        server = super().restore(theta0, layout, state)
        return replace(server, optimiser=self.optimiser.init(theta0))


@dataclass(frozen=True)
class Overflowing(Uncompressed):
    """Goes on with what is not finite any more."""

    def step(self, server: Any, acc: Any, round: Any) -> Any:
        try:
            return super().step(server, acc, round)
        except Diverged:
            return replace(server, version=server.version + 1)


@dataclass(frozen=True)
class Trusting(Uncompressed):
    """Believes every weight."""

    def add(self, acc: Any, up: Any, weight: float) -> Any:
        return self._added(acc, up, weight, weight, 1)


@dataclass(frozen=True)
class Careless(Uncompressed):
    """Adds before it looks: the sum has what is then refused."""

    def add(self, acc: Any, up: Any, weight: float) -> Any:
        if up.blocks and len(up.blocks[0].data) % 4 == 0:
            numbers = (
                torch.frombuffer(bytearray(up.blocks[0].data), dtype=torch.float32)
                if up.blocks[0].data
                else None
            )
            if numbers is not None and numbers.numel() == acc.total.shape[1]:
                acc.total[0] += numbers * capped(weight)
                acc = replace(acc, weight=acc.weight + capped(weight), count=acc.count + 1)
                only_block(up).numbers(acc.total.shape[1])
                return acc
        return super().add(acc, up, weight)


@dataclass(frozen=True)
class Crashing(Uncompressed):
    """Counts with numbers that a client has sent."""

    def terms(self, acc: Any, up: Any) -> Any:
        where, numbers = super().terms(acc, up)
        return where, numbers + torch.zeros(10**6)[numbers.abs().long()]


@dataclass(frozen=True)
class Miscounting(Uncompressed):
    """Sends more than it is asked for where clients are compressed one by one."""

    def compress(self, private: Any, v: Any, model: Any, key: int) -> Any:
        up = payload([block(torch.cat([v, v[: next(chance) % 3]]))])
        return private, up

    def terms(self, acc: Any, up: Any) -> Any:
        numbers = only_block(up).numbers(len(up.blocks[0].data) // 4)
        return 0, numbers[: acc.total.shape[1]]


METHODS: dict[str, Any] = {
    "test_every_visit_gives_the_servers_theta": Off,
    "test_a_tampered_download_gives_the_servers_theta_or_a_wire_error": Startled,
    "test_the_payload_of_a_sum_is_the_sum_of_the_payloads_as_declared": Boasting,
    "test_uploads_that_can_be_compared_fill_a_row": Scattered,
    "test_clients_keep_what_is_declared_and_nothing_is_changed_in_place": Hoarding,
    "test_the_same_update_and_key_give_the_same_bytes_within_the_bound": Moody,
    "test_an_empty_round_leaves_the_state_as_it_was": Restless,
    "test_a_restored_state_goes_on_bit_for_bit": Forgetful,
    "test_a_simulation_counts_bytes_as_encoded_and_resumes_bit_for_bit": Miscounting,
    "test_a_step_that_overflows_is_diverged": Overflowing,
    "test_a_weight_is_capped_and_must_be_positive": Trusting,
    "test_numbers_too_many_too_few_or_beyond_all_bounds_are_wire_errors": Careless,
    "test_whatever_is_done_to_an_upload_only_wire_errors_come_of_it": Crashing,
}


class Padded(outside.Brain16):
    def pack(self, x: Any, key: int) -> bytes:
        return super().pack(x, key) + b"\0"


class Exact(outside.Brain16):
    exact = True


class Wandering(outside.Brain16):
    def pack(self, x: Any, key: int) -> bytes:
        x *= 1.5
        return super().pack(x, key)


class Doubling(outside.Brain16):
    def unpack(self, data: bytes, count: int) -> Any:
        return 2 * super().unpack(data, count)


class Hushed(outside.Brain16):
    def pack(self, x: Any, key: int) -> bytes:
        return super().pack(np.nan_to_num(x, posinf=1.0, neginf=-1.0), key)


class Picky(outside.Brain16):
    def unpack(self, data: bytes, count: int) -> Any:
        if data and max(data) == 255:
            raise IndexError("no such entry")
        return super().unpack(data, count)


class Shrinking(outside.Brain16):
    def size(self, count: int) -> int:
        return 2 * count if count < 300 else 10 * count - 100_000 + 90_000


FORMATS: dict[str, Any] = {
    "test_it_writes_the_size_it_states_and_reads_float32": Padded,
    "test_it_is_exact_as_declared": Exact,
    "test_the_key_decides_and_the_numbers_are_left_alone": Wandering,
    "test_numbers_come_back_near": Doubling,
    "test_a_number_that_is_not_finite_is_not_sent_as_one_that_is": Hushed,
    "test_hostile_bytes_are_numbers_or_a_format_error": Picky,
    "test_sizes_are_whole_and_grow": Shrinking,
}


class Unlike(Rotation):
    """Projects by another matrix than it expands by."""

    def _project(self, g: Any, out: Any) -> None:
        super()._project(-g, out)


class Drifting(Rotation):
    def add_expanded_plain(self, base: Any, x: Any) -> Any:
        return super().add_expanded_plain(base, x) * np.float32(1 + 2**-23)


class Threaded(Rotation):
    def _project(self, g: Any, out: Any) -> None:
        super()._project(g, out)
        out *= np.float32(1 + 1e-6 * nc.numerics.pool.threads())


class Longer(Rotation):
    """Not of norm 1: A A^T is twice the identity in the mean."""

    def _add_family(self, family: Any, base: Any, xs: Any, out: Any) -> None:
        super()._add_family(family, base, xs * np.float32(2**0.5), out)


class Deaf(Rotation):
    """Every key is the same."""

    def __init__(self, D: int, d: int, key: int) -> None:
        super().__init__(D, d, key)
        self._same = Rotation(D, d, 1)

    def _add_family(self, family: Any, base: Any, xs: Any, out: Any) -> None:
        Rotation._add_family(self._same, [self._same] * len(family), base, xs, out)


class Stateful(Rotation):
    def __init__(self, D: int, d: int, key: int) -> None:
        super().__init__(D, d, key)
        self.spec = nc.SubspaceSpec("rotation", D, d, next(chance))


class Lonely(Rotation):
    """Of a family only the first is added."""

    def _add_family(self, family: Any, base: Any, xs: Any, out: Any) -> None:
        super()._add_family(family[:1], base, xs[:1], out)


class Writing(Rotation):
    def _project(self, g: Any, out: Any) -> None:
        super()._project(g, out)
        g *= 2


class Lenient(Rotation):
    def _vector(self, name: str, v: Any, size: int) -> Any:
        return super()._vector(name, torch.zeros(size) if v.shape != (size,) else v, size)


KINDS: dict[str, Any] = {
    "test_all_three_operations_are_those_of_one_matrix": Unlike,
    "test_it_is_its_plain_twin_bit_for_bit": Drifting,
    "test_no_bit_depends_on_the_number_of_threads": Threaded,
    "test_the_mean_of_a_a_transposed_is_the_identity": Longer,
    "test_a_has_full_rank_and_another_key_is_another_matrix": Deaf,
    "test_a_spec_that_crossed_the_wire_is_the_same_matrix": Stateful,
    "test_a_family_is_added_as_one_after_the_other": Lonely,
    "test_results_have_memory_of_their_own_and_out_may_be_base": Writing,
    "test_what_does_not_fit_is_refused": Lenient,
}


def wrong(**changes: Any) -> Any:
    """The task of a good citizen, with parts of it exchanged."""

    def make() -> Any:
        task: Any = outside.blobs()
        for name, change in changes.items():
            setattr(task, name, change(task))
        return task

    return make


def halved(task: Any) -> Any:
    right = task.gradient
    return lambda theta, batch: (right(theta, batch)[0], right(theta, batch)[1] / 2)


def summed(task: Any) -> Any:
    right = task.gradient
    return lambda theta, batch: right(theta, batch._replace(weight=batch.weight * len(batch.index)))


def tired(task: Any) -> Any:
    right = task.gradient

    def gradient(theta: Any, batch: Batch) -> Any:
        loss, found = right(theta, batch)
        return loss, found * (1 + next(chance) * 1e-3)

    return gradient


TASKS: dict[str, Any] = {
    "test_theta0_is_the_same_every_time_and_a_copy": wrong(
        theta0=lambda t: lambda: torch.randn(t.layout.size)
    ),
    "test_clients_share_no_example_and_have_at_least_one": wrong(
        clients=lambda t: [*t.clients, t.clients[0]]
    ),
    "test_the_gradient_is_that_of_the_loss": wrong(gradient=halved),
    "test_the_gradient_of_a_cohort_is_the_weighted_sum_over_its_clients": wrong(gradient=summed),
    "test_the_same_batch_gives_the_same_gradient_and_theta_is_left_alone": wrong(gradient=tired),
    "test_the_metric_is_among_what_evaluate_returns": wrong(metric=lambda t: "perplexity"),
    "test_its_weights_have_a_state_dict": wrong(state_dict=lambda t: lambda theta: {}),
    "test_it_trains_and_resumes_bit_for_bit": wrong(
        gradients=lambda t: None, gradient=tired, walk=lambda t: None
    ),
}
SUITES: list[tuple[Any, dict[str, Any]]] = [
    (MethodContract, METHODS),
    (FormatContract, FORMATS),
    (SubspaceContract, KINDS),
    (TaskContract, TASKS),
]
WRONG = [(suite, law, make) for suite, broken in SUITES for law, make in broken.items()]


@pytest.mark.parametrize(
    ("suite", "law", "make"), WRONG, ids=lambda part: part if isinstance(part, str) else ""
)
def test_what_breaks_a_law_is_found_out(suite: Any, law: str, make: Any) -> None:
    with pytest.raises(Exception) as found:  # noqa: PT011  # whatever a broken thing raises
        getattr(type("Theirs", (suite,), {"make": staticmethod(make)})(), law)()
    assert not isinstance(found.value, NotImplementedError)


@pytest.mark.parametrize(("suite", "broken"), SUITES)
def test_every_law_has_something_that_breaks_it(suite: Any, broken: dict[str, Any]) -> None:
    assert set(suite.laws()) == set(broken)


def test_modesty_is_found_out_too() -> None:
    suite = type("TooModest", (MethodContract,), {"make": staticmethod(Modest)})()
    with pytest.raises(Broken, match="breaks 1 of its laws") as found:
        check(suite)
    assert "does not say so" in str(found.value)
