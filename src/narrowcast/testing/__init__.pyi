from .contract import Contract as Contract
from .contract import Broken as Broken
from .contract import check as check
from .formats import FormatContract as FormatContract
from .methods import MethodContract as MethodContract
from .subspaces import SubspaceContract as SubspaceContract
from .tasks import TaskContract as TaskContract
from .worlds import World as World
