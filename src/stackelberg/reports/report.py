"""A report, from folders to a document."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from stackelberg.reports.calibration import calibration
from stackelberg.reports.costs import costs
from stackelberg.reports.differences import differences
from stackelberg.reports.document import Document
from stackelberg.reports.drawings import drawings
from stackelberg.reports.evidence import Evidence
from stackelberg.reports.provenance import runs, settings
from stackelberg.reports.scores import scores
from stackelberg.reports.verdict import verdict
from stackelberg.studies.arms import arms_of
from stackelberg.studies.comparing import compared


def document_of(evidence: Evidence, out: Path) -> Document:
    """All that can be said of some runs.

    Args:
        evidence: the runs.
        out: the file that the report will be, which links are relative to.
    """
    along = {show.along for show in evidence.shows if show.what == "sweep" and show.along}
    arms = arms_of(evidence.results, evidence.runs, next(iter(along)) if len(along) == 1 else None)
    groups, measured = compared(arms, evidence.baseline, evidence.metrics)
    sections = (
        verdict(evidence, arms, groups, measured),
        scores(evidence, arms, groups, measured),
        differences(groups),
        calibration(arms),
        costs(arms, groups),
        drawings(evidence, arms),
        settings(arms),
        runs(evidence, arms, out),
    )
    return Document(evidence.title, _about(evidence), [section for section in sections if section is not None])


def _about(evidence: Evidence) -> str:
    newest = max((run.folder / "result.json").stat().st_mtime for run in evidence.runs.values())
    day = datetime.fromtimestamp(newest, UTC).strftime("%-d %B %Y")
    return f"{len(evidence.runs)} finished runs, the last of {day}. Written by stackelberg report."
