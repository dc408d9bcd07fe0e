"""GET /health: whether requests can be served, for supervisors and load balancers."""

from ignisd.http.service import Service, ServicePhase


def health(service: Service, stall_s: float) -> tuple[int, dict[str, object]]:
    """Status and body: 200 ready; 503 loading, draining, stalled or failed.

    What is degraded is told beside 200: requests are answered all the same. The reasons are told
    by /v1/config, which asks for a key.
    """
    if service.phase is ServicePhase.LOADING:
        return 503, {"status": "loading", "progress": round(service.progress, 4)}
    if service.phase is ServicePhase.FAILED:
        return 503, {"status": "failed"}
    assert service.engine is not None
    stats = service.engine.stats()
    if service.phase is ServicePhase.DRAINING:
        return 503, {"status": "draining"}
    if not stats.alive:
        return 503, {"status": "failed"}
    if stats.draining:
        return 503, {"status": "draining"}
    if stats.busy and stats.idle_ms > stall_s * 1000:
        return 503, {"status": "stalled", "stalled_seconds": round(stats.idle_ms / 1000, 1)}
    told = {"degraded": list(service.degraded), "notes": list(service.notes)}
    return 200, {"status": "ready", "exact": service.exact, **told}
