# SPDX-License-Identifier: BSD-2-Clause
"""The style of the HTML report: one column, light and dark, phone and paper. Its hash stands in the page's policy."""

STYLE = """
:root{--ink:#1b1f24;--quiet:#5b6570;--paper:#fff;--card:#f5f7f9;--line:#d9dee3;--pass:#1a7f37;--warn:#8a5300;
--fail:#b42318;--cable:#2f6fdb}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ec;--quiet:#98a3ae;--paper:#14181c;--card:#1d2328;--line:#343c44;
--pass:#4cc46a;--warn:#e2a336;--fail:#ff7b6e;--cable:#7aa7f7}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:62rem;margin:0 auto;padding:1.5rem 1rem 3rem}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 .3rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
h3{font-size:.95rem;margin:1.1rem 0 .3rem;overflow-wrap:anywhere}
p{margin:.3rem 0;overflow-wrap:anywhere}
header p:first-child{margin:0}
.quiet{color:var(--quiet);font-size:.87rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.7rem;margin-top:1.2rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.7rem .9rem}
.card p{margin:0}
.figure{font-size:1.25rem;font-weight:600}
.wide{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;width:100%;font-size:.87rem}
th,td{text-align:left;vertical-align:top;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--quiet);white-space:nowrap}
td{overflow-wrap:break-word;min-width:3rem;max-width:24rem}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.whole{white-space:nowrap}
.mark{font-weight:600}
.pass{color:var(--pass)}.warn{color:var(--warn)}.fail{color:var(--fail)}
details{margin:.5rem 0}
summary{cursor:pointer}
ul{margin:.3rem 0;padding-left:1.2rem}
li{overflow-wrap:anywhere;font-size:.9rem}
code,pre{font:.82rem/1.45 ui-monospace,monospace;overflow-wrap:anywhere}
pre{white-space:pre-wrap;background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.6rem .8rem;
max-height:26rem;overflow-y:auto}
.topology{display:block;width:100%;max-width:24rem;margin:.6rem 0}
.topology .box{fill:var(--card);stroke:var(--line)}
.topology .cable{stroke:var(--cable);stroke-width:2}
.topology .arrow{fill:var(--cable)}
.topology text{fill:var(--ink);font:12px system-ui,sans-serif}
.topology .name{font-weight:600;font-size:13px}
.topology .note{fill:var(--quiet);font-size:11px}
@media print{main{max-width:none;padding:0}body{font-size:11px}section{break-inside:auto}tr,.card{break-inside:avoid}
details::details-content{content-visibility:visible;block-size:auto}.wide{overflow:visible}
pre{max-height:none}}
"""
