"""The style sheet of the page: one calm column, figures that line up, light and dark.

Text on its background has a contrast of at least 4.5 to 1 in both schemes.
"""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --sheet: #f6f7f9; --line: #dfe3e8; --faint: #eceff3;
  --ink: #17202b; --soft: #55616f;
  --good: #11703c; --good-wash: #e4f4ea;
  --bad: #b3261e; --bad-wash: #fbe9e7;
  --warn: #875400; --warn-wash: #fcf1dd;
  --mine: #1f5fbf; --mine-wash: #dbe7fa; --other: #7a8696;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161c; --sheet: #1a2028; --line: #313a46; --faint: #242c36;
    --ink: #e6eaf0; --soft: #a0acba;
    --good: #63cf8f; --good-wash: #15301f;
    --bad: #ff8f85; --bad-wash: #3b1c1a;
    --warn: #e9b55c; --warn-wash: #36290f;
    --mine: #7db0ff; --mine-wash: #1d3152; --other: #8593a5;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Inter, "Liberation Sans", Arial, sans-serif;
}
.page { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
a { color: var(--mine); text-underline-offset: 0.15em; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--mine);
  outline-offset: 2px; }
.skip { position: absolute; left: -100rem; }
.skip:focus { left: 1rem; top: 0.5rem; background: var(--paper); padding: 0.25rem 0.5rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 0.15rem; overflow-wrap: anywhere;
  letter-spacing: -0.01em; }
h2 { font-size: 1.15rem; margin: 3rem 0 0.75rem; padding-top: 1.1rem; border-top: 1px solid var(--line); }
h3 { font-size: 0.95rem; margin: 1.75rem 0 0.5rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
.soft, figcaption, caption { color: var(--soft); font-size: 0.875rem; }
code, pre, .mono { font-family: var(--mono); font-size: 0.8125rem; overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }

.banner { margin: 1.25rem 0 1.5rem; padding: 1rem 1.25rem; border-radius: 0.6rem;
  border-left: 0.4rem solid; }
.banner.good { background: var(--good-wash); border-color: var(--good); }
.banner.bad { background: var(--bad-wash); border-color: var(--bad); }
.banner.warn { background: var(--warn-wash); border-color: var(--warn); }
.banner strong { font-size: 1.35rem; letter-spacing: 0.01em; margin-right: 0.6rem; }
.banner p:not(.soft) { color: var(--ink); }
.banner p { margin: 0.15rem 0 0; overflow-wrap: anywhere; max-width: none; }

.tiles { display: flex; flex-wrap: wrap; gap: 0.75rem; margin: 0; }
.tile { background: var(--sheet); border-radius: 0.6rem; padding: 0.7rem 0.95rem 0.8rem; min-width: 0;
  flex: 1 1 13rem; box-sizing: border-box; }
.tile dt { color: var(--soft); font-size: 0.8125rem; }
.tile dd { margin: 0; overflow-wrap: anywhere; }
.tile .value { font-size: 1.05rem; font-weight: 600; line-height: 1.4; font-variant-numeric: tabular-nums; }
.tile .detail { color: var(--soft); font-size: 0.8125rem; line-height: 1.45;
  font-variant-numeric: tabular-nums; }
.tile.speeds { flex: 3 1 30rem; }
.speed { display: grid; grid-template-columns: 5.2rem minmax(0, 1fr) auto; gap: 0 0.9rem; padding: 0.2rem 0;
  align-items: baseline; font-variant-numeric: tabular-nums; }
.speed + .speed { border-top: 1px solid var(--line); }
.speed .word { font-weight: 600; }
.speed .detail { text-align: right; }

nav { margin: 1.5rem 0 0; font-size: 0.9rem; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: 0.25rem 1.1rem; margin: 0; padding: 0; }

.scroll { overflow-x: auto; margin: 0.75rem 0; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; width: 100%; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: 0.36rem 0.75rem; border-bottom: 1px solid var(--faint); vertical-align: top;
  text-align: right; }
th:first-child, td:first-child { padding-left: 0; } th:last-child, td:last-child { padding-right: 0; }
th.text, td.text { text-align: left; }
td.text { white-space: nowrap; } tbody th.text { min-width: 7rem; overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 500; border-color: var(--line); vertical-align: bottom;
  line-height: 1.3; }
tbody th { font-weight: 400; }
tr.group th { padding-top: 0.9rem; color: var(--soft); font-size: 0.8125rem; border-color: var(--line); }
td.figure { white-space: nowrap; }
td .soft, th .soft { display: block; font-size: 0.8125rem; }
tr.mine th, tr.mine td { font-weight: 600; }

figure { margin: 1rem 0 1.25rem; }
figure .scroll { margin: 0.25rem 0; }
svg { display: block; width: 100%; min-width: 36rem; height: auto; }
svg text { font-family: inherit; font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums;
  paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round; }
svg text.strong { fill: var(--ink); } svg text.mine { fill: var(--mine); font-weight: 600; }
svg text.good { fill: var(--good); } svg text.bad { fill: var(--bad); } svg text.warn { fill: var(--warn); }
svg .grid { stroke: var(--faint); stroke-width: 1; fill: none; }
svg .axis { stroke: var(--line); fill: none; }
svg .dots { stroke: var(--other); stroke-linecap: round; fill: none; opacity: 0.55; }
svg .dots.mine { stroke: var(--mine); }
svg .bar { fill: var(--other); } svg .bar.mine { fill: var(--mine); } svg .track { fill: var(--faint); }
svg .bar.warn { fill: var(--warn); } svg .bar.bad { fill: var(--bad); }
svg .band { fill: var(--other); opacity: 0.3; } svg .band.mine { fill: var(--mine); }
svg .mark { stroke: var(--ink); stroke-width: 1.75; fill: none; }
svg .limit { stroke: var(--warn); stroke-width: 2; fill: none; }
svg .ceiling { stroke: var(--soft); stroke-width: 1.75; fill: none; }
svg .ceiling.faint { stroke: var(--other); stroke-width: 1; stroke-dasharray: 4 3; }
svg .drop { stroke: var(--mine); stroke-width: 1.25; stroke-dasharray: 2 3; fill: none; }
svg .point { fill: var(--mine); stroke: var(--paper); stroke-width: 1.5; }
svg .point.bad { fill: var(--bad); }
svg .stall { stroke: var(--paper); stroke-width: 1; }

details { border: 1px solid var(--line); border-radius: 0.5rem; margin: 0.6rem 0;
  background: var(--paper); }
summary { cursor: pointer; padding: 0.55rem 0.9rem; font-weight: 500; overflow-wrap: anywhere; }
summary .soft { font-weight: 400; margin-left: 0.5rem; }
details[open] > summary { border-bottom: 1px solid var(--line); }
details > .inside { padding: 0.4rem 0.9rem 0.75rem; }
pre { margin: 0; padding: 0.75rem 0; overflow-x: auto; line-height: 1.5; tab-size: 4; }
pre.log { padding: 0.75rem 0.9rem; white-space: pre-wrap; }
.source { counter-reset: line; overflow-wrap: normal; }
.source .row { display: block; padding: 0 0.9rem 0 0; white-space: pre; min-width: max-content; }
.source .row::before { counter-increment: line; content: counter(line); display: inline-block;
  width: 3.2rem;
  padding-right: 1rem; text-align: right; color: var(--other); user-select: none; }
.source .row.violation { background: var(--bad-wash); } .source .row.note { background: var(--warn-wash); }
.source .row:target { outline: 2px solid var(--mine); outline-offset: -2px; }
.source .remark { display: block; padding: 0.15rem 0.9rem 0.35rem 3.2rem; white-space: normal;
  font-family: system-ui, sans-serif; font-size: 0.8125rem; }
.source .remark.violation { background: var(--bad-wash); color: var(--bad); }
.source .remark.note { background: var(--warn-wash); color: var(--warn); }
.tag { display: inline-block; border-radius: 0.3rem; padding: 0 0.4rem; font-size: 0.8125rem;
  font-weight: 500; }
.tag.bad { background: var(--bad-wash); } .tag.warn { background: var(--warn-wash); }
.tag.good { background: var(--good-wash); }
.cell-break { display: inline-block; white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
.inputs { display: inline-block; white-space: normal; min-width: 12.5rem; }
dl.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.2rem 1.25rem;
  font-size: 0.9rem; }
dl.facts dt { color: var(--soft); } dl.facts dd { margin: 0; overflow-wrap: anywhere; }

.k { color: #8430b5; } .s { color: #0b6b3a; } .c { color: #5b6875; font-style: italic; }
.n { color: #9a4b00; }
.f { color: #1450a8; } .p { color: #6c4a00; }
@media (prefers-color-scheme: dark) {
  .k { color: #d8a2ff; } .s { color: #86d9a8; } .c { color: #95a2b1; } .n { color: #f2b27c; }
  .f { color: #8fbcff; } .p { color: #e3c887; }
}
@media (max-width: 40rem) {
  .page { padding: 1.25rem 1rem 3rem; }
  .speed { grid-template-columns: 4.2rem minmax(0, 1fr); }
  .speed .detail { grid-column: 2; text-align: left; }
  dl.facts { grid-template-columns: 1fr; } dl.facts dd { margin-bottom: 0.4rem; }
}
@media print { details:not([open]) { display: none; } .page { max-width: none; } nav { display: none; } }
""".strip()
