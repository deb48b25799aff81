"""What every part of the configuration is: checked once, never written again."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A part of the configuration: no unknown fields, no writes after parsing."""

    model_config = ConfigDict(extra="forbid", frozen=True)
