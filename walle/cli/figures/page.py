"""Page of all figures: one self-contained HTML file, with pictures inline."""

import base64
import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from walle.cli.figures.catalogue import Figure
from walle.cli.figures.headline import Headline
from walle.cli.figures.load_tests import LoadTest
from walle.cli.figures.run import FigureResult

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; color: #222; }
pre { background: #f5f5f5; padding: 0.8em; overflow-x: auto; font-size: 12px; line-height: 1.35; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 0.15em 0.9em 0.15em 0; vertical-align: top; }
.failed, .late { color: #b00020; } .missing { color: #777; } img { max-width: 100%; }
#in-short td { border-top: 1px solid #ddd; }
section { border-top: 1px solid #ccc; margin-top: 2em; } dt { font-weight: 600; } dd { margin: 0 0 0.4em 0; }
"""
_WORDS = {"ok": "measured", "failed": "failed", "late": "took too long"}


def page(
    rows: Sequence[tuple[Figure, FigureResult | None]], pictures: Path, load_tests: Sequence[LoadTest] = ()
) -> str:
    """Return the page of figures and their results, None for one that was not measured.

    `pictures` is the folder to which benchmarks write; a picture from before its figure's run is left out. The pages of
    `load_tests` are linked to.
    """
    results = [result for _, result in rows if result is not None]
    count = {status: sum(one.status == status for one in results) for status in _WORDS}
    seconds = sum(one.seconds for one in results)
    is_quick = any(one.quick for one in results)
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Figures of Walle</title>",
        f"<style>{_STYLE}</style><h1>Figures of Walle</h1>",
        (
            f"<p>{count['ok']} of {len(rows)} figures were measured in {seconds / 60:.1f} minutes;"
            f" {count['failed'] + count['late']} failed, {len(rows) - len(results)} were not run. Written"
            f" {time.strftime('%Y-%m-%d %H:%M:%S %Z')}.</p>"
        ),
    ]
    if is_quick:
        parts.append("<p><strong>Some are from --quick: few repetitions, and sizes far below the paper's.</strong></p>")
    parts.append("<p>The numbers of the paper are from its own phones and servers, and do not compare directly.</p>")
    heads = ("figure", "the paper", "ours", "best peer or baseline", "seconds")
    parts.append("<table id='in-short'><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>")
    parts += [_row(figure, result) for figure, result in rows]
    parts.append("</table>")
    parts += [_load_tests(load_tests)]
    parts += [_section(figure, result, pictures) for figure, result in rows]
    return "\n".join(parts) + "\n</html>\n"


def _row(figure: Figure, result: FigureResult | None) -> str:
    """Return a figure's rows, one for each headline, or one that says what became of it."""
    link = f"<a href='#{escape(figure.name, quote=True)}'>{escape(figure.title)}</a>"
    paper = f"{escape(figure.section)}: {escape(figure.short)}"
    headlines = result.headlines if result is not None else []
    seconds = f"{result.seconds:.1f}" if result is not None else ""
    status = result.status if result is not None else "missing"
    measured = [
        f"<td><b>{escape(one.shown(one.ours))}</b><br><small>{escape(one.title())}</small></td>"
        f"<td>{escape(best_peer(one))}</td>"
        for one in headlines
    ] or [f"<td class='{status}'>{escape(outcome(result))}</td><td></td>"]
    first, *others = measured
    span = f"<td rowspan='{len(measured)}'>"
    lines = [f"<tr>{span}{link}</td>{span}{paper}</td>{first}{span}{seconds}</td></tr>"]
    return "\n".join(lines + [f"<tr>{one}</tr>" for one in others])


def outcome(result: FigureResult | None) -> str:
    """Return in words what became of a figure that has no headline."""
    if result is None:
        return "not run"
    return "measured, but without a headline" if result.status == "ok" else _WORDS[result.status]


def best_peer(headline: Headline) -> str:
    """Return the best peer with its number, and which peers have none and why."""
    if not headline.peers:
        return "no peer in this benchmark"
    best, absent = headline.best_peer(), headline.absent()
    shown = f"{best[0]} {headline.shown(best[1])}" if best else ""
    return "; ".join(filter(None, (shown, absent)))


def _load_tests(found: Sequence[LoadTest]) -> str:
    parts = ["<h2 id='load-tests'>Load tests</h2>"]
    if not found:
        parts.append("<p class='missing'>None was run. <code>make loadtest</code> runs them, one by one.</p>")
    for one in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(one.ended_s))
        status, word = ("failed", f"{one.wrong} wrong results") if one.wrong else ("ok", "no wrong result")
        link = f"<a href='{escape(one.link, quote=True)}'>{escape(one.title)}</a>"
        parts.append(
            f"<p>{link}: <span class='{status}'>{word}</span>. {escape(one.summary)}"
            f" (<code>{escape(one.command)}</code>, {when})</p>"
        )
    return "\n".join(parts)


def _section(figure: Figure, result: FigureResult | None, pictures: Path) -> str:
    paper = figure.paper or "no number"
    parts = [
        f"<section id='{escape(figure.name, quote=True)}'><h2>{escape(figure.title)}</h2>",
        f"<dl><dt>The paper ({escape(figure.section)})</dt><dd>{escape(paper)}</dd>",
    ]
    if result is None:
        return "\n".join([*parts, "</dl><p class='missing'>Not run.</p></section>"])
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(result.started_s))
    parts += [
        f"<dt>Command</dt><dd><code>{escape(result.command)}</code>, {when}, {result.seconds:.1f} s</dd>",
        f"<dt>Machine</dt><dd>{_listed(result.machine.items())}</dd>",
        (
            f"<dt>Versions</dt><dd>{_listed(result.versions.items())};"
            f" commit {escape(result.revision[:12] or 'unknown, or with changes')}</dd></dl>"
        ),
    ]
    if result.status != "ok":
        parts.append(f"<p class='{result.status}'>This figure {_WORDS[result.status]}. Its last lines:</p>")
        parts.append(f"<pre class='{result.status}'>{escape(result.error)}</pre>")
    if result.output.strip():
        peers = " and the peers" if figure.peers else ""
        parts.append(f"<h3>Ours{peers}, in this run</h3><pre>{escape(result.output.strip())}</pre>")
    for name in figure.pictures:
        path = pictures / name
        if result.status == "ok" and path.exists() and path.stat().st_mtime >= result.started_s - 1:
            data = base64.b64encode(path.read_bytes()).decode()
            parts.append(f"<img alt='{escape(figure.title, quote=True)}' src='data:image/png;base64,{data}'>")
    return "\n".join([*parts, "</section>"])


def _listed(pairs: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{escape(key)} {escape(value)}" for key, value in pairs)
