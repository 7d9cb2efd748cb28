from .numerics import FlatParameters as FlatParameters
from .numerics import Layout as Layout
from .methods import METHODS as METHODS
from .methods import Method as Method
from .methods import method as method
from .errors import Diverged as Diverged
from .registry import register as register
from .wire import WireError as WireError
from .rounds import Batch as Batch
from .rounds import Plan as Plan
from .rounds import RoundRecord as RoundRecord
from .rounds import Simulation as Simulation
from .rounds import Task as Task
from .rounds import simulate as simulate
from .runs import load_model as load_model
from .subspaces import KINDS as KINDS
from .subspaces import Subspace as Subspace
from .subspaces import SubspaceSpec as SubspaceSpec
from .subspaces import subspace as subspace
from .tasks import Partition as Partition
from .tasks import TorchTask as TorchTask
from .tasks import by_class as by_class
from .tasks import dirichlet as dirichlet
from .tasks import freeze_batch_norm as freeze_batch_norm
from .tasks import iid as iid
from .tasks import natural as natural

__version__: str
