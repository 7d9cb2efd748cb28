from .library import intrinsic_dimension as intrinsic_dimension
from .results import Measured as Measured
from .searching import Found as Found
from .searching import Interval as Interval
from .searching import interval as interval
from .searching import search as search
