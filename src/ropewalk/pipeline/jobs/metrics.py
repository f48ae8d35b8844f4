"""Health as metrics (S4 §14), in the text form that Prometheus and a node exporter's textfile collector read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ropewalk.pipeline.jobs.health import Health

GAUGES: Final[tuple[tuple[str, str, Callable[[Health], float | None]], ...]] = (
    (
        "attestation_age_seconds",
        "Age of the newest evidence that held.",
        lambda health: health.attestation_age_seconds,
    ),
    (
        "attestation_stale",
        "1 if the newest evidence that held has used up four fifths of its freshness budget.",
        lambda health: health.stale if health.attested else None,
    ),
    (
        "attestation_chain_valid",
        "1 if all evidence in the window was judged and held, and the newest that held still does.",
        lambda health: health.attestation_chain_valid is True if health.attested else None,
    ),
    (
        "attestation_evidence_failed",
        "Pieces of evidence in the window that failed, and those that held once and no longer do.",
        lambda health: health.evidence_failed if health.attested else None,
    ),
    (
        "attestation_evidence_unknown",
        "Pieces of evidence in the window that could not be judged.",
        lambda health: health.evidence_unknown if health.attested else None,
    ),
    (
        "policy_hash_mismatch",
        "1 if an envelope in the window names another policy than its channel has.",
        lambda health: health.policy_hash_mismatch > 0,
    ),
    ("channel_envelopes", "Envelopes in the channel.", lambda health: health.envelopes),
)
MEASURED: Final = "health_measured_timestamp_seconds"


def metrics_text(measured: Iterable[Health], now_ns: int) -> str:
    """Return every measure as a gauge with the labels channel, domain and protocol version, and when it was measured.

    What has no evidence has no age.

    >>> told = metrics_text([Health("ea.core", "shop", "1.0.0", 2, 0, None, 0, None, False)], 5_000_000_000)
    >>> [line for line in told.splitlines() if not line.startswith("#")]  # doctest: +NORMALIZE_WHITESPACE
    ['policy_hash_mismatch{channel="ea.core",domain="shop",protocol_version="1.0.0"} 0',
     'channel_envelopes{channel="ea.core",domain="shop",protocol_version="1.0.0"} 2',
     'health_measured_timestamp_seconds 5']
    """
    found = list(measured)
    lines: list[str] = []
    for name, text, value_of in GAUGES:
        lines += _head(name, text)
        for health in found:
            value = value_of(health)
            if value is not None:
                lines.append(f"{name}{{{_labels(health)}}} {float(value):.15g}")
    lines += [*_head(MEASURED, "When the channels were measured."), f"{MEASURED} {now_ns / 1e9:.15g}"]
    return "\n".join(lines) + "\n"


def _head(name: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge"]


def _labels(health: Health) -> str:
    told = (
        ("channel", health.channel),
        ("domain", health.domain),
        ("protocol_version", health.protocol_version),
    )
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in told)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
