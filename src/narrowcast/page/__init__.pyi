from .document import write as write
from .live import server as server
from .gathering import gather as gather
