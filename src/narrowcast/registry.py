"""Names and what they stand for: listing them imports nothing, asking for one imports its module.

A name comes in by one of four doors: it is ours; another package declares it by an entry point (of the group
`narrowcast.methods`, say); a program calls `register`; or whoever sits at this machine names the place
itself, `package.module:name`, on the command line or in a file of settings, and so `admit`s it. Names that
come from elsewhere, in a message or a model file, open none: they are looked up among those that are here.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from narrowcast import choices

T = TypeVar("T")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
TABLES = {
    "method": "narrowcast.methods.table:METHODS",
    "task": "narrowcast.tasks.table:TASKS",
    "subspace": "narrowcast.subspaces.table:KINDS",
    "format": "narrowcast.wire.table:FORMATS",
    "command": "narrowcast.cli.app:COMMANDS",
}


class Registry(Mapping[str, T], Generic[T]):
    """name -> the object at "package.module:attribute": ours in the order in which they were written down.

    `group` is that of the entry points, "": nobody but we add to it. `adapt` is the place of a function
    (name, found) that makes of what others bring what stands in the table, or says what is wrong with it.
    """

    def __init__(
        self, what: str, places: Mapping[str, str], group: str = "", adapt: str = "", doc: str = ""
    ) -> None:
        self.what, self.group, self._adapt = what, group, adapt
        self.__doc__ = inspect.cleandoc(doc) or self.__doc__
        self._places = dict(places)
        self._given: dict[str, Any] = {}  # registered, or admitted: an object or a place
        self._found: dict[str, T] = {}

    @property
    def own(self) -> tuple[str, ...]:
        """Those that come with narrowcast."""
        return tuple(self._places)

    @property
    def others(self) -> tuple[str, ...]:
        """Those that other packages and this program have brought."""
        there = sorted(point for point in _installed(self.group) if point not in self._places)
        return tuple(dict.fromkeys([*there, *self._given]))

    @property
    def installed(self) -> tuple[str, ...]:
        """Those that packages here declare by entry points."""
        return tuple(_installed(self.group))

    @property
    def loaded(self) -> tuple[str, ...]:
        """Those of others that were asked for already."""
        return tuple(name for name in self._found if name not in self._places)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.own, *self.others))

    def __len__(self) -> int:
        return len(self._places) + len(self.others)

    def __contains__(self, name: object) -> bool:
        return name in self._places or name in self._given or name in _installed(self.group)

    def __getitem__(self, name: str) -> T:
        if name not in self._found:
            self._found[name] = _at(self._places[name]) if name in self._places else self._load(name)
        return self._found[name]

    def _load(self, name: str) -> T:
        """What others have brought; a ValueError says what is wrong with it."""
        if name in self._given:
            what, where = self._given[name], "as it was given"
        else:
            what = where = self._point(name).value
        try:
            found = _at(where := what) if isinstance(what, str) else what
        except Exception as error:  # another's module may raise anything while it is imported
            raise ValueError(
                f"the {self.what} {name!r} cannot be loaded from {where}: {type(error).__name__}: {error}"
                f"{_advice(where, error) if name in self._given else ''}"
            ) from error
        made: T = _at(self._adapt)(name, found) if self._adapt else found
        return made

    def _point(self, name: str) -> EntryPoint:
        points = _installed(self.group).get(name, [])
        if not points:
            raise KeyError(name)
        if len({point.value for point in points}) > 1:
            froms = " and ".join(sorted({_from(point) for point in points}))
            raise ValueError(f"the {self.what} {name!r} is declared by {froms}: uninstall one of them")
        return points[0]

    def find(self, name: str) -> T:
        """What the name stands for; one that is not here is said with those that are."""
        self.check(name)
        return self[name]

    def check(self, name: str) -> None:
        """A ValueError that names those that are here, unless this is one of them."""
        if name not in self and PLACE.fullmatch(name):
            raise ValueError(
                f"the {self.what} {name!r} is not here: a package.module:name is imported only where it was "
                "named on this machine, on the command line, in a file of settings or in a node's own config"
            )
        choices.check(self.what, name, self)

    def add(self, name: str, thing: Any) -> None:
        """Under a name of one's own: `thing`, or the place to import it from when it is asked for."""
        if not self.group:
            raise ValueError(f"nothing can be added to the {self.what}s: {', '.join(self._places)}")
        if name in self._places:
            raise ValueError(f"{name!r} is a {self.what} of narrowcast's own: choose another name")
        if not NAME.fullmatch(name) and not PLACE.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name for a {self.what}: lower-case letters, digits and single dashes"
            )
        self._given[name] = thing
        self._found.pop(name, None)

    def admit(self, name: str) -> None:
        """Let `package.module:name` be asked for: whoever calls this trusts whoever wrote the name.

        Modules in the current folder are found too, after all that is installed.
        """
        if name in self or not PLACE.fullmatch(name):
            return
        if not {"", os.getcwd()} & set(sys.path):
            sys.path.append(os.getcwd())
        self.add(name, name)


def register(what: str, name: str, thing: Any) -> None:
    """Bring a thing of one's own under a name: `what` is method, task, subspace, format or command.

    A method is a class (a dataclass that inherits from `Method`) or an `Entry`; a task is a function that
    returns one; a kind of A is a class, a number format an object, a command a function for typer. Instead of
    the thing itself, "package.module:name" imports it when it is asked for. Registered again, it is replaced.

    >>> import narrowcast as nc
    >>> nc.register("method", "my-method", "my_package.methods:Mine")
    >>> "my-method" in nc.METHODS
    True
    """
    choices.check("kind of thing to register", what, TABLES)
    table: Registry[Any] = _at(TABLES[what])
    table.add(name, thing)


def _at(place: str) -> Any:
    """The object at "package.module:attribute"."""
    module, _, attribute = place.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _advice(place: str, error: Exception) -> str:
    """What to do about a place whose own module is not found."""
    module, _, attribute = place.partition(":")
    package = module.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name not in (module, package):
        return ""
    if module.endswith(".py"):
        return f": write {module.removesuffix('.py')}:{attribute}"
    file = f"{package}.py" if package == module else f"the folder {package}"
    return f": call from the folder where {file} lies, or put that folder on PYTHONPATH"


@cache
def _points() -> Any:
    """All there are, read once: it opens a file of every package that is installed."""
    return entry_points()


@cache
def _installed(group: str) -> Mapping[str, list[EntryPoint]]:
    """name -> who declares it."""
    found: dict[str, list[EntryPoint]] = {}
    for point in _points().select(group=group) if group else ():
        found.setdefault(point.name, []).append(point)
    return found


def _from(point: EntryPoint) -> str:
    return f"{point.dist.name} ({point.value})" if point.dist is not None else point.value


def forget() -> None:
    """What was found: packages have been installed meanwhile."""
    _points.cache_clear()
    _installed.cache_clear()
