"""Reports: what a study shows, as one HTML file, as Markdown, and as figures.

`gather` reads folders, `document_of` says what is to be said of them, `write_report` does both and writes it down.
"""

from stackelberg.reports.errors import ReportError
from stackelberg.reports.evidence import Evidence, gather
from stackelberg.reports.quoted import Quoted, QuotedTable, source, tables
from stackelberg.reports.report import document_of
from stackelberg.reports.writing import Written, write_report

__all__ = [
    "Evidence",
    "Quoted",
    "QuotedTable",
    "ReportError",
    "Written",
    "document_of",
    "gather",
    "source",
    "tables",
    "write_report",
]
