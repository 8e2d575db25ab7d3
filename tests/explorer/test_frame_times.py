"""Milliseconds of a redraw of every view and mode: ``python -m pytest -s -q -m slow tests/explorer/test_frame_times.py`` prints the table.

The page's own script (computing and changing the page; layout and painting by the browser are not in it), 60 redraws after 30 that are
not counted. A screen shows a frame every 16 ms.
"""

import pytest
from in_chromium import needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]

UNITS = "keys: points, values: points.map((p) => p[0]), weights: points.map(() => 1)"
QUERIES = "{ query: [k / 40 - 1, 0.2] }"
WORDS = 'sentence: "a dog with a cat in the small red boats"'
DAMPING = "{ damping: (k % 15) / 20 }"
# View, what is set once with twelve points, and what each redraw sets. View 3 has three units by its triangle, view 8 ten words.
MODES = {
    "1, attention is a posterior": ("posterior", UNITS, QUERIES),
    "1, linked, with a background": ("posterior", f"{UNITS}, linked: true, background: 0.2", QUERIES),
    "2, same attention, another model": ("same-attention", "keys: points, queries: points", "{ degrees: k }"),
    "3, the evidence bound": ("evidence-bound", "", "{ precision: 1 + k / 90 }"),
    "4, from k-means to attention": ("soft-kmeans", "centers: points", "{ gamma: 1 + k / 90 }"),
    "5, mean or mode": ("mean-or-mode", "values: points, weights: points.map(() => 1), sd: 0.5", "{ start: [k / 90, 0.2] }"),
    "6, keys adapt, each key": ("keys-adapt", "keys: points, queries: points", QUERIES),
    "6, keys adapt, one shift": ("keys-adapt", 'keys: points, queries: points, adapt: "shift"', QUERIES),
    "6, keys adapt, both": ("keys-adapt", 'keys: points, queries: points, adapt: "both"', QUERIES),
    "7, memory, softmax": ("memory", "patterns: points", "{ start: [k / 90, 0.2] }"),
    "7, memory, 1.5-entmax": ("memory", 'patterns: points, transformation: "entmax15"', "{ start: [k / 90, 0.2] }"),
    "7, memory, sparsemax": ("memory", 'patterns: points, transformation: "sparsemax"', "{ start: [k / 90, 0.2] }"),
    "8, mean field, heads, then labels": ("mean-field", f'{WORDS}, schedule: "asynchronous"', DAMPING),
    "8, mean field, all at once": ("mean-field", f'{WORDS}, schedule: "synchronous"', DAMPING),
    "8, mean field, word by word": ("mean-field", f'{WORDS}, schedule: "sequential"', DAMPING),
    "9, fool the diagnostics": ("fool-the-diagnostics", "", "{ separation: 4 + (k % 9) / 10 }"),
    "10, a memory is a regression": ("regression", "keys: points.slice(4), values: points.slice(4).map((p) => p[0]), read: 8", QUERIES),
    "11, two keys a unit": ("two-keys", "", QUERIES),
    "12, together, or each on its own (five queries)": ("together", "queries: points.slice(0, 5)", QUERIES),
    "13, what was never taught": ("novelty", "", QUERIES),
    "14, the funnel, sixty steps in units of σ": ("funnel", 'coordinates: "units", steps: 60', "{ momentum: [k / 90, 0.6] }"),
    "11, two keys, only the likelier": ("two-keys", 'assignment: "hard"', QUERIES),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def table():
    print("\n| view | quickest | median | 57th of 60 |\n| --- | --- | --- | --- |")


@pytest.mark.parametrize("mode", MODES)
def test_a_frame_takes_less_than_16_ms(visit, record_property, mode):
    """The quickest of 60 redraws, asked ten times at most: the machine may be busy with other tests. The median is recorded."""
    view, once, each = MODES[mode]
    page = visit(f"#{view}").page
    page.evaluate(f"""() => {{
        const random = explorer.modules["math/random"].generator(3);
        const points = Array.from({{ length: 12 }}, () => [random.normal(), random.normal()]);
        explorer.set({{ {once} }}); }}""")
    if view == "mean-field":  # what it sums when nobody moves it is no part of a frame
        page.locator('[data-value="annealed"][data-json]').wait_for(state="attached")
    for _ in range(10):
        page.evaluate(f"() => {{ for (let k = 0; k < 90; k++) explorer.set({each}); }}")
        times = sorted(page.evaluate("explorer.times.slice(-60)"))
        if times[0] < 16:
            break
    record_property("median_ms", times[30])
    print(f"| {mode} | {times[0]:.1f} | {times[30]:.1f} | {times[56]:.1f} |")
    assert times[0] < 16
