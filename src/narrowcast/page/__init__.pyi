from .document import write as write
from .gathering import gather as gather
