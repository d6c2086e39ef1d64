// The list of samples in a static copy: filters, sorts and shows pages of rows. The state is in the address, behind "#".
"use strict";

(async function () {
  const PAGE = 100;
  const FAILED = "scorer failed";
  const [KEY, TASK, MODEL, ID, REPEAT, STATUS, KIND, SECONDS, TOKENS, COST, SCORES, QUESTION, TARGET, ANSWER, ANOMALIES,
    CAUSES] = Array.from({ length: 16 }).keys();
  const frame = document.getElementById("bundle-samples");
  const form = document.getElementById("bundle-filters");
  const body = document.querySelector("#bundle-rows tbody");
  const count = document.getElementById("bundle-count");
  const pager = document.getElementById("bundle-pager");
  const scorers = JSON.parse(frame.dataset.scorers);
  const perFile = Number(frame.dataset.perFile);
  const rows = (await holdfast.unpack()).flat();
  const numbers = new Map(rows.map(function (row, number) { return [row, number]; }));
  const columns = { seconds: SECONDS, tokens: TOKENS, cost: COST };

  function valueOf(row, name) {
    return Object.hasOwn(columns, name) ? row[columns[name]] : row[SCORES][scorers.indexOf(name)];
  }

  function textOf(value) {
    return typeof value === "string" ? value : JSON.stringify(value);
  }

  // The form names scorer and value in one; links of other pages name a scorer, and what its score is.
  function hasScore(row, score, scorer) {
    if (!scorer) {
      return scorers.some(function (each) {
        const value = valueOf(row, each);
        const text = score.slice(each.length + 1);
        if (value === null || score !== each + ":" + text) return false;
        return typeof value === "number" ? Number(text) === value : textOf(value) === text;
      });
    }
    const value = valueOf(row, scorer);
    if (score === "none") return row[STATUS] === "finished" && value === null;
    return score === "failed" ? value === FAILED : Number(value) === (score === "right" ? 1 : 0) && value !== null;
  }

  function matches(row, asked) {
    for (const [name, column] of [["task", TASK], ["model", MODEL], ["status", STATUS], ["kind", KIND], ["id", ID]]) {
      if (asked.get(name) && row[column] !== asked.get(name)) return false;
    }
    for (const [name, column] of [["anomaly", ANOMALIES], ["cause", CAUSES]]) {
      if (asked.get(name) && !row[column].includes(asked.get(name))) return false;
    }
    if (asked.get("score") && !hasScore(row, asked.get("score"), asked.get("scorer"))) return false;
    const words = (asked.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
    const text = words.length ? [row[KEY], row[ID], row[QUESTION], row[TARGET], row[ANSWER]].join(" ").toLowerCase() : "";
    return words.every(function (word) { return text.includes(word); });
  }

  function compare(name) {
    const down = name.startsWith("-");
    const column = down ? name.slice(1) : name;
    return function (one, other) {
      const [a, b] = [valueOf(one, column), valueOf(other, column)];
      if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;  // nothing is last, either way
      if (b === null || b === undefined) return -1;
      const order = typeof a === "string" || typeof b === "string" ? textOf(a).localeCompare(textOf(b)) : a - b;
      return down ? -order : order;
    };
  }

  function cell(content, name) {
    const made = document.createElement("td");
    if (name) made.className = name;
    made.append(content);
    return made;
  }

  function excerpt(text) {
    const made = document.createElement("div");
    made.className = "clip";
    made.textContent = text;
    return made;
  }

  function badge(status) {
    const made = document.createElement("span");
    made.className = "badge " + status;
    made.textContent = status;
    return made;
  }

  function link(row) {
    const made = document.createElement("a");
    const file = String(Math.floor(numbers.get(row) / perFile)).padStart(4, "0");
    made.href = "./samples-" + file + ".html#key=" + encodeURIComponent(row[KEY]);
    made.textContent = row[REPEAT] > 1 ? row[ID] + " (" + row[REPEAT] + ")" : row[ID];
    return made;
  }

  function line(row) {
    const made = document.createElement("tr");
    const scores = row[SCORES].map(function (each) { return cell(each === null ? "" : textOf(each), "number"); });
    const answer = row[KIND] ? row[KIND] + ": " + row[ANSWER] : row[ANSWER];
    made.append(
      cell(badge(row[STATUS])), cell(row[TASK]), cell(row[MODEL]), cell(link(row)), ...scores,
      cell(row[SECONDS] ? row[SECONDS].toFixed(2) : "", "number"), cell(row[TOKENS] ? String(row[TOKENS]) : "", "number"),
      cell(row[COST] === null ? "" : "$" + row[COST].toPrecision(3), "number"), cell(excerpt(row[QUESTION]), "text"),
      cell(excerpt(answer), "text"),
    );
    return made;
  }

  function pageLink(asked, page, text, rel) {
    const made = document.createElement("a");
    const to = new URLSearchParams(asked);
    to.set("page", String(page));
    made.href = "#" + to;
    made.rel = rel;
    made.textContent = text;
    return made;
  }

  function show() {
    const asked = holdfast.asked();
    for (const field of form.elements) if (field.name) field.value = asked.get(field.name) || "";
    let found = rows.filter(function (row) { return matches(row, asked); });
    if (asked.get("sort")) found = found.sort(compare(asked.get("sort")));
    const last = Math.max(1, Math.ceil(found.length / PAGE));
    const page = Math.min(Math.max(1, Number(asked.get("page")) || 1), last);
    const first = (page - 1) * PAGE;
    body.replaceChildren(...found.slice(first, first + PAGE).map(line));
    count.textContent = found.length.toLocaleString("en") + " of " + rows.length.toLocaleString("en") + " samples"
      + (last > 1 ? ", page " + page + " of " + last : "");
    pager.replaceChildren();
    if (page > 1) pager.append(pageLink(asked, page - 1, "Previous page", "prev"), " ");
    if (page < last) pager.append(pageLink(asked, page + 1, "Next page", "next"));
  }

  form.addEventListener("submit", function (event) {
    event.preventDefault();
    const to = new URLSearchParams();
    for (const field of form.elements) if (field.name && field.value) to.set(field.name, field.value);
    location.hash = String(to);
  });
  window.addEventListener("hashchange", function () {
    show();
    window.scrollTo(0, 0);
  });
  show();
})();
