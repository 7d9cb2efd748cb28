"""narrowcast: federated training of large models through a narrow channel.

A model of D parameters is trained while each message carries d numbers: theta = theta0 + A Sigma, with A
regenerated from a seed on both sides.
"""

from narrowcast.flat import FlatParameters, Layout
from narrowcast.methods import METHODS, Diverged, Method, method
from narrowcast.modelfile import load as load_model
from narrowcast.plan import Plan
from narrowcast.records import RoundRecord
from narrowcast.simulate import Simulation, simulate
from narrowcast.subspaces import KINDS, Subspace, SubspaceSpec, subspace
from narrowcast.tasks.base import Batch, Task, TorchTask
from narrowcast.tasks.partition import Partition, by_class, dirichlet, iid, natural
from narrowcast.wire import WireError

__version__ = "0.1.0"

__all__ = [
    "KINDS", "METHODS", "Batch", "Diverged", "FlatParameters", "Layout", "Method", "Partition", "Plan",
    "RoundRecord", "Simulation", "Subspace", "SubspaceSpec", "Task", "TorchTask", "WireError", "by_class",
    "dirichlet", "iid", "load_model", "method", "natural", "simulate", "subspace",
]  # fmt: skip
