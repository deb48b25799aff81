"""Every knob of Shoal: small frozen models, composed, and checked once before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cluster.autoscaling_config import AutoscalingConfig
from cluster.batching_config import BatchingConfig
from cluster.config_problems import parsed
from cluster.errors import ConfigError
from cluster.fleet_config import FailoverConfig, FleetConfig
from cluster.folder_config import FolderConfig
from cluster.frozen import Frozen
from cluster.isolation import check_stand_ins
from cluster.scheduling_config import SchedulingConfig

Dtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]


class CacheConfig(Frozen):
    """The KV pool of one shard. Its size is `num_blocks`, else `memory_gib`, else a fraction."""

    block_size: int = Field(16, ge=1, le=256, description="Tokens a page holds.")
    num_blocks: int | None = Field(None, ge=2, description="Pages of the pool.")
    memory_gib: float | None = Field(None, gt=0, description="Memory of the pool, GiB.")
    memory_fraction: float | None = Field(
        None, gt=0, le=0.95, description="Of the free memory; by default 0.1 on CPU, 0.9 on GPU."
    )
    prefix_caching: bool = Field(True, description="Keep pages of ended sequences for reuse.")
    host_gib: float | None = Field(
        None,
        ge=0,
        description="Host memory for pages that leave the pool, GiB; by default the pool's size"
        " on a GPU, within a quarter of the free memory, and none on a CPU.",
    )
    folder: FolderConfig | None = Field(
        None, description="Files for pages that leave host memory; by default they are forgotten."
    )
    high_water: float = Field(
        0.85, gt=0, le=1, description="Above this share of pages in use lower classes are paused."
    )
    low_water: float = Field(
        0.7, gt=0, le=1, description="Within this share the paused fit in again."
    )

    @model_validator(mode="after")
    def _host_memory_and_marks(self) -> CacheConfig:
        if self.host_gib and not self.prefix_caching:
            raise ValueError("host_gib needs prefix_caching: pages come back by their hashes")
        if self.folder and (self.host_gib == 0 or not self.prefix_caching):
            raise ValueError("folder needs prefix_caching and host_gib: pages come back by them")
        if self.low_water > self.high_water:
            raise ValueError("low_water must not be above high_water")
        return self

    @property
    def tokens(self) -> int | None:
        """What the pool holds, where the configuration says it."""
        return None if self.num_blocks is None else self.num_blocks * self.block_size


class ResourcesConfig(Frozen):
    """What a shard asks of Ray and of its node."""

    cpus: float | None = Field(None, ge=0, description="By default one, or a part of one.")
    gpus: float | None = Field(
        None, ge=0, description="By default one a rank where the cluster has any."
    )
    threads: int | None = Field(None, ge=1, description="By default `cpus`, or the cores shared.")
    binding: Literal["auto", "measured", "off"] = Field(
        "auto", description="To CPUs and memory near the device; measured: only if a probe gains."
    )
    mig_profile: str | None = Field(
        None,
        pattern=r"^[1-9]\d*g\.[1-9]\d*gb(\+[a-z.]+)?$",
        description="A MIG slice, as `3g.40gb`, for each shard; then no GPU is asked of Ray.",
    )
    custom: dict[str, float] = Field(default_factory=dict, description="Ray custom resources.")
    arrange: Literal["spread", "pack"] = Field("spread", description="Shards over the nodes.")
    memory_gib: float | None = Field(
        None, gt=0, description="Of its device: weights and a KV pool; where is less, none goes."
    )

    @model_validator(mode="after")
    def _slice_or_gpus(self) -> ResourcesConfig:
        if self.mig_profile is not None and self.gpus:
            raise ValueError("mig_profile and gpus exclude each other: slices are not Ray's GPUs")
        return self


DETERMINISTIC_ROWS = 32
"""Rows of a matrix product up to which each rounds the same whatever stands beside it: measured
on CPUs with AMX and with AVX512-BF16, in bfloat16 and float32, and asked when a model loads."""


class ModelConfig(Frozen):
    """One model and the shards that serve it."""

    name: str = Field("smollm2-135m-instruct", min_length=1, description="What clients ask for.")
    source: str = Field(
        "default",
        min_length=1,
        description="`default`, a folder of safetensors, a .gguf file,"
        " `package:<distribution>==<version>/<file.gguf>[#sha256=<hex>]`, or a hub id.",
    )
    dtype: Dtype = Field(
        "auto",
        description="Precision of weights and KV; auto: as saved; int8 (on a CPU), fp8 (on a GPU):"
        " of linear layers, beside bfloat16.",
    )
    deterministic: bool = Field(
        False, description="The same request gives the same tokens, whatever runs beside it."
    )
    compile: Literal["auto", "off"] = Field(
        "auto",
        description="auto: on a CPU with a C++ compiler, compile the model beside serving it; on"
        " a GPU capture decodes as CUDA graphs.",
    )
    max_model_len: int | None = Field(None, ge=2, description="Context, tokens.")
    tensor_parallel: int = Field(
        1, ge=1, le=64, description="Devices of one node over which a shard splits its heads."
    )
    shards: int = Field(1, ge=0, le=4096, description="Shards wanted at start.")
    autoscaling: AutoscalingConfig | None = Field(
        None, description="Bounds between which their number then follows the load."
    )
    load_timeout_s: float = Field(600.0, gt=0, description="A shard not ready by then is retried.")
    tenant: str | None = Field(
        None, min_length=1, description="The only one whose requests reach these shards."
    )
    instead_of: str | None = Field(
        None, description="The model whose requests by `tenant` go here, and nowhere else."
    )
    cache: CacheConfig = CacheConfig()
    batching: BatchingConfig = BatchingConfig()
    resources: ResourcesConfig = ResourcesConfig()

    @model_validator(mode="after")
    def _ranks_go_with_the_rest(self) -> ModelConfig:
        if self.tensor_parallel == 1:
            return self
        if self.deterministic:
            raise ValueError(
                "deterministic needs tensor_parallel 1: how a sum over ranks rounds depends on"
                " where a row stands in its step"
            )
        if self.cache.host_gib:
            raise ValueError(
                "cache.host_gib needs tensor_parallel 1: each rank has a part of every page"
            )
        if self.cache.folder:
            raise ValueError("cache.folder needs tensor_parallel 1, as host memory does")
        if self.dtype in ("int8", "fp8"):
            raise ValueError(f"dtype {self.dtype} needs tensor_parallel 1: scales are not split")
        if self.resources.mig_profile is not None:
            raise ValueError("mig_profile needs tensor_parallel 1: slices have no link")
        if self.resources.gpus not in (None, 0, self.tensor_parallel):
            raise ValueError(
                f"resources.gpus must be {self.tensor_parallel}, as tensor_parallel, or 0:"
                " each rank has a whole GPU, or none has one"
            )
        return self

    @property
    def first_shards(self) -> int:
        """Shards wanted at start, within the bounds."""
        return self.autoscaling.bounded(self.shards) if self.autoscaling else self.shards

    @property
    def hands_over(self) -> bool:
        """Whether its shards can give pages to each other: named ones, each with all heads."""
        return self.cache.prefix_caching and self.tensor_parallel == 1

    @property
    def may_sleep(self) -> bool:
        """Whether it may have no shard and still be ready for requests."""
        return self.autoscaling is not None and self.autoscaling.may_sleep

    @property
    def steps(self) -> BatchingConfig:
        """What one step may hold: in a deterministic model no more than rounds the same."""
        if not self.deterministic:
            return self.batching
        most = min(self.batching.max_batch_tokens, DETERMINISTIC_ROWS)
        return self.batching.model_copy(update={"max_batch_tokens": most})


class AuthConfig(Frozen):
    """Who may speak to the doors. `none` answers everybody who can reach the port."""

    mode: Literal["keys", "none"] = "keys"
    keys_env: str = Field(
        "SHOAL_API_KEYS", description="Environment variable: `key` or `tenant:key`, by commas."
    )


class GatewayConfig(Frozen):
    """The HTTP door."""

    replicas: int = Field(1, ge=1)
    max_ongoing_requests: int = Field(4096, ge=1)
    max_body_bytes: int = Field(
        2 * 2**20, ge=1024, description="Parsing so much holds the door for 0.2 s at worst."
    )
    body_timeout_s: float = Field(
        30.0,
        gt=0,
        description="A body not whole by then is refused; behind HAProxy, one of 16 KiB or more.",
    )
    keep_alive_s: float = Field(
        15.0, ge=0, description="A stream without news for so long sends a comment; 0: never."
    )
    drain_s: float = Field(
        600.0, ge=0, description="So long an outdated replica may take to answer what it has begun."
    )
    ending_s: float = Field(
        20.0, ge=0, description="So long `make serve` lets answers go on that it has begun."
    )
    cors_origins: tuple[str, ...] = Field(
        (), description="Web pages of these origins may call the API from a browser; `*`: all."
    )
    max_choices: int = Field(16, ge=1, description="Largest `n`.")
    max_logprobs: int = Field(20, ge=0, description="Largest `top_logprobs`.")
    auth: AuthConfig = AuthConfig()


class RouterConfig(Frozen):
    """The routing deployment."""

    replicas: int = Field(1, ge=1)
    max_ongoing_requests: int = Field(16384, ge=1)


class ShoalConfig(Frozen):
    """The whole application: what stands under `args` in ray-config.yaml."""

    models: tuple[ModelConfig, ...] = Field((ModelConfig(),), min_length=1)
    scheduling: SchedulingConfig = SchedulingConfig()
    gateway: GatewayConfig = GatewayConfig()
    router: RouterConfig = RouterConfig()
    failover: FailoverConfig = FailoverConfig()
    fleet: FleetConfig = FleetConfig()

    @model_validator(mode="after")
    def _model_names_differ(self) -> ShoalConfig:
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ValueError(f"model names must differ, got {names}")
        return self

    @model_validator(mode="after")
    def _stand_ins_are_the_same_to_doors(self) -> ShoalConfig:
        check_stand_ins(self.models)
        return self


class FleetSettings(Frozen):
    """What the Fleet's `user_config` may hold: knobs that need no restart."""

    shards: dict[str, Annotated[int, Field(ge=0, le=4096)]] = Field(
        default_factory=dict, description="Shards wanted, by model."
    )


def parse_config(args: dict[str, Any]) -> ShoalConfig:
    """Check `args` and compose the configuration.

    Raises ConfigError whose message lists every wrong field: its path, what was wrong, and what
    is allowed there.
    """
    return parsed(ShoalConfig, args, "args")


def parse_settings(
    user_config: dict[str, Any], models: Iterable[str], autoscaled: Iterable[str] = ()
) -> FleetSettings:
    """Check the Fleet's `user_config`, where `models` are served, some of them `autoscaled`, whose
    number of shards is not for `user_config` to say. Raises ConfigError likewise."""
    settings = parsed(FleetSettings, user_config, "user_config")
    known, moving = sorted(models), set(autoscaled)
    for name in settings.shards:
        path = f"user_config.shards.{name}"
        if name not in known:
            raise ConfigError(f"{path}: no such model (allowed: {', '.join(known)})", path)
        if name in moving:
            raise ConfigError(f"{path}: autoscaling decides on it; leave it out here", path)
    return settings
