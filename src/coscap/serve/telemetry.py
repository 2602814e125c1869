"""What Prometheus may know."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PHOTOS = (1, 2, 4, 8, 16, 32)


class Telemetry:
    """The figures of one server; each server has its own."""

    def __init__(self) -> None:
        own = CollectorRegistry()
        self.registry = own
        self.requests = Counter("coscap_requests", "Requests answered.", ["path", "status"], registry=own)
        self.seconds = Histogram(
            "coscap_request_seconds", "Time to answer.", ["path"], buckets=_SECONDS, registry=own
        )
        self.photos = Counter("coscap_photos", "Photographs captioned.", registry=own)
        self.captions = Counter("coscap_captions", "Captions given.", registry=own)
        self.batches = Histogram(
            "coscap_batch_photos", "Photographs in a batch.", ["stage"], buckets=_PHOTOS, registry=own
        )
        self.waiting = Gauge("coscap_waiting_requests", "Requests that wait or are in work.", registry=own)
        self.kept = Gauge("coscap_kept_photos", "Photographs whose captions can be varied.", registry=own)
        ProcessCollector(registry=own)

    def batch(self, stage: str, photos: int) -> None:
        self.batches.labels(stage).observe(photos)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
