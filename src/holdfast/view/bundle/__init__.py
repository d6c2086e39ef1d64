"""Static copies: the pages of runs as files that open in a browser without a server."""

from holdfast.view.bundle.writer import BundleSummary, write_bundle

__all__ = ["BundleSummary", "write_bundle"]
