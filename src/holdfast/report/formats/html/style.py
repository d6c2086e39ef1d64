"""The style sheet of the HTML report: system fonts, light and dark, paper.

Colours are variables, so that figures follow the reader's theme. Paper is always light. Data is drawn with SVG shapes,
not with backgrounds, because browsers leave backgrounds out when they print.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fff; --panel: #f6f7f8; --ink: #1b1f24; --muted: #59636e; --line: #dfe3e8; --strong-line: #b3bac2;
  --accent: #2457c5; --right: #17713f; --wrong: #b42318; --warn: #8a5300;
  --right-tint: #e6f4ec; --wrong-tint: #fdecea; --warn-tint: #fdf3e0; --accent-tint: #e8effc;
  --c0: #2457c5; --c1: #c2410c; --c2: #0f766e; --c3: #9d2c8a; --c4: #a16207; --c5: #0369a1; --c6: #57534e;
  --c7: #7c3aed;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --panel: #1c2127; --ink: #e6e9ed; --muted: #a3adb8; --line: #2f363e; --strong-line: #525c67;
    --accent: #86abff; --right: #67cf95; --wrong: #ff958a; --warn: #ecb765;
    --right-tint: #17301f; --wrong-tint: #3a1d1b; --warn-tint: #33270f; --accent-tint: #1c2a47;
    --c0: #86abff; --c1: #fb923c; --c2: #5eead4; --c3: #f0a6e3; --c4: #facc15; --c5: #7dd3fc; --c6: #d6d3d1;
    --c7: #c4b5fd;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; overflow-wrap: anywhere; }
h1, h2, h3, h4 { line-height: 1.25; margin: 0; text-wrap: balance; }
h1 { font-size: 2rem; letter-spacing: -.015em; margin-top: .15rem; }
h2 { font-size: 1.3rem; letter-spacing: -.01em; }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .6rem; }
h4 { font-size: .95rem; margin: 1.25rem 0 .5rem; }
p { margin: .6rem 0; max-width: 46rem; }
section { margin-top: 2.5rem; padding-top: 1.25rem; border-top: 1px solid var(--line); }
header + section, .notice + section { margin-top: 1.25rem; }
code, pre, .mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  font-size: .875em; }
small, .small { font-size: .875rem; }
.muted { color: var(--muted); }
.eyebrow { margin: 0; font-size: .875rem; color: var(--muted); }
.status { display: inline-block; padding: .12rem .6rem; border-radius: 1rem; font-size: .875rem; font-weight: 600;
  letter-spacing: 0; vertical-align: .25em; background: var(--accent-tint); color: var(--accent); }
.completed { background: var(--right-tint); color: var(--right); }
.failed, .stalled { background: var(--wrong-tint); color: var(--wrong); }
.interrupted, .cancelled { background: var(--warn-tint); color: var(--warn); }
.notice { margin: 1.25rem 0 0; padding: .7rem 1rem; border-left: 4px solid var(--warn); background: var(--warn-tint);
  border-radius: 0 .4rem .4rem 0; }
.notice p { margin: .2rem 0; max-width: none; }
.facts { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: 1.4rem 0 0; }
.facts dt { font-size: .875rem; color: var(--muted); }
.facts dd { margin: 0; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.facts dd small { font-weight: 400; color: var(--muted); }
.summary { margin: .9rem 0 0; padding: 0; list-style: none; font-size: 1.0625rem; }
.summary li + li { margin-top: 1rem; }
.summary p { margin: .2rem 0; max-width: 52rem; }
.notes { margin: .75rem 0 0; padding: 0; list-style: none; font-size: .875rem; color: var(--muted); max-width: 56rem; }
.notes li { margin: .25rem 0; }
.wide { overflow-x: auto; margin-top: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .42rem .9rem .42rem 0; border-top: 1px solid var(--line); vertical-align: top;
  font-weight: 400; max-width: 24rem; }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-size: .8125rem; font-weight: 600; color: var(--muted); border: 0; white-space: nowrap;
  vertical-align: bottom; }
tbody tr:first-child > *, tfoot > tr > * { border-top-color: var(--strong-line); }
tr.more > * { border-top: 0; padding-top: .1rem; }
tfoot > tr > * { font-weight: 600; }
.number { text-align: right; white-space: nowrap; overflow-wrap: normal; }
td.name, th.name { min-width: 5.75rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 2rem 3rem;
  margin-top: 1.25rem; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
figcaption { font-weight: 600; margin-bottom: .5rem; }
figcaption small { display: block; font-weight: 400; color: var(--muted); }
.chart { display: grid; grid-template-columns: fit-content(38%) minmax(6rem, 1fr) max-content; column-gap: 1rem;
  align-items: center; font-size: .9rem; }
.chart .group { grid-column: 1 / -1; font-size: .8125rem; font-weight: 600; color: var(--muted); padding-top: .35rem; }
.chart .value { font-variant-numeric: tabular-nums; text-align: right; font-weight: 600; line-height: 1.2; }
.chart .value small { display: block; font-weight: 400; color: var(--muted); font-size: .8rem; }
.chart .axis { grid-column: 2; }
.figures > :only-child .plot, .figures > :only-child .chart { max-width: 44rem; }
.plot { display: grid; grid-template-columns: 3rem minmax(0, 1fr); column-gap: .75rem; padding-right: 1rem; }
.plot .axis { grid-column: 2; }
svg { display: block; overflow: visible; width: 100%; }
.grid { stroke: var(--line); stroke-width: 1; }
.zero { stroke: var(--strong-line); stroke-width: 1.5; }
.range { stroke: var(--accent); stroke-width: 7; stroke-linecap: round; opacity: .32; }
.thin { stroke: var(--accent); stroke-width: 2; stroke-linecap: round; opacity: .55; }
.dot { fill: var(--accent); stroke: var(--page); stroke-width: 1.5; }
svg text { fill: var(--muted); font-size: 12px; font-family: inherit; font-variant-numeric: tabular-nums; }
.line { stroke-width: 2; fill: none; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .5rem 0 0; padding: 0; list-style: none;
  font-size: .875rem; }
.legend svg { display: inline-block; width: 12px; margin-right: .4rem; }
.k0 { stroke: var(--c0); fill: var(--c0); } .k1 { stroke: var(--c1); fill: var(--c1); }
.k2 { stroke: var(--c2); fill: var(--c2); } .k3 { stroke: var(--c3); fill: var(--c3); }
.k4 { stroke: var(--c4); fill: var(--c4); } .k5 { stroke: var(--c5); fill: var(--c5); }
.k6 { stroke: var(--c6); fill: var(--c6); } .k7 { stroke: var(--c7); fill: var(--c7); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
.card { padding: .9rem 1.1rem; border: 1px solid var(--line); border-left: 4px solid var(--strong-line);
  border-radius: .4rem; break-inside: avoid; min-width: 0; }
.wide-card { grid-column: 1 / -1; }
.card.right, .card.highest { border-left-color: var(--right); }
.card.wrong, .card.lowest, .card.failure { border-left-color: var(--wrong); }
.card > :first-child { margin: 0 0 .6rem; font-size: 1rem; }
.card > :first-child small { font-weight: 400; color: var(--muted); margin-left: .4rem; }
.card dl { display: grid; grid-template-columns: 4.5rem minmax(0, 1fr); gap: .35rem .75rem; margin: 0; }
.card dt { font-size: .875rem; color: var(--muted); padding-top: .08rem; }
.card dd { margin: 0; }
.text { white-space: pre-wrap; overflow: hidden; unicode-bidi: plaintext; }
pre.text { margin: 0; }
.scrolled { max-height: 24rem; overflow: auto; }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: 1rem 2rem;
  margin-top: .75rem; padding-top: .75rem; border-top: 1px solid var(--line); }
.answer { min-width: 0; }
.answer .label { font-size: .875rem; color: var(--muted); margin-bottom: .15rem; }
.answer .text { font-size: .95rem; }
.scores { margin: .5rem 0 0; padding: 0; list-style: none; font-size: .8125rem; color: var(--muted); }
.scores li { margin: .25rem 0; }
.chip { display: inline-block; padding: .05rem .55rem; border-radius: 1rem; background: var(--panel);
  color: var(--muted); }
.chip.right { background: var(--right-tint); color: var(--right); }
.chip.wrong, .chip.failure { background: var(--wrong-tint); color: var(--wrong); }
details > summary { cursor: pointer; color: var(--accent); font-size: .875rem; padding: .2rem 0; }
details > summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; border-radius: 2px; }
details[open] > summary { margin-bottom: .5rem; }
.passage:has(> details[open]) > .head { display: none; }
.provenance > summary { color: var(--ink); font-size: 1rem; }
.provenance > summary h2 { display: inline; }
.provenance pre { padding: .9rem 1.1rem; background: var(--panel); border-radius: .4rem; white-space: pre-wrap; }
@media (max-width: 40rem) {
  main { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.6rem; }
  .facts { gap: .9rem 1.75rem; }
  .chart { grid-template-columns: minmax(0, 1fr) max-content; row-gap: .1rem; }
  .chart .label { grid-column: 1 / -1; padding-top: .4rem; }
  .chart .axis { grid-column: 1; }
  .card { padding: .8rem .9rem; }
  .card dl { grid-template-columns: minmax(0, 1fr); gap: .1rem; }
  .card dd { margin-bottom: .5rem; }
}
@media print {
  @page { margin: 16mm 14mm; }
  html { font-size: 80%; }
  main { max-width: none; padding: 0; }
  h2, h3, h4 { break-after: avoid; }
  tr { break-inside: avoid; }
  section { margin-top: 1.5rem; }
  section > .small { break-after: avoid; }
  .figures { grid-template-columns: 1fr 1fr; }
  .wide { overflow: visible; }
  .more > summary, .again, .spec { display: none; }
  .notice, .card { border-color: var(--strong-line); }
  details.provenance::details-content, details.fold::details-content { content-visibility: visible; block-size: auto; }
}
""".strip()
