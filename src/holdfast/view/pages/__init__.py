"""The pages of the viewer. To add one, write a module with its data and its view, and add it to PAGES."""

from holdfast.view.page import Page
from holdfast.view.pages import compare, compare_data, run, runs

PAGES: tuple[Page, ...] = (
    Page("/", runs.load, runs.render),
    Page("/runs/{experiment}/{run}", run.load, run.render),
    Page("/compare", compare_data.load, compare.render),
    Page("/runs/{experiment}/{run}/compare", compare_data.load_models, compare.render),
)
"""Every page; each has a JSON twin below `/api`."""
