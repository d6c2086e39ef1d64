"""The pages of the viewer. To add one, write a module with its data and its view, and add it to PAGES."""

from holdfast.view.page import Page
from holdfast.view.pages import errors, run, runs, sample_list, samples

PAGES: tuple[Page, ...] = (
    Page("/", runs.load, runs.render),
    Page("/runs/{experiment}/{run}", run.load, run.render),
    Page("/runs/{experiment}/{run}/samples", samples.load, sample_list.render),
    Page("/runs/{experiment}/{run}/errors", errors.load, errors.render),
)
"""Every page; each has a JSON twin below `/api`."""
