"""The application as it is handed to Serve, before anything starts."""

from __future__ import annotations

from deployments.app import build


def test_a_dead_replica_is_found_within_about_a_second() -> None:
    gateway = build({})
    router = gateway._bound_deployment.init_args[1]
    fleet = router._bound_deployment.init_args[1]
    for node in (gateway, router, fleet):
        assert node._bound_deployment._deployment_config.health_check_period_s <= 1.0
