"""Export of a recording as a report: one self-contained HTML file that works offline."""

from clearhead.viewer.report.export import Report, report

__all__ = ["Report", "report"]
