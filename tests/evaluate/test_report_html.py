"""The HTML page: well-formed, self-contained, and closed to what a candidate wrote."""

from __future__ import annotations

import dataclasses
import math
import re
from html.parser import HTMLParser

import pytest
import report_documents as made
from report_documents import HOSTILE, document

from kernels.evaluate.evaluation import Source
from kernels.report.compare import page as comparison_page
from kernels.report.html import page
from kernels.report.html_parts.axes import scale_for, tick_text
from kernels.report.html_parts.markup import Markup, element
from kernels.report.html_parts.style import CSS

EVERY = (made.passing_cpu, made.passing_cuda, made.wrong_output, made.cheat, made.compile_error)
VOID = {"br", "col", "meta"}


class Reader(HTMLParser):
    """Collects what a page is made of, and fails on tags that do not balance."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} says {attrs}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def values(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


PAGES = {make.__name__: page(document(make())) for make in EVERY}
PAGES["comparison"] = comparison_page([document(make()) for make in EVERY])


@pytest.mark.parametrize("text", PAGES.values(), ids=PAGES)
def test_the_page_is_well_formed(text: str) -> None:
    reader = Reader(text)
    assert text.startswith("<!DOCTYPE html>\n<html ")
    ids = reader.values("id")
    assert len(ids) == len(set(ids))
    for target in reader.values("href"):
        assert target.startswith("#") and target[1:] in ids
    for named in reader.values("aria-labelledby"):
        assert set(named.split()) <= set(ids)


@pytest.mark.parametrize("text", PAGES.values(), ids=PAGES)
def test_the_page_needs_nothing_and_runs_nothing(text: str) -> None:
    reader = Reader(text)
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "img", "link", "iframe", "object", "embed", "form", "base"}
    names = {name for _, attrs in reader.tags for name in attrs}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "srcset", "xlink:href"}
    assert "url(" not in text and "@import" not in text and "http" not in re.sub("http-equiv", "", text)
    (policy,) = [attrs["content"] for _, attrs in reader.tags if attrs.get("http-equiv")]
    assert policy is not None and policy.startswith("default-src 'none'")


def test_a_candidate_cannot_break_out() -> None:
    reader = Reader(PAGES["cheat"])
    # All of it is there, as text and nothing else; what cannot be seen is written out.
    assert (
        reader.text.count("<script>alert(1)</script><img src=x onerror=alert(2)><1b>[31m[red]<202e>&amp;\"'")
        > 15
    )
    for character in "\x1b\u202e":
        assert character not in PAGES["cheat"]


@pytest.mark.parametrize("text", PAGES.values(), ids=PAGES)
def test_every_picture_is_told_in_words(text: str) -> None:
    reader = Reader(text)
    pictures = [attrs for tag, attrs in reader.tags if tag == "svg"]
    assert all(attrs["role"] == "img" and attrs["aria-labelledby"] for attrs in pictures)
    assert sum(tag == "desc" for tag, _ in reader.tags) == len(pictures)
    # Whatever scrolls can be reached by the keyboard and has a name.
    for _, attrs in reader.tags:
        if "scroll" in (attrs.get("class") or "").split() and "log" not in (attrs.get("class") or ""):
            assert attrs.get("tabindex") == "0" and attrs.get("aria-label")


def test_everything_measured_on_a_gpu_is_drawn() -> None:
    reader = Reader(PAGES["passing_cuda"])
    titles = set(reader.values("id"))
    assert {
        "timing-0-title",
        "precision-plot-title",
        "roofline-plot-title",
        "launches-plot-title",
        "counters-plot-title",
    } <= titles
    for said in (
        "60 % of the launch limit",
        "4050 GB/s",
        "bfloat16",
        "long scoreboard 34 %",
        "HMMA 96",
        "2 errors",
    ):
        assert said in reader.text


def test_every_sample_is_a_dot() -> None:
    given = document(made.passing_cpu())
    dots = re.findall(r'<path d="([^"]*)" class="dots', page(given))
    rows = given["timing"]["rows"]
    # Once on the shared axis, once against the way's own median.
    assert sum(path.count("h0") for path in dots) == 2 * sum(len(row["samples_us"]) for row in rows)


def test_the_spread_is_left_out_where_the_shared_axis_shows_it() -> None:
    evaluation = made.passing_cpu()
    assert evaluation.timing is not None
    row = evaluation.timing.rows[0]
    for factor, pictures in ((1.5, 2), (3.0, 1)):
        far = dataclasses.replace(row, samples_us=(*row.samples_us, factor * row.samples_us[0]))
        timing = dataclasses.replace(evaluation.timing, rows=(far,))
        text = page(document(dataclasses.replace(evaluation, timing=timing)))
        assert text.count('class="dots mine"') == pictures


def test_findings_stand_at_their_lines() -> None:
    text = PAGES["cheat"]
    assert 'class="row violation" id="candidate-0-L3"' in text
    assert 'href="#candidate-0-L3"' in text
    assert re.search(r'class="remark violation">violation patched-clock: replaces', text)


def test_sources_keep_their_lines() -> None:
    without_remarks = dataclasses.replace(made.passing_cpu(), findings=())
    reader = Reader(page(document(without_remarks)))
    assert made.CANDIDATE in reader.text and made.REFERENCE in reader.text
    anchors = [one for one in reader.values("id") if one.startswith("candidate-0-L")]
    assert anchors == [f"candidate-0-L{line}" for line in range(1, made.CANDIDATE.count("\n") + 1)]


@pytest.mark.parametrize("path", ["a.cu", "a.c", "a.py", "no_suffix"])
@pytest.mark.parametrize(
    "text", ["", "\n", "no newline", "\0\ud800", "x = '''\nunclosed", "<" * 1000, "a\r\nb\rc"]
)
def test_any_source_can_be_shown(path: str, text: str) -> None:
    evaluation = made.passing_cpu()
    subject = dataclasses.replace(evaluation.subject, candidate=(Source(path, "00", text),))
    Reader(page(document(dataclasses.replace(evaluation, subject=subject))))


def test_odd_numbers_can_be_drawn() -> None:
    evaluation = made.passing_cuda()
    assert evaluation.timing is not None and evaluation.roofline is not None
    row = evaluation.timing.rows[0]
    rows = (
        dataclasses.replace(row, samples_us=(3.0,), low_us=None, high_us=None),
        dataclasses.replace(row, name="same", samples_us=(3.0, 3.0, 3.0)),
        dataclasses.replace(row, name="zero", samples_us=(0.0, 1e9)),
    )
    output = evaluation.trials[0].outputs[0]
    outputs = tuple(
        dataclasses.replace(output, own_error_units=units, reference_error=error)
        for units, error in ((0.0, 0.0), (math.inf, 0.0), (math.nan, 1e-7), (None, None), (1e30, 1e-30))
    )
    trials = (dataclasses.replace(evaluation.trials[0], outputs=outputs),)
    for flops, rates in (
        (0, {"float32": 1.0}),
        (10, {}),
        (10, {"float32": 0.0}),
        (10**18, {"float32": 1e-3}),
    ):
        ceilings = dataclasses.replace(evaluation.roofline.ceilings, tflops=rates)
        changed = dataclasses.replace(
            evaluation,
            trials=trials,
            timing=dataclasses.replace(evaluation.timing, rows=rows),
            roofline=dataclasses.replace(evaluation.roofline, flops=flops, ceilings=ceilings),
            launches=(),
        )
        reader = Reader(page(document(changed)))
        assert not re.search(r"\b(nan|inf)\b", " ".join(reader.values("d") + reader.values("cx")))


def test_a_counter_that_could_not_be_read_is_nothing() -> None:
    evaluation = made.passing_cuda()
    assert evaluation.counters is not None
    blind = dataclasses.replace(evaluation.counters[0], occupancy_pct=math.nan, stalls_pct={"wait": math.nan})
    text = page(document(dataclasses.replace(evaluation, counters=(blind,))))
    assert "occupancy - %" in text and "nan" not in text


def test_memory_that_could_not_be_told_is_nothing() -> None:
    passed = made.passing_cuda()
    assert passed.memory is not None
    unknown = dataclasses.replace(passed.memory, direct_bytes=None)
    text = page(document(dataclasses.replace(passed, memory=unknown)))
    assert "None" not in text.partition("Memory of one call")[2].partition("</table>")[0]


def test_markup_is_only_what_was_made_as_markup() -> None:
    assert element("p", "<b>", Markup("<i>x</i>"), title=HOSTILE).count("<") == 4
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert element("details", open=True, id=None, hidden=False) == "<details open></details>"


@pytest.mark.parametrize("values", [[2.69, 181.0], [1.0, 1.2], [5.0], [1e-9, 1e9], [0.0, 3.0], [-5.0, 17.0]])
def test_axes_hold_their_values_and_have_round_marks(values: list[float]) -> None:
    scale = scale_for(values, 10.0, 90.0)
    places = [scale.place(value) for value in values]
    assert all(10 <= place <= 90 for place in places) and places == sorted(places)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 13
    assert all(scale.low <= tick * 1.001 + 1e-12 and tick <= scale.high * 1.001 for tick in ticks)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (0.5, "0.5"), (20.0, "20"), (1000.0, "1,000"), (1e-7, "1e-07"), (-5.0, "-5")],
)
def test_tick_text(value: float, expected: str) -> None:
    assert tick_text(value) == expected


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_contrast_in_both_schemes(scheme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    pairs = [
        (ink, paper) for ink in ("ink", "soft", "good", "bad", "warn", "mine") for paper in ("paper", "sheet")
    ]
    pairs += [(one, f"{one}-wash") for one in ("good", "bad", "warn")]
    pairs += [(ink, f"{one}-wash") for ink in ("ink", "soft") for one in ("good", "bad", "warn")]
    for ink, paper in pairs:
        light, dark = sorted((_luminance(colours[ink]), _luminance(colours[paper])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, paper)


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="supported: schema 1"):
        page({**document(made.passing_cpu()), "schema": 2})
