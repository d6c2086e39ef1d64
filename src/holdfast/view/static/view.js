// Live regions, keyboard, dialogs. No markup is made from text: regions come from documents that the server rendered,
// loaded with XMLHttpRequest, which runs nothing in them. Classic script: it also works in static copies.
"use strict";

(function () {
  const root = document.body;

  // Live pages. An event only says that something has changed; the page is loaded again, and the regions marked
  // data-live are replaced. At most one load at a time, none while the tab is hidden.
  let loading = false;
  let again = false;
  let polledAt = Date.now();

  function refresh() {
    if (root.dataset.static !== undefined) return;  // a static copy does not change
    if (document.hidden || loading) {
      again = true;
      return;
    }
    loading = true;
    again = false;
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.onload = function () {
      loading = false;
      if (request.status === 200 && request.response) replaceRegions(request.response);
      if (again) setTimeout(refresh, 1000);
    };
    request.onerror = function () {
      loading = false;
    };
    request.send();
  }

  // What the server last sent for each region: what people opened or a script added is no change.
  const rendered = new WeakMap();
  document.querySelectorAll("[data-live]").forEach(function (region) { rendered.set(region, region.outerHTML); });

  function replaceRegions(page) {
    for (const region of document.querySelectorAll("[data-live]")) {
      const found = page.getElementById(region.id);
      if (!found || region.contains(document.activeElement) && isField(document.activeElement)) continue;
      if (found.outerHTML === rendered.get(region)) continue;
      rendered.set(region, found.outerHTML);
      region.dataset.live = found.dataset.live;
      const opened = new Set();
      region.querySelectorAll("details[open][id]").forEach(function (each) { opened.add(each.id); });
      const chosen = region.querySelector("tr.chosen");
      const at = chosen ? Array.prototype.indexOf.call(chosen.parentNode.children, chosen) : -1;
      region.replaceChildren(...document.importNode(found, true).childNodes);
      opened.forEach(function (id) {
        const details = document.getElementById(id);
        if (details) details.open = true;
      });
      if (at >= 0) {
        const row = region.querySelectorAll("tbody tr")[at];
        if (row) row.classList.add("chosen");
      }
    }
  }

  function isField(element) {
    return element instanceof HTMLInputElement || element instanceof HTMLSelectElement || element instanceof HTMLTextAreaElement;
  }

  // Pages without an event stream: a region says after how many seconds it is to be loaded again.
  function poll() {
    const regions = Array.from(document.querySelectorAll("[data-live]"));
    const seconds = regions.map(function (each) { return Number(each.dataset.live); }).filter(function (each) { return each > 0; });
    if (!seconds.length) return;
    setTimeout(function () {
      refresh();
      poll();
    }, Math.min.apply(null, seconds) * 1000);
  }

  // One stream per visible tab: a browser opens at most six connections to a server, and one that is open in every
  // hidden tab would leave none for the next page. The first event of a stream loads what the page has missed.
  const address = root.dataset.events;
  let stream = null;
  function follow() {
    if (stream || document.hidden) return;
    stream = new EventSource(address);
    stream.addEventListener("records", refresh);
    stream.addEventListener("reset", function () {
      leave();
      refresh();
      setTimeout(follow, 2000);
    });
  }
  function leave() {
    if (stream) stream.close();
    stream = null;
  }
  if (address) {
    follow();
  } else {
    poll();
  }
  // A page that is still being prepared says how often to look again, until it no longer does.
  setInterval(function () {
    const waiting = document.querySelector("[data-poll]");
    if (waiting && Date.now() - polledAt >= 1000 * Number(waiting.dataset.poll)) {
      polledAt = Date.now();
      refresh();
    }
  }, 500);
  document.addEventListener("visibilitychange", function () {
    if (address && document.hidden) leave();
    else if (address) follow();
    else if (!document.hidden && again) refresh();
  });

  // Filters that change the address as soon as they are chosen.
  // On the document, because live regions bring new forms.
  document.addEventListener("change", function (event) {
    if (event.target.matches("form.filters select")) event.target.form.requestSubmit();
  });
  document.addEventListener("formdata", function (event) {
    if (!event.target.matches("form.filters")) return;
    for (const [name, value] of Array.from(event.formData.entries())) if (value === "") event.formData.delete(name);
  });

  // Keyboard: lines of the main table, pages, search, help.
  function rows() {
    return Array.from(document.querySelectorAll("table.rows tbody tr"));
  }

  function choose(step) {
    const every = rows();
    if (!every.length) return;
    const before = every.findIndex(function (row) { return row.classList.contains("chosen"); });
    const now = Math.min(Math.max(before + step, 0), every.length - 1);
    if (before >= 0) every[before].classList.remove("chosen");
    every[now].classList.add("chosen");
    every[now].scrollIntoView({ block: "nearest" });
  }

  function open(selector) {
    const link = document.querySelector(selector);
    if (link) link.click();
  }

  function goUp() {
    const above = Array.from(document.querySelectorAll(".crumbs a")).filter(function (link) {
      return link.pathname !== location.pathname;
    });
    if (above.length) above[above.length - 1].click();
  }

  const keys = {
    j: function () { choose(1); },
    k: function () { choose(-1); },
    Enter: function () { open("table.rows tr.chosen a"); },
    n: function () { open("a[rel=next]"); },
    p: function () { open("a[rel=prev]"); },
    u: goUp,
    "/": function () { const field = document.querySelector("input[type=search]"); if (field) field.focus(); },
    "?": function () { const help = document.getElementById("help"); if (help) help.showModal(); },
  };
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return;
    if (event.key === "Enter" && event.target !== document.body && event.target.id !== "content") return;
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
})();
