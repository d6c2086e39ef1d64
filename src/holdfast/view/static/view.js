// Live regions, keyboard, dialogs. No markup is made from text: regions come from documents that the server rendered,
// loaded with XMLHttpRequest, which runs nothing in them. Classic script: it also works in static copies.
"use strict";

(function () {
  const root = document.body;
  const SCROLLED = ".wide, .scroll, figure, pre, .panel, .said, .asked";

  // Live pages. An event only says that something has changed; the page is loaded again, and the regions marked
  // data-live are replaced. At most one load at a time, none while the tab is hidden.
  let loading = false;
  let again = false;
  let waiting = false;
  let loadedAt = Date.now();

  function refresh() {
    loadedAt = Date.now();
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
      if (request.status === 200 && request.response) replaceRegions(request.response);
    };
    request.onloadend = function () {
      loading = false;
      if (again) setTimeout(refresh, 1000);
    };
    request.send();
  }

  // What the server last sent for each region: what people opened or a script added is no change.
  const rendered = new WeakMap();
  document.querySelectorAll("[data-live]").forEach(function (region) { rendered.set(region, region.outerHTML); });

  function replaceRegions(page) {
    for (const region of document.querySelectorAll("[data-live]")) {
      const found = page.getElementById(region.id);
      if (!found || found.outerHTML === rendered.get(region)) continue;
      if (isInUse(region)) {
        waiting = true;
        continue;
      }
      rendered.set(region, found.outerHTML);
      if (found.dataset.live === undefined) delete region.dataset.live;  // it is complete
      else region.dataset.live = found.dataset.live;
      const restore = remember(region);
      region.replaceChildren(...document.importNode(found, true).childNodes);
      restore();
    }
  }

  // Somebody types there, or has selected text to copy it: replaced later.
  function isInUse(region) {
    const selected = getSelection();
    return region.contains(document.activeElement) && isField(document.activeElement)
      || !selected.isCollapsed && selected.containsNode(region, true);
  }
  for (const name of ["focusout", "selectionchange"]) {
    document.addEventListener(name, function () {
      if (waiting) setTimeout(refresh, 500);
      waiting = false;
    });
  }

  // What people did to a region: opened parts, scrolled parts, and the focus, which must not fall back to the top of the
  // page. The same link is found by its address, anything else by its place.
  function remember(region) {
    const focusable = "a[href], button, summary, [tabindex]";
    const opened = Array.from(region.querySelectorAll("details[open][id]"), function (each) { return each.id; });
    const scrolled = Array.from(region.querySelectorAll(SCROLLED), function (each) { return [each.scrollLeft, each.scrollTop]; });
    const focused = region.contains(document.activeElement) ? document.activeElement : null;
    function alike() {
      return Array.from(region.querySelectorAll(focusable)).filter(function (each) {
        return each.tagName === focused.tagName && each.getAttribute("href") === focused.getAttribute("href");
      });
    }
    const place = focused ? alike().indexOf(focused) : -1;
    return function () {
      for (const id of opened) {
        const details = document.getElementById(id);
        if (details) details.open = true;
      }
      region.querySelectorAll(SCROLLED).forEach(function (each, number) {
        if (number < scrolled.length) [each.scrollLeft, each.scrollTop] = scrolled[number];
      });
      const same = place >= 0 ? alike()[place] : null;
      if (same) same.focus({ preventScroll: true });
    };
  }

  function isField(element) {
    return element instanceof HTMLInputElement || element instanceof HTMLSelectElement || element instanceof HTMLTextAreaElement;
  }

  // Pages without an event stream, and parts that are still being prepared, say after how many seconds to look again.
  if (root.dataset.static === undefined) {
    setInterval(function () {
      const every = Array.from(document.querySelectorAll("[data-live], [data-poll]"), function (each) {
        return Number(each.dataset.poll || each.dataset.live);
      }).filter(function (each) { return each > 0; });
      if (every.length && Date.now() - loadedAt >= 1000 * Math.min(...every)) refresh();
    }, 500);
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
  if (address) follow();
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

  // Keyboard: lines of the main table, pages, search, help. The chosen line is the one whose link has the focus.
  function choose(step) {
    const links = Array.from(document.querySelectorAll("table.rows tbody tr"), function (row) { return row.querySelector("a"); })
      .filter(Boolean);
    const before = links.findIndex(function (link) { return link.closest("tr").contains(document.activeElement); });
    const link = links[Math.min(Math.max(before + step, 0), links.length - 1)];
    if (!link) return;
    link.focus({ preventScroll: true });
    link.closest("tr").scrollIntoView({ block: "nearest" });
  }

  function open(selector) {
    const link = document.querySelector(selector);
    if (link) link.click();
  }

  function goUp() {
    const list = document.querySelector("a[rel=up]");
    if (list) return list.click();
    const above = Array.from(document.querySelectorAll(".crumbs a")).filter(function (link) {
      return link.pathname !== location.pathname;
    });
    if (above.length) above[above.length - 1].click();
  }

  const keys = {
    j: function () { choose(1); },
    k: function () { choose(-1); },
    n: function () { open("a[rel=next]"); },
    p: function () { open("a[rel=prev]"); },
    u: goUp,
    "/": function () { const field = document.querySelector("input[type=search]"); if (field) field.focus(); },
    "?": function () { const help = document.getElementById("help"); if (help) help.showModal(); },
  };
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return;
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
})();
