"""The HTML report: one file to send to a team, with results, figures, examples, failures, costs and provenance."""

from holdfast.report.formats.html.page import html_page, report_html

__all__ = ["html_page", "report_html"]
