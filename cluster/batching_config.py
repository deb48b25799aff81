"""What the configuration says of the steps of a shard."""

from __future__ import annotations

from pydantic import Field

from cluster.frozen import Frozen


class BatchingConfig(Frozen):
    """What one step of a shard may hold."""

    max_num_seqs: int = Field(144, ge=1, le=4096, description="Sequences running at once.")
    max_batch_tokens: int = Field(1024, ge=1, description="Tokens computed in one step.")
    prompt_lookup_tokens: int | None = Field(
        None,
        ge=0,
        le=7,
        description="Tokens guessed a step by what came after the same 3; by default 4 on CPUs.",
    )
    max_load_s: float = Field(
        0.01, gt=0, description="Of a step that computes, for pages back from host memory."
    )
    ttft_share: float = Field(
        1 / 16, gt=0, le=1, description="Of a TTFT, for a step with prompts of classes without one."
    )

    @property
    def places(self) -> int:
        """Sequences that can run at once: with more than a step has tokens, some had no turn."""
        return min(self.max_num_seqs, self.max_batch_tokens)
