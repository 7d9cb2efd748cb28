from .planner import PlanRow as PlanRow
from .planner import plan as plan
