from . import kernels as kernels
from . import table as table
