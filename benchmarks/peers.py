"""Rounds a second of narrowcast's simulator beside those of Apple's pfl and of Flower, on one machine.

    pip install -e '.[bench]'
    python benchmarks/peers.py [--quick] [--json FILE] [--only CASE ...] [--engines ENGINE ...]

Every engine runs its own simulator with its own federated averaging, on the same model from the same
weights, the same data, and the same clients in the same rounds:

mlp-1      MLP 784-128-128-10 (118 282 parameters), Fashion-MNIST, 12 000 clients of 5 images of one class,
           100 of them a round, one SGD step on a client's 5 images, plain average at the server.
mlp-5      the same with 5 local steps.
conv-1     two convolutions and two linear layers (55 338 parameters), the same data, one step.
conv-5     the same with 5 local steps.
text-1     a Llama of two layers over bytes (116 544 parameters), 1 000 clients of 5 random stretches of 32
           bytes, 100 of them a round, one step. Needs the extra narrowcast[text].
text-5     the same with 5 local steps.
resnet9-1  ResNet-9 (6 570 880 parameters), random 32 x 32 images, 100 clients of 5, one step. Beside it the
           bare gradient of the 500 images in one batch of plain torch.

What each does in a round is not the same amount of work:

- narrowcast `uncompressed` and `static` (d = 1024, compression included) are linear in the clients' updates.
  For one step the simulator takes the gradient of all 100 clients as one batch of 500 images; the upload is
  encoded, decoded and checked once and its bytes are counted for every client. With 5 steps each client is
  trained by itself; their updates are summed and encoded once. The download is encoded once for all clients
  that lack the same. This is what a user of the simulator gets, and where the gain of one step comes from.
  Threads and processes are those that `narrowcast run` takes by itself on two cores: one for the MLP, whose
  second thread would mostly wait, two processes for clients of the conv net and the Llama, else two threads.
- narrowcast `uncompressed, per client` is `Plan(per_client=True)`: each client trained by itself, and each
  upload encoded, decoded, checked and added by itself. It is the row to hold against the peers for the cost
  of the engine alone.
- narrowcast keeps images as bytes and normalises each batch; the peers get them normalised beforehand.
- pfl (`SimulatedBackend`, `FederatedAveraging`, `PyTorchModel`, one tensor data set a user made beforehand)
  trains one client after the other and encodes nothing. It is run as 1 process of 2 threads and, under
  torchrun, as 2 processes of 1 thread each (gloo); ResNet-9 only as the latter.
- Flower (`run_simulation`, Message API, its `FedAvg`) sends the weights to and from Ray actors for every
  client: 2 actors of 1 CPU and 1 thread. It has 100 supernodes, all of them in each round, which stand for
  that round's clients; the data lies in the actors.

All processes run with OMP_WAIT_POLICY=PASSIVE: threads that spin at barriers become many times slower as soon
as another job wants a core, and that job would be measured instead. Nothing evaluates within a timed round.
Start-up, imports, compilation and warm-up rounds (for ResNet-9: a round of a few clients) are left out; then
come three windows of rounds, of which the fastest counts (fewer where the time allowed is used up: `windows`
in the JSON). The engines run one after the other, so the load of other jobs does not meet all of them alike:
`load` in each row says what it was. After `check` rounds each engine's weights are measured on the test set
by the same function; engines that train the same thing must agree there. `static` is another algorithm at
another rate, so its number differs. Each engine is a process of its own under a time limit, and whatever it
leaves behind is ended by its id. `--only mlp-5 --engines narrowcast pfl-2proc` is one comparison by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

THREADS = 2
COHORT = 100
PER_CLIENT = 5
TOKENS = 32
KEY = 20240601
MAX_ROUNDS = 20_000
WINDOWS = 3
MARK = "NARROWCAST_PEERS"  # in the environment of every process this file starts
ENGINES = ("narrowcast", "pfl", "pfl-2proc", "flower")
LEFT_OUT = {("pfl", "resnet9-1")}
TITLES = {
    "narrowcast": "narrowcast",
    "pfl": "pfl, 1 process x 2 threads",
    "pfl-2proc": "pfl, 2 processes x 1 thread",
    "flower": "Flower, 2 Ray actors x 1 thread",
}


# ---------------------------------------------------------------- what is trained


@dataclass(frozen=True)
class Case:
    name: str
    steps: int
    rate: float
    check: int  # rounds after which the weights are measured
    warm: int  # rounds not timed
    window: int  # rounds a window, at least
    target: float  # seconds a window, about
    budget: float  # seconds for the windows, unless none is complete by then
    static_rate: float


CASES = {
    case.name: case
    for case in (
        Case("mlp-1", 1, 0.1, 20, 4, 4, 1.0, 30.0, 8.0),
        Case("mlp-5", 5, 0.1, 8, 2, 3, 1.0, 15.0, 8.0),
        Case("conv-1", 1, 0.1, 8, 2, 3, 1.0, 15.0, 1.0),
        Case("conv-5", 5, 0.05, 4, 1, 1, 1.0, 15.0, 0.5),
        Case("text-1", 1, 0.1, 4, 1, 1, 1.0, 15.0, 1.0),
        Case("text-5", 5, 0.1, 4, 1, 1, 1.0, 15.0, 1.0),
        Case("resnet9-1", 1, 0.02, 1, 0, 1, 0.0, 15.0, 0.02),
    )
}


def quick(case: Case) -> Case:
    """The same with little time: a smoke test, not a measurement."""
    return dataclasses.replace(
        case, check=min(case.check, 5), warm=min(case.warm, 2), window=1, target=0.2, budget=3.0
    )


def conv_net() -> nn.Module:
    from narrowcast.tasks.init import initialise

    net = nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 49, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    return initialise(net, KEY)


class NextByte(nn.Module):
    """Bytes (B, T) -> (B, 256, T) logits of what follows each, as cross_entropy takes them."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        from narrowcast.tasks.init import initialise

        self.net = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256,
                hidden_size=64,
                intermediate_size=160,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=TOKENS,
                tie_word_embeddings=True,
            )
        )
        initialise(self.net, KEY)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(input_ids=ids, use_cache=False).logits
        return logits.transpose(1, 2)


def network(case: Case) -> nn.Module:
    from narrowcast.tasks.nets import mlp, resnet9

    kind = case.name.split("-")[0]
    if kind == "mlp":
        return mlp(KEY, 784, 128, 128, 10)
    return conv_net() if kind == "conv" else NextByte() if kind == "text" else resnet9(KEY)


def by_sequence(outputs: Tensor, targets: Tensor) -> Tensor:
    """(B, 256, T) logits, (B, T) bytes -> (B,) mean losses."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none").mean(1)


def bytes_right(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return {"accuracy": float((outputs.argmax(1) == targets).float().mean())}


def text_task(case: Case) -> Any:
    """Stretches of bytes, of which every second one repeats the one before it: something can be learned."""
    from narrowcast import TorchTask

    noise = torch.Generator().manual_seed(KEY)
    ids = torch.randint(0, 256, (10 * COHORT * PER_CLIENT, TOKENS // 2 + 1), generator=noise)
    ids = ids.repeat_interleave(2, dim=1)[:, : TOKENS + 1]
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    held = [np.arange(PER_CLIENT * c, PER_CLIENT * (c + 1)) for c in range(10 * COHORT)]
    return TorchTask(
        network(case),
        by_sequence,
        train=(x, y),
        test=(x[:200], y[:200]),
        clients=held,
        metrics=bytes_right,
        name=case.name,
    )


def task_of(case: Case, clients: int | None = None) -> Any:
    """The case as narrowcast's task: data, clients, theta0, and the function that measures all weights."""
    from narrowcast import TorchTask, by_class
    from narrowcast.tasks import fashion_mnist
    from narrowcast.tasks.options import TaskOptions

    if case.name == "resnet9-1":
        noise = torch.Generator().manual_seed(KEY)
        x = torch.randn(COHORT * PER_CLIENT, 3, 32, 32, generator=noise)
        y = torch.randint(0, 10, (len(x),), generator=noise)
        held = [np.arange(PER_CLIENT * c, PER_CLIENT * (c + 1)) for c in range(clients or COHORT)]
        return TorchTask(network(case), train=(x, y), test=(x[:100], y[:100]), clients=held, name=case.name)
    if case.name.startswith("text"):
        return text_task(case)
    train, test = fashion_mnist.load(fashion_mnist.find(TaskOptions(KEY)))
    return TorchTask(
        network(case),
        train=train,
        test=test,
        clients=by_class(train[1].numpy(), len(train[1]) // PER_CLIENT, KEY),
        prepare=fashion_mnist.normalise,
        name=case.name,
    )


def client_data(case: Case, task: Any) -> tuple[Tensor, Tensor]:
    """(clients, 5, ...) inputs as the module takes them, (clients, 5) labels."""
    from narrowcast.tasks import fashion_mnist

    x, y = task._train
    index = torch.from_numpy(np.stack(list(task.clients)))
    stored = case.name == "resnet9-1" or case.name.startswith("text")
    return (x[index] if stored else fashion_mnist.normalise(x[index])), y[index]


def cohorts_of(task: Any) -> Any:
    """Who comes in each round: narrowcast's own choice, which the peers are given."""
    from narrowcast.rounds.sampling import Cohorts

    return Cohorts(len(task.clients), COHORT, KEY)


# ---------------------------------------------------------------- how it is timed


class Laps:
    """Seconds of each round; what happens between `stop` and `start` is not timed."""

    def __init__(self, case: Case, measure: Callable[[Tensor], dict[str, float]]) -> None:
        self.case, self.measure = case, measure
        self.seconds: list[float] = []
        self.metrics: dict[str, float] = {}
        self.window = case.window
        self.start()

    def start(self) -> None:
        self._began = time.perf_counter()

    def stop(self, theta: Callable[[], Tensor]) -> bool:
        """A round has ended; is it enough?"""
        self.seconds.append(time.perf_counter() - self._began)
        case, done = self.case, len(self.seconds)
        if done == case.check:
            self.metrics = self.measure(theta())
        if done == case.warm and case.target:
            usual = statistics.median(self.seconds[case.warm // 2 :])
            self.window = min(max(case.window, math.ceil(case.target / usual)), MAX_ROUNDS // (WINDOWS + 1))
        timed = done - case.warm
        late = timed >= self.window and sum(self.seconds[case.warm :]) > case.budget
        return done >= case.check and (timed >= WINDOWS * self.window or late)

    def result(self, engine: str, method: str, **more: Any) -> dict[str, Any]:
        timed = self.seconds[self.case.warm :]
        starts = range(0, min(len(timed) // self.window, WINDOWS) * self.window, self.window)
        means = [statistics.fmean(timed[i : i + self.window]) for i in starts]
        return {
            "case": self.case.name,
            "engine": engine,
            "method": method,
            "rounds_per_second": 1 / min(means),
            "seconds_per_round": min(means),
            "windows": means,
            "rounds_a_window": self.window,
            "check_round": self.case.check,
            "load": os.getloadavg()[0],
            **self.metrics,
            **more,
        }


def failure(case: Case, engine: str, error: Exception) -> dict[str, Any]:
    return {"case": case.name, "engine": engine, "error": f"{type(error).__name__}: {error}"[:500]}


# ---------------------------------------------------------------- narrowcast


def narrowcast_case(case: Case, emit: Callable[[dict[str, Any]], None]) -> None:
    from narrowcast.cli.memory import keep_memory
    from narrowcast.runs import using_threads
    from narrowcast.runs.prepared import default_threads

    keep_memory()  # as `narrowcast run` does
    task = task_of(case)
    with using_threads(default_threads(task)):
        narrowcast_rows(case, task, emit)


def narrowcast_rows(case: Case, task: Any, emit: Callable[[dict[str, Any]], None]) -> None:
    from narrowcast import Plan, Simulation, method

    plain = "uncompressed" if case.steps == 1 else "fedavg"
    rows = [(plain, False), ("static", False)] + ([(plain, True)] if case.name != "resnet9-1" else [])
    if case.name == "resnet9-1":
        bare_gradient(case, task, emit)
    for name, per_client in rows:
        made = method(name, key=KEY, **({"dim": 1024} if name == "static" else {}))

        plan = Plan(
            cohort=COHORT,
            lr=case.static_rate if name == "static" else case.rate,
            rounds=MAX_ROUNDS,
            local_steps=case.steps,
            local_lr=case.rate,
            per_client=per_client,
            key=KEY,
        )
        if not case.warm:
            Simulation(task_of(case, 4), made, dataclasses.replace(plan, cohort=4)).step()
        sim = Simulation(task, made, plan)
        laps = Laps(case, task.evaluate)
        moved = 0
        while True:
            laps.start()
            record = sim.step()
            moved = record.up
            if laps.stop(functools.partial(getattr, sim, "theta")):
                break
        title = name + (" d=1024" if name == "static" else "") + (", per client" if per_client else "")
        emit(laps.result("narrowcast", title, bytes_up_a_round=moved))


def bare_gradient(case: Case, task: Any, emit: Callable[[dict[str, Any]], None]) -> None:
    """One forward and backward pass over the round's 500 images, in plain torch."""
    module = network(case)
    x, y = task._train
    nn.functional.cross_entropy(module(x[:20]), y[:20]).backward()
    laps = Laps(case, lambda _: {})
    while True:
        laps.start()
        nn.functional.cross_entropy(module(x), y).backward()
        if laps.stop(lambda: torch.empty(0)):
            break
    emit(laps.result("torch", "bare gradient of 500 images"))


# ---------------------------------------------------------------- pfl


def pfl_case(case: Case, emit: Callable[[dict[str, Any]], None], engine: str) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Module(nn.Module):
        """What pfl asks of a module: a loss, and metrics."""

        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            self.net.train()
            return nn.functional.cross_entropy(self.net(x), y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            loss = nn.functional.cross_entropy(self.net(x), y, reduction="sum")
            return {"loss": Weighted(loss.item(), len(y))}

    class Averaging(FederatedAveraging):
        """Without the evaluation of every user before and after training, which pfl does in round 0."""

        def get_next_central_contexts(self, *args: Any, **kwargs: Any) -> Any:
            found, model, metrics = super().get_next_central_contexts(*args, **kwargs)
            if found is not None:
                found = tuple(dataclasses.replace(c, do_evaluation=False) for c in found)
            return found, model, metrics

    task = task_of(case)
    cohorts = cohorts_of(task)
    x, y = client_data(case, task)
    users = [PyTorchTensorDataset((x[c], y[c]), user_id=str(c)) for c in range(len(task.clients))]
    laps = Laps(case, task.evaluate)
    spread = torch.distributed.is_initialized()

    def run(cohort: int, rounds: int, callbacks: list[Any]) -> None:
        order = iter(int(c) for r in range(rounds) for c in cohorts.come(r)[:cohort])
        module = Module(network(case))
        model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
        data = FederatedDataset(users.__getitem__, functools.partial(next, order))
        Averaging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=10 * MAX_ROUNDS,
                train_cohort_size=cohort,
                val_cohort_size=None,
            ),
            backend=SimulatedBackend(training_data=data, val_data=data),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_batch_size=None, local_num_epochs=case.steps, local_learning_rate=case.rate
            ),
            callbacks=callbacks,
            send_metrics_to_platform=False,
        )

    class Clock(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Metrics:
            laps.start()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> Any:
            weights = model.pytorch_model.parameters()
            enough = laps.stop(lambda: torch.cat([p.detach().reshape(-1) for p in weights]))
            if spread:  # both processes must end after the same round: the first decides
                said = torch.tensor([int(enough)])
                torch.distributed.broadcast(said, 0)
                enough = bool(said)
            laps.start()
            return enough, Metrics()

    if not case.warm:
        run(4, 2, [])
    run(COHORT, MAX_ROUNDS, [Clock()])
    emit(laps.result(engine, "federated averaging"))


# ---------------------------------------------------------------- Flower


@functools.cache
def actor_site(name: str) -> tuple[nn.Module, Tensor, Tensor, Any]:
    """What a Ray actor keeps between messages: a module, all clients' data, who comes when."""
    torch.set_num_threads(1)
    case = CASES[name]
    task = task_of(case)
    return network(case), *client_data(case, task), functools.cache(cohorts_of(task).come)


def flower_train(msg: Any, context: Any) -> Any:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    config = msg.content["config"]
    case = CASES[config["case"]]
    module, x, y, come = actor_site(case.name)
    client = come(int(config["server-round"]) - 1)[int(context.node_config["partition-id"])]
    module.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=case.rate)
    for _ in range(case.steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[client]), y[client]).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": PER_CLIENT})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=msg)


def flat(weights: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    return torch.cat([weights[name].reshape(-1) for name in names])


class Enough(Exception):
    """Flower's strategy has no other way to be told to stop."""


def flower(cases: list[Case], emit: Callable[[dict[str, Any]], None]) -> None:
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()
    client.train()(flower_train)
    failures: list[BaseException] = []

    def train(grid: Any, case: Case, task: Any, rounds: int, nodes: int, laps: Laps | None) -> None:
        arrays = ArrayRecord(network(case).state_dict())

        def after(number: int, arrays: Any) -> None:
            if laps is None:
                return
            if number and laps.stop(lambda: flat(arrays.to_torch_state_dict(), task.layout.names)):
                raise Enough
            laps.start()

        FedAvg(
            fraction_train=nodes / COHORT,
            fraction_evaluate=0.0,
            min_train_nodes=nodes,
            min_available_nodes=COHORT,
        ).start(
            grid,
            arrays,
            num_rounds=rounds,
            timeout=300,
            train_config=ConfigRecord({"case": case.name}),
            evaluate_fn=after,
        )

    @server.main()
    def main(grid: Any, context: Any) -> None:
        for case in cases:
            try:
                task = task_of(case)
                train(grid, case, task, 1, 8, None)  # the actors load their data
                laps = Laps(case, task.evaluate)
                try:
                    train(grid, case, task, MAX_ROUNDS, COHORT, laps)
                except Enough:
                    emit(laps.result("flower", "FedAvg"))
            except Exception as error:
                failures.append(error)
                emit(failure(case, "flower", error))

    run_simulation(
        server,
        client,
        num_supernodes=COHORT,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": THREADS,
                "include_dashboard": False,
                "log_to_driver": False,
                "_temp_dir": os.environ["RAY_TMPDIR"],
                "object_store_memory": 4_000_000_000,
            },
        },
    )
    if failures:
        raise failures[0]


# ---------------------------------------------------------------- the processes


def work(engine: str, names: list[str], hurry: bool, out: Path) -> None:
    """In the process of one engine: a line of JSON for each result."""
    torch.set_num_threads(1 if engine == "pfl-2proc" else THREADS)
    rank = int(os.environ.get("RANK", "0"))
    cases = [quick(CASES[n]) if hurry else CASES[n] for n in names]

    def emit(row: dict[str, Any]) -> None:
        if rank == 0:
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")

    if engine == "flower":
        flower(cases, emit)
        return
    failed: Exception | None = None
    for case in cases:
        try:
            narrowcast_case(case, emit) if engine == "narrowcast" else pfl_case(case, emit, engine)
        except Exception as error:
            failed = error
            emit(failure(case, engine, error))
    if failed is not None:
        raise failed


def run_engine(engine: str, names: list[str], hurry: bool, limit: float) -> list[dict[str, Any]]:
    """The rows of one engine; a failure is a row too."""
    folder = Path(tempfile.mkdtemp(prefix="nc-", dir="/tmp"))  # short: Ray puts sockets in it
    token = uuid.uuid4().hex
    out, log = folder / "rows.jsonl", folder / "log.txt"
    threads = "1" if engine == "pfl-2proc" else str(THREADS)
    here = str(Path(__file__).resolve().parent)
    environment = {
        **os.environ,
        MARK: token,
        "OMP_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning barriers starve each other when other jobs share the cores
        "MKL_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
        "PFL_PYTORCH_DEVICE": "cpu",
        "RAY_TMPDIR": str(folder / "r"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(folder / "f"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    environment.pop("RAY_ADDRESS", None)
    if engine == "flower":
        environment.pop("OMP_NUM_THREADS")  # Ray sets it to an actor's CPUs
        environment.pop("MKL_NUM_THREADS")
    launcher = [sys.executable]
    if engine == "pfl-2proc":
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    inner = [str(Path(__file__).resolve()), "--worker", engine, "--out", str(out), "--only", *names]
    rows: list[dict[str, Any]] = []
    try:
        with log.open("wb") as sink:
            process = subprocess.Popen(
                launcher + inner + (["--quick"] if hurry else []),
                env=environment,
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                start_new_session=True,
            )
            try:
                code: int | str = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                code = f"stopped after {limit:.0f} s"
            finally:
                end_marked(token)
                process.wait()
        if out.is_file():
            rows = [json.loads(line) for line in out.read_text().splitlines()]
        if code != 0:
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
            missing = [n for n in names if not any(r["case"] == n for r in rows)]
            rows += [{"case": n, "engine": engine, "error": f"ended with {code}"} for n in missing]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def end_marked(token: str) -> None:
    """End every process that carries the token in its environment: those that this run started, no others."""
    wanted = f"{MARK}={token}".encode()
    for sign, pause in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 0.2)):
        found = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _carries(p, wanted)]
        for number in found:
            try:
                os.kill(number, sign)
            except ProcessLookupError:
                continue
        if found:
            time.sleep(pause)


def _carries(process: Path, wanted: bytes) -> bool:
    if int(process.name) == os.getpid():
        return False
    try:
        return wanted in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


# ---------------------------------------------------------------- the report


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("narrowcast", "torch", "numpy", "numba", "pfl", "flwr", "ray"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def show(rows: list[dict[str, Any]], case: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=case, title_justify="left")
    for name in ("engine", "method", "rounds/s", "s/round", "windows", "accuracy", "loss", "narrowcast is"):
        table.add_column(name, justify="left" if name in ("engine", "method") else "right")
    mine = next(
        (r for r in rows if r["case"] == case and r["engine"] == "narrowcast" and "error" not in r), None
    )
    for row in (r for r in rows if r["case"] == case):
        title = TITLES.get(row["engine"], row["engine"])
        if "error" in row:
            table.add_row(title, f"[red]{row['error']}")
            continue
        ratio = row["seconds_per_round"] / mine["seconds_per_round"] if mine else None
        peer = row["engine"] not in ("narrowcast", "torch")
        table.add_row(
            title,
            row["method"],
            f"{row['rounds_per_second']:.3g}",
            f"{row['seconds_per_round']:.4g}",
            str(len(row["windows"])),
            f"{row['accuracy']:.4f}" if "accuracy" in row else "",
            f"{row['loss']:.5f}" if "loss" in row else "",
            f"x {ratio:.1f}" if ratio and peer else "",
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke test: few rounds, no ResNet-9")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "peers.json")
    parser.add_argument("--only", nargs="+", choices=list(CASES), help="these cases")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only or [n for n in CASES if not (options.quick and n == "resnet9-1")]
    if options.worker:
        import peers  # this file by its name, so that Ray's actors can import what they are sent

        peers.work(options.worker, names, options.quick, options.out)
        return 0
    rows: list[dict[str, Any]] = []
    load, began = os.getloadavg(), time.perf_counter()
    for engine in options.engines:
        now = time.perf_counter()
        wanted = [n for n in names if (engine, n) not in LEFT_OUT]
        rows += run_engine(engine, wanted, options.quick, 180 if options.quick else 600) if wanted else []
        print(f"{TITLES[engine]}: {time.perf_counter() - now:.0f} s", file=sys.stderr, flush=True)
    for name in names:
        show(rows, name)

    from narrowcast.bench import kernels

    report = {
        "machine": kernels.machine(),
        "versions": versions(),
        "threads": THREADS,
        "cohort": COHORT,
        "quick": options.quick,
        "load_before": load,
        "load_after": os.getloadavg(),
        "seconds": time.perf_counter() - began,
        "rows": rows,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
