"""Write and Edit: a whole file, or exact text in one.

In: a path and what shall stand there. Out: a line that says what was done. The workspace's `write_file` and `edit_file`
do it; the session refuses to replace a file as a whole that was not shown whole, or was changed since.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from toolcrib.agent.coding.words import in_these_words
from toolcrib.workspace.files.files import EditFile, Mode, WriteFile, edit_file, write_file
from toolcrib.workspace.tool import Done, Scene


class Write(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file_path: str
    content: str


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file_path: str
    old_string: Annotated[str, msgspec.Meta(description="Empty: make a new file.")]
    new_string: str
    replace_all: bool = False


def write(scene: Scene, given: Write) -> Done:
    with in_these_words():
        return write_file(scene, WriteFile(path=given.file_path, content=given.content))


def edit(scene: Scene, given: Edit) -> Done:
    with in_these_words():
        if not given.old_string:
            return write_file(scene, WriteFile(path=given.file_path, content=given.new_string, mode=Mode.CREATE))
        asked = EditFile(path=given.file_path, old=given.old_string, new=given.new_string, all=given.replace_all)
        done = edit_file(scene, asked)
    # The model wrote the change itself: the diff would only repeat it.
    return Done(done.data, done.text.partition("\n")[0])
