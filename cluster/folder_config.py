"""The knobs of the folder that keeps pages which leave host memory."""

from __future__ import annotations

from pydantic import Field

from cluster.frozen import Frozen


class FolderConfig(Frozen):
    """A folder of a quick local disk; each shard has files of its own in it, within `gib`."""

    path: str = Field(min_length=1, description="On each node that has shards of the model.")
    gib: float = Field(gt=0, description="What the files of one shard may take, GiB.")
    int8: bool = Field(
        False,
        description="Keep keys and values in eight bits: whoever reuses such a page, in a prompt or"
        " after a pause, is computed on rounded ones.",
    )
