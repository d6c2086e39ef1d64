"""Plans: turns a spec into the exact list of keys, and stores keys and rows in the files that pin a run."""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.plan.benchmarks import (
        JUDGE,
        Benchmark,
        adopt_benchmarks,
        all_benchmarks,
        broken_packages,
        change_benchmarks,
        experiment_of,
        find_benchmark,
        find_benchmark_doubts,
        is_benchmark_name,
        resolve_benchmarks,
        task_fields,
    )
    from holdfast.plan.differences import changed_inputs, changed_rows
    from holdfast.plan.draft import PlanDraft, draft_plan, write_plan
    from holdfast.plan.extension import PlanExtension, PlanReplacement
    from holdfast.plan.files import (
        DATA,
        PLAN,
        RESTORE,
        DataLine,
        DataRow,
        Flaw,
        PlanLine,
        RowLookup,
        StoredRows,
        check_blobs,
        check_originals,
        check_sizes,
        data_lines,
        data_path,
        data_rows,
        find_planned_line,
        find_problem,
        find_sample_line,
        originals,
        plan_path,
        planned_lines,
        read_lines,
        rows_of,
    )
    from holdfast.plan.lookup import data_lines_at, find_data_line, planned_line_at
    from holdfast.plan.planner import (
        PreparedTask,
        Rows,
        WrittenPlan,
        check_groups,
        inputs_of,
        models_of,
        prepare,
        scoring_roles,
        survey,
    )
    from holdfast.plan.slices import PlanDivision, PlanSlice
    from holdfast.plan.sources import has_same_rows, is_same_source, pin_revisions, source_of
    from holdfast.plan.stamps import ComparedRows, stamp_of_data
else:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = lazy_exports(
        __name__,
        {
            "benchmarks": (
                "JUDGE Benchmark adopt_benchmarks all_benchmarks broken_packages change_benchmarks experiment_of "
                "find_benchmark find_benchmark_doubts is_benchmark_name resolve_benchmarks task_fields"
            ),
            "differences": "changed_inputs changed_rows",
            "draft": "PlanDraft draft_plan write_plan",
            "extension": "PlanExtension PlanReplacement",
            "files": (
                "DATA PLAN RESTORE DataLine DataRow Flaw PlanLine RowLookup StoredRows check_blobs check_originals "
                "check_sizes data_lines data_path data_rows find_planned_line find_problem "
                "find_sample_line originals plan_path planned_lines read_lines rows_of"
            ),
            "lookup": "data_lines_at find_data_line planned_line_at",
            "planner": ("PreparedTask Rows WrittenPlan check_groups inputs_of models_of prepare scoring_roles survey"),
            "slices": "PlanDivision PlanSlice",
            "sources": "has_same_rows is_same_source pin_revisions source_of",
            "stamps": "ComparedRows stamp_of_data",
        },
    )

__all__ = [
    "DATA",
    "JUDGE",
    "PLAN",
    "RESTORE",
    "Benchmark",
    "ComparedRows",
    "DataLine",
    "DataRow",
    "Flaw",
    "PlanDivision",
    "PlanDraft",
    "PlanExtension",
    "PlanLine",
    "PlanReplacement",
    "PlanSlice",
    "PreparedTask",
    "RowLookup",
    "Rows",
    "StoredRows",
    "WrittenPlan",
    "adopt_benchmarks",
    "all_benchmarks",
    "broken_packages",
    "change_benchmarks",
    "changed_inputs",
    "changed_rows",
    "check_blobs",
    "check_groups",
    "check_originals",
    "check_sizes",
    "data_lines",
    "data_lines_at",
    "data_path",
    "data_rows",
    "draft_plan",
    "experiment_of",
    "find_benchmark",
    "find_benchmark_doubts",
    "find_data_line",
    "find_planned_line",
    "find_problem",
    "find_sample_line",
    "has_same_rows",
    "inputs_of",
    "is_benchmark_name",
    "is_same_source",
    "models_of",
    "originals",
    "pin_revisions",
    "plan_path",
    "planned_line_at",
    "planned_lines",
    "prepare",
    "read_lines",
    "resolve_benchmarks",
    "rows_of",
    "scoring_roles",
    "source_of",
    "stamp_of_data",
    "survey",
    "task_fields",
    "write_plan",
]
