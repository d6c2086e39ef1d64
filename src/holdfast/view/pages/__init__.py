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
_LISTED = ("evaluation", "list")
"""What the address of a sample keeps: the evaluation, and the list that the reader comes from."""
_CHANGES = ("evaluation", "row", "change", "before", "after", "after_key", "before_key")
PAGES: tuple[Page, ...] = (
    Page("/", runs.load, runs.render, runs.FILTERS),
    Page("/runs/{experiment}/{run}", run.load, run.render, ("evaluation", "moment")),
    Page("/compare", compare_data.load, compare.render, ("run", *_CHANGES)),
    Page("/runs/{experiment}/{run}/compare", compare_data.load_models, compare.render, _CHANGES),
    Page("/leaderboard", leaderboard.load, leaderboard.render, ("run", "experiment", "task", "scorer")),
    Page("/history", history.load, history.render, ("experiment", "task", "scorer")),
    Page("/runs/{experiment}/{run}/lineage", lineage.load, lineage.render, ("life", "after", "moment")),
    Page("/runs/{experiment}/{run}/profile", profile.load, profile.render),
    Page("/runs/{experiment}/{run}/spec", spec.load, spec.render),
    Page(_SAMPLE, page.load, page.render, ("step", *_LISTED)),
    Page(f"{_SAMPLE}/records", records.load_list, records.render_list, ("from", *_LISTED)),
    Page(f"{_SAMPLE}/records/{{n}}", records.load_record, records.render_record, _LISTED),
    Page(f"{_SAMPLE}/steps/{{n}}", records.load_request, records.render_request, _LISTED),
    Page("/runs/{experiment}/{run}/repeats/{task}/{model}/{sample}", repeats.load, repeats.render, _LISTED),
    Page("/runs/{experiment}/{run}/samples", samples.load, sample_list.render, samples.PARAMS),
    Page("/runs/{experiment}/{run}/errors", errors.load, errors.render, ("evaluation",)),
)
"""Every page; each has a JSON twin below `/api`."""
