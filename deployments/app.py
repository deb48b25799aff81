"""The whole system put together on one screen: configuration in, Serve application out."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application

from cluster.config import ShoalConfig, parse_config
from deployments.fleet import fleet_deployment
from deployments.ingress import Ingress
from deployments.router import Router

NO_CPU = {"num_cpus": 0}
"""The doors share the cores that the shards leave; Ray's CPUs are the shards' to count."""

SURGE_PERCENT = 25
"""A new configuration replaces the doors by the quarter, at least one, once as many new ones stand;
by default Serve would stop the old ones first."""

LOOK_S = 1.0
"""Serve asks each replica so often whether it lives, and only so learns that one died. By default
that is every ten seconds, and who needs the only Router would wait for that, then for the next. One
that says it is unwell, or nothing in half a minute, is replaced after three times in a row."""


def build(args: dict[str, Any]) -> Application:
    """The Serve application for `args` of ray-config.yaml; it has no side effects.

    Raises ConfigError naming each wrong field, before anything starts.
    """
    config = parse_config(args)
    return _gateway(config, _router(config, _fleet(config)))


def _fleet(config: ShoalConfig) -> Application:
    """Of models that are autoscaled, `user_config` does not say how many shards they have."""
    shards = {model.name: model.shards for model in config.models if not model.autoscaling}
    deployment = fleet_deployment.options(
        user_config={"shards": shards}, health_check_period_s=LOOK_S
    )
    return deployment.bind(config)


def _router(config: ShoalConfig, fleet: Application) -> Application:
    deployment = serve.deployment(Router).options(
        name="Router",
        num_replicas=config.router.replicas,
        max_ongoing_requests=config.router.max_ongoing_requests,
        ray_actor_options=NO_CPU,
        max_surge_percent=SURGE_PERCENT,
        health_check_period_s=LOOK_S,
    )
    return deployment.bind(config, fleet)


def _gateway(config: ShoalConfig, router: Application) -> Application:
    deployment = serve.deployment(serve.ingress()(Ingress)).options(
        name="Gateway",
        num_replicas=config.gateway.replicas,
        max_ongoing_requests=config.gateway.max_ongoing_requests,
        graceful_shutdown_timeout_s=config.gateway.drain_s,
        ray_actor_options=NO_CPU,
        max_surge_percent=SURGE_PERCENT,
        health_check_period_s=LOOK_S,
    )
    return deployment.bind(config, router)
