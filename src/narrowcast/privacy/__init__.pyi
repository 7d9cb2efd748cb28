from .accounting import Exposure as Exposure
from .accounting import noise_for as noise_for
from .clipping import Adaptive as Adaptive
from .clipping import Fixed as Fixed
from .mean import PrivateMean as PrivateMean
