"""GET /health: whether requests can be served, for supervisors and load balancers."""

from ignisd.http.service import RESTING, Service, ServicePhase


def health(service: Service, stall_s: float) -> tuple[int, dict[str, object]]:
    """Status and body: 200 where requests for answers are taken; 503 else.

    They are taken also while no model is loaded for want of requests, as they wait for it. What is
    degraded is told beside 200: requests are answered all the same. Reasons are told by /v1/config,
    which asks for a key.
    """
    phase, progress = service.phase, round(service.progress, 4)
    if phase is ServicePhase.LOADING:
        return 503, {"status": phase, "progress": progress}
    if phase is ServicePhase.SWITCHING:
        told = {"model": service.name, "target": service.target, "progress": progress}
        return 503, {"status": phase, "stage": _stage(service), **told}
    if phase in RESTING:
        waking = {"progress": progress} if phase is ServicePhase.WAKING else {}
        return 200, {"status": phase, "model": service.name, **waking}
    if phase is not ServicePhase.READY or service.engine is None:
        return 503, {"status": phase}
    stats = service.engine.stats()
    if not stats.alive:
        return 503, {"status": "failed"}
    if stats.draining:
        return 503, {"status": "draining"}
    if stats.busy and stats.idle_ms > stall_s * 1000:
        return 503, {"status": "stalled", "stalled_seconds": round(stats.idle_ms / 1000, 1)}
    told = {"degraded": list(service.degraded), "notes": list(service.notes)}
    return 200, {"status": "ready", "exact": service.exact, **told}


def _stage(service: Service) -> str:
    """How far a switch has come: first what runs is finished and what is kept is written out."""
    return "loading" if service.engine is None else "draining"
