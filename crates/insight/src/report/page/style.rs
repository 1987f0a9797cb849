//! The style sheet: light and dark, wide and narrow.

/// All of it. Colours follow the reader's preference; a row is one line on a wide screen and two on a narrow one.
pub(super) const STYLE: &str = "
:root { --page: #ffffff; --ink: #1a1d21; --soft: #5b6570; --line: #d7dce1; --box: #f4f6f8; --pattern: rgba(0,0,0,.42);
  --work: #b9d8c9; --input: #f0a63c; --own: #b58f6b; --late: #e0704a; --sequential: #c58bc0; --checkpoint: #e9d64a; --agreement: #8cc8ee;
  --packing: #a9b4e6; --transfer: #4f93c9; --other: #c4c8cc; --gain: #1c6b43; --caution: #9a3d00; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e8eaed; --soft: #a3adb7; --line: #363c43; --box: #1e2328;
  --pattern: rgba(255,255,255,.5); --work: #2f5d49; --input: #a8660d; --own: #6f4f30; --late: #a63e1b; --sequential: #80477b; --checkpoint: #84750a;
  --agreement: #22688f; --packing: #4a5693; --transfer: #1f5a8c; --other: #50565c; --gain: #7fd3a5; --caution: #ffb077; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
header { border-bottom: 1px solid var(--line); padding-bottom: 1rem; }
h1 { font-size: clamp(1.25rem, 3.5vw, 1.8rem); line-height: 1.3; margin: .2rem 0 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .8rem; }
h3 { font-size: 1rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
p { margin: .3rem 0; }
.subject, .note, .evidence, .number, .axis { color: var(--soft); }
.subject, .note, .evidence { font-size: .9rem; }
.patterns { position: absolute; }
.patterns path, .patterns circle { stroke: var(--pattern); fill: none; stroke-width: 1; }
.patterns circle { fill: var(--pattern); stroke: none; }
.c-work { fill: var(--work); } .c-input { fill: var(--input); } .c-own { fill: var(--own); } .c-late { fill: var(--late); }
.c-sequential { fill: var(--sequential); } .c-checkpoint { fill: var(--checkpoint); } .c-agreement { fill: var(--agreement); }
.c-packing { fill: var(--packing); } .c-transfer { fill: var(--transfer); } .c-other { fill: var(--other); }
.bars { display: grid; gap: .35rem; }
.row { display: grid; grid-template-columns: minmax(6rem, 13rem) 1fr 5.2rem; gap: .7rem; align-items: center; }
.name { overflow-wrap: anywhere; font-size: .92rem; line-height: 1.25; }
.number { text-align: right; font-variant-numeric: tabular-nums; font-size: .92rem; white-space: nowrap; }
.bar { display: block; height: 1.5rem; background: var(--box); border-radius: 2px; }
.double { height: 1.9rem; }
.strip { height: 1.6rem; }
.absent { border: 1px dashed var(--line); color: var(--soft); font-size: .85rem; padding: 0 .5rem; }
.overview { height: 9rem; }
.axis { display: flex; justify-content: space-between; font-size: .78rem; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; list-style: none; margin: 0 0 .8rem; padding: 0; font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: .45rem; }
.swatch { width: 1.8rem; height: 1.1rem; border: 1px solid var(--line); }
.findings { padding-left: 1.4rem; margin: 0; }
.findings > li { margin-bottom: 1.6rem; }
.findings > li::marker { font-weight: 600; }
.advice { border-left: 3px solid var(--line); padding: .1rem 0 .1rem .9rem; margin: .8rem 0; }
pre { background: var(--box); padding: .5rem .7rem; margin: .4rem 0; font-size: .82rem; line-height: 1.45; border-radius: 3px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.gain { color: var(--gain); font-weight: 600; }
.caution { color: var(--caution); }
.alarm { border: 2px solid var(--caution); border-radius: 3px; padding: .5rem .9rem; margin: 1.2rem 0 0; }
.alarm strong { color: var(--caution); text-transform: uppercase; }
.alarm ul { margin: .4rem 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin-top: .8rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); font-weight: 400; white-space: nowrap; }
th[scope=row], th:first-child { text-align: left; }
th[scope=col] { color: var(--soft); }
td.words, th:last-child { text-align: left; } td.words { white-space: normal; min-width: 6rem; }
#generations h3 { margin-top: 1.2rem; }
.depth1 { padding-left: 1.2rem; } .depth2 { padding-left: 2.4rem; } .depth3 { padding-left: 3.6rem; }
@media (max-width: 36rem) {
  .row { grid-template-columns: 1fr auto; gap: .1rem .6rem; }
  .row .bar, .row .axis, .row .absent { grid-column: 1 / -1; grid-row: 2; }
  .bars { gap: .7rem; }
}
";
