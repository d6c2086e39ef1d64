// A sample in a static copy: shows the one that the address names.
"use strict";

(async function () {
  const place = document.getElementById("bundle-sample");
  const [samples] = await holdfast.unpack();
  const keys = Object.keys(samples);
  const [first, perFile] = [Number(place.dataset.first), Number(place.dataset.perFile)];

  // Previous and next as in the list that the reader comes from. Without one they are in the order of the plan.
  function followList(key, asked) {
    const listed = (asked.get("list") || "").split(".").map(Number);
    const at = listed.indexOf(first + keys.indexOf(key));
    const [nav, up] = [place.querySelector("nav.beside"), place.querySelector("a[rel=up]")];
    if (!asked.get("list") || at < 0 || !up) return;
    up.href = up.href.replace(/#.*/, "") + "#" + asked.get("from");
    for (const old of nav.querySelectorAll("a[rel=prev], a[rel=next]")) old.remove();
    for (const [rel, text, number] of [["next", "next →", listed[at + 1]], ["prev", "← previous", listed[at - 1]]]) {
      if (number === undefined) continue;
      const made = document.createElement("a");
      const state = new URLSearchParams({ n: String(number), list: asked.get("list"), from: asked.get("from") });
      made.href = "./samples-" + String(Math.floor(number / perFile)).padStart(4, "0") + ".html#" + state;
      made.rel = rel;
      made.textContent = text;
      up.after(made);
    }
  }

  function show() {
    const asked = holdfast.asked();
    const key = asked.get("key") || keys[(Number(asked.get("n")) || 0) % perFile];
    const found = Object.prototype.hasOwnProperty.call(samples, key) ? samples[key] : null;
    if (!found) {
      const sentence = document.createElement("p");
      sentence.className = "problem";
      sentence.textContent = "This file of the copy has no sample " + key;
      place.replaceChildren(sentence);
      return;
    }
    const [title, parts, last] = found;
    const wanted = (asked.get("step") || "").replace(/#.*/, "");
    const part = parts.find(function (each) { return each.includes('id="step-' + wanted + '"'); });
    document.title = title + " · Holdfast";
    place.replaceChildren(holdfast.build(wanted === "last" ? parts[last] : part || parts[0]));
    followList(key, asked);
    const step = document.getElementById("step-" + wanted);
    if (step) step.scrollIntoView();
    else window.scrollTo(0, 0);
  }

  window.addEventListener("hashchange", show);
  show();
})();
