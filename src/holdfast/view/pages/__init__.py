"""The pages of the viewer. To add one, write a module with its data and its view, and add it to PAGES."""

from holdfast.view.page import Page
from holdfast.view.pages import (
    compare,
    compare_data,
    errors,
    history,
    leaderboard,
    lineage,
    profile,
    run,
    runs,
    sample_list,
    samples,
    spec,
)
from holdfast.view.pages.sample import page, records, repeats

_SAMPLE = "/runs/{experiment}/{run}/samples/{task}/{model}/{sample}/{repeat}"
PAGES: tuple[Page, ...] = (
    Page("/", runs.load, runs.render),
    Page("/runs/{experiment}/{run}", run.load, run.render),
    Page("/compare", compare_data.load, compare.render),
    Page("/runs/{experiment}/{run}/compare", compare_data.load_models, compare.render),
    Page("/leaderboard", leaderboard.load, leaderboard.render),
    Page("/history", history.load, history.render),
    Page("/runs/{experiment}/{run}/lineage", lineage.load, lineage.render),
    Page("/runs/{experiment}/{run}/profile", profile.load, profile.render),
    Page("/runs/{experiment}/{run}/spec", spec.load, spec.render),
    Page(_SAMPLE, page.load, page.render),
    Page(f"{_SAMPLE}/records", records.load_list, records.render_list),
    Page(f"{_SAMPLE}/records/{{n}}", records.load_record, records.render_record),
    Page(f"{_SAMPLE}/steps/{{n}}", records.load_request, records.render_request),
    Page("/runs/{experiment}/{run}/repeats/{task}/{model}/{sample}", repeats.load, repeats.render),
    Page("/runs/{experiment}/{run}/samples", samples.load, sample_list.render),
    Page("/runs/{experiment}/{run}/errors", errors.load, errors.render),
)
"""Every page; each has a JSON twin below `/api`."""
