"""What an operator learns: metrics for Prometheus, and a log line for each request."""

import json
import logging
import sys
import time
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PHOTOS = (1, 2, 4, 8, 16, 32)
LogFormat = Literal["text", "json", "none"]
access_log = logging.getLogger("coscap.access")


class Telemetry:
    """The metrics of one server; each server has its own."""

    def __init__(self) -> None:
        own = CollectorRegistry()
        self.registry = own
        self.requests = Counter("coscap_requests", "Requests answered.", ["path", "status"], registry=own)
        self.seconds = Histogram(
            "coscap_request_seconds", "Time to answer.", ["path"], buckets=_SECONDS, registry=own
        )
        self.photos = Counter("coscap_photos", "Photographs captioned.", registry=own)
        self.tagged = Counter("coscap_tagged_photos", "Photographs tagged.", registry=own)
        self.captions = Counter("coscap_captions", "Captions given.", registry=own)
        self.batches = Histogram(
            "coscap_batch_photos", "Photographs in a batch.", ["stage"], buckets=_PHOTOS, registry=own
        )
        self.waiting = Gauge("coscap_waiting_requests", "Requests that wait or are in work.", registry=own)
        self.kept = Gauge("coscap_kept_photos", "Photographs whose captions can be varied.", registry=own)
        self.lost = Gauge("coscap_lost_workers", "Threads that were given up and replaced.", registry=own)
        ProcessCollector(registry=own)

    def batch(self, stage: str, photos: int) -> None:
        self.batches.labels(stage).observe(photos)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))


def log_to_stderr(kind: LogFormat) -> None:
    """Lines of the server on standard error; with "none" only warnings and errors, as text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if kind == "json" else _Text())
    for name, level in (("coscap", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
    access_log.setLevel(logging.WARNING if kind == "none" else logging.INFO)
    # Otherwise every broken body is a line in the log.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


def log_request(**fields: Any) -> None:
    access_log.info("request", extra={"fields": fields})


class _Text(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        if fields is None:
            return super().format(record)
        line = " ".join(f"{name}={value}" for name, value in fields.items())
        return f"{self.formatTime(record)} {line}"


class _Json(_Text):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": self.formatTime(record), "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        if fields is not None:
            line |= fields
        else:
            line["message"] = record.getMessage()
            if record.exc_info:
                line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)
