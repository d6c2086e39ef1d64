// The list of samples in a static copy: filters, sorts and shows pages of rows. The state is in the address, behind "#".
"use strict";

(async function () {
  const PAGE = 100;
  const BESIDE = 100;  // so many samples before and after one can be reached from it in the order of a list
  const FAILED = "scorer failed";
  const [KEY, TASK, MODEL, ID, REPEAT, STATUS, KIND, SECONDS, TOKENS, COST, SCORES, QUESTION, TARGET, ANSWER, ANOMALIES,
    CAUSES, ATTEMPTS, ROW] = Array.from({ length: 18 }).keys();
  const frame = document.getElementById("bundle-samples");
  const form = document.getElementById("bundle-filters");
  const head = document.querySelector("#bundle-rows thead tr");
  const body = document.querySelector("#bundle-rows tbody");
  const boxes = document.getElementById("bundle-columns");
  const count = document.getElementById("bundle-count");
  const pager = document.getElementById("bundle-pager");
  const scorers = JSON.parse(frame.dataset.scorers);
  const DEFAULT = frame.dataset.columns;
  const perFile = Number(frame.dataset.perFile);
  const rows = (await holdfast.unpack()).flat();
  const numbers = new Map(rows.map(function (row, number) { return [row, number]; }));
  const sorted = { status: STATUS, repeat: REPEAT, seconds: SECONDS, tokens: TOKENS, cost: COST, attempts: ATTEMPTS };

  // A value that rows are sorted and filtered by: a column, `row.NAME`, or `score:NAME`.
  function valueOf(row, name) {
    if (Object.hasOwn(sorted, name)) return row[sorted[name]];
    if (name.startsWith("row.")) return Object.hasOwn(row[ROW], name.slice(4)) ? row[ROW][name.slice(4)] : null;
    return row[SCORES][scorers.indexOf(name.replace(/^score:/, ""))];
  }

  function textOf(value) {
    return typeof value === "string" ? value : JSON.stringify(value);
  }

  // The form names scorer and value in one; links of other pages name a scorer, and what its score is.
  function hasScore(row, score, scorer) {
    if (!scorer) {
      return scorers.some(function (each) {
        const value = valueOf(row, "score:" + each);
        const text = score.slice(each.length + 1);
        if (value === null || score !== each + ":" + text) return false;
        return typeof value === "number" ? Number(text) === value : textOf(value) === text;
      });
    }
    const value = valueOf(row, "score:" + scorer);
    if (score === "none") return row[STATUS] === "finished" && value === null;
    return score === "failed" ? value === FAILED : Number(value) === (score === "right" ? 1 : 0) && value !== null;
  }

  function isWithin(row, name, least, most) {
    const value = valueOf(row, name);
    if (!row[ATTEMPTS] || value === null) return false;  // not known
    return !(least && value < Number(least)) && !(most && value > Number(most));
  }

  function matches(row, asked) {
    for (const name of ["seconds", "tokens", "cost"]) {
      const [least, most] = [asked.get(name + "_min"), asked.get(name + "_max")];
      if ((least || most) && !isWithin(row, name, least, most)) return false;
    }
    for (const [name, value] of asked) {
      if (name.startsWith("row.") && (valueOf(row, name) === null || textOf(valueOf(row, name)) !== value)) return false;
    }
    if (asked.get("wrong") && !row[SCORES].some(function (each) { return each === false || each === 0; })) return false;
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

  // Numbers, also those in texts, come before other texts.
  function rankOf(value) {
    const isNumber = typeof value === "string" && /^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$/.test(value);
    return isNumber ? Number(value) : value;
  }

  function compare(name) {
    const down = name.startsWith("-");
    const column = down ? name.slice(1) : name;
    return function (one, other) {
      const [a, b] = [rankOf(valueOf(one, column)), rankOf(valueOf(other, column))];
      if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;  // nothing is last, either way
      if (b === null || b === undefined) return -1;
      const order = typeof a === "string" && typeof b === "string" ? a.localeCompare(b)
        : typeof a === "string" ? 1 : typeof b === "string" ? -1 : a - b;
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

  function badge(name, text) {
    const made = document.createElement("span");
    made.className = "badge " + name;
    made.textContent = text || name;
    return made;
  }

  function link(row) {
    const made = document.createElement("a");
    const file = String(Math.floor(numbers.get(row) / perFile)).padStart(4, "0");
    made.href = "./samples-" + file + ".html#key=" + encodeURIComponent(row[KEY]);
    made.textContent = row[REPEAT] > 1 ? row[ID] + " (" + row[REPEAT] + ")" : row[ID];
    return made;
  }

  function marks(row) {
    const made = document.createDocumentFragment();
    for (const each of row[ANOMALIES]) {
      const tag = document.createElement("span");
      tag.className = "tag";
      tag.textContent = each;
      made.append(tag);
    }
    return made;
  }

  // Columns by name: how to show a row in each.
  const shown = {
    status: function (row) { return cell(badge(row[STATUS])); },
    task: function (row) { return cell(row[TASK], "name"); },
    model: function (row) { return cell(row[MODEL], "name"); },
    sample: function (row) { return cell(link(row), "name"); },
    repeat: function (row) { return cell(String(row[REPEAT]), "number"); },
    seconds: function (row) { return cell(row[SECONDS] ? row[SECONDS].toFixed(2) : "", "number"); },
    tokens: function (row) { return cell(row[TOKENS] ? String(row[TOKENS]) : "", "number"); },
    cost: function (row) { return cell(row[COST] === null ? "" : "$" + row[COST].toPrecision(3), "number"); },
    attempts: function (row) { return cell(row[ATTEMPTS] ? String(row[ATTEMPTS]) : "", "number"); },
    marks: function (row) { return cell(marks(row)); },
    question: function (row) { return cell(excerpt(row[QUESTION]), "text"); },
    target: function (row) { return cell(excerpt(row[TARGET]), "text short"); },
    answer: function (row) {
      return cell(excerpt(row[KIND] ? row[KIND] + ": " + row[ANSWER] : row[ANSWER]), "text");
    },
  };

  // The names of the columns that are shown; one for each scorer instead of "scores". The sample is the link.
  function columnsOf(asked) {
    const names = (asked.get("columns") || DEFAULT).split(",");
    if (!names.includes("sample")) names.unshift("sample");
    return names.flatMap(function (name) {
      if (name === "scores") return scorers.map(function (each) { return "score:" + each; });
      return Object.hasOwn(shown, name) || name.startsWith("row.") ? [name] : [];
    });
  }

  function line(row, names) {
    const made = document.createElement("tr");
    for (const name of names) {
      if (Object.hasOwn(shown, name)) made.append(shown[name](row));
      else {
        const value = valueOf(row, name);
        const text = value === null || value === undefined ? "" : textOf(value);
        if (name.startsWith("row.")) made.append(cell(excerpt(text), "text short"));
        else made.append(cell(typeof value === "boolean" ? badge(value ? "right" : "wrong", text) : text, "number"));
      }
    }
    return made;
  }

  // A column's name; a click sorts by it, the greatest first, then the other way round, then in the order of the plan.
  function title(asked, name) {
    const made = document.createElement("th");
    const text = name.replace(/^score:/, "");
    made.scope = "col";
    if (Object.hasOwn(sorted, name) && name !== "status" || name.startsWith("score:")) made.className = "number";
    if (!Object.hasOwn(sorted, name) && !/^(row\.|score:)/.test(name)) {
      made.textContent = text;
      return made;
    }
    const now = asked.get("sort") || "";
    const to = new URLSearchParams(asked);
    to.delete("page");
    if (now === name) to.delete("sort");
    else to.set("sort", now === "-" + name ? name : "-" + name);
    const link = document.createElement("a");
    link.href = "#" + to;
    link.title = "Sort";
    link.textContent = text + (now === name ? " ↑" : now === "-" + name ? " ↓" : "");
    if (now === name || now === "-" + name) made.ariaSort = now === name ? "ascending" : "descending";
    made.append(link);
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

  // What a sample needs to link to its neighbours in a list: their numbers, and the state of the list.
  function listAround(found, at, asked) {
    const near = found.slice(Math.max(0, at - BESIDE), at + BESIDE + 1);
    const list = near.map(function (row) { return numbers.get(row); });
    return "&" + new URLSearchParams({ list: list.join("."), from: String(asked) });
  }

  function show() {
    const asked = holdfast.asked();
    for (const field of form.elements) if (field.name) field.value = asked.get(field.name) || "";
    for (const [name, value] of asked) {
      if (!name.startsWith("row.") || !form.elements.column) continue;
      [form.elements.column.value, form.elements.value.value] = [name.slice(4), value];
    }
    const chosen = (asked.get("columns") || DEFAULT).split(",");
    for (const box of boxes.elements) if (box.name) box.checked = chosen.includes(box.value) || box.value === "sample";
    const names = columnsOf(asked);
    head.replaceChildren(...names.map(function (name) { return title(asked, name); }));
    let found = rows.filter(function (row) { return matches(row, asked); });
    if (asked.get("sort")) found = found.sort(compare(asked.get("sort")));
    const last = Math.max(1, Math.ceil(found.length / PAGE));
    const page = Math.min(Math.max(1, Number(asked.get("page")) || 1), last);
    const first = (page - 1) * PAGE;
    const isChosen = Array.from(asked.keys()).some(function (name) { return name !== "columns" && name !== "page"; });
    body.replaceChildren(...found.slice(first, first + PAGE).map(function (row, number) {
      const made = line(row, names);
      if (isChosen) made.querySelector("a").href += listAround(found, first + number, asked);
      return made;
    }));
    count.textContent = found.length.toLocaleString("en") + " of " + rows.length.toLocaleString("en") + " samples"
      + (last > 1 ? ", page " + page + " of " + last : "");
    pager.replaceChildren();
    if (page > 1) pager.append(pageLink(asked, page - 1, "Previous page", "prev"), " ");
    if (page < last) pager.append(pageLink(asked, page + 1, "Next page", "next"));
  }

  form.addEventListener("submit", function (event) {
    event.preventDefault();
    const to = new URLSearchParams();
    for (const field of form.elements) {
      if (field.name && field.value && field.name !== "column" && field.name !== "value") to.set(field.name, field.value);
    }
    const [column, value] = [form.elements.column, form.elements.value];
    if (column && column.value && value.value) to.set("row." + column.value.replace(/^row\./, ""), value.value);
    location.hash = String(to);
  });
  boxes.addEventListener("submit", function (event) {
    event.preventDefault();
    const to = holdfast.asked();
    const chosen = Array.from(boxes.elements).filter(function (box) { return box.checked; });
    to.set("columns", chosen.map(function (box) { return box.value; }).join(","));
    location.hash = String(to);
  });
  window.addEventListener("hashchange", function () {
    show();
    window.scrollTo(0, 0);
  });
  show();
})();
