from .terminal import console as console
from .terminal import plain_errors as plain_errors
from .flags import with_run_flags as with_run_flags
from .memory import give_back as give_back
from .memory import keep_memory as keep_memory
from .show import show_runs as show_runs
