"""``/healthz``, ``/readyz`` (open: a load balancer has no key) and ``/metrics`` (an operator's key)."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.auth import needs
from api.health import service
from api.health.schemas import Health, Readiness
from api.limits import StrictRoute
from api.runtime import RuntimeDep
from online_agent.types import Scope

router = APIRouter(tags=["health"], route_class=StrictRoute)


@router.get("/healthz")
async def get_health() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", responses={503: {"model": Readiness}})
async def get_readiness(runtime: RuntimeDep, response: Response) -> Readiness:
    """200 when an episode can be taken now, else 503; which check fails is in the answer."""
    readiness = await service.readiness(runtime)
    if readiness.status != "ready":
        response.status_code = 503
    return readiness


@router.get("/metrics", dependencies=[Depends(needs(Scope.OPERATOR))], response_class=Response)
async def get_metrics(runtime: RuntimeDep) -> Response:
    """Prometheus metrics. They speak of every tenant's traffic, so they need an operator's key."""
    return Response(await service.metrics_text(runtime), media_type=CONTENT_TYPE_LATEST)
