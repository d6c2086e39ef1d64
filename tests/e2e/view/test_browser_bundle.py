"""Static copies in a real browser, from files and from a plain web server: lists, samples, and attacks in them."""

import base64
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.commands import run, write_rows, write_spec
from tests.e2e.view.browsers import NEEDS_CHROMIUM, Browser, Watched
from tests.e2e.view.bundles import make_bundle
from tests.e2e.view.hostile import make_store

pytestmark = NEEDS_CHROMIUM
COUNT = "#bundle-count"
ROWS = "#bundle-rows tbody tr"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Not on the test's standard error."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 260 samples: two models, some wrong, some failed."""
    folder = tmp_path_factory.mktemp("static")
    (folder / "own.py").write_text(
        "async def answer(request):\n"
        "    text = str(request.messages[-1]['content'])\n"
        "    number = int(text.split()[1])\n"
        "    if number % 20 == 7:\n"
        "        raise ValueError('no such number')\n"
        "    return str(8 * number) if number % 3 else 'wrong'\n"
    )
    spec = write_spec(
        folder,
        130,
        models=[{"name": name, "provider": "own:answer"} for name in ("small", "large")],
        task={"sample_retries": 0},
    )
    assert run("run", spec, "--id", "one", cwd=folder).code == 1
    make_bundle(folder / "runs", folder / "copy")
    return folder / "copy"


BOTH = pytest.mark.parametrize("home", ["file", "http"], indirect=True)


@pytest.fixture(scope="module", params=["file", pytest.param("http", marks=pytest.mark.long)])
def home(copy: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "file":
        yield copy.as_uri()
        return
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(copy))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def wait_for_count(page: Any, text: str) -> None:
    page.wait_for_function("(text) => document.querySelector('#bundle-count')?.textContent.startsWith(text)", arg=text)


def test_every_page_of_a_copy_opens(browser: Browser, home: str, copy: Path) -> None:
    with browser.watch(home) as watched:
        for page in sorted(copy.rglob("*.html")):
            watched.open(f"/{page.relative_to(copy)}")
            assert watched.page.title().endswith(" · Holdfast")
            assert watched.page.locator("header a.home").get_attribute("href").endswith("index.html")


@BOTH
def test_one_clicks_from_the_list_of_runs_to_a_sample(browser: Browser, home: str) -> None:
    with browser.watch(home) as watched:
        page = watched.page
        watched.open("/index.html")
        page.click("table.rows a")
        assert page.locator("h1").inner_text() == "sums / one"
        page.click("nav.tabs >> text=Samples")
        wait_for_count(page, "260 of 260 samples, page 1 of 3")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector("#bundle-sample h1")
        assert "s0001" in page.locator("#bundle-sample h1").inner_text()
        assert page.title() != "Sample · Holdfast"
        page.go_back()
        wait_for_count(page, "260 of 260")


def test_samples_are_filtered_sorted_and_shown_in_pages(browser: Browser, home: str) -> None:
    with browser.watch(home) as watched:
        page = watched.page
        watched.open("/runs/sums-one/samples.html")
        wait_for_count(page, "260 of 260 samples, page 1 of 3")
        assert page.locator(ROWS).count() == 100
        page.keyboard.press("n")
        wait_for_count(page, "260 of 260 samples, page 2 of 3")
        assert "page=2" in page.url
        page.select_option("select[name=model]", "large")
        wait_for_count(page, "130 of 260 samples, page 1 of 2")
        page.select_option("select[name=status]", "failed")
        wait_for_count(page, "7 of 260")
        assert page.locator(f"{ROWS} .badge.failed").count() == 7
        assert "no such number" in page.locator(ROWS).first.inner_text()
        page.select_option("select[name=status]", "")
        page.select_option("select[name=score]", "numeric:false")
        wait_for_count(page, "41 of 260")
        page.fill("input[type=search]", "s0009")
        page.keyboard.press("Enter")
        wait_for_count(page, "1 of 260")
        address = page.url
        watched.open("/index.html")
        watched.open(address)  # the state is in the address
        wait_for_count(page, "1 of 260")
        assert page.input_value("select[name=score]") == "numeric:false"
        page.go_back()
        watched.open("/runs/sums-one/samples.html#sort=-seconds")
        wait_for_count(page, "260 of 260")
        seconds = [float(each or 0) for each in page.locator(f"{ROWS} td:nth-child(6)").all_inner_texts()]
        assert seconds == sorted(seconds, reverse=True)


def texts(page: Any, column: int) -> list[str]:
    found: list[str] = page.locator(f"{ROWS} td:nth-child({column})").all_inner_texts()
    return found


def wait_for_sample(page: Any, sample: str) -> None:
    shows = "(id) => document.querySelector('#bundle-sample h1')?.textContent.startsWith(id + ' ')"
    page.wait_for_function(shows, arg=sample)


def test_previous_and_next_follow_the_list_that_the_reader_comes_from(browser: Browser, home: str) -> None:
    with browser.watch(home) as watched:
        page = watched.page
        watched.open("/runs/sums-one/samples.html#status=failed&model=large&sort=-row.id")
        wait_for_count(page, "7 of 260")
        listed = page.locator(f"{ROWS} a").all_inner_texts()
        assert listed == sorted(listed, reverse=True)
        page.locator(f"{ROWS} a").first.click()
        files = set()
        for number, sample in enumerate(listed):
            wait_for_sample(page, sample)
            assert page.locator("a[rel=prev]").count() == (number > 0)
            files.add(page.url.partition("#")[0])
            if number + 1 < len(listed):
                page.locator("a[rel=next]").click()
        assert page.locator("a[rel=next]").count() == 0
        assert len(files) > 1
        page.locator("a[rel=prev]").click()
        wait_for_sample(page, listed[-2])
        page.locator("a[rel=up]").click()
        wait_for_count(page, "7 of 260")
        assert page.locator(f"{ROWS} a").all_inner_texts() == listed


def test_columns_are_chosen_sorted_and_filtered_as_in_the_live_list(browser: Browser, home: str) -> None:
    with browser.watch(home) as watched:
        page = watched.page
        watched.open("/runs/sums-one/samples.html")
        wait_for_count(page, "260 of 260")
        assert "target" in page.locator("#bundle-rows th").all_inner_texts()
        page.click("#columns summary")
        for name in ("status", "task", "question", "answer", "cost", "tokens"):
            page.uncheck(f"#bundle-columns input[value={name}]")
        for name in ("target", "attempts", "'row.answer'"):
            page.check(f"#bundle-columns input[value={name}]")
        page.click("#bundle-columns button")
        page.wait_for_selector("#bundle-rows th >> text=row.answer")
        heads = ["model", "sample", "numeric", "seconds", "attempts", "target", "row.answer"]
        assert page.locator("#bundle-rows th").all_inner_texts() == heads
        page.click("#bundle-rows th >> text=row.answer")
        page.wait_for_selector("#bundle-rows th[aria-sort=descending]")
        answers = [float(each) for each in texts(page, 7)]
        assert answers == sorted(answers, reverse=True)
        assert answers[0] > 1000 > answers[-1], "numbers are sorted as numbers"
        page.click("#bundle-rows th >> text=row.answer")
        page.wait_for_selector("#bundle-rows th[aria-sort=ascending]")
        page.select_option("select[name=model]", "small")
        wait_for_count(page, "130 of 260")
        assert page.locator("#bundle-rows th").all_inner_texts()[:3] == heads[:3], "filters keep columns and order"
        assert [float(each) for each in texts(page, 7)] == sorted(float(each) for each in texts(page, 7))
        page.click("#more-filters summary")
        page.fill("input[name=column]", "answer")
        page.fill("input[name=value]", "16")
        page.keyboard.press("Enter")
        wait_for_count(page, "1 of 260")
        assert texts(page, 2) == ["s0002"]
        page.click("text=Clear")
        wait_for_count(page, "260 of 260")
        watched.open("/runs/sums-one/samples.html#seconds_min=1000")
        wait_for_count(page, "0 of 260")
        watched.open("/runs/sums-one/samples.html#wrong=1&model=large")
        wait_for_count(page, "41 of 260")
        watched.open("/runs/sums-one/samples.html#sort=score:numeric&tokens_max=0")
        wait_for_count(page, "260 of 260")


def test_links_from_other_pages_choose_samples(browser: Browser, home: str) -> None:
    with browser.watch(home) as watched:
        page = watched.page
        watched.open("/runs/sums-one/index.html")
        page.click("a >> text=14 failed")
        wait_for_count(page, "14 of 260")
        page.go_back()
        page.click("#failures td a >> text=sums/small/s0007/1")
        page.wait_for_selector("#bundle-sample h1")
        assert page.url.endswith(".html#key=sums/small/s0007/1")


OWN = """
import holdfast

async def answer(request):
    number = int(str(request.messages[-1]["content"]).split()[1])
    if number % 5 == 1:
        raise ValueError("no such number")
    if number % 5 == 2:
        raise ValueError("too dark to read")
    return "" if number % 5 == 3 else str(8 * number)

@holdfast.scorer
def strict(sample, answer):
    if sample.id in ("s0004", "s0005", "s0009"):
        raise ValueError("no rule" if sample.id == "s0009" else "two rules")
    return None if sample.id == "s0010" else 0.000001
"""


def test_every_count_on_the_page_of_errors_opens_its_samples(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    task = {"sample_retries": 0, "scorers": ["token_f1", "own:strict"]}
    spec = write_spec(tmp_path, 20, model={"provider": "own:answer", "options": {}}, task=task)
    done = run("run", spec, "--id", "one", cwd=tmp_path)
    assert done.code == 1, done.err
    make_bundle(tmp_path / "runs", tmp_path / "copy")
    with browser.watch((tmp_path / "copy").as_uri()) as watched:
        page = watched.page
        watched.open("/runs/sums-one/errors.html")
        read = "found => found.map((each) => [each.href, each.textContent.split(' ')[0]])"
        links = page.eval_on_selector_all("a.count", read)
        assert len(links) >= 6, links  # two causes of samples, two of a scorer, a missing score, a mark
        for address, count in links:
            watched.open("/index.html")
            watched.open(address)
            wait_for_count(page, f"{count} of 20 samples")
        watched.open("/runs/sums-one/samples.html")
        wait_for_count(page, "20 of 20")
        read = "found => found.map((each) => [each.value, each.textContent.match(/[(](.*)[)]$/)[1]])"
        choices = page.eval_on_selector_all("select[name=score] option:not([value=''])", read)
        assert {value for value, _ in choices} >= {"token_f1:1", "strict:1e-6"}, choices
        for value, count in choices:
            page.select_option("select[name=score]", value)
            wait_for_count(page, f"{count} of 20 samples")


def test_a_sample_of_another_file_and_one_that_is_not_there(browser: Browser, home: str) -> None:
    with browser.watch(home) as watched:
        page = watched.page
        watched.open("/runs/sums-one/samples-0000.html#key=sums/small/s0002/1")
        page.wait_for_selector("#bundle-sample h1")
        page.evaluate("location.hash = 'key=sums/small/s0003/1'")
        page.wait_for_function("() => document.querySelector('#bundle-sample h1').textContent.includes('s0003')")
        page.evaluate("location.hash = 'key=constructor'")
        page.wait_for_function("() => document.querySelector('#bundle-sample').textContent.includes('has no sample')")
        assert page.locator("svg circle").count() == 0
        page.go_back()
        page.wait_for_selector("#bundle-sample h1")


@BOTH
def test_the_policy_of_a_copy_is_enforced(browser: Browser, home: str) -> None:
    with browser.watch(home) as watched:
        watched.expected = ("violation of", "Content Security Policy", "Trusted", "request to another site", ": csp")
        watched.open("/runs/sums-one/index.html")
        tried = "() => { try { document.body.innerHTML = 'x'; return ''; } catch (error) { return error.name; } }"
        assert watched.page.evaluate(tried) == "TypeError"
        load = "() => { const image = document.createElement('img'); image.src = 'http://localhost:9/'; }"
        watched.page.evaluate(load)
        refused = "fetch(location.href).then(() => 'read', (error) => error.name)"
        assert watched.page.evaluate(refused) == "TypeError"
        watched.page.wait_for_timeout(100)


def test_nothing_polls_in_a_copy(browser: Browser, home: str) -> None:
    with browser.watch(home) as watched:
        watched.page.clock.install()
        watched.open("/index.html")
        asked = len(watched.requests)
        watched.page.clock.run_for(60_000)  # the timers of a minute
        watched.page.wait_for_timeout(200)
        assert len(watched.requests) == asked


@pytest.mark.parametrize("width", [360, 1400])
def test_a_copy_fits_the_window(browser: Browser, copy: Path, width: int) -> None:
    pages = ("index.html", *(f"runs/sums-one/{name}.html" for name in ("index", "samples", "samples-0000")))
    with browser.watch(copy.as_uri(), width=width) as watched:
        for page in pages:
            watched.open(f"/{page}")
            watched.page.wait_for_timeout(300)
            assert watched.page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, page


@pytest.mark.parametrize("links_max", [6, pytest.param(20, marks=pytest.mark.long)])
def test_hostile_texts_execute_and_load_nothing(browser: Browser, tmp_path: Path, links_max: int) -> None:
    make_store(tmp_path, "http://localhost:9")
    make_bundle(tmp_path / "runs", tmp_path / "copy")
    with browser.watch((tmp_path / "copy").as_uri()) as watched:
        seen = set[str]()
        for page in sorted((tmp_path / "copy").rglob("*.html")):
            watched.open(f"/{page.relative_to(tmp_path / 'copy')}")
            watched.page.wait_for_timeout(200)
            check_text_only(watched)
            links = watched.page.eval_on_selector_all("main table a", "found => found.map((each) => each.href)")
            new = [each for each in links if each not in seen and not each.endswith("/2")]  # no second repeat
            for link in new[:links_max]:
                seen.add(link)
                watched.open(link)
                watched.page.wait_for_timeout(100)
                check_text_only(watched)


def check_text_only(watched: Watched) -> None:
    page = watched.page
    assert page.evaluate("window.pwned") is None
    assert page.locator("main :is(script, img, iframe, object, embed, style, base, video)").count() == 0
    named = "[...document.querySelectorAll('*')].flatMap((each) => each.getAttributeNames())"
    assert not [each for each in page.evaluate(named) if each.startswith("on")]


def test_the_builder_of_elements_refuses_what_the_viewer_never_writes(browser: Browser, copy: Path) -> None:
    text = (
        '<p onclick="window.pwned=1" class="x">a&lt;b&gt; &amp;amp;</p><script>window.pwned=2</script>'
        '<iframe src="https://x"></iframe><img src="https://x/y"><a href="javascript:window.pwned=3">l</a>'
        '<a href="//x">m</a><style>p{}</style><base href="https://x">'
        '<svg><line x1="1" y2="3"></line></svg></div></div><b style="color:red">end</b>'
    )
    with browser.watch(copy.as_uri()) as watched:
        watched.open("/runs/sums-one/samples-0000.html")
        watched.page.wait_for_selector("#bundle-sample h1")
        made = watched.page.evaluate(
            """(text) => {
                const place = document.createElement("div");
                place.append(holdfast.build(text));
                document.body.append(place);
                return place.outerHTML;
            }""",
            text,
        )
    assert "onclick" not in made
    assert "<script" not in made
    assert "<iframe" not in made
    assert "https:" not in made
    assert "javascript:" not in made
    assert "style=" not in made
    assert '<p class="x">a&lt;b&gt; &amp;amp;</p>' in made
    assert '<line x1="1" y2="3">' in made
    assert "<b>end</b>" in made


def test_all_characters_of_answers_arrive(browser: Browser, tmp_path: Path) -> None:
    text = "<b>&amp;</b> 'quotes\" \\ü 🙂 𐍈 \n\ttab"
    write_spec(tmp_path, 1, model={"options": {"reply": text}}, task={"scorers": ["includes"]})
    write_rows(tmp_path / "sums.jsonl", [{"id": "ä/ö?#%&", "question": text, "answer": text}])
    assert run("run", "eval.yaml", "--id", "one", cwd=tmp_path).code == 0
    make_bundle(tmp_path / "runs", tmp_path / "copy")
    with browser.watch((tmp_path / "copy").as_uri()) as watched:
        watched.open("/runs/sums-one/samples.html")
        wait_for_count(watched.page, "1 of 1")
        watched.page.click(f"{ROWS} a")
        watched.page.wait_for_selector("#bundle-sample h1")
        assert "ä" in watched.page.title()
        assert "🙂 𐍈" in watched.page.locator("#bundle-sample").inner_text()


PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")
STEPS = """
import holdfast

async def many(sample, ctx):
    for turn in range(120):
        answer = await ctx.generate([{"role": "user", "content": f"turn {turn} of {sample.input[:20]}"}])
    return answer

@holdfast.scorer
async def judged(sample, answer, ctx):
    for turn in range(60):
        await ctx.generate(f"judge turn {turn}", role="judge")
    return True
"""


@pytest.mark.long
def test_long_transcripts_texts_and_pictures_are_in_a_copy(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STEPS)
    (tmp_path / "pixel.png").write_bytes(PIXEL)
    (tmp_path / "page.html").write_text("<script>window.pwned = 'file'</script>")
    data = {"path": "sums.jsonl", "id": "id", "input": "question", "target": "answer", "files": ["seen", "read"]}
    parts = [{"type": "text", "text": "{question}"}, {"type": "image_url", "image_url": {"url": "{seen}"}}]
    write_spec(tmp_path, 1, task={"dataset": data, "prompt": "", "messages": [{"role": "user", "content": parts}]})
    spec = yaml.safe_load((tmp_path / "eval.yaml").read_text())
    del spec["tasks"][0]["prompt"]
    spec["tasks"].append({**spec["tasks"][0], "name": "long", "solver": "mine:many", "scorers": ["mine:judged"]})
    spec["roles"] = {"judge": {"provider": "mock", "model": "judge"}}
    (tmp_path / "eval.yaml").write_text(yaml.safe_dump(spec))
    long = "word " * 20_000
    row = {"id": ".", "question": long, "answer": "8", "seen": "pixel.png", "read": "page.html"}
    write_rows(tmp_path / "sums.jsonl", [row])
    done = run("run", "eval.yaml", "--id", "one", cwd=tmp_path)
    assert done.code == 0, done.err
    make_bundle(tmp_path / "runs", tmp_path / "copy")
    kept = sorted(each.suffix for each in (tmp_path / "copy" / "runs" / "sums-one" / "blobs").iterdir())
    assert kept == [".bin", ".png"]  # a page in the data is saved, never shown
    with browser.watch((tmp_path / "copy").as_uri()) as watched:
        page = watched.page
        watched.open("/runs/sums-one/samples-0000.html#key=sums/arith/./1")
        page.wait_for_selector("#bundle-sample img", state="attached")
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        page.locator("#bundle-sample img").first.scroll_into_view_if_needed()
        page.wait_for_function("() => document.querySelector('#bundle-sample img').naturalWidth === 1")
        assert long.strip() in " ".join(page.locator("#bundle-sample").inner_text().split())
        watched.open("/runs/sums-one/samples-0000.html#key=long/arith/./1")
        page.wait_for_selector("nav.windows")
        assert "Steps 1 to 50 of 120" in page.locator("nav.windows").first.inner_text()
        page.locator("nav.windows >> text=later").first.click()
        page.wait_for_function("() => document.querySelector('nav.windows').textContent.includes('Steps 51 to 100')")
        page.locator("nav.windows >> text=last").first.click()
        page.wait_for_function("() => document.querySelector('nav.windows').textContent.includes('Steps 101 to 120')")
        page.go_back()
        page.wait_for_function("() => document.querySelector('nav.windows').textContent.includes('Steps 51 to 100')")
        page.locator("#judges nav.windows >> text=later").click()
        page.wait_for_function(
            "() => document.querySelector('#judges nav.windows').textContent.includes('Steps 51 to 60')"
        )
        assert "judge turn 59" in page.locator("#judges").inner_text()
