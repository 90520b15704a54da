"""Everything wired together, without a process.

The daemon hosts a `Crib`; one-shot commands and the library use one directly.
"""

from toolcrib.crib.crib import Crib
from toolcrib.crib.project import Builtin, Project

__all__ = ["Builtin", "Crib", "Project"]
