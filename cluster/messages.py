"""The frozen dataclasses that cross processes, each named for what it says.

A request travels as: Request (at the door) -> Submission (to the scheduler) -> Lease or Refusal
(back) -> Assignment (door to shard) -> TokenDelta (shard to door). Times are seconds; a time that
crosses processes is a duration, never a clock reading, since clocks of two nodes differ.
"""

from __future__ import annotations

from enum import StrEnum

from cluster.wire import message

PageHash = bytes
"""Chained hash of a full page and all before it (see `cluster.blocks.page_hashes`), 16 bytes."""


class FinishReason(StrEnum):
    """Why a choice ended, in OpenAI's words. One that was cancelled ends without a word."""

    STOP = "stop"
    LENGTH = "length"


@message
class Sampling:
    """How the next token is chosen.

    Greedy where `temperature` is 0. The draw for output position `p` of choice `c` depends only on
    `(seed, p, c)` and the logits, so it is the same alone, in a crowd, and after a resume.
    `logprobs`: how many top alternatives to report per token (0: the chosen one only, None: none);
    `prompt_logprobs`: the same for the prompt's own tokens. Both are of the model's raw
    distribution, before penalties, bias and temperature.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def penalises(self) -> bool:
        """Whether what is chosen depends on earlier tokens by more than the model's logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@message
class Stopping:
    """When a choice ends by its tokens. Stop strings are text and belong to the door.

    `stop_token_ids` holds the caller's ids and, unless it asked to ignore them, the model's
    end-of-sequence ids; the token that ends a choice is emitted with `FinishReason.STOP`.
    Until `min_tokens` are out, `stop_token_ids` cannot be sampled.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()


@message
class Request:
    """One prompt and the `choices` wanted of it, as the door understood its client."""

    request_id: str
    model: str
    tenant: str
    sla: str
    prompt: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping
    choices: int = 1
    deadline_s: float | None = None


@message
class Submission:
    """What the scheduler needs to know of a request: its measure, not its words.

    `router` names who is told the decision. `page_hashes` are those of the prompt's full pages.
    `deadline_s` is how long from now the first output may take. One that `goes_on` was served
    before and lost its shard: no full queue and no budget turns it away. `door` is the Ray actor at
    which its client stands; empty where it is in none. `wakes`: where its model has no shard, that
    is for it to bring one up, and it waits.
    """

    request_id: str
    router: str
    model: str
    tenant: str
    sla: str
    prompt_tokens: int
    max_tokens: int
    choices: int
    page_hashes: tuple[PageHash, ...]
    deadline_s: float | None = None
    goes_on: bool = False
    door: str = ""
    wakes: bool = False

    @property
    def longest(self) -> int:
        """The most tokens, prompt and output, that one of its choices can come to have."""
        return self.prompt_tokens + self.max_tokens


@message
class ShardRef:
    """One life of one shard: `actor` is its Ray name, `incarnation` differs in each life."""

    shard: str
    model: str
    actor: str
    incarnation: str


@message
class Candidate:
    """What placing the request on `shard` would have cost, in tokens."""

    shard: str
    cost: float
    cached_tokens: int
    outstanding_tokens: int
    free_pages: int


@message
class Reason:
    """Why a lease is what it is: the best candidates, cheapest first, and the wait in the queue.

    `explored`: it went by load alone, as a share of requests does. `charged_tokens` is what its
    class and tenant were charged in advance.
    """

    waited_s: float
    candidates: tuple[Candidate, ...]
    explored: bool = False
    charged_tokens: int = 0


@message
class Lease:
    """The scheduler's promise, in its life `epoch`, that `shard` has room for the request.

    `rank` counts the classes above the request's, `tpot_s` is what its class promises of each
    further token, and `ttft_s` of the first: by these the shard puts those in order that meet
    there, and leaves room for who may come.
    """

    request_id: str
    epoch: int
    shard: ShardRef
    cached_tokens: int
    reason: Reason
    rank: int = 0
    tpot_s: float | None = None
    ttft_s: float | None = None


class RefusalKind(StrEnum):
    """Which of the capacity errors a refusal stands for; NEVER_FITS is the caller's to change, and
    ABANDONED is for whoever may still wait for what nobody else does.
    """

    QUEUE_FULL = "queue_full"
    NOT_READY = "not_ready"
    DEADLINE = "deadline"
    QUEUE_TIMEOUT = "queue_timeout"
    OVER_BUDGET = "over_budget"
    NEVER_FITS = "never_fits"
    ABANDONED = "abandoned"


@message
class Refusal:
    """The scheduler will not serve the request; it may be tried again after `retry_after_s`."""

    request_id: str
    kind: RefusalKind
    message: str
    retry_after_s: float


Decision = Lease | Refusal


@message
class DecisionBatch:
    """What the scheduler, in its life `epoch`, decided for one router since batch `number - 1`.

    The router acknowledges by asking for the next; an unacknowledged batch is sent again unchanged,
    so a lost reply loses no lease. A batch without decisions repeats the number acknowledged. A
    router that sees the epoch change, or was unheard for `router_timeout_s`, submits again what it
    still waits for: a repeated submission changes nothing.
    """

    epoch: int
    number: int
    decisions: tuple[Decision, ...]


@message
class Emitted:
    """The output `tokens` of one choice that its client has already."""

    choice: int
    tokens: tuple[int, ...]


@message
class Assignment:
    """Door to shard: serve this request under this lease. `salt` roots the prefix hashes.

    Where another shard began, `emitted` names the choices that go on and what is out of them:
    output like any other to penalties, positions and limits, but not sent again. A `suspect` was
    there when a shard died, so until its next token is out it shares no step with another suspect.
    `source` is the shard that began, where it is leaving and still gives away its pages.
    """

    lease: Lease
    request: Request
    salt: bytes
    emitted: tuple[Emitted, ...] = ()
    suspect: bool = False
    source: ShardRef | None = None

    def outputs(self) -> dict[int, tuple[int, ...]]:
        """Each choice that is to be computed, with the output that exists of it."""
        if self.emitted:
            return {one.choice: one.tokens for one in self.emitted}
        return dict.fromkeys(range(self.request.choices), ())


@message
class TokenLogprob:
    """Natural log of the probability of `token`, and the `top` alternatives, likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@message
class TokenDelta:
    """What was added to one choice since the door last fetched, in one step or in several.

    `logprobs` runs parallel to `tokens` where asked for. `cached_tokens` and `prompt_logprobs`
    (None for the first token, as nothing precedes it) come with the first delta of choice 0.
    """

    request_id: str
    choice: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()


@message
class RequestFailed:
    """The shard cannot go on; `kind` is the name of a FaultError or of a RequestError."""

    request_id: str
    kind: str
    message: str


@message
class DeltaBatch:
    """Everything a shard has for one door since batch `number - 1`, of each choice one delta.

    The door acknowledges by asking for the next; an unacknowledged batch is sent again unchanged,
    so a lost reply neither loses nor repeats a token.
    """

    number: int
    deltas: tuple[TokenDelta | RequestFailed, ...]
