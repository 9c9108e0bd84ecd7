"""The outcome of a round between sites, and its report: the sum, its contributors, and all bytes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from tacit.core import Report, State, Sum
from tacit.core.state import Traffic, count_dropped
from tacit.federation.messages import SiteRequest


@dataclass
class SiteBytes:
    """Bytes sent to sites and received from them, by site number."""

    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)
    sent_once: Counter[int] = field(default_factory=Counter)

    def beyond(self, content: int, asked: SiteRequest, sites: int | None = None) -> Traffic:
        """The bytes beyond the replies' content and the broadcast, to the whole cohort or to `sites` sites."""
        broadcasts = len(asked.frame) * (len(asked.cohort) if sites is None else sites) + self.sent_once.total()
        return Traffic(self.up.total() - content, self.down.total() - broadcasts)


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """The outcome of a round.

    Attributes:
        total: the sum.
        clients: its contributors.
        diagnostics: norm, variance and scale of the messages, where the server sees them.
        overhead: bytes that are neither messages nor broadcasts, by phase.
        traffic: all bytes, by site.
        memory: the mechanism's, from a further party that added the noise; None: the server adds the noise.
    """

    total: Sum
    clients: tuple[int, ...] = ()
    diagnostics: tuple[float | None, float | None, float | None] = (None, None, None)
    overhead: Mapping[str, Traffic] = field(default_factory=dict)
    traffic: SiteBytes = field(default_factory=SiteBytes)
    memory: Mapping[str, Tensor] | None = None


def report_of(after: State, cohort: Sequence[int], outcome: RoundOutcome) -> Report:
    """The report of a round, without metrics and time."""
    norm, variance, scale = outcome.diagnostics
    return Report(
        round=after.round,
        clients=tuple(cohort),
        rejected=tuple(number for number in cohort if number not in outcome.clients),
        up=tuple(outcome.traffic.up[number] for number in cohort),
        down=tuple(outcome.traffic.down[number] for number in cohort),
        norm=norm,
        variance=variance,
        scale=scale,
        metrics={},
        seconds=0.0,
        overhead=outcome.overhead,
        grid_step=outcome.total.grid_step,
        dropped=count_dropped(after) > 0,
    )


def with_metrics(report: Report, metrics: Mapping[str, float], traffic: SiteBytes) -> Report:
    """The report with metrics and their bytes."""
    extra = Traffic(traffic.up.total(), traffic.down.total())
    return replace(
        report,
        metrics=dict(metrics),
        up=tuple(size + traffic.up[number] for number, size in zip(report.clients, report.up, strict=True)),
        down=tuple(size + traffic.down[number] for number, size in zip(report.clients, report.down, strict=True)),
        overhead={**report.overhead, "evaluate": extra},
    )
