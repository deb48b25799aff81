"""The routes that tell why a request went where it went, and where one would go."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request

from cluster.errors import NotRemembered
from deployments.auth import tenant_salt
from deployments.door import submission_of
from deployments.doorkeeper import TENANT
from deployments.gateway import Gateway
from deployments.openai import ChatRequest


def add_explanations(app: FastAPI, gateway: Gateway) -> None:
    block_sizes = {model.name: model.cache.block_size for model in gateway.config.models}

    @app.get("/admin/scheduler/explain/{request_id}", summary="Why a request was decided so")
    async def explain(request_id: str) -> dict[str, Any]:
        """By the id of an answer, which means its first prompt, or by that of one prompt in it."""
        for name in (request_id, f"{request_id}-0"):
            explanation = await gateway.outside.explain(name)
            if explanation is not None:
                return asdict(explanation)
        raise NotRemembered(f"no decision on {request_id!r} is remembered")

    @app.post("/admin/scheduler/explain", summary="What would become of a chat request now")
    async def forecast(body: ChatRequest, request: Request) -> dict[str, Any]:
        call = await gateway.intake.chat(body, request.scope[TENANT])
        asked = call.readings[0].request
        submission = submission_of(asked, block_sizes[asked.model], tenant_salt(asked.tenant))
        return asdict(await gateway.outside.forecast(submission))
